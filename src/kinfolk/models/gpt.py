"""GPT (Radford et al., 2018): the Transformer's decoder alone, pretrained on text as it comes.

Each token sees itself and the past, and the last hidden state predicts the next token. Norms
stand behind their residuals, as in the Transformer of 2017; places are learned.
"""

from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.nn.attention import Attention
from kinfolk.nn.feedforward import FeedForward
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Summary
from kinfolk.nn.residual import PostNorm
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.sight import Visible
from kinfolk.types import Inputs, Output, State


@config("gpt")
class GPTConfig(ModelConfig):
    """The published model, unless told otherwise."""

    vocab: int = field(default=40478, ge=1, help="number of token ids")
    width: int = field(default=768, ge=1, help="size of the hidden states")
    depth: int = field(default=12, ge=1, help="number of layers")
    heads: int = field(default=12, ge=1, help="number of attention heads")
    context: int = field(default=512, ge=1, help="longest sequence, in tokens")
    bend: str = field(default="gelu_new", help="activation function of the feed-forward layer")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.1, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    epsilon: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")
    # Radford et al. 2018, section 4.1.
    std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return GPT

    def build(self) -> "GPT":
        """Make the network, with fresh weights."""
        return GPT(self)


class Block(nn.Module):
    """Attention and feed-forward, each followed by a norm."""

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        attention = Attention(c.width, c.heads, dropout=c.attention_dropout)
        feed = FeedForward(c.width, 4 * c.width, c.bend)
        self.attend = PostNorm(attention, nn.LayerNorm(c.width, c.epsilon), c.dropout)
        self.feed = PostNorm(feed, nn.LayerNorm(c.width, c.epsilon), c.dropout)

    def forward(self, x: Tensor, visible: Visible, state: State | None, layer: int) -> Tensor:
        return self.feed(self.attend(x, visible, state, layer))


class GPT(LanguageModel):
    """Token and place tables and a stack of blocks; the token table also predicts."""

    config: GPTConfig
    tokens: Table
    architecture = "decoder"
    decoding = "causal"
    summary = Summary(reads="last", bias=False)

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.places = nn.Embedding(c.context, c.width)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))
        initialise(self, std=c.std)

    def forward(self, inputs: Inputs) -> Output:
        x = self.drop(self.tokens(inputs.ids) + self.places(inputs.places))
        visible = inputs.visible(dropout=self.training and self.config.attention_dropout > 0)
        for layer, block in enumerate(self.blocks):
            x = block(x, visible, inputs.state, layer)
        return Output(x, inputs.state)

    def predict(self, hidden: Tensor) -> Scores:
        """Score the next token with the table that read the last."""
        return self.tokens.predict(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text.
PRESETS = {
    name: GPTConfig(
        width=size.width, depth=size.depth, heads=size.heads, dropout=0.0, attention_dropout=0.0
    )
    for name, size in LADDER.items()
} | {"gpt": GPTConfig()}
