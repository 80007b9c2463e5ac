"""The part of a model that one of several processes holds, and the whole model in a checkpoint."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import (
    LostProcessError,
    Processes,
    connection,
    local,
    shard_like,
)
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.pipeline_stages import check_depth, cut_depth
from kinfolk.training.tensor_parallel import (
    check_width,
    is_divided,
    shard_width,
    whole_tensor,
)


def check_shards(model: LanguageModel, train: TrainConfig, *, layer_lr_decay: float) -> None:
    """Refuse a network that the processes of the settings cannot hold together."""
    if train.tensor > 1:
        check_width(model, train)
    if train.pipeline > 1:
        check_depth(model, train.pipeline)
    if train.pipeline > 1 and layer_lr_decay != 1:
        raise UserError(
            f"layer_lr_decay={layer_lr_decay:g} needs all layers in one process: leave "
            "train.pipeline at 1"
        )


class ModelShard:
    """What this process keeps of a model: a part of every layer, or some of the layers.

    Checkpoints have the whole model and the moments of all parameters, numbered as one process
    numbers them.
    """

    def __init__(
        self,
        model: LanguageModel,
        processes: Processes,
        train: TrainConfig,
        *,
        layer_lr_decay: float = 1.0,
    ) -> None:
        self.model, self.processes = model, processes
        whole = build_optimizer(model, train, layer_lr_decay=layer_lr_decay)
        names = {parameter: name for name, parameter in model.named_parameters()}
        parameters = [p for group in whole.param_groups for p in group["params"]]
        self.numbers = {names[parameter]: number for number, parameter in enumerate(parameters)}
        self.groups = whole.state_dict()["param_groups"]
        self.tied: Tensor | None = None  # a parameter of the first and the last stage
        if processes.pipeline > 1:
            cut_depth(model, processes.stage, processes.pipeline)
            # The first and the last stage of each pipeline.
            ends = processes.mesh.mesh[[0, -1]].flatten(1).T.tolist()
            groups: Any = dist.new_subgroups_by_enumeration
            self.ends, _ = groups(ends)
            if isinstance(model.token_embeddings, nn.Embedding) and not model.input_only:
                self.tied = model.token_embeddings.weight
        if processes.tensor > 1:
            shard_width(model, processes.mesh["tensor"])

    def broadcast_tied(self) -> None:
        """Give the last stage the embeddings of the first."""
        if self.tied is not None:
            with connection(), torch.no_grad():
                dist.broadcast(self.tied, group=self.ends, group_src=0)

    def sum_tied_gradients(self) -> None:
        """Add up what the first and the last stage have computed for the embeddings they share."""
        if self.tied is not None:
            assert self.tied.grad is not None
            self.processes.all_reduce(self.tied.grad, group=self.ends)

    def gather_weights(self) -> dict[str, Tensor]:
        """Return the weights of the whole model, in process 0."""
        return self._gather(self._weights())

    def load_weights(self, whole: Mapping[str, Tensor]) -> None:
        """Load this process's part of the weights of the whole model."""
        own = {name: shard_like(whole[name], tensor) for name, tensor in self._weights().items()}
        self.model.load_state_dict(own)

    def gather_moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer of the whole model, in process 0."""
        moments = {
            f"{number}/{key}": value
            for number, parameter in self._numbered()
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in self._gather(moments).items():
            number, _, key = name.partition("/")
            state.setdefault(int(number), {})[key] = value
        lr = optimizer.param_groups[0]["lr"] / optimizer.param_groups[0].get("scale", 1.0)
        groups = [{**group, "lr": lr * group.get("scale", 1.0)} for group in self.groups]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def own_moments(self, optimizer: torch.optim.Optimizer, state: Any) -> Any:
        """Return the part of a state of the whole model that this process's optimizer loads."""
        if not isinstance(state, dict) or not isinstance(moments := state.get("state"), dict):
            return state
        numbers = {parameter: number for number, parameter in self._numbered()}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return {
            "state": {
                number: moments[numbers[p]]
                for number, p in enumerate(parameters)
                if isinstance(moments.get(numbers[p]), dict)
            }
        }

    def clip_gradients(self, clip: float) -> Tensor:
        """Limit the norm of the gradient of the whole model; return what it was before.

        Every element counts once, also of those parameters that several processes have whole.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        divided = [local(gradient) for gradient in gradients if is_divided(gradient)]
        square = get_total_norm(divided).to(gradients[0].device) ** 2
        self.processes.all_reduce(square, group=self.processes.group("tensor"))
        elsewhere = self.tied if self.processes.stage else None  # counted in the first stage
        whole = [
            local(p.grad)
            for p in self.model.parameters()
            if p.grad is not None and not is_divided(p.grad) and p is not elsewhere
        ]
        square += get_total_norm(whole) ** 2
        self.processes.all_reduce(square, group=self.processes.group("pipeline"))
        norm = square.sqrt()
        factor = torch.clamp(clip / (norm + 1e-6), max=1.0)  # as in clip_grad_norm_
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor)
        return norm

    def check_step(self, step: int) -> None:
        """Refuse to save where a lost process has left the parts of the model at two steps."""
        steps = torch.tensor([step, -step])
        for axis in ("tensor", "pipeline"):
            self.processes.all_reduce(steps, dist.ReduceOp.MAX, self.processes.group(axis))
        if steps[0] != step or steps[1] != -step:
            raise LostProcessError(f"the parts of the model are not all at step {step}")

    def _weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def _numbered(self) -> list[tuple[int, nn.Parameter]]:
        """Return the trainable parameters of this process with their numbers in the whole model."""
        named = self.model.named_parameters()
        return [(self.numbers[name], p) for name, p in named if name in self.numbers]

    def _gather(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of all parts of the model, in process 0, on the CPU."""
        if self.processes.data_rank:  # another copy of the model is saved
            return {}
        group = self.processes.group("pipeline")
        with connection():
            found = {name: whole_tensor(tensor) for name, tensor in own.items()}
            if self.processes.tensor_rank:
                return {}
            if self.processes.stage:
                described: list[Any] = [
                    (n, tensor.shape, tensor.dtype) for n, tensor in found.items()
                ]
                dist.send_object_list([described], group=group, group_dst=0)
                for tensor in found.values():
                    dist.send(tensor.contiguous(), group=group, group_dst=0)
                return {}
            for stage in range(1, self.processes.pipeline):
                described = [None]
                dist.recv_object_list(described, group=group, group_src=stage)
                for name, shape, dtype in described[0]:
                    tensor = torch.empty(shape, dtype=dtype)
                    dist.recv(tensor, group=group, group_src=stage)
                    found.setdefault(name, tensor)
            return found
