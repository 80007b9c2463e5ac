"""Optimizers, their parameter groups, the layer of every parameter, learning-rate schedules."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.language_model import (
    NORMS,
    FusedLinear,
    LanguageModel,
    LayerStack,
    SharedLayers,
    WithBiases,
)
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import connection, is_sharded, local, shard_like
from kinfolk.training.eager_optimizers import Adafactor, AdamW, EagerOptimizer
from kinfolk.training.muon import Muon


@dataclass(frozen=True)
class _Stack:
    owner: str  # path of the module that contains the stack
    layers: tuple[str, ...]  # the path of each layer


def num_layers(model: nn.Module) -> int:
    """Return the number of layers of the deepest stack."""
    return max((len(stack.layers) for stack in _stacks(_backbone(model))), default=0)


def layer_index(model: nn.Module) -> dict[str, int]:
    """Return the layer of every parameter by its name."""
    backbone, top = _backbone(model), num_layers(model) + 1
    stacks, begun = _stacks(backbone), set[_Stack]()
    inner: dict[nn.Parameter, int] = {}
    top_modules = model.top_modules if isinstance(model, LanguageModel) else ()
    for name, parameter in backbone.named_parameters():
        if name.split(".")[0] in top_modules:
            inner[parameter] = top
            continue
        inside = [
            (stack, 1 + number)
            for stack in stacks
            for number, layer in enumerate(stack.layers)
            if _within(name, layer)
        ]
        if inside:
            stack, inner[parameter] = inside[0]
            begun.add(stack)
            continue
        siblings = {stack for stack in stacks if _within(name, stack.owner)}
        inner[parameter] = top if (begun & siblings if siblings else begun) else 0
    # The parameters of a head are in the top layer.
    return {name: inner.get(parameter, top) for name, parameter in model.named_parameters()}


def _backbone(model: nn.Module) -> nn.Module:
    return model.pretrained if isinstance(model, LanguageModel) else model


def _stacks(model: nn.Module) -> list[_Stack]:
    stacks = []
    for path, module in model.named_modules():
        owner = path.rpartition(".")[0]
        if isinstance(module, LayerStack) and len(module):
            stacks.append(_Stack(owner, tuple(f"{path}.{number}" for number in range(len(module)))))
        if isinstance(module, SharedLayers):
            stacks.append(_Stack(owner, (path,)))
    return stacks


def _within(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


def build_optimizer(
    model: nn.Module, train: TrainConfig, *, layer_lr_decay: float = 1.0
) -> torch.optim.Optimizer:
    """Build an optimizer of the trainable parameters; weight decay applies to matrices only.

    `layer_lr_decay` is the learning rate of each layer relative to the layer above it.
    """
    if layer_lr_decay == 1:
        groups = param_groups(model, train.weight_decay)
    else:
        groups = layerwise_param_groups(model, train.weight_decay, layer_lr_decay)
    groups = separate_sharded(groups)
    betas = (float(train.betas[0]), float(train.betas[1]))  # JSON may have 0
    match train.optimizer:
        case "adamw":
            return AdamW(groups, lr=train.lr, betas=betas, eps=train.eps, fused=True)
        case "adafactor":
            # Adafactor has no momentum, derives beta2 from the step, and its epsilon has another
            # meaning. Its learning rate at step n is at most 1 / sqrt(n).
            return Adafactor(groups, lr=train.lr)
        case "adamw_rms":
            return AdamWRMS(groups, lr=train.lr, betas=betas, eps=train.eps)
        case "muon":
            groups = split_matrices(groups, layer_matrices(model), train.matrix_lr / train.lr)
            return Muon(groups, lr=train.lr, betas=betas, eps=train.eps)


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Any) -> bool:
    """Load the moments of a state that was read from a file; return False where it has others.

    Rates, weight decay and other settings are those of the optimizer, not of the file.
    """
    own = optimizer.state_dict()["param_groups"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not isinstance(state, dict) or not isinstance(moments := state.get("state"), dict):
        return False
    if not moments or not all(
        type(number) is int
        and 0 <= number < len(parameters)
        and isinstance(values, dict)
        and "step" in values
        and all(_fits(name, value, parameters[number]) for name, value in values.items())
        for number, values in moments.items()
    ):
        return False
    state = {
        number: {name: shard_like(value, parameters[number]) for name, value in values.items()}
        for number, values in moments.items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": own})
    return True


def _fits(name: str, value: Any, parameter: nn.Parameter) -> bool:
    """Return whether a value is a step, or a moment of a parameter or of its rows or columns."""
    if not isinstance(value, Tensor):
        return False
    own = () if name == "step" else parameter.shape
    return len(value.shape) == len(own) and all(map(lambda n, m: n in (1, m), value.shape, own))


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters into those with and those without weight decay."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    exempt = _exempt(model)
    for parameter in model.parameters():  # tied parameters occur once
        if parameter.requires_grad:
            matrix = parameter.ndim >= 2 and parameter not in exempt
            (decayed if matrix else free).append(parameter)
    if not decayed and not free:
        raise UserError("all parameters are frozen: unfreeze at least one")
    groups = (
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]


def layer_matrices(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Return the weights of the linear layers in the layers of a model, with the rows of each.

    A weight has several numbers of rows where it is that of several linear layers.
    """
    layers = [part for part in model.modules() if isinstance(part, LayerStack | SharedLayers)]
    exempt = _exempt(model)
    linear = [part for layer in layers for part in layer.modules() if isinstance(part, nn.Linear)]
    matrices = {
        part.weight: part.sizes if isinstance(part, FusedLinear) else (part.out_features,)
        for part in linear
        if part.weight.requires_grad and part.weight not in exempt
    }
    if not matrices:
        raise UserError(
            "train.optimizer=muon updates the matrices of Transformer layers, and the trainable "
            "layers of this model have none: use train.optimizer=adamw"
        )
    return matrices


