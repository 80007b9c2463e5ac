"""RoBERTa (Liu et al., 2019): BERT without its pairs, on more text, with fresh masks every time.

The network is BERT's without what judged pairs. The places of a text are counted from the id of
padding, so the first rows of their table are never read.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.models.bert import TABLES, BertConfig, Block, TokenHead
from kinfolk.nn.language_model import LanguageModel, LayerStack, Summary
from kinfolk.nn.positions import look_near
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.types import Inputs, Output


@config("roberta")
class RobertaConfig(BertConfig):
    """The published base model, unless told otherwise."""

    vocab: int = field(default=50265, ge=1, help="number of token ids")
    segments: int = field(default=1, ge=1, help="number of token types")
    epsilon: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")
    start: int = field(
        default=1, ge=0, help="id of padding; positions are counted from the one after it"
    )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Roberta

    def build(self) -> "Roberta":  # type: ignore[override]
        """Make the network, with fresh weights."""
        return Roberta(self)


class Roberta(LanguageModel):
    """Three tables and a norm, a stack of blocks, and a head for tokens."""

    config: RobertaConfig
    tokens: Table
    architecture = "encoder"
    can_fill = True
    summary = Summary(reads="first", bend="tanh")
    pretraining_only = ("head",)

    def __init__(self, c: RobertaConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.places = nn.Embedding(c.start + 1 + c.context, c.width)
        self.segments = nn.Embedding(c.segments, c.width)
        self.norm = nn.LayerNorm(c.width, c.epsilon)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))
        self.head = TokenHead(replace(c, bend="gelu"))  # whatever the blocks bend by
        initialise(self, std=c.std, tables=TABLES)
        if c.near:
            look_near(self.blocks, self.places, std=TABLES)

    def forward(self, inputs: Inputs) -> Output:
        segments = torch.zeros_like(inputs.ids) if inputs.segments is None else inputs.segments
        places = self.places(inputs.places + self.config.start + 1)
        x = self.tokens(inputs.ids) + places + self.segments(segments)
        x = self.drop(self.norm(x))
        visible = inputs.visible(dropout=self.training and self.config.attention_dropout > 0)
        for block in self.blocks:
            x = block(x, visible)
        return Output(x)

    def predict(self, hidden: Tensor) -> Scores:
        """Score the hidden token with the table that read the others."""
        return self.tokens.predict(self.head(hidden), self.head.bias)


# Deviation: the shared ladder trains without dropout and starts as BERT's does.
PRESETS = {
    name: RobertaConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        dropout=0.0,
        attention_dropout=0.0,
        std=size.width**-0.5,
        near=True,
    )
    for name, size in LADDER.items()
} | {
    "roberta-base": RobertaConfig(),
    "roberta-large": RobertaConfig(width=1024, depth=24, heads=16),
}
