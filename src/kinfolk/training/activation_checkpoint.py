"""Activation checkpointing: layers keep their inputs alone and run again in the backward pass.

Chen et al. 2016. The memory of a step grows by one hidden state a layer instead of all of its
intermediate results, for about a third more computation. Losses and gradients are the same:
dropout draws the same random numbers again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kinfolk.errors import UserError
from kinfolk.nn.language_model import executed_layers, has_static_shapes


def check_recomputed(model: nn.Module) -> None:
    """Refuse networks whose layers cannot run again."""
    if not executed_layers(model) or not has_static_shapes(model):
        raise UserError(
            "train.checkpoint_activations=yes: the layers of recurrent networks are not run again, "
            "since they would read every text twice; leave it off"
        )


def checkpoint_activations(model: nn.Module) -> None:
    """Let every layer of the stacks in a model run again in the backward pass."""
    check_recomputed(model)
    for layer in executed_layers(model):
        if "forward" not in vars(layer):
            vars(layer)["forward"] = partial(run_again, layer, layer.forward)


def run_again(
    layer: nn.Module, forward: Callable[..., Any], *arguments: Any, **settings: Any
) -> Any:
    """Run the forward pass of a layer, in training without keeping its intermediate results."""
    if not (layer.training and torch.is_grad_enabled()):
        return forward(*arguments, **settings)
    return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=True, **settings)
