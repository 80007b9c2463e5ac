"""T5 (Raffel et al., 2020): an encoder-decoder with relative position biases, for text to text.

The encoder reads a text with spans masked out; the decoder generates these spans with
cross-attention to the encoder. Version 1.0 has ReLU and tied embeddings; version 1.1 has gated GELU
and an output layer of its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import TOKEN_ID, Family, HuggingFace, Size, json_field, standard_sizes
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, per_layer, require
from kinfolk.nn.attention import Attention, CrossAttention, select_backend
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import mimetic_encoder_decoder_init_
from kinfolk.nn.language_model import (
    MAX_LAYERS,
    MAX_SIZE,
    MAX_TOKENS,
    EncoderDecoder,
    LayerStack,
    ModelConfig,
    model_field,
    network_of,
)
from kinfolk.nn.layers import FeedForward, GatedFeedForward, PreNorm, TransformerLayer
from kinfolk.nn.positions import RelativePositionBias
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig


@config("t5")
class T5Config(ModelConfig):
    """The published small model of version 1.0 by default."""

    vocab_size: int = model_field("vocab_size", 32128)
    hidden_size: int = model_field("hidden_size", 512)
    num_layers: int = field(default=6, ge=1, le=MAX_LAYERS, help="number of encoder layers")
    num_decoder_layers: int | None = field(
        default=None,
        ge=1,
        le=MAX_LAYERS,
        help="number of decoder layers; by default as many as the encoder has",
    )
    num_heads: int = model_field("num_heads", 8)
    head_dim: int | None = model_field("head_dim", None)
    intermediate_size: int | None = model_field("intermediate_size", None)
    gated: bool = field(default=False, help="gated feed-forward layer")
    activation: str = model_field("activation", "relu")
    tie_word_embeddings: bool = field(
        default=True, help="share the input embeddings with the output layer"
    )
    num_buckets: int = field(default=32, ge=4, le=2**16, help="number of relative position buckets")
    max_distance: int = field(
        default=128,
        ge=1,
        le=MAX_TOKENS,
        help="distance from which all tokens share the last bucket",
    )
    decoder_start_token_id: int = model_field("decoder_start_token_id", 0)
    dropout: float = model_field("dropout", 0.1)
    layer_norm_eps: float = model_field("layer_norm_eps", 1e-6)
    mimetic_init: bool = model_field("mimetic_init", False)

    @property
    def attention_size(self) -> int:
        """The size of all heads together."""
        return self.num_heads * (self.head_dim or self.hidden_size // self.num_heads)

    @property
    def decoder_layers(self) -> int:
        """The number of decoder layers."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


