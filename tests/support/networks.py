"""Networks without content: any size is built at once, to be counted."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def hollow() -> Iterator[None]:
    """Build on the meta device and draw nothing: torch is slow to fill what is not there."""
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        for draw in ("normal_", "uniform_"):
            patch.setattr(torch.Tensor, draw, lambda tensor, *_, **__: tensor)
        yield
