"""Recurrent layers over packed rows: each text of a row starts from its own state."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@torch.no_grad()
def open_forget_gates_(model: nn.Module) -> None:
    """Set the biases of the forget gates to 1, all others to 0 (Jozefowicz et al. 2015)."""
    for module in model.modules():
        if not isinstance(module, nn.LSTM):
            continue
        for name, parameter in module.named_parameters():  # torch's own names
            if name.startswith(("bias_ih", "bias_hh")):  # gates: input, forget, cell, output
                parameter.zero_()
            if name.startswith("bias_ih"):
                parameter.chunk(4)[1].fill_(1.0)


@dataclass(frozen=True, eq=False)
class PackedTexts:
    """The texts of packed rows as `PackedSequence` orders them: all first tokens, all second ones.

    Longer texts come first, so that a step is a prefix of the step before.
    """

    positions: Tensor  # (tokens,): position of each token in the flattened rows; no padding
    batch_sizes: Tensor  # (longest text,), on the CPU: number of texts at each step
    text_ids: Tensor  # (tokens,): number of each token's text, the longest 0

    @classmethod
    def of(cls, document_ids: Tensor) -> "PackedTexts":
        """Find the texts by their document ids, (batch, length), each a run of equal ids."""
        before = F.pad(document_ids, (1, 0), value=-1)[:, :-1]
        starts_text = document_ids != before
        starts_text[:, 0] = True  # the same id in the next row is another text
        positions = torch.nonzero(document_ids.flatten() >= 0)[:, 0]
        run = starts_text.flatten().cumsum(0)[positions]
        _, text, lengths = torch.unique_consecutive(run, return_inverse=True, return_counts=True)
        starts = lengths.cumsum(0) - lengths
        offset = torch.arange(len(positions), device=positions.device) - starts[text]
        rank = torch.argsort(torch.argsort(lengths, descending=True, stable=True))
        order = torch.argsort(offset * len(lengths) + rank[text])
        return cls(positions[order], torch.bincount(offset).cpu(), rank[text][order])

    def add_max_pool(self, flat: Tensor) -> Tensor:
        """Add the maximum over each text to its first token."""
        texts = int(self.batch_sizes[0])
        pooled = flat.new_zeros(texts, flat.shape[1])
        index = self.text_ids[:, None].expand_as(flat)
        pooled = pooled.scatter_reduce(0, index, flat, "amax", include_self=False)
        # The first step is the first token of every text, in the order of their ids.
        return torch.cat([flat[:texts] + pooled, flat[texts:]])
