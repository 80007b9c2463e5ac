"""ELECTRA (Clark et al., 2020): a BERT that learns from every token which of them were replaced.

A small generator fills holes in a text, by likelihood; the discriminator reads what it wrote and
tells, token by token, what was there from what was not. Both read with the same tables. The
discriminator is the model; the generator is only needed while it learns.
"""

import torch
from torch import Tensor, nn

from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.models.albert import TokenHead
from kinfolk.models.bert import BertConfig, Block
from kinfolk.nn.feedforward import activation
from kinfolk.nn.headed import Summary
from kinfolk.nn.positions import look_near
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.types import Inputs, Output

KIND = "encoder"
SUMMARY = Summary(reads="first", bend="gelu")
LEARNED_WITH = ("generator", "head", "detector")  # what only pretraining needs
TABLES = 0.02  # the standard deviation of tables at the start (the published code)


@config("electra")
class ElectraConfig:
    """The published small model, unless told otherwise; the sizes are the discriminator's."""

    vocab: int = 30522
    narrow: int = 128  # the width of the tables
    width: int = 256
    depth: int = 12
    heads: int = 4
    inner: int | None = None  # of the feed-forward; None is 4 x width
    generator: float = 0.25  # how wide the generator is against the discriminator, in everything
    context: int = 512
    segments: int = 2
    bend: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    epsilon: float = 1e-12  # of the norms
    std: float = 0.02  # of matrices at the start
    near: bool = False  # tokens start by looking at their neighbours, not anywhere

    def __post_init__(self) -> None:
        small = self.body(self.generator)
        if small.width < 1 or small.width % small.heads:
            raise UserError(
                f"model.generator={self.generator} makes a generator of width {small.width} in "
                f"{small.heads} heads, which do not divide it: use another share, like 0.25 or 0.5"
            )

    def build(self) -> "Electra":
        """Make both networks, with fresh weights."""
        return Electra(self)

    def body(self, share: float = 1.0) -> BertConfig:
        """Return the sizes of a stack of blocks: the discriminator's, or a share of it."""
        return BertConfig(
            width=round(share * self.width),
            depth=self.depth,
            heads=max(1, round(share * self.heads)),
            inner=round(share * (self.inner or 4 * self.width)),
            bend=self.bend,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            epsilon=self.epsilon,
        )


class Encoder(nn.Module):
    """BERT's blocks, behind a matrix where the tables have another width."""

    def __init__(self, c: BertConfig, narrow: int) -> None:
        super().__init__()
        self.config = c
        self.widen = nn.Identity() if c.width == narrow else nn.Linear(narrow, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        x = self.widen(x)
        visible = inputs.visible(dropout=self.training and self.config.attention_dropout > 0)
        for block in self.blocks:
            x = block(x, visible)
        return x


class Detector(nn.Module):
    """One number a token: above zero where it was replaced."""

    def __init__(self, c: ElectraConfig) -> None:
        super().__init__()
        self.bend = activation(c.bend)
        self.dense = nn.Linear(c.width, c.width)
        self.out = nn.Linear(c.width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(self.bend(self.dense(hidden)))[..., 0]  # type: ignore[no-any-return]


class Electra(nn.Module):
    """Three tables and a norm, read by a generator with its head and a discriminator with its."""

    def __init__(self, c: ElectraConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.narrow)
        self.places = nn.Embedding(c.context, c.narrow)
        self.segments = nn.Embedding(c.segments, c.narrow)
        self.norm = nn.LayerNorm(c.narrow, c.epsilon)
        self.drop = nn.Dropout(c.dropout)
        small = c.body(c.generator)
        self.generator = Encoder(small, c.narrow)
        self.head = TokenHead(small.width, c.narrow, c.vocab, "gelu", c.epsilon)
        self.discriminator = Encoder(c.body(), c.narrow)
        self.detector = Detector(c)
        initialise(self, std=c.std, tables=TABLES)
        if c.near:
            initialise(self.generator, std=small.width**-0.5)
            look_near(self, self.places, std=TABLES)

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.discriminator(self.embed(inputs), inputs))

    def guess(self, inputs: Inputs) -> Output:
        """Run the generator."""
        return Output(self.generator(self.embed(inputs), inputs))

    def embed(self, inputs: Inputs) -> Tensor:
        """Read the tables: (batch, length, their width)."""
        segments = torch.zeros_like(inputs.ids) if inputs.segments is None else inputs.segments
        x = self.tokens(inputs.ids) + self.places(inputs.places) + self.segments(segments)
        return self.drop(self.norm(x))  # type: ignore[no-any-return]

    def predict(self, hidden: Tensor) -> Scores:
        """Score the hidden token from what the generator made of it."""
        return self.tokens.predict(self.head(hidden), self.head.bias)

    def detect(self, hidden: Tensor) -> Tensor:
        """Score whether each token was replaced: (batch, length), above zero where it was."""
        return self.detector(hidden)  # type: ignore[no-any-return]


# Deviation: the shared ladder trains without dropout and starts as BERT's does. Its generators are
# half as wide as their discriminators, the upper end of what works best (section 3.2).
PRESETS = {
    name: ElectraConfig(
        narrow=size.width,
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        generator=0.5,
        dropout=0.0,
        attention_dropout=0.0,
        std=size.width**-0.5,
        near=True,
    )
    for name, size in LADDER.items()
} | {
    "electra-small": ElectraConfig(),
    "electra-base": ElectraConfig(narrow=768, width=768, heads=12, generator=1 / 3),
    "electra-large": ElectraConfig(narrow=1024, width=1024, depth=24, heads=16),
}
