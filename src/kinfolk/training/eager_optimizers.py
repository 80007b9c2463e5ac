"""Optimizers of torch whose methods do not import its compiler.

torch imports `torch._dynamo` when an optimizer is made and at its first step, to leave these
methods out of compiled code. That takes as long as importing torch. A run compiles its model and no
optimizer, so the methods here are those of torch without that.
"""

import inspect
from typing import Any

import torch


def _eager(method: Any) -> Any:
    """Return a method without what torch has wrapped around it."""
    return inspect.unwrap(method)


class EagerOptimizer(torch.optim.Optimizer):
    """Base of optimizers that are not compiled."""

    add_param_group = _eager(torch.optim.Optimizer.add_param_group)
    state_dict = _eager(torch.optim.Optimizer.state_dict)
    load_state_dict = _eager(torch.optim.Optimizer.load_state_dict)
    zero_grad = _eager(torch.optim.Optimizer.zero_grad)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """torch's AdamW, whose step is not differentiable."""

    step = torch.no_grad()(_eager(torch.optim.AdamW.step))


class Adafactor(EagerOptimizer, torch.optim.Adafactor):
    """torch's Adafactor."""