def t5_layer(c: T5Config, *, decoder: bool) -> TransformerLayer:
    """Return a layer of the encoder or the decoder; each sublayer comes after a norm."""
    # Section 2.1: no biases, and no 1/sqrt(d) on the scores: it is in the initial weights. The
    # encoder's cross-attention is not used: random numbers follow the construction order.
    attention, cross_attention = (
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
    inner = c.intermediate_size or 4 * c.hidden_size
    feed_forward = GatedFeedForward if c.gated else FeedForward
    return TransformerLayer(
        attention,
        feed_forward(c.hidden_size, inner, c.activation, bias=False, dropout=c.dropout),
        cross_attention=cross_attention if decoder else None,
        residual=lambda part: PreNorm(part, nn.RMSNorm(c.hidden_size, c.layer_norm_eps), c.dropout),
    )


class T5Stack(nn.Module):
    """Layers that share one relative position bias, a norm, and dropout at both ends."""

    def __init__(self, c: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.config = c
        self.position_bias = RelativePositionBias(
            c.num_heads,
            num_buckets=c.num_buckets,
            max_distance=c.max_distance,
            bidirectional=not decoder,
        )
        num_layers = c.decoder_layers if decoder else c.num_layers
        self.layers = LayerStack(t5_layer(c, decoder=decoder) for _ in range(num_layers))
        self.final_norm = nn.RMSNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.dropout)

    def forward(
        self,
        x: Tensor,
        inputs: Inputs,
        encoder_states: tuple[Tensor, AttentionBackend] | None = None,
    ) -> Tensor:
        key_mask = inputs.full_key_mask()
        last = None if inputs.cache is None else inputs.cache.last_index()
        bias = self.position_bias(x.shape[1], key_mask.document_ids.shape[1], last)
        dropout = self.training and self.config.dropout > 0
        attend = select_backend(inputs.attention_mask, key_mask, bias=bias, dropout=dropout)
        x = self.dropout(x)
        for i, layer in enumerate(self.layers):
            x = layer(x, attend, inputs.cache, i, encoder_states)
        return self.dropout(self.final_norm(x))


@network_of(T5Config)
class T5(EncoderDecoder):
    """Token embeddings for both sides, an encoder, a decoder, and an output layer."""

    config: T5Config
    token_embeddings: TokenEmbedding
    varlen_attention = False

    def __init__(self, c: T5Config) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.encoder = T5Stack(c, decoder=False)
        self.decoder = T5Stack(c, decoder=True)
        self.lm_head = (
            None if c.tie_word_embeddings else TokenEmbedding(c.vocab_size, c.hidden_size)
        )
        self.init_weights()

    def encode(self, encoder_inputs: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, hidden_size)."""
        return self.encoder(self.token_embeddings(encoder_inputs.input_ids), encoder_inputs)

    def forward(self, inputs: Inputs) -> Output:
        dropout = self.training and self.config.dropout > 0
        encoder_states = self.encoder_states(inputs, dropout=dropout)
        x = self.decoder(self.token_embeddings(inputs.input_ids), inputs, encoder_states)
        return Output(x, inputs.cache)

    def apply_final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm after the last layer of the decoder."""
        return self.decoder.final_norm(hidden)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the next token; tied embeddings need scaled inputs (version 1.0)."""
        if self.lm_head is not None:
            return self.lm_head.lm_logits(hidden)
        return self.token_embeddings.lm_logits(hidden * self.config.hidden_size**-0.5)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw weights as Mesh TensorFlow does, by the size of the input."""
        c = self.config
        self.token_embeddings.weight.normal_(0.0, 1.0)[c.vocab_size :] = 0.0
        if self.lm_head is not None:
            self.lm_head.weight.normal_(0.0, c.hidden_size**-0.5)[c.vocab_size :] = 0.0
        for part in self.modules():
            if isinstance(part, nn.Linear):
                part.weight.normal_(0.0, part.in_features**-0.5)
        query_scale = (c.attention_size // c.num_heads) ** -0.5  # the 1/sqrt(d) of the scores
        for part in self.modules():  # after all are drawn: modules come before their parts
            if isinstance(part, Attention):
                part.qkv_proj.weight[: c.attention_size] *= query_scale
            if isinstance(part, CrossAttention):
                part.q_proj.weight *= query_scale
            if isinstance(part, RelativePositionBias):
                part.embedding.weight.normal_(0.0, c.hidden_size**-0.5)
        if c.mimetic_init:
            mimetic_encoder_decoder_init_(self, self.encoder.position_bias)


def parameters(c: T5Config) -> ParameterMap:
    """Map the parameters to those of transformers, in both versions."""
    aliases = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}
    rules = [
        ParameterRule("token_embeddings.weight", ("shared.weight",), vocab_rows=c.vocab_size),
        *_stack_rules("encoder", c.num_layers, c.gated),
        *_stack_rules("decoder", c.decoder_layers, c.gated),
    ]
    if c.tie_word_embeddings:
        aliases["lm_head.weight"] = "shared.weight"
    else:
        rules.append(ParameterRule("lm_head.weight", ("lm_head.weight",), vocab_rows=c.vocab_size))
    return ParameterMap(
        rules=rules,
        aliases=aliases,
        fallbacks={} if c.tie_word_embeddings else {"lm_head.weight": "shared.weight"},
        # The first folders had an unused bias in cross-attention.
        ignored_pattern=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    )


def _stack_rules(stack: str, num_layers: int, gated: bool) -> list[ParameterRule]:
    ours, theirs = f"{stack}.layers.{{i}}", f"{stack}.block.{{i}}.layer"
    own, cross = f"{theirs}.0.SelfAttention", f"{theirs}.1.EncDecAttention"
    feed_forward = f"{theirs}.{2 if stack == 'decoder' else 1}"
    up = {"gate_proj": "wi_0", "up_proj": "wi_1"} if gated else {"up_proj": "wi"}
    names = {
        "self_attention.norm": [f"{theirs}.0.layer_norm"],
        "self_attention.sublayer.qkv_proj": [f"{own}.{name}" for name in "qkv"],
        "self_attention.sublayer.out_proj": [f"{own}.o"],
        "feed_forward.norm": [f"{feed_forward}.layer_norm"],
        **{
            f"feed_forward.sublayer.{o}": [f"{feed_forward}.DenseReluDense.{t}"]
            for o, t in up.items()
        },
        "feed_forward.sublayer.down_proj": [f"{feed_forward}.DenseReluDense.wo"],
    }
    if stack == "decoder":
        names |= {
            "cross_attention.norm": [f"{theirs}.1.layer_norm"],
            "cross_attention.sublayer.q_proj": [f"{cross}.q"],
            "cross_attention.sublayer.kv_proj": [f"{cross}.{name}" for name in "kv"],
            "cross_attention.sublayer.out_proj": [f"{cross}.o"],
        }
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    rules = [r for name, t in names.items() for r in module(f"{ours}.{name}", *t, bias=False)]
    return [
        *module(f"{stack}.position_bias.embedding", bias, bias=False),
        *per_layer(num_layers, rules),
        *module(f"{stack}.final_norm", f"{stack}.final_layer_norm", bias=False),
    ]


def to_extra(c: T5Config, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Return the fields of config.json that are not copies of ours.

    transformers 5 ties the embeddings of both versions unless a folder has two, and reads
    `tie_word_embeddings` as another setting: whether the hidden state is scaled by
    hidden_size**-0.5 before the output layer, as in 1.0 and not in 1.1. It saves this setting as
    `scale_decoder_outputs`.
    """
    if special_tokens is not None and special_tokens.pad != c.decoder_start_token_id:
        raise UserError(
            f"model.decoder_start_token_id={c.decoder_start_token_id}: it must be the padding id "
            "of the tokenizer; build the network with "
            f"model.decoder_start_token_id={special_tokens.pad}"
        )
    # "gated-gelu" is the tanh approximation.
    name = "gelu" if c.gated and c.activation == "gelu_new" else c.activation
    return {
        "num_decoder_layers": c.decoder_layers,
        "d_kv": c.attention_size // c.num_heads,
        "feed_forward_proj": f"gated-{name}" if c.gated else name,
        "dense_act_fn": c.activation,
        "is_gated_act": c.gated,
        "tie_word_embeddings": c.tie_word_embeddings,
        "scale_decoder_outputs": c.tie_word_embeddings,
        "is_encoder_decoder": True,
        "pad_token_id": c.decoder_start_token_id,
        "eos_token_id": special_tokens.eos if special_tokens else 1,
    }


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the config that are not copies of theirs."""
    # The decoder is trained, and generates, from the padding id.
    pad = 0 if data.get("pad_token_id") is None else data["pad_token_id"]
    require(data, decoder_start_token_id=pad)
    num_layers, num_decoder_layers = data["num_layers"], data.get("num_decoder_layers")
    head_dim, form = data["d_kv"], data.get("feed_forward_proj", "relu")
    activation = "gelu_new" if form == "gated-gelu" else form.removeprefix("gated-")
    return {
        "decoder_start_token_id": pad,
        "num_decoder_layers": None if num_decoder_layers == num_layers else num_decoder_layers,
        "head_dim": None if head_dim * data["num_heads"] == data["d_model"] else head_dim,
        "gated": form.startswith("gated-"),
        "activation": str(data.get("dense_act_fn", activation)),
        "tie_word_embeddings": data.get(
            "scale_decoder_outputs", data.get("tie_word_embeddings") is not False
        ),
    }


def version_1_1(size: Size) -> dict[str, Any]:
    """Return the fields of a standard size of version 1.1, as large as 4x without gates."""
    inner = 8 * size.hidden_size // 3 // 64 * 64 or 2 * size.hidden_size
    return {"intermediate_size": inner, **VERSION_1_1}


VERSION_1_1: dict[str, Any] = {
    "gated": True,
    "activation": "gelu_new",
    "tie_word_embeddings": False,
}
PUBLISHED = {
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
        num_layers=8, num_heads=6, head_dim=64, intermediate_size=1024, **VERSION_1_1
    ),
    "t5-v1.1-base": T5Config(
        hidden_size=768, num_layers=12, num_heads=12, intermediate_size=2048, **VERSION_1_1
    ),
    "t5-v1.1-large": T5Config(
        hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=2816, **VERSION_1_1
    ),
}
PAPER_TRAINING = TrainConfig(  # section 3.1.2: Adafactor, 1 / sqrt(max(step, 10^4))
    steps=524_288,
    batch_size=128,
    optimizer="adafactor",
    schedule="inverse_root",
    lr=1e-2,
    min_lr_ratio=0.0,
    warmup=10_000,
    weight_decay=0.0,
)

FAMILY = Family(
    name="t5",
    title="T5",
    paper="Raffel et al. 2020",
    year=2020,
    model=T5,
    # Deviation: the standard sizes train without dropout, as one pass needs none. They are
    # version 1.1 with `num_layers` layers on each side.
    sizes=standard_sizes(T5Config, version_1_1, dropout=0.0) | PUBLISHED,
    objectives={"spans": SpanCorruption, "pairs": Seq2Seq},
    # Plain AdamW stalls on T5's weights, whose magnitudes differ from tensor to tensor: its steps
    # are scaled by them (see `AdamWRMS`).
    training=TrainConfig(optimizer="adamw_rms", lr=2e-2, warmup=200, weight_decay=0.0),
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
    template="t5",
    hf=HuggingFace(
        model_type="t5",
        architecture="T5ForConditionalGeneration",
        config=T5Config,
        fields={
            "vocab_size": "vocab_size",
            "hidden_size": "d_model",
            "num_layers": "num_layers",
            "num_heads": "num_heads",
            "num_buckets": "relative_attention_num_buckets",
            "max_distance": "relative_attention_max_distance",
            "decoder_start_token_id": "decoder_start_token_id",
            "dropout": "dropout_rate",
            "layer_norm_eps": "layer_norm_epsilon",
            "mimetic_init": "near_start",  # only ours: transformers keeps unknown fields
        },
        parameters=parameters,
        intermediate_size="d_ff",
        required={"is_encoder_decoder": True, "is_decoder": False},
        defaults={"d_model": 512, "num_layers": 6, "num_heads": 8, "d_kv": 64, "d_ff": 2048},
        to_extra=to_extra,
        extra_fields={
            "pad_token_id": TOKEN_ID,
            "num_decoder_layers": json_field(int | None, ge=1, le=MAX_LAYERS),
            "d_kv": json_field(int, ge=1, le=MAX_SIZE),
            "feed_forward_proj": json_field(str),
            "dense_act_fn": json_field(str),
            "scale_decoder_outputs": json_field(bool),
        },
        from_extra=from_extra,
    ),
)
