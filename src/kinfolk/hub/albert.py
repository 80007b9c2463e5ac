"""ALBERT as Hugging Face names it, with the two heads it was pretrained with.

transformers shares whole layers, in groups. Where we share only one half of a layer, each run
through a group becomes a group of its own there, and the shared half is written into every one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.families.mapping import (
    ParameterMap,
    ParameterRule,
    from_hf_fields,
    module,
    require,
    to_hf_fields,
)
from kinfolk.models.albert import AlbertConfig
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "albert"
CONFIG = AlbertConfig
FRAME = "bert"

FIELDS = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_hidden_groups": "num_hidden_groups",
    "inner_group_num": "inner_group_num",
    "num_heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
    "sharing": "sharing",  # these two are ours alone: transformers keeps what it does not know
    "mimetic_init": "near_start",
}
HF_DEFAULTS = {
    "hidden_size": 4096,
    "num_attention_heads": 64,
}  # what transformers takes for granted


def to_config(c: AlbertConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    own = (
        {"num_hidden_groups": c.num_layers, "sharing_groups": c.num_hidden_groups}
        if c.sharing != "all"
        else {}
    )
    return {
        "architectures": ["AlbertForPreTraining"],
        **to_hf_fields(c, FIELDS),
        **own,
        "intermediate_size": c.intermediate_size or 4 * c.hidden_size,
        "tie_word_embeddings": True,
        "pad_token_id": special_tokens.pad if special_tokens else None,
        "bos_token_id": special_tokens.bos if special_tokens else None,
        "eos_token_id": special_tokens.eos if special_tokens else None,
    }


def from_config(data: Mapping[str, Any]) -> AlbertConfig:
    """Read config.json."""
    require(data, position_embedding_type="absolute", tie_word_embeddings=True)
    c = AlbertConfig(**from_hf_fields({**HF_DEFAULTS, **data}, FIELDS))
    inner = data.get("intermediate_size", 16384)
    return replace(
        c,
        num_hidden_groups=data.get("sharing_groups", c.num_hidden_groups),
        intermediate_size=None if inner == 4 * c.hidden_size else inner,
    )


def names(c: AlbertConfig) -> ParameterMap:
    """Name every parameter."""
    within = "albert.embeddings"
    rules, twins = _layers(c)
    return ParameterMap(
        base_model_prefix="albert.",
        rules=[
            ParameterRule(
                "token_embeddings.weight",
                (f"{within}.word_embeddings.weight",),
                vocab_rows=c.vocab_size,
            ),
            *module("position_embeddings", f"{within}.position_embeddings", bias=False),
            *module("token_type_embeddings", f"{within}.token_type_embeddings", bias=False),
            *module("embedding_norm", f"{within}.LayerNorm"),
            *module("embedding_projection", "albert.encoder.embedding_hidden_mapping_in"),
            *rules,
            *module("mlm_head.dense", "predictions.dense"),
            *module("mlm_head.norm", "predictions.LayerNorm"),
            ParameterRule("mlm_head.bias", ("predictions.bias",)),
            *module("pooler", "albert.pooler"),
            *module("seq_relationship", "sop_classifier.classifier"),
        ],
        optional_prefixes=("predictions.", "albert.pooler.", "sop_classifier."),
        aliases={
            "predictions.decoder.weight": f"{within}.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        duplicates=twins,
        ignored_pattern=r"(albert\.)?embeddings\.position_ids",
    )


def _layers(c: AlbertConfig) -> tuple[list[ParameterRule], dict[str, str]]:
    """Name each half of a layer once, and where else it is written."""
    rules: dict[str, ParameterRule] = {}
    twins: dict[str, str] = {}
    for number, (attend, feed) in enumerate(c.layer_modules()):
        # Whole layers that are shared are numbered through their groups, else through all runs.
        group, layer = divmod(attend if c.sharing == "all" else number, c.inner_group_num)
        there = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{layer}"
        for rule in (*_attend(attend, there), *_feed(feed, there)):
            first = rules.setdefault(rule.name, rule)
            pairs = zip(rule.hf_names, first.hf_names, strict=True)
            twins |= {name: of for name, of in pairs if name != of}
    return list(rules.values()), twins


def _attend(number: int, there: str) -> list[ParameterRule]:
    ours, seen = f"layers.attentions.{number}", f"{there}.attention"
    return [
        *module(
            f"{ours}.sublayer.qkv_proj", *(f"{seen}.{name}" for name in ("query", "key", "value"))
        ),
        *module(f"{ours}.sublayer.out_proj", f"{seen}.dense"),
        *module(f"{ours}.norm", f"{seen}.LayerNorm"),
    ]


def _feed(number: int, there: str) -> list[ParameterRule]:
    ours = f"layers.feed_forwards.{number}"
    return [
        *module(f"{ours}.sublayer.up_proj", f"{there}.ffn"),
        *module(f"{ours}.sublayer.down_proj", f"{there}.ffn_output"),
        *module(f"{ours}.norm", f"{there}.full_layer_layer_norm"),
    ]
