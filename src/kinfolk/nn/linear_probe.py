"""Linear probes: multinomial logistic or ridge regression over frozen hidden states.

    hidden states -> standardized on the training rows -> (mix of layers) -> linear -> scores

The loss is a mean over the training items plus an L2 penalty on the weights; it is minimized by
L-BFGS. The penalty is the one with the lowest loss on dev items.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX

PENALTIES = (1.0, 0.1, 0.01, 0.001, 1e-4)  # each fit starts at the last
# L2 penalty on the logits of a mix: without one, the best layer would take all of the weight.
MIX_PENALTY = 0.01
MAX_PROBE_ITERATIONS = 200
# Numbers that a step reads, below which one CPU thread computes: on two busy cores two threads wait
# for each other, and took 5 to 30 times as long for 5,000 items of 64 or 256 features.
MIN_THREADED = 2**24
LBFGS_HISTORY = 10  # steps that L-BFGS approximates the Hessian from
GRADIENT_TOLERANCE = 1e-4  # largest entry of the gradient at the end, or
LOSS_TOLERANCE = 1e-5  # change of the loss in the last step
STD_FLOOR = 1e-6  # of a feature that is constant


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Mean and standard deviation of the features of each layer; smaller layers end in zeros."""

    mean: Tensor  # (layers, size)
    scale: Tensor  # (layers, size): 0 where a feature is constant

    @classmethod
    def fit(cls, layers: Sequence[Tensor]) -> "Standardizer":
        """Measure the training items."""
        stacked = pad_and_stack(layers)
        std = stacked.std(1, correction=0)
        scale = torch.where(std > STD_FLOOR, 1 / std.clamp(min=STD_FLOOR), 0.0)
        return cls(stacked.mean(1), scale)

    def __call__(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the standardized features: (layers, items, size)."""
        return (pad_and_stack(layers) - self.mean[:, None]) * self.scale[:, None]


def pad_and_stack(layers: Sequence[Tensor]) -> Tensor:
    """Stack layers, with zeros after the features of smaller ones: (layers, items, size)."""
    size = max(layer.shape[1] for layer in layers)
    return torch.stack([F.pad(layer.float(), (0, size - layer.shape[1])) for layer in layers])


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A linear layer over the weighted sum of standardized layers."""

    standardizer: Standardizer
    mix: Tensor  # (layers,): logits of the weights of the layers
    weight: Tensor  # (size, outputs)
    bias: Tensor  # (outputs,)
    penalty: float
    regression: bool

    @property
    def mix_weights(self) -> list[float]:
        """The weight of each layer in the sum."""
        weights: list[float] = self.mix.softmax(0).tolist()
        return weights

    def __call__(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the scores of items: (items, outputs)."""
        return self.scores(self.standardizer(layers))

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of standardized features: (layers, items, size) to (items, outputs)."""
        mixed = features[0] if len(features) == 1 else mix_layers(features, self.mix)
        return mixed @ self.weight + self.bias

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of standardized features, without the penalty."""
        scores = self.scores(features)
        if self.regression:
            return F.mse_loss(scores[:, 0], targets) / 2
        return F.cross_entropy(scores, targets, ignore_index=IGNORE_INDEX)


def mix_layers(features: Tensor, mix: Tensor) -> Tensor:
    """Return the sum of layers, weighted by a softmax: (layers, items, size) to (items, size)."""
    return torch.tensordot(mix.softmax(0), features, 1)


def fit_probe(
    layers: Sequence[Tensor],  # (items, size) each
    targets: Tensor,  # (items,): classes or numbers
    dev_layers: Sequence[Tensor],
    dev_targets: Tensor,
    *,
    outputs: int,
    penalties: Sequence[float] = PENALTIES,
) -> LinearProbe:
    """Fit probes from the strongest penalty to weaker ones; return the best on dev items.

    Several layers are mixed by weights that are fitted with the probe.
    """
    standardizer = Standardizer.fit(layers)
    features, dev_features = standardizer(layers), standardizer(dev_layers)
    with threads_for(features.numel()):
        return fit_standardized(
            standardizer,
            *(features, targets, dev_features, dev_targets),
            outputs=outputs,
            penalties=penalties,
        )


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Compute with one CPU thread in the block where a step reads few numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if numbers < MIN_THREADED else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fit_standardized(
    standardizer: Standardizer,
    features: Tensor,  # (layers, items, size)
    targets: Tensor,
    dev_features: Tensor,
    dev_targets: Tensor,
    *,
    outputs: int,
    penalties: Sequence[float],
) -> LinearProbe:
    """Fit probes on standardized features; return the best on dev items."""
    probe = LinearProbe(
        standardizer,
        mix=features.new_zeros(len(features)),
        weight=features.new_zeros(features.shape[-1], outputs),
        bias=features.new_zeros(outputs),
        penalty=penalties[0],
        regression=targets.is_floating_point(),
    )
    best, lowest = probe, float("inf")
    for penalty in penalties:
        probe = minimize(probe, features, targets, penalty)
        loss = float(probe.loss(dev_features, dev_targets))
        if loss > lowest:  # weaker penalties overfit more
            break
        best, lowest = probe, loss
    return best


def minimize(start: LinearProbe, features: Tensor, targets: Tensor, penalty: float) -> LinearProbe:
    """Minimize the penalized loss from the weights of another probe.

    Hidden states are correlated, and L-BFGS is slow on them. It therefore runs on coordinates in
    which the curvature is about the same in every direction; the minimum is the same.
    """
    basis, scale = curvature(start, features, penalty)
    scaled = (scale[:, None] * (basis.T @ start.weight)).requires_grad_()
    mix, bias = (part.clone().requires_grad_() for part in (start.mix, start.bias))
    trained = [scaled, bias] if len(features) == 1 else [mix, scaled, bias]
    optimizer: Any = torch.optim.LBFGS(
        trained,
        max_iter=MAX_PROBE_ITERATIONS,
        tolerance_grad=GRADIENT_TOLERANCE,
        tolerance_change=LOSS_TOLERANCE,
        history_size=LBFGS_HISTORY,
        line_search_fn="strong_wolfe",
    )

    def probe() -> LinearProbe:
        weight = basis @ (scaled / scale[:, None])
        return replace(start, mix=mix, weight=weight, bias=bias, penalty=penalty)

    def closure() -> float:
        optimizer.zero_grad()
        now = probe()
        loss = now.loss(features, targets) + penalty / 2 * now.weight.square().sum()
        loss = loss + MIX_PENALTY / 2 * mix.square().sum()
        torch.autograd.backward(loss)
        return loss.item()

    with torch.enable_grad():
        optimizer.step(closure)
    with torch.no_grad():
        found = probe()
    return replace(found, mix=mix.detach(), bias=bias.detach())


def curvature(probe: LinearProbe, features: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return directions of the weights, and the root of the loss's curvature along each."""
    mixed = mix_layers(features, probe.mix)
    values, basis = torch.linalg.eigh(mixed.T @ mixed / len(mixed))
    # The second derivative of the cross-entropy by a score is p (1 - p), at most 1/4.
    return basis, (values.clamp(min=0) / 4 + penalty).sqrt()
