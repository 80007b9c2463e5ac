"""NoisyTune (Wu et al. 2022): shake a pretrained network a little before it is fine-tuned.

Pretraining leaves weights that fit its own task closely. Uniform noise, for each matrix as wide as
its weights are spread, loosens the fit, and the network learns the new task better.
"""

from collections.abc import Collection

import torch
from torch import nn

from kinfolk.rng import derive_seed


@torch.no_grad()
def noisy_tune(
    model: nn.Module,
    intensity: float = 0.15,  # the paper's on GLUE
    *,
    seed: int,
    fresh: Collection[nn.Parameter] = frozenset(),
) -> None:
    """Add U(-intensity / 2, intensity / 2) times its standard deviation to every matrix.

    Parameters that are `fresh` (a new head's) have nothing to be loosened, and are left alone.
    """
    for number, weight in enumerate(model.parameters()):  # tied ones come once
        if weight.ndim < 2 or weight in fresh:
            continue
        # On the CPU, and by the parameter's own number: noise is the same on every device.
        generator = torch.Generator().manual_seed(derive_seed(seed, number))
        noise = torch.rand(weight.shape, generator=generator).to(weight) - 0.5
        # What is exactly zero is no weight: tables have such rows past their vocabulary.
        used = weight != 0
        if used.sum() > 1:
            weight.add_(torch.where(used, noise * (intensity * weight[used].std()), 0.0))
