"""Adversarial training (FGM), NoisyTune and gradual unfreezing."""

from collections.abc import Callable, Collection
from typing import TypeVar

import torch
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.rng import derive_seed
from kinfolk.training.distributed import Processes
from kinfolk.training.optimizer import layer_index

T = TypeVar("T")


class FGM:
    """Fast gradient method: perturb the token embeddings of a micro-batch, and restore them.

    Deviation: the paper perturbs the vectors of each text by `epsilon`. Here the embedding table is
    perturbed, by `epsilon` for the whole micro-batch, as is common with pretrained networks. A
    frozen table is not perturbed.
    """

    def __init__(
        self, model: LanguageModel, epsilon: float = 1.0, processes: Processes = Processes()
    ) -> None:
        self.epsilon, self.processes = epsilon, processes
        self.tables = embedding_weights(model)

    def __call__(self, learn: Callable[[], T]) -> T:
        """Add the gradients of both passes; return the result of the unperturbed one.

        `learn` runs forward and backward on one micro-batch.
        """
        earlier = [table.grad for table in self.tables]  # of the micro-batches before
        for table in self.tables:
            table.grad = None
        result = learn()
        gradients = self._gradients()
        present = [gradient for gradient in gradients if gradient is not None]
        if present:
            kept = [table.detach().clone() for table in self.tables]
            self._perturb(gradients, torch.nn.utils.get_total_norm(present))
            try:
                learn()
            finally:
                self._restore(kept)
        for table, before in zip(self.tables, earlier, strict=True):
            if before is not None:
                table.grad = before if table.grad is None else before + table.grad
        return result

    def _gradients(self) -> list[Tensor | None]:
        """Return the gradients of the tables, of the whole micro-batch of all processes."""
        own = [table.grad for table in self.tables]
        if self.processes.several:
            for table, gradient in zip(self.tables, own, strict=True):
                table.grad = None if gradient is None else gradient.clone()
            self.processes.sum_gradients(self.tables)
        summed = [table.grad for table in self.tables]
        for table, gradient in zip(self.tables, own, strict=True):
            table.grad = gradient
        return summed

    @torch.no_grad()
    def _perturb(self, gradients: list[Tensor | None], norm: Tensor) -> None:
        scale = self.epsilon / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        for table, gradient in zip(self.tables, gradients, strict=True):
            if gradient is not None:
                table.add_(gradient * scale)

    @torch.no_grad()
    def _restore(self, kept: list[Tensor]) -> None:
        for table, before in zip(self.tables, kept, strict=True):
            table.copy_(before)


def embedding_weights(model: LanguageModel) -> list[Tensor]:
    """Return the token embedding tables: several, where the embedding is adaptive."""
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

    Parameters in `fresh`, those of a new head, are left unchanged.
    """
    for number, weight in enumerate(model.parameters()):  # tied parameters occur once
        if weight.ndim < 2 or weight in fresh:
            continue
        # Drawn on the CPU, keyed by the parameter's number: the noise is the same on every device.
        generator = torch.Generator().manual_seed(derive_seed(seed, number))
        noise = torch.rand(weight.shape, generator=generator).to(weight) - 0.5
        # Zeros are the padding of the vocabulary.
        used = weight != 0
        if used.sum() > 1:
            weight.add_(torch.where(used, noise * (intensity * weight[used].std()), 0.0))


class GradualUnfreezing:
    """Unfreeze the top layer first, and one more layer after every `every` steps.

    Which layers are frozen is a function of the step alone, so that a run resumes exactly. Frozen
    parameters have no gradient, and the optimizer leaves them unchanged, without weight decay. The
    optimizer is built before the first call. A compiled learner is compiled again at each change.
    """

    def __init__(self, model: nn.Module, every: int) -> None:
        if every < 1:
            raise UserError(f"the steps between unfrozen layers must be at least 1 (got {every})")
        self.every = every
        layers = layer_index(model)
        trained = [(layers[n], p) for n, p in model.named_parameters() if p.requires_grad]
        numbers = sorted({layer for layer, _ in trained}, reverse=True)
        # Layers without trainable parameters are skipped.
        self.layer_groups = [[p for layer, p in trained if layer == number] for number in numbers]

    def __call__(self, number: int) -> None:
        """Freeze and unfreeze for one step; `number` counts from 0."""
        unfrozen = 1 + number // self.every
        for stage, parameters in enumerate(self.layer_groups):
            for parameter in parameters:
                parameter.requires_grad_(stage < unfrozen)
