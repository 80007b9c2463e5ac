"""Transformer (Vaswani et al., 2017): an encoder and a decoder of attention, without recurrence.

The encoder reads a text with bidirectional attention; the decoder generates another with causal
self-attention and cross-attention to the encoder. Positions are sinusoids added to the token
embeddings, which source, target and output layer share. Marian's networks (Junczys-Dowmunt et al.
2018), such as the OPUS translation models, have biases in attention and output layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import Family, HuggingFace, json_field, standard_sizes
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, per_layer, require
from kinfolk.nn.attention import Attention, CrossAttention
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.language_model import (
    MAX_LAYERS,
    MAX_TOKENS,
    EncoderDecoder,
    LayerStack,
    ModelConfig,
    model_field,
    network_of,
)
from kinfolk.nn.layers import FeedForward, PostNorm, TransformerLayer
from kinfolk.nn.meta import meta_network
from kinfolk.nn.positions import SinusoidLayout, sinusoidal_embedding
from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig


@config("transformer")
class TransformerConfig(ModelConfig):
    """The published base model by default."""

    # Section 5.1: subwords shared by English and German.
    vocab_size: int = model_field("vocab_size", 37000)
    hidden_size: int = model_field("hidden_size", 512)
    num_layers: int = field(default=6, ge=1, le=MAX_LAYERS, help="number of encoder layers")
    num_decoder_layers: int | None = field(
        default=None, ge=1, le=MAX_LAYERS, help="number of decoder layers; by default the encoder's"
    )
    num_heads: int = model_field("num_heads", 8)
    intermediate_size: int | None = model_field("intermediate_size", None)
    activation: str = model_field("activation", "relu")
    # Section 3.2.2 projects by matrices alone; section 3.3 has biases.
    attention_bias: bool = field(default=False, help="biases in the projections of attention")
    lm_bias: bool = field(default=False, help="a bias of the output layer")
    scale_embedding: bool = field(
        default=True, help="multiply token embeddings by the square root of the hidden size"
    )
    sinusoids: SinusoidLayout = field(
        default="interleaved",
        help="sines and cosines in turn (the paper), in halves (Marian), or as in fairseq",
    )
    first_position: int = field(default=0, ge=0, le=MAX_TOKENS, help="first position (fairseq: 2)")
    decoder_start_token_id: int = model_field("decoder_start_token_id", 0)
    dropout: float = model_field("dropout", 0.1)
    attention_dropout: float = model_field("attention_dropout", 0.0)
    activation_dropout: float = field(
        default=0.0, ge=0, lt=1, help="dropout rate inside the feed-forward layer"
    )

    @property
    def decoder_layers(self) -> int:
        """The number of decoder layers."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


def transformer_layer(c: TransformerConfig, *, decoder: bool) -> TransformerLayer:
    """Return a layer of the encoder or the decoder; each sublayer is followed by a norm."""
    # The encoder's cross-attention is not used: random numbers follow the construction order.
    attention, cross_attention = (
        kind(c.hidden_size, c.num_heads, bias=c.attention_bias, dropout=c.attention_dropout)
        for kind in (Attention, CrossAttention)
    )
    return TransformerLayer(
        attention,
        FeedForward(
            c.hidden_size,
            c.intermediate_size or 4 * c.hidden_size,
            c.activation,
            dropout=c.activation_dropout,
        ),
        cross_attention=cross_attention if decoder else None,
        residual=lambda part: PostNorm(part, nn.LayerNorm(c.hidden_size), c.dropout),
    )


