"""T5 (Raffel et al., 2020): an encoder and a decoder, with biases by distance for positions.

The encoder reads a text with holes both ways; the decoder writes what stood in them, seeing all
that the encoder said. Version 1.0 bends by ReLU and shares one table; 1.1 gates by GELU and has
two.
"""

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.attention import Attention, CrossAttention
from kinfolk.nn.feedforward import FeedForward, GatedFeedForward
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig
from kinfolk.nn.positions import RelativeBias
from kinfolk.nn.residual import PreNorm
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table
from kinfolk.sight import Visible, see
from kinfolk.types import Inputs, Output, State


@config("t5")
class T5Config(ModelConfig):
    """The published small model of version 1.0, unless told otherwise."""

    vocab: int = field(default=32128, ge=1, help="number of token ids")
    width: int = field(default=512, ge=1, help="size of the hidden states")
    depth: int = field(default=6, ge=1, help="number of encoder layers")
    decoder_depth: int | None = field(
        default=None, ge=1, help="number of decoder layers; None is as many as the encoder has"
    )
    heads: int = field(default=8, ge=1, help="number of attention heads")
    head_width: int | None = field(
        default=None, ge=1, help="size of an attention head; None is the hidden size over the heads"
    )
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    gated: bool = field(default=False, help="gated feed-forward layer")
    bend: str = field(default="relu", help="activation function of the feed-forward layer")
    tied: bool = field(default=True, help="share the input embeddings with the output layer")
    buckets: int = field(default=32, ge=1, help="number of relative position buckets")
    farthest: int = field(
        default=128, ge=1, help="distance from which all tokens share the last bucket"
    )
    start: int = field(default=0, ge=0, help="id of the token that the decoder starts from")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    epsilon: float = field(default=1e-6, gt=0, help="epsilon of the layer norms")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return T5

    def build(self) -> "T5":
        """Make the network, with fresh weights."""
        return T5(self)

    @property
    def attention(self) -> int:
        """How wide all heads are together."""
        return self.heads * (self.head_width or self.width // self.heads)


def branch(inner: nn.Module, c: T5Config) -> PreNorm:
    """Put a part behind its norm."""
    return PreNorm(inner, nn.RMSNorm(c.width, c.epsilon), c.dropout)


class Block(nn.Module):
    """One layer of either stack; the decoder's also looks at the source."""

    def __init__(self, c: T5Config, *, decoder: bool) -> None:
        super().__init__()
        # Section 2.1: no biases, and no 1/sqrt(d) on the scores: it is in the initial weights.
        attend, cross = (
            kind(c.width, c.heads, inner=c.attention, scale=1.0, bias=False, dropout=c.dropout)
            for kind in (Attention, CrossAttention)
        )
        self.attend = branch(attend, c)
        self.cross = branch(cross, c) if decoder else None
        feed = GatedFeedForward if c.gated else FeedForward
        inner = c.inner or 4 * c.width
        self.feed = branch(feed(c.width, inner, c.bend, bias=False, dropout=c.dropout), c)

    def forward(
        self,
        x: Tensor,
        visible: Visible,
        source: tuple[Tensor, Visible] | None = None,
        state: State | None = None,
        layer: int = 0,
    ) -> Tensor:
        x = self.attend(x, visible, state, layer)
        if self.cross is not None and source is not None:
            x = self.cross(x, *source, state, layer)
        return self.feed(x)


class Stack(nn.Module):
    """Blocks that share one bias by distance, a last norm, and dropout at both ends."""

    def __init__(self, c: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.config = c
        self.bias = RelativeBias(
            c.heads, buckets=c.buckets, farthest=c.farthest, both_ways=not decoder
        )
        depth = c.decoder_depth if decoder and c.decoder_depth is not None else c.depth
        self.blocks = LayerStack(Block(c, decoder=decoder) for _ in range(depth))
        self.norm = nn.RMSNorm(c.width, c.epsilon)
        self.drop = nn.Dropout(c.dropout)

    def forward(
        self, x: Tensor, inputs: Inputs, source: tuple[Tensor, Visible] | None = None
    ) -> Tensor:
        seen = inputs.seen()
        last = None if inputs.state is None else inputs.state.last()
        bias = self.bias(x.shape[1], seen.document.shape[1], last)
        dropped = self.training and self.config.dropout > 0
        visible = see(inputs.sight, seen, bias=bias, dropout=dropped)
        x = self.drop(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, visible, source, inputs.state, layer)
        return self.drop(self.norm(x))


class T5(LanguageModel):
    """One table for both sides, an encoder, a decoder, and a table that predicts."""

    config: T5Config
    tokens: Table
    architecture = "encoder-decoder"
    decoding = "encoder-decoder"
    can_fill = True

    def __init__(self, c: T5Config) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.encoder = Stack(c, decoder=False)
        self.decoder = Stack(c, decoder=True)
        self.head = None if c.tied else Table(c.vocab, c.width)
        self.initialise()

    def encode(self, source: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, width)."""
        return self.encoder(self.tokens(source.ids), source)

    def forward(self, inputs: Inputs) -> Output:
        if inputs.source is None:
            raise UserError("T5 writes about a source: give its inputs in `source`")
        state = inputs.state
        source = state.source if state is not None else None
        if source is None:
            source = self.encode(inputs.source)
        if state is not None:
            state.source = source
        dropped = self.training and self.config.dropout > 0
        across = inputs.across(dropout=dropped)
        x = self.decoder(self.tokens(inputs.ids), inputs, (source, across))
        return Output(x, state)

    def predict(self, hidden: Tensor) -> Scores:
        """Score the next token; a shared table wants its input scaled down (version 1.0)."""
        if self.head is not None:
            return self.head.predict(hidden)
        return self.tokens.predict(hidden * self.config.width**-0.5)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw weights as Mesh TensorFlow does: by the width of what comes in."""
        c = self.config
        self.tokens.weight.normal_(0.0, 1.0)[c.vocab :] = 0.0
        if self.head is not None:
            self.head.weight.normal_(0.0, c.width**-0.5)[c.vocab :] = 0.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, module.in_features**-0.5)
        for module in self.modules():  # once all are drawn: a part comes before what is in it
            if isinstance(module, Attention):  # the 1/sqrt(d) of the scores, in the query
                module.qkv.weight[: c.attention] *= (c.attention // c.heads) ** -0.5
            if isinstance(module, CrossAttention):
                module.query.weight *= (c.attention // c.heads) ** -0.5
            if isinstance(module, RelativeBias):
                module.table.weight.normal_(0.0, c.width**-0.5)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its rungs are
# version 1.1 with `depth` layers on each side.
PRESETS = {
    name: T5Config(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        inner=8 * size.width // 3 // 64 * 64 or 2 * size.width,  # gated: as wide as 4x ungated
        gated=True,
        bend="gelu_new",
        tied=False,
        dropout=0.0,
    )
    for name, size in LADDER.items()
} | {
    "t5-small": T5Config(),
    "t5-base": T5Config(width=768, depth=12, heads=12),
    "t5-large": T5Config(width=1024, depth=24, heads=16),
    "t5-3b": T5Config(width=1024, depth=24, heads=32, head_width=128, inner=16384),
    "t5-11b": T5Config(width=1024, depth=24, heads=128, head_width=128, inner=65536),
    "t5-v1.1-small": T5Config(
        depth=8, heads=6, head_width=64, inner=1024, gated=True, bend="gelu_new", tied=False
    ),
    "t5-v1.1-base": T5Config(
        width=768, depth=12, heads=12, inner=2048, gated=True, bend="gelu_new", tied=False
    ),
    "t5-v1.1-large": T5Config(
        width=1024, depth=24, heads=16, inner=2816, gated=True, bend="gelu_new", tied=False
    ),
}
