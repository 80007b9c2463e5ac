"""GPT-2 as Hugging Face names it. Its `Conv1D` holds the transpose of a linear layer's weight."""

import warnings
from collections.abc import Mapping
from typing import Any

from kinfolk.hub.names import Names, Rule, given, layers, part, refuse, taken
from kinfolk.models.gpt2 import GPT2Config
from kinfolk.text.tokenizer import Specials

TYPE = "gpt2"
CONFIG = GPT2Config
FRAME = None

FIELDS = {
    "vocab": "vocab_size",
    "width": "n_embd",
    "depth": "n_layer",
    "heads": "n_head",
    "inner": "n_inner",
    "context": "n_positions",
    "bend": "activation_function",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "epsilon": "layer_norm_epsilon",
}


def to_config(c: GPT2Config, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        **given(c, FIELDS),
        "embd_pdrop": c.dropout,
        "tie_word_embeddings": True,
        "bos_token_id": specials.bos if specials else None,
        "eos_token_id": specials.eos if specials else None,
        "pad_token_id": specials.pad if specials else None,
    }


def from_config(data: Mapping[str, Any]) -> GPT2Config:
    """Read config.json."""
    refuse(
        data,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    c = GPT2Config(**taken(data, FIELDS))
    if data.get("embd_pdrop", c.dropout) != c.dropout:
        warnings.warn(
            f"config.json says embd_pdrop={data['embd_pdrop']} and resid_pdrop={c.dropout}: "
            f"training will drop {c.dropout} at both places",
            stacklevel=3,
        )
    return c


def names(c: GPT2Config) -> Names:
    """Name every parameter."""
    block, layer = "blocks.{i}", "transformer.h.{i}"
    return Names(
        prefix="transformer.",
        rules=[
            Rule("tokens.weight", ("transformer.wte.weight",), rows=c.vocab),
            *part("places", "transformer.wpe", bias=False),
            *layers(
                c.depth,
                [
                    *part(f"{block}.attend.norm", f"{layer}.ln_1"),
                    *part(f"{block}.attend.branch.qkv", f"{layer}.attn.c_attn", turned=True),
                    *part(f"{block}.attend.branch.out", f"{layer}.attn.c_proj", turned=True),
                    *part(f"{block}.feed.norm", f"{layer}.ln_2"),
                    *part(f"{block}.feed.branch.widen", f"{layer}.mlp.c_fc", turned=True),
                    *part(f"{block}.feed.branch.narrow", f"{layer}.mlp.c_proj", turned=True),
                ],
            ),
            *part("norm", "transformer.ln_f"),
        ],
        aliases={"lm_head.weight": "transformer.wte.weight"},
        ignored=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",  # the causal mask, once a buffer
    )