class TransformerStack(nn.Module):
    """The layers of the encoder or the decoder."""

    def __init__(self, c: TransformerConfig, *, decoder: bool) -> None:
        super().__init__()
        num_layers = c.decoder_layers if decoder else c.num_layers
        self.layers = LayerStack(transformer_layer(c, decoder=decoder) for _ in range(num_layers))

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
    decoder_modules = ("decoder",)

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.first_position = c.first_position
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = TransformerStack(c, decoder=False)
        self.decoder = TransformerStack(c, decoder=True)
        self.lm_bias = nn.Parameter(torch.zeros(c.vocab_size)) if c.lm_bias else None
        self.init_weights()

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the sum of token embeddings and sinusoids (section 3.4)."""
        c, x = self.config, self.token_embeddings(inputs.input_ids)
        if c.scale_embedding:
            x = x * c.hidden_size**0.5
        positions = sinusoidal_embedding(
            inputs.position_ids + c.first_position, c.hidden_size, c.sinusoids
        )
        return self.dropout(x + positions.to(x.dtype))

    def encode(self, encoder_inputs: Inputs) -> Tensor:
        """Run the encoder alone: (batch, source length, hidden_size)."""
        attend = self.attention_fn(encoder_inputs)
        return self.encoder(self.embed(encoder_inputs), attend, encoder_inputs)

    def forward(self, inputs: Inputs) -> Output:
        dropout = self.training and self.config.attention_dropout > 0
        encoder_states = self.encoder_states(inputs, dropout=dropout)
        x = self.decoder(self.embed(inputs), self.attention_fn(inputs), inputs, encoder_states)
        return Output(x, inputs.cache)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the next token."""
        return self.token_embeddings.lm_logits(hidden, self.lm_bias)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw matrices by their sizes, and embeddings that have unit variance once scaled.

        As in the authors' code and in `torch.nn.Transformer`; the paper does not specify it.
        """
        c = self.config
        self.token_embeddings.weight.normal_(0.0, c.hidden_size**-0.5)[c.vocab_size :] = 0.0
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                if part.bias is not None:
                    part.bias.zero_()


@dataclass(frozen=True)
class LogitsBiasRule(ParameterRule):
    """The bias of the output layer, which has a first axis of length 1 in transformers."""

    def to_hf(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return their tensor."""
        return {self.hf_names[0]: tensor[None]}

    def from_hf(self, tensors: Mapping[str, Tensor], rows: int) -> Tensor:
        """Return our tensor, as a copy in float32."""
        return torch.cat([tensors[self.hf_names[0]][0]]).float()


