"""Probes with one hidden layer over frozen hidden states (Hewitt & Liang 2019, section 3).

    hidden states -> standardized on the training items -> linear -> ReLU -> linear -> scores

Trained by AdamW in small batches; the weights with the lowest loss on dev items are kept. The
hidden layer is narrow: wide ones memorize the labels of control tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.nn.linear_probe import Standardizer
from kinfolk.rng import derive_seed

HIDDEN_SIZE = 64
LR, WEIGHT_DECAY, BATCH_SIZE = 1e-3, 0.01, 64
MAX_EPOCHS, PATIENCE = 30, 3  # epochs; training ends after as many without an improvement


@dataclass(frozen=True, eq=False)
class MLPProbe:
    """A hidden layer and scores over the standardized features of one layer."""

    standardizer: Standardizer
    weights: tuple[Tensor, Tensor, Tensor, Tensor]  # of the hidden layer and of the scores
    regression: bool

    def __call__(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the scores of items: (items, outputs)."""
        return self.scores(self.standardizer(layers)[0])

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of standardized features: (items, size) to (items, outputs)."""
        up, up_bias, down, down_bias = self.weights
        return F.linear(F.relu(F.linear(features, up, up_bias)), down, down_bias)

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of standardized features."""
        scores = self.scores(features)
        if self.regression:
            return F.mse_loss(scores[:, 0], targets) / 2
        return F.cross_entropy(scores, targets, ignore_index=IGNORE_INDEX)


def fit_mlp_probe(
    layer: Tensor,  # (items, size)
    targets: Tensor,  # (items,): classes or numbers
    dev_layer: Tensor,
    dev_targets: Tensor,
    *,
    outputs: int,
    seed: int = 0,
    hidden_size: int = HIDDEN_SIZE,
) -> MLPProbe:
    """Train a probe; the seed decides its initial weights and the order of items."""
    standardizer = Standardizer.fit([layer])
    features, dev_features = standardizer([layer])[0], standardizer([dev_layer])[0]
    generator = torch.Generator().manual_seed(derive_seed(seed) >> 1)
    size = features.shape[1]
    initial = (
        torch.randn(hidden_size, size, generator=generator) * (2 / size) ** 0.5,
        torch.zeros(hidden_size),
        torch.zeros(outputs, hidden_size),
        torch.zeros(outputs),
    )
    up, up_bias, down, down_bias = (part.to(features).clone().requires_grad_() for part in initial)
    probe = MLPProbe(standardizer, (up, up_bias, down, down_bias), targets.is_floating_point())
    optimizer = torch.optim.AdamW(probe.weights, lr=LR, weight_decay=WEIGHT_DECAY)
    best, kept, waited = float("inf"), [part.detach().clone() for part in probe.weights], 0
    for _ in range(MAX_EPOCHS):
        order = torch.randperm(len(features), generator=generator).to(features.device)
        with torch.enable_grad():
            for items in torch.split(order, BATCH_SIZE):
                optimizer.zero_grad()
                torch.autograd.backward(probe.loss(features[items], targets[items]))
                optimizer.step()
        with torch.no_grad():
            loss = float(probe.loss(dev_features, dev_targets))
        waited += 1
        if loss < best:
            best, kept, waited = loss, [part.detach().clone() for part in probe.weights], 0
        if waited >= PATIENCE:
            break
    up, up_bias, down, down_bias = kept
    return MLPProbe(standardizer, (up, up_bias, down, down_bias), probe.regression)