def split_matrices(
    groups: list[dict[str, Any]], matrices: Mapping[Tensor, tuple[int, ...]], scale: float
) -> list[dict[str, Any]]:
    """Give matrices groups of their own, by their rows, with this scale of the learning rate."""
    split = []
    for group in groups:
        kinds = dict.fromkeys(matrices.get(p) for p in group["params"])
        for sizes in kinds:
            own = {**group, "params": [p for p in group["params"] if matrices.get(p) == sizes]}
            if sizes is not None:
                own |= {"sizes": sizes, "scale": scale * group.get("scale", 1.0)}
            split.append(own)
    return split


def separate_sharded(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split the groups by whether processes share a parameter: no operation takes both kinds."""
    parts = [
        {**group, "params": [p for p in group["params"] if is_sharded(p) == sharded]}
        for group in groups
        for sharded in (False, True)
    ]
    return [group for group in parts if group["params"]]


def layerwise_param_groups(
    model: nn.Module, weight_decay: float, layer_lr_decay: float
) -> list[dict[str, Any]]:
    """Split the groups by layer, each with the scale of its learning rate: 1 at the top.

    Howard and Ruder 2018 (section 3.1) use 1 / 2.6 from layer to layer, ELECTRA (Clark et
    al. 2020, appendix B) 0.8 or 0.9.
    """
    numbers = layer_index(model)
    layer = {id(p): numbers[name] for name, p in model.named_parameters()}
    plain = param_groups(model, weight_decay)
    layers = sorted({layer[id(p)] for group in plain for p in group["params"]})
    groups = [
        {
            "params": [p for p in group["params"] if layer[id(p)] == number],
            "weight_decay": group["weight_decay"],
            "scale": layer_lr_decay ** (layers[-1] - number),
        }
        for number in layers
        for group in plain
    ]
    return [group for group in groups if group["params"]]


class AdamWRMS(EagerOptimizer):
    """AdamW with each tensor's step multiplied by the tensor's RMS (Nawrot 2023, nanoT5).

    The scale of T5's initial weights differs from tensor to tensor; Adafactor compensates by steps
    relative to the RMS, and AdamW with the same scaling converges faster.
    """

    min_rms = 1e-3  # Shazeer and Stern 2018, section 8: so that a tensor of zeros is updated

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(params, [self._state(p) for p in params], group)
        return loss

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            # On the CPU, so that reading it does not wait for the device.
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def _update(
        self, params: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]
    ) -> None:
        rate, (beta1, beta2) = group["lr"], group["betas"]
        rates = whole_norms(params)  # on the device, without synchronization
        torch._foreach_div_(rates, [math.sqrt(p.numel()) for p in params])
        # The rest is a function of each element: processes compute it for their own.
        grads = [local(p.grad) for p in params if p.grad is not None]
        params = [local(p) for p in params]
        means = [local(state["exp_avg"]) for state in states]
        squares = [local(state["exp_avg_sq"]) for state in states]
        for state in states:
            state["step"] += 1
        steps = [int(state["step"]) for state in states]

        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)

        torch._foreach_clamp_min_(rates, self.min_rms)
        torch._foreach_mul_(rates, [-rate / (1 - beta1**n) for n in steps])

        scales = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(scales, [math.sqrt(1 - beta2**n) for n in steps])
        torch._foreach_add_(scales, group["eps"])
        torch._foreach_div_(scales, rates)  # a rate of 0 gives an infinite scale and a step of 0

        if group["weight_decay"]:  # not scaled by the RMS: decay is already relative
            torch._foreach_mul_(params, 1 - rate * group["weight_decay"])
        torch._foreach_addcdiv_(params, means, scales)


def whole_norms(params: list[Tensor]) -> list[Tensor]:
    """Return the norm of each parameter, over all processes that hold a part of it."""
    norms = torch._foreach_norm([local(p) for p in params])
    if not is_sharded(params[0]):
        return list(norms)
    squares, sharded = torch.stack(norms) ** 2, list[Any](params)
    mesh = sharded[0].device_mesh
    for number, parameter in enumerate(sharded):
        if all(placement.is_replicate() for placement in parameter.placements):
            squares[number] /= mesh.size()  # each process has all of it
    with connection():
        dist.all_reduce(squares, group=mesh.get_group())
    return list(squares.sqrt().unbind())


def _exempt(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters exempt from decay: norms and biases of two or more axes."""
    exempt: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, NORMS):
            exempt.update(module.parameters(recurse=False))
        if isinstance(module, WithBiases):
            exempt.update(module.bias_parameters())
    return exempt


