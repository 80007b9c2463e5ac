"""Tensor parallel: processes hold the heads and the hidden units of every layer together.

Shoeybi et al. 2019 (Megatron-LM, section 3). The first matrix of a sublayer is divided by its
outputs and the last one by its inputs, so that a sublayer needs one sum over the processes in the
forward pass and one in the backward pass. Norms and embeddings are whole in every process, which
computes them from the same values. The modules of `nn/` declare how they are divided.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel, Split, TensorParallel
from kinfolk.training.config import TrainConfig


class FusedColwiseParallel(ColwiseParallel):
    """Divide a linear layer of several blocks of outputs, such as query, key and value, by blocks.

    A process holds its heads of each block, in the order of the blocks.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks

    def _partition(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        placement = _StridedShard(0, split_factor=self.blocks)
        for name, parameter in module.named_parameters():
            shard = distribute_tensor(parameter, mesh, [placement])
            module.register_parameter(name, nn.Parameter(shard, parameter.requires_grad))

    @staticmethod
    def _local_output(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        return output.to_local()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        replicated = (Replicate(),)
        prepare = partial(self._prepare_input_fn, replicated, replicated)
        return distribute_module(module, device_mesh, self._partition, prepare, self._local_output)


def parallel_style(split: Split) -> ParallelStyle:
    """Return how torch divides a linear layer or an embedding."""
    match split:
        case "columns":
            return ColwiseParallel()
        case "rows":
            return RowwiseParallel()
        case "kv":
            return FusedColwiseParallel(2)
        case "qkv":
            return FusedColwiseParallel(3)


def check_width(model: LanguageModel, train: TrainConfig) -> None:
    """Refuse a network, or an optimizer, that cannot be divided among this many processes."""
    count = train.tensor
    if train.optimizer in ("adafactor", "muon"):
        raise UserError(
            f"train.tensor={count} does not apply to train.optimizer={train.optimizer}, which "
            "reads whole matrices: use adamw_rms or adamw, or leave train.tensor at 1"
        )
    modules = [part for part in model.modules() if isinstance(part, TensorParallel)]
    reason = model.undivided
    if not modules:
        reason = "it has no attention heads that processes could share"
    if reason is not None:
        raise UserError(
            f"train.tensor={count} does not apply to {model.family_name}, because {reason}: leave "
            "train.tensor at 1"
        )
    for what, size in (part.divided_size() for part in modules):
        if size % count:
            raise UserError(
                f"train.tensor={count} does not divide the {size} {what} of {model.family_name}: "
                "choose a divisor"
            )


def shard_width(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave each process its part of the width of every layer."""
    modules = [part for part in model.modules() if isinstance(part, TensorParallel)]
    for module in modules:
        plan = {name: parallel_style(split) for name, split in module.tensor_plan.items()}
        parallelize_module(module, mesh, plan)


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor whole, on the CPU; all processes that hold a part of it take part."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def is_divided(tensor: Tensor) -> bool:
    """Return whether this process holds a part of a tensor only."""
    return isinstance(tensor, DTensor) and not all(p.is_replicate() for p in tensor.placements)
