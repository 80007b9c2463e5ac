"""Transformer (Vaswani et al., 2017): an encoder and a decoder of attention, without recurrence.

The encoder reads a text with bidirectional attention; the decoder generates another with causal
self-attention and cross-attention to the encoder. Positions are sinusoids added to the token
embeddings, which source, target and output layer share.
"""

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.base import Family, standard_sizes
from kinfolk.nn.attention import Attention, CrossAttention
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.language_model import (
    MAX_LAYERS,
    EncoderDecoder,
    LayerStack,
    ModelConfig,
    model_field,
    network_of,
)
from kinfolk.nn.layers import FeedForward, PostNorm, TransformerLayer
from kinfolk.nn.positions import sinusoidal_embedding
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.training.config import TrainConfig


@config("transformer")
class TransformerConfig(ModelConfig):
    """The published base model by default."""

    # Section 5.1: subwords shared by English and German.
    vocab_size: int = model_field("vocab_size", 37000)
    hidden_size: int = model_field("hidden_size", 512)
    num_layers: int = field(
        default=6, ge=1, le=MAX_LAYERS, help="number of encoder layers, and of decoder layers"
    )
    num_heads: int = model_field("num_heads", 8)
    intermediate_size: int | None = model_field("intermediate_size", None)
    decoder_start_token_id: int = model_field("decoder_start_token_id", 0)
    dropout: float = model_field("dropout", 0.1)


def layer(c: TransformerConfig, *, decoder: bool) -> TransformerLayer:
    """Return a layer of the encoder or the decoder; each sublayer is followed by a norm."""
    # Section 3.2.2 projects by matrices alone; section 3.3 has biases.
    attention = Attention(c.hidden_size, c.num_heads, bias=False)
    # The encoder's is not used: it is built because random numbers follow the construction order.
    cross_attention = CrossAttention(c.hidden_size, c.num_heads, bias=False)
    return TransformerLayer(
        attention,
        FeedForward(c.hidden_size, c.intermediate_size or 4 * c.hidden_size, "relu"),
        cross_attention=cross_attention if decoder else None,
        residual=lambda part: PostNorm(part, nn.LayerNorm(c.hidden_size), c.dropout),
    )


class Stack(nn.Module):
    """The layers of the encoder or the decoder."""

    def __init__(self, c: TransformerConfig, *, decoder: bool) -> None:
        super().__init__()
        self.layers = LayerStack(layer(c, decoder=decoder) for _ in range(c.num_layers))

    def forward(
        self,
        x: Tensor,
        attend: AttentionBackend,
        inputs: Inputs,
        encoder_states: tuple[Tensor, AttentionBackend] | None = None,
    ) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, attend, inputs.cache, i, encoder_states)
        return x


@network_of(TransformerConfig)
class Transformer(EncoderDecoder):
    """Token embeddings, an encoder and a decoder; the output layer is tied."""

    config: TransformerConfig
    token_embeddings: TokenEmbedding

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = Stack(c, decoder=False)
        self.decoder = Stack(c, decoder=True)
        self.init_weights()

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the sum of token embeddings and sinusoids (section 3.4)."""
        x = self.token_embeddings(inputs.input_ids) * self.config.hidden_size**0.5
        positions = sinusoidal_embedding(inputs.position_ids, self.config.hidden_size)
        return self.dropout(x + positions.to(x.dtype))

    def encode(self, encoder_inputs: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, hidden_size)."""
        attend = self.attention_fn(encoder_inputs)
        return self.encoder(self.embed(encoder_inputs), attend, encoder_inputs)

    def forward(self, inputs: Inputs) -> Output:
        encoder_states = self.encoder_states(inputs)
        x = self.decoder(self.embed(inputs), self.attention_fn(inputs), inputs, encoder_states)
        return Output(x, inputs.cache)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the next token."""
        return self.token_embeddings.lm_logits(hidden)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw matrices by their sizes, and embeddings that have unit variance once scaled.

        As in the authors' code and in `torch.nn.Transformer`; the paper does not specify it.
        """
        c = self.config
        self.token_embeddings.weight.normal_(0.0, c.hidden_size**-0.5)[c.vocab_size :] = 0.0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    module.bias.zero_()


def paper_training(hidden_size: int, steps: int) -> TrainConfig:
    """Return the settings of sections 5.1 to 5.3 for a hidden size.

    A batch is 25,000 tokens of each side, here in rows of 512.
    """
    return TrainConfig(
        steps=steps,
        batch_size=49,
        schedule="inverse_root",
        lr=hidden_size**-0.5 * 4000**-0.5,
        min_lr_ratio=0.0,
        warmup=4000,
        weight_decay=0.0,
        betas=(0.9, 0.98),
        eps=1e-9,
        grad_clip=0.0,
    )


FAMILY = Family(
    name="transformer",
    title="Transformer",
    paper="Vaswani et al. 2017",
    year=2017,
    model=Transformer,
    # Deviation: the standard sizes train without dropout, as they see each text about once.
    sizes=standard_sizes(TransformerConfig, dropout=0.0)
    | {
        "transformer-base": TransformerConfig(),
        # Table 3.
        "transformer-big": TransformerConfig(hidden_size=1024, num_heads=16, dropout=0.3),
    },
    objectives={"pairs": Seq2Seq, "spans": SpanCorruption},
    training=TrainConfig(
        lr=1e-3, warmup=400, schedule="inverse_root", min_lr_ratio=0.0, weight_decay=0.0
    ),
    paper_training={
        "transformer-base": paper_training(512, 100_000),
        "transformer-big": paper_training(1024, 300_000),
    },
    template="t5",
)
