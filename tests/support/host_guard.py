"""Operations that wait for an accelerator, refused on a machine without one."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim"),
    *("unique_consecutive", "equal", "is_nonzero", "bincount", "repeat_interleave"),
}


class HostGuard(TorchDispatchMode):
    """Refuse operations that would wait for an accelerator, if the tensors were there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        assert name not in WAITS, f"{func} waits for the device"
        assert name != "_to_copy" or kwargs.get("device") is None, f"{func} copies"
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), f"{func} by a mask"
        return func(*args, **kwargs)
