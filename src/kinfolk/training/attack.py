"""Adversarial training by the fast gradient method (Miyato et al. 2017).

Each micro-batch is learned from twice: as it is, and with the vectors of its tokens moved a little
to where the loss grows fastest.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from kinfolk.nn.language_model import LanguageModel

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
