"""Transformer (Vaswani et al., 2017): an encoder and a decoder of attention, without recurrence.

The encoder reads a text both ways, the decoder writes another, seeing its own past and all that
the encoder said. Places are waves that are added to the tokens; one table serves source, target
and output.
"""

import math

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.attention import Attention, CrossAttention
from kinfolk.nn.feedforward import FeedForward
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig
from kinfolk.nn.residual import PostNorm
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table
from kinfolk.sight import Visible
from kinfolk.types import Inputs, Output, State


@config("transformer")
class TransformerConfig(ModelConfig):
    """The published base model, unless told otherwise."""

    # Vaswani et al. 2017, section 5.1: subwords shared by English and German.
    vocab: int = field(default=37000, ge=1, help="number of token ids")
    width: int = field(default=512, ge=1, help="size of the hidden states")
    depth: int = field(default=6, ge=1, help="number of encoder layers, and of decoder layers")
    heads: int = field(default=8, ge=1, help="number of attention heads")
    inner: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    start: int = field(default=0, ge=0, help="id of the token that the decoder starts from")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Transformer

    def build(self) -> "Transformer":
        """Make the network, with fresh weights."""
        return Transformer(self)


def waves(places: Tensor, width: int) -> Tensor:
    """Return sines and cosines of places, ever slower: (batch, length, width) (section 3.5)."""
    steps = torch.arange(0, width, 2, device=places.device)
    turns = places[..., None] * torch.exp(steps * (-math.log(10_000) / width))
    return torch.stack([turns.sin(), turns.cos()], dim=-1).flatten(-2)


def branch(inner: nn.Module, c: TransformerConfig) -> PostNorm:
    """Put a part before its norm; its output is dropped from (section 5.4)."""
    return PostNorm(inner, nn.LayerNorm(c.width), c.dropout)


class Block(nn.Module):
    """One layer of either stack; the decoder's also looks at the source."""

    def __init__(self, c: TransformerConfig, *, decoder: bool) -> None:
        super().__init__()
        # Section 3.2.2 projects by matrices alone; section 3.3 has biases.
        attend, cross = (kind(c.width, c.heads, bias=False) for kind in (Attention, CrossAttention))
        self.attend = branch(attend, c)
        self.cross = branch(cross, c) if decoder else None
        self.feed = branch(FeedForward(c.width, c.inner or 4 * c.width, "relu"), c)

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
    """Blocks one after the other."""

    def __init__(self, c: TransformerConfig, *, decoder: bool) -> None:
        super().__init__()
        self.blocks = LayerStack(Block(c, decoder=decoder) for _ in range(c.depth))

    def forward(
        self, x: Tensor, inputs: Inputs, source: tuple[Tensor, Visible] | None = None
    ) -> Tensor:
        visible = inputs.visible()
        for layer, block in enumerate(self.blocks):
            x = block(x, visible, source, inputs.state, layer)
        return x


class Transformer(LanguageModel):
    """One table, an encoder and a decoder."""

    config: TransformerConfig
    tokens: Table
    architecture = "encoder-decoder"
    decoding = "encoder-decoder"
    can_fill = True

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.drop = nn.Dropout(c.dropout)
        self.encoder = Stack(c, decoder=False)
        self.decoder = Stack(c, decoder=True)
        self.initialise()

    def embed(self, inputs: Inputs) -> Tensor:
        """Turn tokens and their places into vectors (section 3.4)."""
        x = self.tokens(inputs.ids) * self.config.width**0.5
        return self.drop(x + waves(inputs.places, self.config.width).to(x.dtype))

    def encode(self, source: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, width)."""
        return self.encoder(self.embed(source), source)

    def forward(self, inputs: Inputs) -> Output:
        if inputs.source is None:
            raise UserError("a Transformer writes about a source: give its inputs in `source`")
        state = inputs.state
        source = state.source if state is not None else None
        if source is None:
            source = self.encode(inputs.source)
        if state is not None:
            state.source = source
        x = self.decoder(self.embed(inputs), inputs, (source, inputs.across()))
        return Output(x, state)

    def predict(self, hidden: Tensor) -> Scores:
        """Score the next token by the table that reads."""
        return self.tokens.predict(hidden)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw matrices by their sizes, and tokens so that they are of size one once scaled.

        The paper is silent; these are the ways of its authors' code and of `torch.nn.Transformer`.
        """
        self.tokens.weight.normal_(0.0, self.config.width**-0.5)[self.config.vocab :] = 0.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    module.bias.zero_()


# Deviation: the shared ladder trains without dropout, as fits one pass over a text.
PRESETS = {
    name: TransformerConfig(width=size.width, depth=size.depth, heads=size.heads, dropout=0.0)
    for name, size in LADDER.items()
} | {
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(width=1024, heads=16, dropout=0.3),  # table 3
}
