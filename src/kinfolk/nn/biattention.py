"""Task networks that let two texts attend to each other (McCann et al., 2017, section 5).

    features -> ReLU layer -> BiLSTM -> attention to the other text -> BiLSTM -> pooling -> maxout

The biattentive classification network (BCN) scores a text or a pair of texts. The reader scores
each word of a context as the start and the end of the answer to a question.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.nn.language_model import MAX_SIZE
from kinfolk.nn.task_networks import (
    BiLSTMLayers,
    TaskNetwork,
    TaskNetworkConfig,
    TextFeatures,
    lstm_layers,
    lstm_size,
)


@dataclass(frozen=True, eq=False)
class PaddedTexts:
    """Where the tokens of texts, one after the other, lie in a table of one row for each text."""

    text_ids: Tensor  # (tokens,): 0, 0, 0, 1, 1 ...

    @cached_property
    def lengths(self) -> Tensor:
        """The number of tokens of each text."""
        return torch.bincount(self.text_ids)

    @cached_property
    def columns(self) -> Tensor:
        """The position of each token in its text."""
        starts = self.lengths.cumsum(0) - self.lengths
        return torch.arange(len(self.text_ids), device=starts.device) - starts[self.text_ids]

    @cached_property
    def filled(self) -> Tensor:
        """Which slots hold a token: (texts, longest)."""
        longest = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        return longest < self.lengths[:, None]

    def pad(self, x: Tensor) -> Tensor:
        """Put the vectors of tokens into the table: (texts, longest, size); the rest is zero."""
        table = x.new_zeros(*self.filled.shape, x.shape[1])
        return table.index_put((self.text_ids, self.columns), x)

    def unpad(self, table: Tensor) -> Tensor:
        """Return the vectors of tokens, one text after the other."""
        return table[self.text_ids, self.columns]


def biattention(x: Tensor, texts: PaddedTexts, *, pair: bool) -> Tensor:
    """Return what each token attends to in the other text of its pair, or in its own text.

    The scores are products of hidden states: C_y = softmax(X Y^T) Y, and C_x likewise.
    """
    table = texts.pad(x)
    other = torch.arange(len(table), device=x.device)
    other = other ^ 1 if pair else other
    scores = table @ table[other].transpose(1, 2)  # (texts, longest, longest)
    scores = scores.masked_fill(~texts.filled[other][:, None], float("-inf"))
    return texts.unpad(scores.softmax(-1) @ table[other])


class Biattention(nn.Module):
    """A ReLU layer, BiLSTM layers, attention to the other text, BiLSTM layers for each side."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int, dropout: float, sides: int
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(input_size, hidden_size)
        self.encoder = BiLSTMLayers(hidden_size, hidden_size, num_layers, dropout)
        size = self.encoder.output_size
        self.integrators = nn.ModuleList(
            BiLSTMLayers(3 * size, hidden_size, 1, dropout) for _ in range(sides)
        )
        self.output_size = size

    def forward(self, texts: TextFeatures, *, pair: bool) -> list[tuple[Tensor, PaddedTexts]]:
        """Return the hidden states of the texts of each side, one text after the other."""
        x = self.encoder(self.project(self.dropout(texts.features)).relu(), texts)
        attended = biattention(x, PaddedTexts(texts.text_ids), pair=pair)
        x = torch.cat([x, x - attended, x * attended], dim=1)
        if not pair:
            return [(self.integrators[0](x, texts), PaddedTexts(texts.text_ids))]
        # The last sides: a reader integrates the context alone.
        first = 2 - len(self.integrators)
        found: list[tuple[Tensor, PaddedTexts]] = []
        for side, integrator in enumerate(self.integrators, first):
            own = texts.text_ids % 2 == side
            part = TextFeatures(x[own], texts.text_ids[own] // 2)
            found.append((integrator(part.features, part), PaddedTexts(part.text_ids)))
        return found


class FourfoldPooling(nn.Module):
    """The maximum, mean, minimum and self-attentive sum of the hidden states of each text."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.score = nn.Linear(size, 1)

    def forward(self, x: Tensor, texts: PaddedTexts) -> Tensor:
        """Return the pooled vectors: (texts, 4 x size)."""
        table, empty = texts.pad(x), ~texts.filled[:, :, None]
        largest = table.masked_fill(empty, float("-inf")).amax(1)
        smallest = table.masked_fill(empty, float("inf")).amin(1)
        mean = table.sum(1) / texts.lengths[:, None]
        weights = self.score(table).masked_fill(empty, float("-inf")).softmax(1)
        return torch.cat([largest, mean, smallest, (weights * table).sum(1)], dim=1)


class Maxout(nn.Module):
    """A linear layer of which the largest of several outputs is taken (Goodfellow et al. 2013)."""

    def __init__(self, input_size: int, output_size: int, pool_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, output_size * pool_size)
        self.pool_size = pool_size

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).unflatten(-1, (-1, self.pool_size)).amax(-1)


@config("bcn")
class BCNConfig(TaskNetworkConfig):
    """The published biattentive classification network by default."""

    hidden_size: int = lstm_size(300)
    num_layers: int = lstm_layers(1)
    pool_size: int = field(
        default=4, ge=1, le=64, help="number of linear outputs that each maxout chooses from"
    )
    reduction: int = field(
        default=4, ge=1, le=MAX_SIZE, help="how many times smaller the first maxout layer is"
    )
    pair: bool = field(default=False, help="an instance is a pair of texts")

    def build(
        self, input_size: int, output_size: int, labels: Sequence[str], dropout: float
    ) -> "BCN":
        """Build the network."""
        return BCN(self, input_size, output_size, labels, dropout)


class BCN(TaskNetwork):
    """The biattentive classification network.

    Deviations: layer norms stand in the place of batch norms, so that a prediction and a step do
    not depend on the other texts of the batch; a single text, which the paper duplicates, attends
    to itself and is pooled once.
    """

    scores_tokens = False

    def __init__(
        self,
        c: BCNConfig,
        input_size: int,
        output_size: int,
        labels: Sequence[str],
        dropout: float,
    ) -> None:
        super().__init__()
        sides = 2 if c.pair else 1
        self.pair = c.pair
        self.biattention = Biattention(input_size, c.hidden_size, c.num_layers, dropout, sides)
        size = self.biattention.output_size + output_size
        self.pools = nn.ModuleList(FourfoldPooling(size) for _ in range(sides))
        pooled = 4 * sides * size
        sizes = [pooled, max(1, pooled // c.reduction), max(1, pooled // (2 * c.reduction))]
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes)
        self.layers = nn.ModuleList(
            Maxout(before, after, c.pool_size)
            for before, after in zip(sizes, [*sizes[1:], len(labels)], strict=True)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, texts: TextFeatures) -> Tensor:
        """Return the scores of the labels of each instance."""
        parts: list[Tensor] = []
        for side, (x, own) in enumerate(self.biattention(texts, pair=self.pair)):
            if texts.output_features is not None:
                chosen = texts.text_ids % 2 == side if self.pair else slice(None)
                x = torch.cat([x, texts.output_features[chosen]], dim=1)
            parts.append(self.pools[side](x, own))
        x = torch.cat(parts, dim=1)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = layer(self.dropout(norm(x)))
        return x.float()


@config("reader")
class ReaderConfig(TaskNetworkConfig):
    """A reader of 100 units."""

    hidden_size: int = lstm_size(100)
    num_layers: int = lstm_layers(1)

    def build(
        self, input_size: int, output_size: int, labels: Sequence[str], dropout: float
    ) -> "Reader":
        """Build the network."""
        return Reader(self, input_size, output_size, labels, dropout)


class Reader(TaskNetwork):
    """Scores of each word of a context as start and as end of an answer, and of no answer.

    Deviation: the paper uses the dynamic coattention network, which decodes start and end in turns.
    Here the context attends to the question once, and both ends are scored at once.
    """

    scores_tokens = True

    def __init__(
        self,
        c: ReaderConfig,
        input_size: int,
        output_size: int,
        labels: Sequence[str],
        dropout: float,
    ) -> None:
        super().__init__()
        self.biattention = Biattention(input_size, c.hidden_size, c.num_layers, dropout, sides=1)
        size = self.biattention.output_size
        self.modeling = BiLSTMLayers(size, c.hidden_size, 1, dropout)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(2 * size + output_size, len(labels))
        self.no_answer = nn.Linear(2 * size + output_size, len(labels))

    def forward(self, texts: TextFeatures) -> Tensor:
        """Return the scores of no answer and of each word of the context, for each instance.

        Texts are questions and contexts in turns: (instances + words of contexts, 2).
        """
        ((x, own),) = self.biattention(texts, pair=True)
        x = torch.cat([x, self.modeling(x, TextFeatures(x, own.text_ids))], dim=1)
        if texts.output_features is not None:
            x = torch.cat([x, texts.output_features[texts.text_ids % 2 == 1]], dim=1)
        x = self.dropout(x)
        words = self.out_proj(x).float()
        table = own.pad(x).masked_fill(~own.filled[:, :, None], float("-inf"))
        none = self.no_answer(table.amax(1)).float()
        # Before the words of its context: after the words of those before, and their own rows.
        instances = torch.arange(len(none), device=x.device)
        rows = own.lengths.cumsum(0) - own.lengths + instances
        scores = words.new_zeros(len(words) + len(none), words.shape[1])
        order = torch.arange(len(words), device=x.device) + own.text_ids + 1
        return scores.index_copy(0, order, words).index_copy(0, rows, none)
