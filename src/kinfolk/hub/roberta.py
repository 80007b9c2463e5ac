"""RoBERTa as Hugging Face names it, with the head it was pretrained with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.families.mapping import (
    ParameterMap,
    ParameterRule,
    from_hf_fields,
    module,
    require,
    to_hf_fields,
)
from kinfolk.hub.bert import embedding_rules, layer_rules
from kinfolk.models.roberta import RobertaConfig
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "roberta"
CONFIG = RobertaConfig
FRAME = "roberta"

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "type_vocab_size": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
    "mimetic_init": "near_start",  # ours alone: transformers keeps what it does not know
    "padding_idx": "pad_token_id",
}
# What transformers takes for what a config does not say; no published model is like that.
HF_DEFAULTS = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 512}


def to_config(c: RobertaConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    if special_tokens is not None and special_tokens.pad != c.padding_idx:
        raise UserError(
            f"the tokenizer pads with the id {special_tokens.pad} and the network counts places "
            f"from {c.padding_idx}: build it with model.padding_idx={special_tokens.pad}"
        )
    return {
        "architectures": ["RobertaForMaskedLM"],
        **to_hf_fields(c, FIELDS),
        "max_position_embeddings": c.padding_idx + 1 + c.max_length,
        "intermediate_size": c.intermediate_size or 4 * c.hidden_size,
        "tie_word_embeddings": True,
        "bos_token_id": special_tokens.cls if special_tokens else None,
        "eos_token_id": special_tokens.sep if special_tokens else None,
    }


def from_config(data: Mapping[str, Any]) -> RobertaConfig:
    """Read config.json."""
    require(
        data,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    data = HF_DEFAULTS | dict(data)
    c = RobertaConfig(**from_hf_fields(data, FIELDS))
    c = replace(c, max_length=data["max_position_embeddings"] - c.padding_idx - 1)
    inner = data.get("intermediate_size", 3072)
    return c if inner == 4 * c.hidden_size else replace(c, intermediate_size=inner)


def names(c: RobertaConfig) -> ParameterMap:
    """Name every parameter."""
    within = "roberta.embeddings"
    return ParameterMap(
        base_model_prefix="roberta.",
        rules=[
            *embedding_rules(within, c.vocab_size),
            *layer_rules("layers", "roberta", c.num_layers),
            *module("mlm_head.dense", "lm_head.dense"),
            *module("mlm_head.norm", "lm_head.layer_norm"),
            ParameterRule("mlm_head.bias", ("lm_head.bias",)),
        ],
        optional_prefixes=("lm_head.",),
        aliases={
            "lm_head.decoder.weight": f"{within}.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        # A pooler is in some folders, but pretraining never taught it anything.
        ignored_pattern=r"(roberta\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))",
    )
