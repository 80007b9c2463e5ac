"""GPT-2 (Radford et al., 2019): GPT with each norm moved inside its residual, and one at the end.

A decoder: each token sees itself and the past, and the last hidden state predicts the next token.
"""

from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.nn.attention import Attention
from kinfolk.nn.feedforward import FeedForward
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Summary
from kinfolk.nn.residual import PreNorm, quieten
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.sight import Visible
from kinfolk.types import Inputs, Output, State


@config("gpt2")
class GPT2Config(ModelConfig):
    """The published small model, unless told otherwise."""

    vocab: int = field(default=50257, ge=1, help="number of token ids")
    width: int = field(default=768, ge=1, help="size of the hidden states")
    depth: int = field(default=12, ge=1, help="number of layers")
    heads: int = field(default=12, ge=1, help="number of attention heads")
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    context: int = field(default=1024, ge=1, help="longest sequence, in tokens")
    bend: str = field(default="gelu_new", help="activation function of the feed-forward layer")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.1, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    epsilon: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return GPT2

    def build(self) -> "GPT2":
        """Make the network, with fresh weights."""
        return GPT2(self)


class Block(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        attention = Attention(c.width, c.heads, dropout=c.attention_dropout)
        feed = FeedForward(c.width, c.inner or 4 * c.width, c.bend)
        self.attend = PreNorm(attention, nn.LayerNorm(c.width, c.epsilon), c.dropout)
        self.feed = PreNorm(feed, nn.LayerNorm(c.width, c.epsilon), c.dropout)

    def forward(self, x: Tensor, visible: Visible, state: State | None, layer: int) -> Tensor:
        return self.feed(self.attend(x, visible, state, layer))


class GPT2(LanguageModel):
    """Token and place tables, a stack of blocks, a last norm; the token table also predicts."""

    config: GPT2Config
    tokens: Table
    architecture = "decoder"
    decoding = "causal"
    summary = Summary(reads="last", bias=False)

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.places = nn.Embedding(c.context, c.width)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.width, c.epsilon)
        initialise(self, std=0.02)
        quieten(self.blocks, 2 * c.depth)

    def forward(self, inputs: Inputs) -> Output:
        x = self.drop(self.tokens(inputs.ids) + self.places(inputs.places))
        visible = inputs.visible(dropout=self.training and self.config.attention_dropout > 0)
        for layer, block in enumerate(self.blocks):
            x = block(x, visible, inputs.state, layer)
        return Output(self.norm(x), inputs.state)

    def predict(self, hidden: Tensor) -> Scores:
        """Score the next token with the table that read the last."""
        return self.tokens.predict(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text.
PRESETS = {
    name: GPT2Config(
        width=size.width, depth=size.depth, heads=size.heads, dropout=0.0, attention_dropout=0.0
    )
    for name, size in LADDER.items()
} | {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(width=1024, depth=24, heads=16),
    "gpt2-large": GPT2Config(width=1280, depth=36, heads=20),
    "gpt2-xl": GPT2Config(width=1600, depth=48, heads=25),
}