def parameters(c: TransformerConfig) -> ParameterMap:
    """Map the parameters to those of transformers' Marian, which are also fairseq's names."""
    shared = "model.shared.weight"
    names = [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
    bias = [LogitsBiasRule("lm_bias", ("final_logits_bias",))] if c.lm_bias else []
    return ParameterMap(
        base_model_prefix="model.",
        rules=[
            ParameterRule("token_embeddings.weight", (shared,), vocab_rows=c.vocab_size),
            *_stack_rules("encoder", c.num_layers, c.attention_bias),
            *_stack_rules("decoder", c.decoder_layers, c.attention_bias),
            *bias,
        ],
        aliases=dict.fromkeys([*names, "lm_head.weight"], shared),
        # Older versions saved the sinusoids.
        ignored_pattern=r"model\.(encoder|decoder)\.embed_positions\.weight",
    )


def _stack_rules(stack: str, num_layers: int, bias: bool) -> list[ParameterRule]:
    ours, theirs = f"{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
    attention = {"self_attention": "self_attn"}
    if stack == "decoder":
        attention["cross_attention"] = "encoder_attn"
    rules: list[ParameterRule] = []
    for name, hf in attention.items():
        parts = (
            {"qkv_proj": "qkv"} if name == "self_attention" else {"q_proj": "q", "kv_proj": "kv"}
        )
        for part, letters in parts.items():
            projections = [f"{theirs}.{hf}.{letter}_proj" for letter in letters]
            rules += module(f"{ours}.{name}.sublayer.{part}", *projections, bias=bias)
        rules += module(f"{ours}.{name}.sublayer.out_proj", f"{theirs}.{hf}.out_proj", bias=bias)
        rules += module(f"{ours}.{name}.norm", f"{theirs}.{hf}_layer_norm")
    rules += module(f"{ours}.feed_forward.sublayer.up_proj", f"{theirs}.fc1")
    rules += module(f"{ours}.feed_forward.sublayer.down_proj", f"{theirs}.fc2")
    rules += module(f"{ours}.feed_forward.norm", f"{theirs}.final_layer_norm")
    return per_layer(num_layers, rules)


def to_extra(c: TransformerConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Return the fields of config.json that are not copies of ours."""
    eos = special_tokens.eos if special_tokens else 0
    return {
        "decoder_layers": c.decoder_layers,
        "decoder_attention_heads": c.num_heads,
        "decoder_ffn_dim": c.intermediate_size or 4 * c.hidden_size,
        "max_position_embeddings": 1024,  # sinusoids have no bound; transformers needs one
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "pad_token_id": special_tokens.pad if special_tokens else c.decoder_start_token_id,
        "eos_token_id": eos,
        "forced_eos_token_id": eos,
        "bad_words_ids": [[c.decoder_start_token_id]],
    }


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the config that are not copies of theirs."""
    require(
        data,
        decoder_attention_heads=data["encoder_attention_heads"],
        decoder_ffn_dim=data["encoder_ffn_dim"],
    )
    if data.get("decoder_vocab_size") is not None:
        require(data, decoder_vocab_size=data["vocab_size"])
    layers, decoder_layers = data["encoder_layers"], data["decoder_layers"]
    return {
        "num_decoder_layers": None if decoder_layers == layers else decoder_layers,
        **MARIAN,
    }


def with_logits_bias(data: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the bias of the output layer where a folder lacks it: it is zero then."""
    if any(name.endswith("final_logits_bias") for name in tensors):
        return tensors
    return tensors | {"final_logits_bias": torch.zeros(1, data["vocab_size"])}


def is_marian(c: TransformerConfig) -> bool:
    """Return whether transformers' Marian has this network."""
    return replace(c, **MARIAN) == c


@torch.no_grad()
def marian_equivalent(model: Transformer) -> Transformer:
    """Return a network that transformers' Marian has, with the same logits.

    Biases become zero. Hidden units are permuted, so that sines precede cosines.
    """
    c = model.config
    if is_marian(c):
        return model
    if c.sinusoids == "fairseq" or c.first_position:
        raise UserError(
            "transformers has no Transformer with fairseq's positions "
            f"(model.sinusoids={c.sinusoids}, model.first_position={c.first_position}): keep the "
            "model as kinfolk saves it"
        )
    units = torch.arange(c.hidden_size)
    if c.sinusoids == "interleaved":
        units = torch.cat([units[::2], units[1::2]])
    other: Any = meta_network(replace(c, **MARIAN))
    state = {name: torch.zeros(like.shape) for name, like in other.state_dict().items()}
    for name, tensor in model.state_dict().items():
        linear, _, part = name.rpartition(".")
        if linear.endswith(("out_proj", "down_proj", "norm")):
            tensor = tensor[units]
        elif part == "weight":
            tensor = tensor[:, units]
        state[name] = tensor.float().cpu()
    other.load_state_dict(state, assign=True)
    return other.eval()


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


MARIAN: dict[str, Any] = {
    "attention_bias": True,
    "lm_bias": True,
    "sinusoids": "halves",
    "first_position": 0,
}

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
    objectives={"pairs": Seq2Seq, "spans": SpanCorruption, "mlm": MLM},
    training=TrainConfig(
        lr=1e-3, warmup=400, schedule="inverse_root", min_lr_ratio=0.0, weight_decay=0.0
    ),
    paper_training={
        "transformer-base": paper_training(512, 100_000),
        "transformer-big": paper_training(1024, 300_000),
    },
    template="t5",
    hf=HuggingFace(
        model_type="marian",
        architecture="MarianMTModel",
        config=TransformerConfig,
        fields={
            "vocab_size": "vocab_size",
            "hidden_size": "d_model",
            "num_layers": "encoder_layers",
            "num_heads": "encoder_attention_heads",
            "activation": "activation_function",
            "scale_embedding": "scale_embedding",
            "decoder_start_token_id": "decoder_start_token_id",
            "dropout": "dropout",
            "attention_dropout": "attention_dropout",
            "activation_dropout": "activation_dropout",
        },
        parameters=parameters,
        intermediate_size="encoder_ffn_dim",
        required={
            "is_encoder_decoder": True,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
        },
        defaults={
            "vocab_size": 58101,
            "d_model": 1024,
            "encoder_layers": 12,
            "decoder_layers": 12,
            "encoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
            "activation_function": "gelu",
            "scale_embedding": False,
            "decoder_start_token_id": 58100,
        },
        to_extra=to_extra,
        extra_fields={"decoder_layers": json_field(int, ge=1, le=MAX_LAYERS)},
        from_extra=from_extra,
        adapt=with_logits_bias,
        supports=is_marian,
        equivalent=marian_equivalent,
    ),
)
