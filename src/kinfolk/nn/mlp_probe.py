"""Probes with one hidden layer over frozen hidden states (Hewitt & Liang 2019, section 3).

    hidden states -> standardized on the training items -> (mix of layers) -> linear -> ReLU
                  -> linear -> scores

Trained by AdamW in small batches; the weights with the lowest loss on dev items are kept. The
hidden layer is narrow: wide ones memorize the labels of control tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.nn.linear_probe import Standardizer, mix_layers, threads_for
from kinfolk.rng import derive_seed

HIDDEN_SIZE = 64
LR, WEIGHT_DECAY, BATCH_SIZE = 1e-3, 0.01, 64
MIX_LR = 1e-2  # of the logits of a mix, which are few and start at 0
MAX_EPOCHS, PATIENCE = 30, 3  # epochs; training ends after as many without an improvement


@dataclass(frozen=True, eq=False)
class MLPProbe:
    """A hidden layer and scores over the weighted sum of standardized layers."""

    standardizer: Standardizer
    mix: Tensor  # (layers,): logits of the weights of the layers
    weights: tuple[Tensor, Tensor, Tensor, Tensor]  # of the hidden layer and of the scores
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
        up, up_bias, down, down_bias = self.weights
        mixed = features[0] if len(features) == 1 else mix_layers(features, self.mix)
        return F.linear(F.relu(F.linear(mixed, up, up_bias)), down, down_bias)

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of standardized features."""
        scores = self.scores(features)
        if self.regression:
            return F.mse_loss(scores[:, 0], targets) / 2
        return F.cross_entropy(scores, targets, ignore_index=IGNORE_INDEX)


def fit_mlp_probe(
    layers: Sequence[Tensor],  # (items, size) each
    targets: Tensor,  # (items,): classes or numbers
    dev_layers: Sequence[Tensor],
    dev_targets: Tensor,
    *,
    outputs: int,
    seed: int = 0,
    hidden_size: int = HIDDEN_SIZE,
) -> MLPProbe:
    """Train a probe; the seed decides its initial weights and the order of items.

    Several layers are mixed by weights that are trained with the probe.
    """
    standardizer = Standardizer.fit(layers)
    features, dev_features = standardizer(layers), standardizer(dev_layers)
    generator = torch.Generator().manual_seed(derive_seed(seed) >> 1)
    size = features.shape[-1]
    initial = (
        torch.randn(hidden_size, size, generator=generator) * (2 / size) ** 0.5,
        torch.zeros(hidden_size),
        torch.zeros(outputs, hidden_size),
        torch.zeros(outputs),
    )
    up, up_bias, down, down_bias = (part.to(features).clone().requires_grad_() for part in initial)
    mix = features.new_zeros(len(layers)).requires_grad_()
    probe = MLPProbe(standardizer, mix, (up, up_bias, down, down_bias), targets.is_floating_point())
    groups: list[dict[str, Any]] = [{"params": probe.weights}]
    if len(layers) > 1:
        groups.append({"params": [mix], "lr": MIX_LR})
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    trained = (mix, *probe.weights)
    best, kept, waited = float("inf"), [part.detach().clone() for part in trained], 0
    for _ in range(MAX_EPOCHS):
        order = torch.randperm(len(targets), generator=generator).to(features.device)
        with torch.enable_grad(), threads_for(0):
            for items in torch.split(order, BATCH_SIZE):
                optimizer.zero_grad()
                torch.autograd.backward(probe.loss(features[:, items], targets[items]))
                optimizer.step()
        with torch.no_grad(), threads_for(dev_features.numel()):
            loss = float(probe.loss(dev_features, dev_targets))
        waited += 1
        if loss < best:
            best, kept, waited = loss, [part.detach().clone() for part in trained], 0
        if waited >= PATIENCE:
            break
    mix, up, up_bias, down, down_bias = kept
    return MLPProbe(standardizer, mix, (up, up_bias, down, down_bias), probe.regression)
