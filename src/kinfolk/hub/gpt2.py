"""GPT-2 as Hugging Face names it. Its `Conv1D` holds the transpose of a linear layer's weight."""

import warnings
from collections.abc import Mapping
from typing import Any

from kinfolk.families.mapping import (
    ParameterMap,
    ParameterRule,
    from_hf_fields,
    module,
    per_layer,
    require,
    to_hf_fields,
)
from kinfolk.models.gpt2 import GPT2Config
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "gpt2"
CONFIG = GPT2Config
FRAME = None

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_length": "n_positions",
    "activation": "activation_function",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
}


def to_config(c: GPT2Config, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        **to_hf_fields(c, FIELDS),
        "embd_pdrop": c.dropout,
        "tie_word_embeddings": True,
        "bos_token_id": special_tokens.bos if special_tokens else None,
        "eos_token_id": special_tokens.eos if special_tokens else None,
        "pad_token_id": special_tokens.pad if special_tokens else None,
    }


def from_config(data: Mapping[str, Any]) -> GPT2Config:
    """Read config.json."""
    require(
        data,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    c = GPT2Config(**from_hf_fields(data, FIELDS))
    if data.get("embd_pdrop", c.dropout) != c.dropout:
        warnings.warn(
            f"config.json says embd_pdrop={data['embd_pdrop']} and resid_pdrop={c.dropout}: "
            f"training will drop {c.dropout} at both places",
            stacklevel=3,
        )
    return c


def names(c: GPT2Config) -> ParameterMap:
    """Name every parameter."""
    block, layer = "layers.{i}", "transformer.h.{i}"
    return ParameterMap(
        base_model_prefix="transformer.",
        rules=[
            ParameterRule(
                "token_embeddings.weight", ("transformer.wte.weight",), vocab_rows=c.vocab_size
            ),
            *module("position_embeddings", "transformer.wpe", bias=False),
            *per_layer(
                c.num_layers,
                [
                    *module(f"{block}.self_attention.norm", f"{layer}.ln_1"),
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
                    *module(f"{block}.feed_forward.norm", f"{layer}.ln_2"),
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
                ],
            ),
            *module("final_norm", "transformer.ln_f"),
        ],
        aliases={"lm_head.weight": "transformer.wte.weight"},
        # The causal mask, once a buffer.
        ignored_pattern=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
    )
