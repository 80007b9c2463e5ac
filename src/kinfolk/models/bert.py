"""BERT (Devlin et al., 2018): the Transformer's encoder alone, reading both ways at once.

Every token sees every other; a token that was hidden is predicted from both its sides, and the
first token's vector says something about the whole text.
"""

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.nn.attention import Attention
from kinfolk.nn.feedforward import FeedForward, activation
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Summary
from kinfolk.nn.positions import look_near
from kinfolk.nn.residual import PostNorm
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.sight import Visible
from kinfolk.types import Inputs, Output

TABLES = 0.02  # the standard deviation of tables at the start (the published code)


@config("bert")
class BertConfig(ModelConfig):
    """The published base model, unless told otherwise."""

    vocab: int = field(default=30522, ge=1, help="number of token ids")
    width: int = field(default=768, ge=1, help="size of the hidden states")
    depth: int = field(default=12, ge=1, help="number of layers")
    heads: int = field(default=12, ge=1, help="number of attention heads")
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
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

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Bert

    def build(self) -> "Bert":
        """Make the network, with fresh weights."""
        return Bert(self)


class Block(nn.Module):
    """Attention and feed-forward, each followed by a norm."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        attention = Attention(c.width, c.heads, dropout=c.attention_dropout)
        feed = FeedForward(c.width, c.inner or 4 * c.width, c.bend)
        self.attend = PostNorm(attention, nn.LayerNorm(c.width, c.epsilon), c.dropout)
        self.feed = PostNorm(feed, nn.LayerNorm(c.width, c.epsilon), c.dropout)

    def forward(self, x: Tensor, visible: Visible) -> Tensor:
        return self.feed(self.attend(x, visible))


class TokenHead(nn.Module):
    """What a hidden state passes before it meets the token table again."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.bend = activation(c.bend)
        self.dense = nn.Linear(c.width, c.width)
        self.norm = nn.LayerNorm(c.width, c.epsilon)
        self.bias = nn.Parameter(torch.zeros(c.vocab))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.bend(self.dense(hidden)))


class Bert(LanguageModel):
    """Three tables and a norm, a stack of blocks, and two heads: for tokens and for pairs."""

    config: BertConfig
    tokens: Table
    architecture = "encoder"
    can_fill = True
    summary = Summary(reads="first", own=True)
    pretraining_only = ("head", "pairs")
    pooling_only = ("pooler",)

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.places = nn.Embedding(c.context, c.width)
        self.segments = nn.Embedding(c.segments, c.width)
        self.norm = nn.LayerNorm(c.width, c.epsilon)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))
        self.head = TokenHead(c)
        self.pooler = nn.Linear(c.width, c.width)
        self.pairs = nn.Linear(c.width, 2)
        initialise(self, std=c.std, tables=TABLES)
        if c.near:
            look_near(self.blocks, self.places, std=TABLES)

    def forward(self, inputs: Inputs) -> Output:
        segments = torch.zeros_like(inputs.ids) if inputs.segments is None else inputs.segments
        x = self.tokens(inputs.ids) + self.places(inputs.places) + self.segments(segments)
        x = self.drop(self.norm(x))
        visible = inputs.visible(dropout=self.training and self.config.attention_dropout > 0)
        for block in self.blocks:
            x = block(x, visible)
        return Output(x)

    def predict(self, hidden: Tensor) -> Scores:
        """Score the hidden token with the table that read the others."""
        return self.tokens.predict(self.head(hidden), self.head.bias)

    def pool(self, hidden: Tensor) -> Tensor:
        """Turn the first token's hidden state into a vector of its text."""
        return torch.tanh(self.pooler(hidden))

    def judge(self, hidden: Tensor) -> Tensor:
        """Score whether the second text follows the first (0) or comes from elsewhere (1)."""
        return self.pairs(self.drop(self.pool(hidden)))


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its matrices
# start larger and its tokens look around themselves first: a small BERT then learns much sooner.
PRESETS = {
    name: BertConfig(
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
    "bert-base-uncased": BertConfig(),
    "bert-base-cased": BertConfig(vocab=28996),
    "bert-base-chinese": BertConfig(vocab=21128),
    "bert-large-uncased": BertConfig(width=1024, depth=24, heads=16),
    "bert-large-cased": BertConfig(vocab=28996, width=1024, depth=24, heads=16),
}
