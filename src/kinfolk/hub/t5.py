"""T5 as Hugging Face names it, in versions 1.0 and 1.1.

transformers 5 shares the tables of both versions unless a folder holds two, and takes
`tie_word_embeddings` for another question: whether the hidden state is scaled by width**-0.5 before
the table, which 1.0 does and 1.1 does not. It then saves the answer as `scale_decoder_outputs`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.families.mapping import (
    ParameterMap,
    ParameterRule,
    from_hf_fields,
    module,
    per_layer,
    require,
    to_hf_fields,
)
from kinfolk.models.t5 import T5Config
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "t5"
CONFIG = T5Config
FRAME = "t5"

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "num_buckets": "relative_attention_num_buckets",
    "max_distance": "relative_attention_max_distance",
    "decoder_start_token_id": "decoder_start_token_id",
    "dropout": "dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
}


def to_config(c: T5Config, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    if special_tokens is not None and special_tokens.pad != c.decoder_start_token_id:
        raise UserError(
            f"the tokenizer pads with the id {special_tokens.pad} and the decoder starts from "
            f"{c.decoder_start_token_id}: build it with "
            f"model.decoder_start_token_id={special_tokens.pad}"
        )
    bend = "gelu" if c.gated and c.activation == "gelu_new" else c.activation  # see `_bend`
    return {
        "architectures": ["T5ForConditionalGeneration"],
        **to_hf_fields(c, FIELDS),
        "num_decoder_layers": c.num_layers
        if c.num_decoder_layers is None
        else c.num_decoder_layers,
        "d_kv": c.attention_size // c.num_heads,
        "d_ff": c.intermediate_size or 4 * c.hidden_size,
        "feed_forward_proj": f"gated-{bend}" if c.gated else bend,
        "dense_act_fn": c.activation,
        "is_gated_act": c.gated,
        "tie_word_embeddings": c.tie_word_embeddings,
        "scale_decoder_outputs": c.tie_word_embeddings,
        "is_encoder_decoder": True,
        "pad_token_id": c.decoder_start_token_id,
        "eos_token_id": special_tokens.eos if special_tokens else 1,
    }


def from_config(data: Mapping[str, Any]) -> T5Config:
    """Read config.json."""
    # The decoder is trained, and generates, from the padding id.
    pad = 0 if data.get("pad_token_id") is None else data["pad_token_id"]
    require(data, is_encoder_decoder=True, is_decoder=False, decoder_start_token_id=pad)
    known: dict[str, Any] = {"decoder_start_token_id": pad} | from_hf_fields(data, FIELDS)
    c = T5Config(**known)
    depth, inner = data.get("num_decoder_layers"), data.get("d_ff", 2048)
    head = data.get("d_kv", 64)
    return replace(
        c,
        num_decoder_layers=None if depth == c.num_layers else depth,
        head_dim=None if head * c.num_heads == c.hidden_size else head,
        intermediate_size=None if inner == 4 * c.hidden_size else inner,
        gated=data.get("feed_forward_proj", "relu").startswith("gated-"),
        activation=_bend(data),
        tie_word_embeddings=data.get(
            "scale_decoder_outputs", data.get("tie_word_embeddings") is not False
        ),
    )


def _bend(data: Mapping[str, Any]) -> str:
    """Read the activation; "gated-gelu" has always meant the approximation by tanh."""
    form = data.get("feed_forward_proj", "relu")
    said = "gelu_new" if form == "gated-gelu" else form.removeprefix("gated-")
    return str(data.get("dense_act_fn", said))


def names(c: T5Config) -> ParameterMap:
    """Name every parameter."""
    aliases = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}
    rules = [
        ParameterRule("token_embeddings.weight", ("shared.weight",), vocab_rows=c.vocab_size),
        *_stack("encoder", c.num_layers, c.gated),
        *_stack(
            "decoder",
            c.num_layers if c.num_decoder_layers is None else c.num_decoder_layers,
            c.gated,
        ),
    ]
    if c.tie_word_embeddings:
        aliases["lm_head.weight"] = "shared.weight"
    else:
        rules.append(ParameterRule("lm_head.weight", ("lm_head.weight",), vocab_rows=c.vocab_size))
    return ParameterMap(
        rules=rules,
        aliases=aliases,
        fallbacks={} if c.tie_word_embeddings else {"lm_head.weight": "shared.weight"},
        # The first folders had a bias by distance across, which nothing ever read.
        ignored_pattern=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    )


def _stack(stack: str, depth: int, gated: bool) -> list[ParameterRule]:
    block, layer = f"{stack}.layers.{{i}}", f"{stack}.block.{{i}}.layer"
    own, across = f"{layer}.0.SelfAttention", f"{layer}.1.EncDecAttention"
    feed, dense = f"{block}.feed_forward", f"{layer}.{2 if stack == 'decoder' else 1}"
    wide = {"gate_proj": "wi_0", "up_proj": "wi_1"} if gated else {"up_proj": "wi"}
    pairs = {
        f"{block}.self_attention.norm": [f"{layer}.0.layer_norm"],
        f"{block}.self_attention.sublayer.qkv_proj": [f"{own}.{name}" for name in "qkv"],
        f"{block}.self_attention.sublayer.out_proj": [f"{own}.o"],
        f"{feed}.norm": [f"{dense}.layer_norm"],
        **{f"{feed}.sublayer.{o}": [f"{dense}.DenseReluDense.{t}"] for o, t in wide.items()},
        f"{feed}.sublayer.down_proj": [f"{dense}.DenseReluDense.wo"],
    }
    if stack == "decoder":
        pairs |= {
            f"{block}.cross_attention.norm": [f"{layer}.1.layer_norm"],
            f"{block}.cross_attention.sublayer.q_proj": [f"{across}.q"],
            f"{block}.cross_attention.sublayer.kv_proj": [f"{across}.{name}" for name in "kv"],
            f"{block}.cross_attention.sublayer.out_proj": [f"{across}.o"],
        }
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return [
        *module(f"{stack}.position_bias.embedding", bias, bias=False),
        *per_layer(depth, [r for ours, t in pairs.items() for r in module(ours, *t, bias=False)]),
        *module(f"{stack}.final_norm", f"{stack}.final_layer_norm", bias=False),
    ]
