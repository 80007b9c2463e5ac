"""ELECTRA (Clark et al., 2020): a BERT that learns from every token which of them were replaced.

A small generator fills holes in a text, by likelihood; the discriminator reads what it wrote and
tells, token by token, what was there from what was not. Both read with the same tables. The
discriminator is the model; the generator is only needed while it learns.
"""

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.models.albert import TokenHead
from kinfolk.models.bert import BertConfig, Block
from kinfolk.nn.feedforward import activation
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Summary
from kinfolk.nn.positions import look_near
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.types import Inputs, Output

TABLES = 0.02  # the standard deviation of tables at the start (the published code)


@config("electra")
class ElectraConfig(ModelConfig):
    """The published small model, unless told otherwise; the sizes are the discriminator's."""

    vocab: int = field(default=30522, ge=1, help="number of token ids")
    narrow: int = field(default=128, ge=1, help="size of the token embeddings")
    width: int = field(default=256, ge=1, help="size of the discriminator's hidden states")
    depth: int = field(default=12, ge=1, help="number of layers")
    heads: int = field(default=4, ge=1, help="number of attention heads")
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    generator: float = field(
        default=0.25, gt=0, help="size of the generator as a fraction of the discriminator's"
    )
    context: int = field(default=512, ge=1, help="longest sequence, in tokens")
    segments: int = field(default=2, ge=1, help="number of token types")
    bend: str = field(default="gelu", help="activation function of the feed-forward layer")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.1, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    epsilon: float = field(default=1e-12, gt=0, help="epsilon of the layer norms")
    std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")
    near: bool = field(
        default=False, help="mimetic initialisation: attention starts on neighbouring tokens"
    )

    def __post_init__(self) -> None:
        width, heads = round(self.generator * self.width), round(self.generator * self.heads)
        heads = max(1, heads)
        if width < 1 or width % heads:
            raise UserError(
                f"model.generator={self.generator} makes a generator of width {width} in "
                f"{heads} heads, which do not divide it: use another share, like 0.25 or 0.5"
            )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Electra

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
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))

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
        return self.out(self.bend(self.dense(hidden)))[..., 0]


class Electra(LanguageModel):
    """Three tables and a norm, read by a generator with its head and a discriminator with its."""

    config: ElectraConfig
    tokens: Table
    architecture = "encoder"
    can_fill = True
    summary = Summary(reads="first", bend="gelu")
    pretraining_only = ("generator", "head", "detector")

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
        return self.drop(self.norm(x))

    def predict(self, hidden: Tensor) -> Scores:
        """Score the hidden token from what the generator made of it."""
        return self.tokens.predict(self.head(hidden), self.head.bias)

    def detect(self, hidden: Tensor) -> Tensor:
        """Score whether each token was replaced: (batch, length), above zero where it was."""
        return self.detector(hidden)


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
