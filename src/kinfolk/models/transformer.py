"""Transformer (Vaswani et al., 2017): an encoder and a decoder of attention, without recurrence.

The encoder reads a text both ways, the decoder writes another, seeing its own past and all that
the encoder said. Places are waves that are added to the tokens; one table serves source, target
and output.
"""

import math

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, KVCache, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import (
    Attention,
    CrossAttention,
    attention_backend,
    cross_attention_backend,
)
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig
from kinfolk.nn.layers import FeedForward, PostNorm


@config("transformer")
class TransformerConfig(ModelConfig):
    """The published base model, unless told otherwise."""

    # Vaswani et al. 2017, section 5.1: subwords shared by English and German.
    vocab_size: int = field(default=37000, ge=1, help="number of token ids")
    hidden_size: int = field(default=512, ge=1, help="size of the hidden states")
    num_layers: int = field(default=6, ge=1, help="number of encoder layers, and of decoder layers")
    num_heads: int = field(default=8, ge=1, help="number of attention heads")
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    decoder_start_token_id: int = field(
        default=0, ge=0, help="id of the token that the decoder starts from"
    )
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Transformer

    def build(self) -> "Transformer":
        """Make the network, with fresh weights."""
        return Transformer(self)


def sinusoidal_table(position_ids: Tensor, width: int) -> Tensor:
    """Return sines and cosines of places, ever slower: (batch, length, width) (section 3.5)."""
    steps = torch.arange(0, width, 2, device=position_ids.device)
    turns = position_ids[..., None] * torch.exp(steps * (-math.log(10_000) / width))
    return torch.stack([turns.sin(), turns.cos()], dim=-1).flatten(-2)


def branch(inner: nn.Module, c: TransformerConfig) -> PostNorm:
    """Put a part before its norm; its output is dropped from (section 5.4)."""
    return PostNorm(inner, nn.LayerNorm(c.hidden_size), c.dropout)


class Layer(nn.Module):
    """One layer of either stack; the decoder's also looks at the source."""

    def __init__(self, c: TransformerConfig, *, decoder: bool) -> None:
        super().__init__()
        # Section 3.2.2 projects by matrices alone; section 3.3 has biases.
        attend, cross = (
            kind(c.hidden_size, c.num_heads, bias=False) for kind in (Attention, CrossAttention)
        )
        self.self_attention = branch(attend, c)
        self.cross_attention = branch(cross, c) if decoder else None
        self.feed_forward = branch(
            FeedForward(c.hidden_size, c.intermediate_size or 4 * c.hidden_size, "relu"), c
        )

    def forward(
        self,
        x: Tensor,
        attend: AttentionBackend,
        encoder_states: tuple[Tensor, AttentionBackend] | None = None,
        cache: KVCache | None = None,
        layer_idx: int = 0,
    ) -> Tensor:
        x = self.self_attention(x, attend, cache, layer_idx)
        if self.cross_attention is not None and encoder_states is not None:
            x = self.cross_attention(x, *encoder_states, cache, layer_idx)
        return self.feed_forward(x)


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(self, c: TransformerConfig, *, decoder: bool) -> None:
        super().__init__()
        self.layers = LayerStack(Layer(c, decoder=decoder) for _ in range(c.num_layers))

    def forward(
        self,
        x: Tensor,
        inputs: Inputs,
        encoder_states: tuple[Tensor, AttentionBackend] | None = None,
    ) -> Tensor:
        attend = attention_backend(inputs)
        for layer, block in enumerate(self.layers):
            x = block(x, attend, encoder_states, inputs.cache, layer)
        return x


class Transformer(LanguageModel):
    """One table, an encoder and a decoder."""

    config: TransformerConfig
    token_embeddings: TokenEmbedding
    architecture = "encoder-decoder"
    decoding = "encoder-decoder"
    can_fill = True

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = Stack(c, decoder=False)
        self.decoder = Stack(c, decoder=True)
        self.initialise()

    def embed(self, inputs: Inputs) -> Tensor:
        """Turn tokens and their places into vectors (section 3.4)."""
        x = self.token_embeddings(inputs.input_ids) * self.config.hidden_size**0.5
        return self.dropout(
            x + sinusoidal_table(inputs.position_ids, self.config.hidden_size).to(x.dtype)
        )

    def encode(self, encoder_inputs: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, width)."""
        return self.encoder(self.embed(encoder_inputs), encoder_inputs)

    def forward(self, inputs: Inputs) -> Output:
        if inputs.encoder_inputs is None:
            raise UserError(
                "a Transformer writes about a source: give its inputs in `encoder_inputs`"
            )
        state = inputs.cache
        source = state.encoder_output if state is not None else None
        if source is None:
            source = self.encode(inputs.encoder_inputs)
        if state is not None:
            state.encoder_output = source
        x = self.decoder(self.embed(inputs), inputs, (source, cross_attention_backend(inputs)))
        return Output(x, state)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the next token by the table that reads."""
        return self.token_embeddings.lm_logits(hidden)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw matrices by their sizes, and tokens so that they are of size one once scaled.

        The paper is silent; these are the ways of its authors' code and of `torch.nn.Transformer`.
        """
        self.token_embeddings.weight.normal_(0.0, self.config.hidden_size**-0.5)[
            self.config.vocab_size :
        ] = 0.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    module.bias.zero_()


# Deviation: the shared ladder trains without dropout, as fits one pass over a text.
SIZES = {
    name: TransformerConfig(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        dropout=0.0,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(hidden_size=1024, num_heads=16, dropout=0.3),  # table 3
}