def with_steps(train: TrainConfig, steps: int) -> TrainConfig:
    """Return the settings of a schedule for another number of steps than was planned.

    A warm-up keeps its share of the steps, but never becomes longer.
    """
    warmup = train.warmup
    if steps < train.steps and warmup:
        warmup = max(1, round(warmup * steps / train.steps))
    return replace(train, steps=steps, warmup=warmup)


STLR_RATIO = 1 / 32  # Howard and Ruder 2018, section 3.2: ratio of the lowest rate to the peak


def lr_schedule(train: TrainConfig) -> Callable[[int], float]:
    """Return the factor on the peak rate as a function of the step; step 0 is the first update.

    linear        warm-up, then linear decay to min_lr_ratio
    cosine        warm-up, then half a cosine to min_lr_ratio
    inverse_root  warm-up, then 1 / sqrt(step), at least min_lr_ratio (Vaswani et al. 2017)
    constant      warm-up, then constant
    trapezoid     warm-up, constant, then linear decay to min_lr_ratio in the last decay_ratio
                  of the steps
    slanted       warm-up (default: 10% of the steps), then linear decay; from and to 1 / 32
                  instead of min_lr_ratio (Howard and Ruder 2018, section 3.2)
    """
    name, steps, warmup = train.schedule, train.steps, train.warmup
    min_lr_ratio = train.min_lr_ratio
    if warmup > steps:
        raise UserError(
            f"train.warmup={warmup} exceeds train.steps={steps}: lower the warm-up or train longer"
        )
    if name == "slanted":
        warmup, min_lr_ratio = warmup or max(1, steps // 10), STLR_RATIO
    last = steps - 1
    top = max(warmup - 1, 0)  # the first step at the peak rate

    def decay(step: int, start: float) -> float:
        """Return 1 until `start`, then a linear decay to exactly 0 at the last step."""
        if step <= start:
            return 1.0
        return 1.0 - (step - start) / (last - start) if step < last else 0.0

    def scaled(fraction: float) -> float:
        """Return min_lr_ratio for 0 and 1 for 1."""
        return min_lr_ratio + (1 - min_lr_ratio) * fraction

    def factor(step: int) -> float:
        if step < top:
            ramp = (step + 1) / warmup
            return scaled(ramp) if name == "slanted" else ramp
        match name:
            case "linear" | "slanted":
                return scaled(decay(step, top))
            case "cosine":
                # Exact at the end: cos(pi) is -1.
                return scaled((1 + math.cos(math.pi * (1 - decay(step, top)))) / 2)
            case "inverse_root":
                return max(min_lr_ratio, math.sqrt((top + 1) / (step + 1)))
            case "trapezoid":
                return scaled(decay(step, max(top, last - train.decay_ratio * steps)))
            case "constant":
                return 1.0

    return factor
