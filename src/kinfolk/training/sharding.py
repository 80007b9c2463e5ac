"""Sharded training (FSDP): each process holds a share of weights, gradients and optimizer states.

torch's `fully_shard` gathers the weights of a layer right before it runs, forward and backward, and
leaves the sum of its gradients over all processes as shares. Every layer of a stack is a unit; the
learner with the rest, the embeddings among them, is the root, because a loss reads the embeddings
outside of the network's forward pass.
"""

import copy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from kinfolk.errors import UserError
from kinfolk.nn.language_model import StagedLayer, has_static_shapes, stacked_layers
from kinfolk.training.distributed import LostProcessError, Processes, connection

# Whole tensors, one at a time, in the host memory of process 0.
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


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
        if not has_static_shapes(learner):
            raise UserError(
                "train.parallel=fsdp: recurrent layers keep their weights outside of their "
                "parameters, which cannot be divided; use train.parallel=ddp"
            )
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
        with connection():
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
        with connection():
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
        with sharded_connection():
            yield
        self.root.reshard()

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


@contextmanager
def sharded_connection() -> Iterator[None]:
    """Raise LostProcessError where the exchange of weights or gradients fails in a computation."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise LostProcessError(f"another process of this run ended ({error})") from error
        raise


def empty_parameter(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter of the same shape without memory."""
    return nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)


def local_part(tensor: Tensor) -> Tensor:
    """Return the share of this process in a sharded tensor, any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the norm of each tensor, of sharded ones over all processes, without waiting."""
    norms = list(torch._foreach_norm([local_part(tensor) for tensor in tensors]))
    meshes = {tensor.device_mesh for tensor in tensors if isinstance(tensor, DTensor)}
    for mesh in meshes:  # one: all parameters are sharded in the same way
        if mesh.size() > 1:
            squares = torch.stack(norms).square()
            with connection():
                dist.all_reduce(squares, group=mesh.get_group())
            norms = [*squares.sqrt().unbind()]
    return norms


def sharded_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Divide a moment, which every process has whole, as its parameter is."""
    if not isinstance(parameter, DTensor):
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def load_whole_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights that every process has whole into a model, sharded or not."""
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(model, dict(weights), options=options)
    else:
        model.load_state_dict(weights)


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], clip: float, processes: Processes) -> Tensor:
    """Clip sharded gradients by the norm of the whole gradient; return it as before.

    It is the computation of `clip_grad_norm_`, with one sum over the processes.
    """
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if processes.several:
        square = norm.square()
        processes.all_reduce(square)
        norm = square.sqrt()
    torch._foreach_mul_(gradients, (clip / (norm + 1e-6)).clamp(max=1.0))
    return norm
