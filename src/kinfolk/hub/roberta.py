"""RoBERTa as Hugging Face names it, with the head it was pretrained with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.hub.bert import stack, tables
from kinfolk.hub.names import Names, Rule, given, part, refuse, taken
from kinfolk.models.roberta import RobertaConfig
from kinfolk.text.tokenizer import Specials

TYPE = "roberta"
CONFIG = RobertaConfig
FRAME = "roberta"

FIELDS = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "segments": "type_vocab_size",
    "bend": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "epsilon": "layer_norm_eps",
    "std": "initializer_range",
    "near": "near_start",  # ours alone: transformers keeps what it does not know
    "start": "pad_token_id",
}
# What transformers takes for what a config does not say; no published model is like that.
UNSAID = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 512}


def to_config(c: RobertaConfig, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    if specials is not None and specials.pad != c.start:
        raise UserError(
            f"the tokenizer pads with the id {specials.pad} and the network counts places from "
            f"{c.start}: build it with model.start={specials.pad}"
        )
    return {
        "architectures": ["RobertaForMaskedLM"],
        **given(c, FIELDS),
        "max_position_embeddings": c.start + 1 + c.context,
        "intermediate_size": c.inner or 4 * c.width,
        "tie_word_embeddings": True,
        "bos_token_id": specials.cls if specials else None,
        "eos_token_id": specials.sep if specials else None,
    }


def from_config(data: Mapping[str, Any]) -> RobertaConfig:
    """Read config.json."""
    refuse(
        data,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    data = UNSAID | dict(data)
    c = RobertaConfig(**taken(data, FIELDS))
    c = replace(c, context=data["max_position_embeddings"] - c.start - 1)
    inner = data.get("intermediate_size", 3072)
    return c if inner == 4 * c.width else replace(c, inner=inner)


def names(c: RobertaConfig) -> Names:
    """Name every parameter."""
    within = "roberta.embeddings"
    return Names(
        prefix="roberta.",
        rules=[
            *tables(within, c.vocab),
            *stack("blocks", "roberta", c.depth),
            *part("head.dense", "lm_head.dense"),
            *part("head.norm", "lm_head.layer_norm"),
            Rule("head.bias", ("lm_head.bias",)),
        ],
        heads=("lm_head.",),
        aliases={
            "lm_head.decoder.weight": f"{within}.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        # A pooler is in some folders, but pretraining never taught it anything.
        ignored=r"(roberta\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))",
    )
