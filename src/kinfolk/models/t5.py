"""T5 (Raffel et al., 2020): an encoder and a decoder, with biases by distance for positions.

The encoder reads a text with holes both ways; the decoder writes what stood in them, seeing all
that the encoder said. Version 1.0 bends by ReLU and shares one table; 1.1 gates by GELU and has
two.
"""

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, KVCache, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import Attention, CrossAttention, cross_attention_backend, select_backend
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig
from kinfolk.nn.layers import FeedForward, GatedFeedForward, PreNorm
from kinfolk.nn.positions import RelativePositionBias


@config("t5")
class T5Config(ModelConfig):
    """The published small model of version 1.0, unless told otherwise."""

    vocab_size: int = field(default=32128, ge=1, help="number of token ids")
    hidden_size: int = field(default=512, ge=1, help="size of the hidden states")
    num_layers: int = field(default=6, ge=1, help="number of encoder layers")
    num_decoder_layers: int | None = field(
        default=None, ge=1, help="number of decoder layers; None is as many as the encoder has"
    )
    num_heads: int = field(default=8, ge=1, help="number of attention heads")
    head_dim: int | None = field(
        default=None, ge=1, help="size of an attention head; None is the hidden size over the heads"
    )
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    gated: bool = field(default=False, help="gated feed-forward layer")
    activation: str = field(default="relu", help="activation function of the feed-forward layer")
    tie_word_embeddings: bool = field(
        default=True, help="share the input embeddings with the output layer"
    )
    num_buckets: int = field(default=32, ge=1, help="number of relative position buckets")
    max_distance: int = field(
        default=128, ge=1, help="distance from which all tokens share the last bucket"
    )
    decoder_start_token_id: int = field(
        default=0, ge=0, help="id of the token that the decoder starts from"
    )
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    layer_norm_eps: float = field(default=1e-6, gt=0, help="epsilon of the layer norms")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return T5

    def build(self) -> "T5":
        """Make the network, with fresh weights."""
        return T5(self)

    @property
    def attention_size(self) -> int:
        """How wide all heads are together."""
        return self.num_heads * (self.head_dim or self.hidden_size // self.num_heads)


def branch(inner: nn.Module, c: T5Config) -> PreNorm:
    """Put a part behind its norm."""
    return PreNorm(inner, nn.RMSNorm(c.hidden_size, c.layer_norm_eps), c.dropout)


class Layer(nn.Module):
    """One layer of either stack; the decoder's also looks at the source."""

    def __init__(self, c: T5Config, *, decoder: bool) -> None:
        super().__init__()
        # Section 2.1: no biases, and no 1/sqrt(d) on the scores: it is in the initial weights.
        attend, cross = (
            kind(
                c.hidden_size,
                c.num_heads,
                attention_size=c.attention_size,
                scale=1.0,
                bias=False,
                dropout=c.dropout,
            )
            for kind in (Attention, CrossAttention)
        )
        self.self_attention = branch(attend, c)
        self.cross_attention = branch(cross, c) if decoder else None
        feed = GatedFeedForward if c.gated else FeedForward
        inner = c.intermediate_size or 4 * c.hidden_size
        self.feed_forward = branch(
            feed(c.hidden_size, inner, c.activation, bias=False, dropout=c.dropout), c
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
    """Blocks that share one bias by distance, a last norm, and dropout at both ends."""

    def __init__(self, c: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.config = c
        self.position_bias = RelativePositionBias(
            c.num_heads,
            num_buckets=c.num_buckets,
            max_distance=c.max_distance,
            bidirectional=not decoder,
        )
        depth = (
            c.num_decoder_layers if decoder and c.num_decoder_layers is not None else c.num_layers
        )
        self.layers = LayerStack(Layer(c, decoder=decoder) for _ in range(depth))
        self.final_norm = nn.RMSNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.dropout)

    def forward(
        self,
        x: Tensor,
        inputs: Inputs,
        encoder_states: tuple[Tensor, AttentionBackend] | None = None,
    ) -> Tensor:
        seen = inputs.full_key_mask()
        last = None if inputs.cache is None else inputs.cache.last_index()
        bias = self.position_bias(x.shape[1], seen.document_ids.shape[1], last)
        dropped = self.training and self.config.dropout > 0
        attend = select_backend(inputs.attention_mask, seen, bias=bias, dropout=dropped)
        x = self.dropout(x)
        for layer, block in enumerate(self.layers):
            x = block(x, attend, encoder_states, inputs.cache, layer)
        return self.dropout(self.final_norm(x))


class T5(LanguageModel):
    """One table for both sides, an encoder, a decoder, and a table that predicts."""

    config: T5Config
    token_embeddings: TokenEmbedding
    architecture = "encoder-decoder"
    decoding = "encoder-decoder"
    can_fill = True

    def __init__(self, c: T5Config) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.encoder = Stack(c, decoder=False)
        self.decoder = Stack(c, decoder=True)
        self.lm_head = (
            None if c.tie_word_embeddings else TokenEmbedding(c.vocab_size, c.hidden_size)
        )
        self.initialise()

    def encode(self, encoder_inputs: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, width)."""
        return self.encoder(self.token_embeddings(encoder_inputs.input_ids), encoder_inputs)

    def forward(self, inputs: Inputs) -> Output:
        if inputs.encoder_inputs is None:
            raise UserError("T5 writes about a source: give its inputs in `encoder_inputs`")
        state = inputs.cache
        source = state.encoder_output if state is not None else None
        if source is None:
            source = self.encode(inputs.encoder_inputs)
        if state is not None:
            state.encoder_output = source
        dropped = self.training and self.config.dropout > 0
        across = cross_attention_backend(inputs, dropout=dropped)
        x = self.decoder(self.token_embeddings(inputs.input_ids), inputs, (source, across))
        return Output(x, state)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the next token; a shared table wants its input scaled down (version 1.0)."""
        if self.lm_head is not None:
            return self.lm_head.lm_logits(hidden)
        return self.token_embeddings.lm_logits(hidden * self.config.hidden_size**-0.5)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw weights as Mesh TensorFlow does: by the width of what comes in."""
        c = self.config
        self.token_embeddings.weight.normal_(0.0, 1.0)[c.vocab_size :] = 0.0
        if self.lm_head is not None:
            self.lm_head.weight.normal_(0.0, c.hidden_size**-0.5)[c.vocab_size :] = 0.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, module.in_features**-0.5)
        for module in self.modules():  # once all are drawn: a part comes before what is in it
            if isinstance(module, Attention):  # the 1/sqrt(d) of the scores, in the query
                module.qkv_proj.weight[: c.attention_size] *= (
                    c.attention_size // c.num_heads
                ) ** -0.5
            if isinstance(module, CrossAttention):
                module.q_proj.weight *= (c.attention_size // c.num_heads) ** -0.5
            if isinstance(module, RelativePositionBias):
                module.embedding.weight.normal_(0.0, c.hidden_size**-0.5)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its rungs are
# version 1.1 with `num_layers` layers on each side.
SIZES = {
    name: T5Config(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        intermediate_size=8 * size.hidden_size // 3 // 64 * 64
        or 2 * size.hidden_size,  # gated: as wide as 4x ungated
        gated=True,
        activation="gelu_new",
        tie_word_embeddings=False,
        dropout=0.0,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "t5-small": T5Config(),
    "t5-base": T5Config(hidden_size=768, num_layers=12, num_heads=12),
    "t5-large": T5Config(hidden_size=1024, num_layers=24, num_heads=16),
    "t5-3b": T5Config(
        hidden_size=1024, num_layers=24, num_heads=32, head_dim=128, intermediate_size=16384
    ),
    "t5-11b": T5Config(
        hidden_size=1024, num_layers=24, num_heads=128, head_dim=128, intermediate_size=65536
    ),
    "t5-v1.1-small": T5Config(
        num_layers=8,
        num_heads=6,
        head_dim=64,
        intermediate_size=1024,
        gated=True,
        activation="gelu_new",
        tie_word_embeddings=False,
    ),
    "t5-v1.1-base": T5Config(
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        intermediate_size=2048,
        gated=True,
        activation="gelu_new",
        tie_word_embeddings=False,
    ),
    "t5-v1.1-large": T5Config(
        hidden_size=1024,
        num_layers=24,
        num_heads=16,
        intermediate_size=2816,
        gated=True,
        activation="gelu_new",
        tie_word_embeddings=False,
    ),
}
