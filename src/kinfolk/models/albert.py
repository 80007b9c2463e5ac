"""ALBERT (Lan et al., 2019): BERT with one set of weights for all its layers, and narrow tables.

Tokens have short vectors that one matrix widens, and every layer is the same layer again; so a
wide network has few parameters. Layers may also share in groups, or only one of their halves.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.attention import Attention
from kinfolk.nn.feedforward import FeedForward, activation
from kinfolk.nn.language_model import LanguageModel, ModelConfig, SharedLayers, Summary
from kinfolk.nn.positions import look_near
from kinfolk.nn.residual import PostNorm
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.sight import Visible
from kinfolk.types import Inputs, Output

TABLES = 0.02  # the standard deviation of tables at the start (the published code)
Shared = Literal["all", "attention", "feed", "none"]


@config("albert")
class AlbertConfig(ModelConfig):
    """The published base model of version 2, unless told otherwise."""

    vocab: int = field(default=30000, ge=1, help="number of token ids")
    narrow: int = field(default=128, ge=1, help="size of the token embeddings")
    width: int = field(default=768, ge=1, help="size of the hidden states")
    depth: int = field(default=12, ge=1, help="number of times that a group of layers is applied")
    shared: Shared = field(
        default="all", help="which sublayers share weights over the layers of a group"
    )
    groups: int = field(default=1, ge=1, help="number of layer groups that share weights")
    group_depth: int = field(
        default=1, ge=1, help="number of layers in a group, each with weights of its own"
    )
    heads: int = field(default=12, ge=1, help="number of attention heads")
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    context: int = field(default=512, ge=1, help="longest sequence, in tokens")
    segments: int = field(default=2, ge=1, help="number of token types")
    bend: str = field(default="gelu_new", help="activation function of the feed-forward layer")
    # Version 2 was trained without dropout.
    dropout: float = field(default=0.0, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.0, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    epsilon: float = field(default=1e-12, gt=0, help="epsilon of the layer norms")
    std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")
    near: bool = field(
        default=False, help="mimetic initialisation: attention starts on neighbouring tokens"
    )

    def __post_init__(self) -> None:
        if self.groups > self.depth:
            raise UserError(
                f"model.groups={self.groups} is more than model.depth={self.depth}: some groups "
                "would never be run; use fewer"
            )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Albert

    def build(self) -> "Albert":
        """Make the network, with fresh weights."""
        return Albert(self)

    def layers(self) -> list[tuple[int, int]]:
        """Say which attention and which feed-forward each layer runs, by their numbers."""
        found = []
        for run in range(self.depth):
            group = int(run / (self.depth / self.groups))  # as published, rounding and all
            for layer in range(self.group_depth):
                own, common = run * self.group_depth + layer, group * self.group_depth + layer
                attend = common if self.shared in ("all", "attention") else own
                found.append((attend, common if self.shared in ("all", "feed") else own))
        return found


class Blocks(SharedLayers):
    """As many attentions and feed-forwards as are different, run in the order of the layers."""

    def __init__(self, c: AlbertConfig) -> None:
        super().__init__()
        self.layers = c.layers()
        attends, feeds = (1 + max(numbers) for numbers in zip(*self.layers, strict=True))
        self.attends = nn.ModuleList(
            branch(Attention(c.width, c.heads, dropout=c.attention_dropout), c)
            for _ in range(attends)
        )
        self.feeds = nn.ModuleList(
            branch(FeedForward(c.width, c.inner or 4 * c.width, c.bend), c) for _ in range(feeds)
        )

    def forward(self, x: Tensor, visible: Visible) -> Tensor:
        for attend, feed in self.layers:
            x = self.feeds[feed](self.attends[attend](x, visible))
        return x


def branch(inner: nn.Module, c: AlbertConfig) -> PostNorm:
    """Put a norm behind a part."""
    return PostNorm(inner, nn.LayerNorm(c.width, c.epsilon), c.dropout)


class TokenHead(nn.Module):
    """What a hidden state passes before it meets the narrow token table again."""

    def __init__(self, width: int, narrow: int, vocab: int, bend: str, epsilon: float) -> None:
        super().__init__()
        self.bend = activation(bend)
        self.dense = nn.Linear(width, narrow)
        self.norm = nn.LayerNorm(narrow, epsilon)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.bend(self.dense(hidden)))


class Albert(LanguageModel):
    """Three narrow tables and a norm, what widens them, shared blocks, and two heads."""

    config: AlbertConfig
    tokens: Table
    architecture = "encoder"
    can_fill = True
    summary = Summary(reads="first", own=True)
    pretraining_only = ("head", "pairs")
    pooling_only = ("pooler",)

    def __init__(self, c: AlbertConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.narrow)
        self.places = nn.Embedding(c.context, c.narrow)
        self.segments = nn.Embedding(c.segments, c.narrow)
        self.norm = nn.LayerNorm(c.narrow, c.epsilon)
        self.drop = nn.Dropout(c.dropout)
        self.widen = nn.Linear(c.narrow, c.width)
        self.blocks = Blocks(c)
        self.head = TokenHead(c.width, c.narrow, c.vocab, c.bend, c.epsilon)
        self.pooler = nn.Linear(c.width, c.width)
        self.pairs = nn.Linear(c.width, 2)
        initialise(self, std=c.std, tables=TABLES)
        if c.near:
            look_near(self.blocks, self.places, std=TABLES)

    def forward(self, inputs: Inputs) -> Output:
        segments = torch.zeros_like(inputs.ids) if inputs.segments is None else inputs.segments
        x = self.tokens(inputs.ids) + self.places(inputs.places) + self.segments(segments)
        x = self.widen(self.drop(self.norm(x)))
        visible = inputs.visible(dropout=self.training and self.config.attention_dropout > 0)
        return Output(self.blocks(x, visible))

    def predict(self, hidden: Tensor) -> Scores:
        """Score the hidden token with the table that read the others."""
        return self.tokens.predict(self.head(hidden), self.head.bias)

    def pool(self, hidden: Tensor) -> Tensor:
        """Turn the first token's hidden state into a vector of its text."""
        return torch.tanh(self.pooler(hidden))

    def judge(self, hidden: Tensor) -> Tensor:
        """Score whether two texts stand in their order (0) or were swapped (1)."""
        return self.pairs(self.pool(hidden))


# Deviation: the shared ladder starts as BERT's does. Its tables are half as wide as the network on
# the small rungs, where 128 would be no narrower than it.
PRESETS = {
    name: AlbertConfig(
        narrow=min(128, size.width // 2),
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        std=size.width**-0.5,
        near=True,
    )
    for name, size in LADDER.items()
} | {
    "albert-base-v2": AlbertConfig(),
    "albert-large-v2": AlbertConfig(width=1024, depth=24, heads=16),
    "albert-xlarge-v2": AlbertConfig(width=2048, depth=24, heads=16),
    "albert-xxlarge-v2": AlbertConfig(width=4096, depth=12, heads=64),
}
