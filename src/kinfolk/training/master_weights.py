"""Weights in bfloat16 with float32 master weights in the optimizer (Micikevicius et al. 2017).

Autocast converts every float32 weight to bfloat16 in every step. Here the parameters of the model
are bfloat16 while it is trained, gradients too, and the optimizer updates float32 copies of them,
the master weights, from which the parameters are rounded after each update. Checkpoints have the
master weights, so that a run resumes to the bit. Layer norms keep float32 parameters, and
operations that autocast runs in float32 (norms, softmax, losses) still do; what a layer norm
returns has the type of what it reads, so that activations stay in bfloat16 from layer to layer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MasterWeights:
    """The float32 weights of a model whose parameters are bfloat16 from now on."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
        exact = {parameter for norm in norms for parameter in norm.parameters()}
        self.weights: list[Tensor] = [p for p in model.parameters() if p not in exact]
        self.masters = [p.detach().clone().requires_grad_(p.requires_grad) for p in self.weights]
        self._master_of = dict(zip(self.weights, self.masters, strict=True))
        for group in optimizer.param_groups:
            group["params"] = self.masters_of(group["params"])
        for weight in self.weights:
            weight.data = weight.data.to(torch.bfloat16)
        self._hooks = [norm.register_forward_hook(_like_input) for norm in norms]

    def masters_of(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return what the optimizer updates for these parameters: a master, or itself in a norm."""
        return [self._master_of.get(parameter, parameter) for parameter in parameters]

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Move the gradients of the parameters to the master weights, where they add up."""
        new: list[Tensor] = []
        first: list[Tensor] = []
        totals: list[Tensor] = []
        added: list[Tensor] = []
        for weight, master in zip(self.weights, self.masters, strict=True):
            if weight.grad is None:
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
                new.append(master.grad)
                first.append(weight.grad)
            else:
                totals.append(master.grad)
                added.append(weight.grad)
            weight.grad = None
        if new:
            torch._foreach_copy_(new, first)
        if totals:
            torch._foreach_add_(totals, added)

    @torch.no_grad()
    def round(self) -> None:
        """Set the parameters to the master weights, in bfloat16."""
        torch._foreach_copy_(self.weights, self.masters)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Let the parameters be the master weights in the block, which may change them."""
        rounded = [weight.data for weight in self.weights]
        self._fill()
        try:
            yield
        finally:
            for weight, values in zip(self.weights, rounded, strict=True):
                weight.data = values
            self.round()

    def restore(self) -> None:
        """Make the model float32 again, with the master weights, for good."""
        self._fill()
        for hook in self._hooks:
            hook.remove()

    def _fill(self) -> None:
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.data = master.data


def _like_input(norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.to(inputs[0].dtype)
