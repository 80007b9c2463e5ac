"""GPT as Hugging Face names it. Its `Conv1D` holds the transpose of a linear layer's weight."""

import warnings
from collections.abc import Mapping
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
from kinfolk.models.gpt import GPTConfig
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "openai-gpt"
CONFIG = GPTConfig
FRAME = None

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "max_length": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
    "init_std": "initializer_range",
}
# What this family's configs call "gelu" is the tanh approximation.
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


def to_config(c: GPTConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    bends = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if c.activation not in bends:
        raise UserError(
            f"Hugging Face's GPT cannot bend by {c.activation!r}: it knows {', '.join(bends)}"
        )
    return {
        "architectures": ["OpenAIGPTLMHeadModel"],
        **to_hf_fields(c, FIELDS),
        "afn": bends[c.activation],
        "embd_pdrop": c.dropout,
        "tie_word_embeddings": True,
        "bos_token_id": special_tokens.bos if special_tokens else None,
        "eos_token_id": special_tokens.eos if special_tokens else None,
        "pad_token_id": special_tokens.pad if special_tokens else None,
    }


def from_config(data: Mapping[str, Any]) -> GPTConfig:
    """Read config.json."""
    require(data, tie_word_embeddings=True)
    bend = data.get("afn", "gelu")
    if bend not in ACTIVATIONS:
        raise UserError(f"config.json says afn={bend!r}: GPT bends by {', '.join(ACTIVATIONS)}")
    c = GPTConfig(**from_hf_fields(data, FIELDS), activation=ACTIVATIONS[bend])
    if data.get("embd_pdrop", c.dropout) != c.dropout:
        warnings.warn(
            f"config.json says embd_pdrop={data['embd_pdrop']} and resid_pdrop={c.dropout}: "
            f"training will drop {c.dropout} at both places",
            stacklevel=3,
        )
    return c


def names(c: GPTConfig) -> ParameterMap:
    """Name every parameter."""
    block, layer = "layers.{i}", "transformer.h.{i}"
    return ParameterMap(
        base_model_prefix="transformer.",
        rules=[
            ParameterRule(
                "token_embeddings.weight",
                ("transformer.tokens_embed.weight",),
                vocab_rows=c.vocab_size,
            ),
            *module("position_embeddings", "transformer.positions_embed", bias=False),
            *per_layer(
                c.num_layers,
                [
                    *module(
                        f"{block}.self_attention.sublayer.qkv_proj",
                        f"{layer}.attn.c_attn",
                        transposed=True,
                    ),
                    *module(
                        f"{block}.self_attention.sublayer.out_proj",
                        f"{layer}.attn.c_proj",
                        transposed=True,
                    ),
                    *module(f"{block}.self_attention.norm", f"{layer}.ln_1"),
                    *module(
                        f"{block}.feed_forward.sublayer.up_proj",
                        f"{layer}.mlp.c_fc",
                        transposed=True,
                    ),
                    *module(
                        f"{block}.feed_forward.sublayer.down_proj",
                        f"{layer}.mlp.c_proj",
                        transposed=True,
                    ),
                    *module(f"{block}.feed_forward.norm", f"{layer}.ln_2"),
                ],
            ),
        ],
        aliases={"lm_head.weight": "transformer.tokens_embed.weight"},
        # The causal mask and the places, once buffers.
        ignored_pattern=r"(transformer\.)?(h\.\d+\.attn\.bias|position_ids)",
    )
