"""Sharded training (FSDP): each process holds a share of weights, gradients and optimizer states.

torch's `fully_shard` gathers the weights of a layer right before it runs, forward and backward, and
leaves the sum of its gradients over all processes as shares. Every layer of a stack is a unit; the
learner with the rest, the embeddings among them, is the root, because a loss reads the embeddings
outside of the network's forward pass.
"""

import copy
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore  # torch.distributed has it without its type
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from kinfolk.errors import UserError
from kinfolk.nn.language_model import StagedLayer, has_static_shapes, stacked_layers
from kinfolk.training.distributed import Processes, local, model_connection

# Whole tensors, one at a time, in the host memory of process 0.
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def check_sharded(learner: nn.Module) -> None:
    """Refuse networks whose parameters cannot be divided."""
    if not has_static_shapes(learner):
        raise UserError(
            "train.parallel=fsdp: recurrent layers keep their weights outside of their "
            "parameters, which cannot be divided; use train.parallel=ddp"
        )


class Shards:
    """A learner whose parameters are divided among the processes; it is sharded in place."""

    def __init__(
        self,
        learner: nn.Module,
        device: torch.device,
        processes: Processes,
        *,
        compiled: bool = False,
        dynamic: bool = False,  # shapes differ from batch to batch, where layers are compiled
    ) -> None:
        check_sharded(learner)
        # A loss may be a view of a tensor; nothing is changed in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        if compiled:
            warnings.filterwarnings("ignore", message="The .grad attribute")  # the tracer reads it
        self.learner, self.processes = learner, processes
        empty = {id(p): empty_parameter(p) for p in learner.parameters()}
        self.whole: Any = copy.deepcopy(learner, empty)  # with weights while they are gathered
        self._empty = dict(self.whole.named_parameters())
        processes.broadcast_weights(learner)
        self._connected = connect_alone(device, processes)
        mesh = init_device_mesh(device.type, (processes.count,))
        for layer in stacked_layers(learner):
            if compiled:  # inside of the hooks, which exchange weights
                vars(layer)["forward"] = torch.compile(layer.forward, dynamic=dynamic)
            fully_shard(layer, mesh=mesh)
            for stage in layer.stages if isinstance(layer, StagedLayer) else ():
                register_fsdp_forward_method(layer, stage)
        self.root = fully_shard(learner, mesh=mesh)
        for part in learner.modules():
            if isinstance(part, FSDPModule):  # counts are summed: gradients are sums, not means
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)

    @contextmanager
    def gathered(self, device: torch.device | str = "cpu") -> Iterator[Any]:
        """Yield the learner with all weights in process 0, without any in the other processes.

        All processes must enter the block.
        """
        with model_connection():
            weights: Any = get_model_state_dict(self.learner, options=WHOLE)
        if self.processes.is_first:
            self.whole.load_state_dict(weights, assign=True)
            self.whole.to(device)
        try:
            yield self.whole
        finally:
            self.whole.load_state_dict(self._empty, strict=False, assign=True)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of all processes as one would have it, in process 0."""
        names = {parameter: name for name, parameter in self.learner.named_parameters()}
        with model_connection():
            state: Any = get_optimizer_state_dict(self.learner, optimizer, options=WHOLE)
        if not self.processes.is_first:
            return {}
        parameters = [names[p] for group in optimizer.param_groups for p in group["params"]]
        moments = {
            number: state["state"][name]
            for number, name in enumerate(parameters)
            if name in state["state"]
        }
        return {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]}

    @contextmanager
    def forward_only(self) -> Iterator[None]:
        """Divide the parameters of the root again after forward passes without a backward pass."""
        with model_connection():
            yield
        self.root.reshard()

    def clip_gradients(self, parameters: Sequence[nn.Parameter], clip: float) -> Tensor:
        """Clip the gradients by the norm of the whole gradient; return it as before."""
        return clip_gradients(parameters, clip, self.processes)

    def close(self) -> None:
        """Close the process group of a single process."""
        if self._connected:
            dist.destroy_process_group()
            self._connected = False


def connect_alone(device: torch.device, processes: Processes) -> bool:
    """Make the process group of a single process, which has none; return whether it was made."""
    if processes.several or dist.is_initialized():
        return False
    backend = "gloo"
    if device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device.index or 0)
        torch.empty(0, device=device)  # initializes CUDA, so that a device mesh takes this device
    hook = sys.excepthook
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    sys.excepthook = hook  # torch's puts the rank before every line
    return True


def empty_parameter(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter of the same shape without memory."""
    return nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], clip: float, processes: Processes) -> Tensor:
    """Compute what `clip_grad_norm_` does for shares of gradients, with one sum over processes."""
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if processes.several:
        square = norm.square()
        processes.all_reduce(square)
        norm = square.sqrt()
    torch._foreach_mul_(gradients, (clip / (norm + 1e-6)).clamp(max=1.0))
    return norm
