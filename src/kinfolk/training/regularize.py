"""Adversarial training (FGM), NoisyTune and gradual unfreezing."""

from collections.abc import Callable, Collection
from typing import TypeVar

import torch
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.rng import derive_seed
from kinfolk.training.optimizer import layer_index

T = TypeVar("T")


class FGM:
    """Move the token table against a micro-batch, and back.

    Deviation: the paper moves each text's own vectors by `epsilon`. Here it is the table that
    moves, by `epsilon` over all the micro-batch, as is common with pretrained networks: it
    asks nothing of a network but a table. Where the table is frozen nothing is attacked.
    """

    def __init__(self, model: LanguageModel, epsilon: float = 1.0) -> None:
        self.epsilon = epsilon
        self.tables = embedding_weights(model)

    def __call__(self, learn: Callable[[], T]) -> T:
        """Learn twice, adding up both gradients; return what the undisturbed pass said.

        `learn` runs forward and backward on one micro-batch.
        """
        earlier = [table.grad for table in self.tables]  # of the micro-batches before
        for table in self.tables:
            table.grad = None
        said = learn()
        gradients = [table.grad for table in self.tables]
        found = [gradient for gradient in gradients if gradient is not None]
        if found:
            kept = [table.detach().clone() for table in self.tables]
            self._move(gradients, torch.nn.utils.get_total_norm(found))
            try:
                learn()
            finally:
                self._restore(kept)
        for table, before in zip(self.tables, earlier, strict=True):
            if before is not None:
                table.grad = before if table.grad is None else before + table.grad
        return said

    @torch.no_grad()
    def _move(self, gradients: list[Tensor | None], norm: Tensor) -> None:
        share = self.epsilon / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        for table, gradient in zip(self.tables, gradients, strict=True):
            if gradient is not None:
                table.add_(gradient * share)

    @torch.no_grad()
    def _restore(self, kept: list[Tensor]) -> None:
        for table, before in zip(self.tables, kept, strict=True):
            table.copy_(before)


def embedding_weights(model: LanguageModel) -> list[Tensor]:
    """Return the tables of a network's tokens: several, where rare words have narrow vectors."""
    parts = model.pretrained.token_embeddings.modules()
    return [part.weight for part in parts if isinstance(part, nn.Embedding)]


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


class GradualUnfreezing:
    """Say before each update which layers learn: the top one, and one more every so many updates.

    It is a function of the update's number alone, so that a run resumes as it was. What is frozen
    has no gradient, and an optimiser leaves it alone, decay and all. The optimiser is built before
    the first call: it takes what can be learned at that time. A compiled learner is compiled anew
    for each thaw.
    """

    def __init__(self, model: nn.Module, every: int) -> None:
        if every < 1:
            raise UserError(f"a layer thaws every {every} steps: it must be at least 1")
        self.every = every
        found = layer_index(model)
        learnt = [(found[n], p) for n, p in model.named_parameters() if p.requires_grad]
        numbers = sorted({layer for layer, _ in learnt}, reverse=True)
        # Layers in which nothing can be learned take no turn.
        self.layer_groups = [[p for layer, p in learnt if layer == number] for number in numbers]

    def __call__(self, number: int) -> None:
        """Freeze and thaw for one update; `number` counts from 0."""
        thawed = 1 + number // self.every
        for stage, parameters in enumerate(self.layer_groups):
            for parameter in parameters:
                parameter.requires_grad_(stage < thawed)
