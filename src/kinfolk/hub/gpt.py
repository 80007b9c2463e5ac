"""GPT as Hugging Face names it. Its `Conv1D` holds the transpose of a linear layer's weight."""

import warnings
from collections.abc import Mapping
from typing import Any

from kinfolk.errors import UserError
from kinfolk.hub.names import Names, Rule, given, layers, part, refuse, taken
from kinfolk.models.gpt import GPTConfig
from kinfolk.text.tokenizer import Specials

TYPE = "openai-gpt"
CONFIG = GPTConfig
FRAME = None

FIELDS = {
    "vocab": "vocab_size",
    "width": "n_embd",
    "depth": "n_layer",
    "heads": "n_head",
    "context": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "epsilon": "layer_norm_epsilon",
    "std": "initializer_range",
}
# What this family's configs call "gelu" is the tanh approximation.
BENDS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


def to_config(c: GPTConfig, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    bends = {ours: theirs for theirs, ours in reversed(BENDS.items())}
    if c.bend not in bends:
        raise UserError(
            f"Hugging Face's GPT cannot bend by {c.bend!r}: it knows {', '.join(bends)}"
        )
    return {
        "architectures": ["OpenAIGPTLMHeadModel"],
        **given(c, FIELDS),
        "afn": bends[c.bend],
        "embd_pdrop": c.dropout,
        "tie_word_embeddings": True,
        "bos_token_id": specials.bos if specials else None,
        "eos_token_id": specials.eos if specials else None,
        "pad_token_id": specials.pad if specials else None,
    }


def from_config(data: Mapping[str, Any]) -> GPTConfig:
    """Read config.json."""
    refuse(data, tie_word_embeddings=True)
    bend = data.get("afn", "gelu")
    if bend not in BENDS:
        raise UserError(f"config.json says afn={bend!r}: GPT bends by {', '.join(BENDS)}")
    c = GPTConfig(**taken(data, FIELDS), bend=BENDS[bend])
    if data.get("embd_pdrop", c.dropout) != c.dropout:
        warnings.warn(
            f"config.json says embd_pdrop={data['embd_pdrop']} and resid_pdrop={c.dropout}: "
            f"training will drop {c.dropout} at both places",
            stacklevel=3,
        )
    return c


def names(c: GPTConfig) -> Names:
    """Name every parameter."""
    block, layer = "blocks.{i}", "transformer.h.{i}"
    return Names(
        prefix="transformer.",
        rules=[
            Rule("tokens.weight", ("transformer.tokens_embed.weight",), rows=c.vocab),
            *part("places", "transformer.positions_embed", bias=False),
            *layers(
                c.depth,
                [
                    *part(f"{block}.attend.branch.qkv", f"{layer}.attn.c_attn", turned=True),
                    *part(f"{block}.attend.branch.out", f"{layer}.attn.c_proj", turned=True),
                    *part(f"{block}.attend.norm", f"{layer}.ln_1"),
                    *part(f"{block}.feed.branch.widen", f"{layer}.mlp.c_fc", turned=True),
                    *part(f"{block}.feed.branch.narrow", f"{layer}.mlp.c_proj", turned=True),
                    *part(f"{block}.feed.norm", f"{layer}.ln_2"),
                ],
            ),
        ],
        aliases={"lm_head.weight": "transformer.tokens_embed.weight"},
        # The causal mask and the places, once buffers.
        ignored=r"(transformer\.)?(h\.\d+\.attn\.bias|position_ids)",
    )
