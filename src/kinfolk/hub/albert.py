"""ALBERT as Hugging Face names it, with the two heads it was pretrained with.

transformers shares whole layers, in groups. Where we share only one half of a layer, each run
through a group becomes a group of its own there, and the shared half is written into every one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.hub.names import Names, Rule, given, part, refuse, taken
from kinfolk.models.albert import AlbertConfig
from kinfolk.text.tokenizer import Specials

TYPE = "albert"
CONFIG = AlbertConfig
FRAME = "bert"

FIELDS = {
    "vocab": "vocab_size",
    "narrow": "embedding_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "groups": "num_hidden_groups",
    "group_depth": "inner_group_num",
    "heads": "num_attention_heads",
    "context": "max_position_embeddings",
    "segments": "type_vocab_size",
    "bend": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "epsilon": "layer_norm_eps",
    "std": "initializer_range",
    "shared": "sharing",  # these two are ours alone: transformers keeps what it does not know
    "near": "near_start",
}
LARGEST = {"hidden_size": 4096, "num_attention_heads": 64}  # what transformers takes for granted


def to_config(c: AlbertConfig, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    own = {"num_hidden_groups": c.depth, "sharing_groups": c.groups} if c.shared != "all" else {}
    return {
        "architectures": ["AlbertForPreTraining"],
        **given(c, FIELDS),
        **own,
        "intermediate_size": c.inner or 4 * c.width,
        "tie_word_embeddings": True,
        "pad_token_id": specials.pad if specials else None,
        "bos_token_id": specials.bos if specials else None,
        "eos_token_id": specials.eos if specials else None,
    }


def from_config(data: Mapping[str, Any]) -> AlbertConfig:
    """Read config.json."""
    refuse(data, position_embedding_type="absolute", tie_word_embeddings=True)
    c = AlbertConfig(**taken({**LARGEST, **data}, FIELDS))
    inner = data.get("intermediate_size", 16384)
    return replace(
        c,
        groups=data.get("sharing_groups", c.groups),
        inner=None if inner == 4 * c.width else inner,
    )


def names(c: AlbertConfig) -> Names:
    """Name every parameter."""
    within = "albert.embeddings"
    rules, twins = _layers(c)
    return Names(
        prefix="albert.",
        rules=[
            Rule("tokens.weight", (f"{within}.word_embeddings.weight",), rows=c.vocab),
            *part("places", f"{within}.position_embeddings", bias=False),
            *part("segments", f"{within}.token_type_embeddings", bias=False),
            *part("norm", f"{within}.LayerNorm"),
            *part("widen", "albert.encoder.embedding_hidden_mapping_in"),
            *rules,
            *part("head.dense", "predictions.dense"),
            *part("head.norm", "predictions.LayerNorm"),
            Rule("head.bias", ("predictions.bias",)),
            *part("pooler", "albert.pooler"),
            *part("pairs", "sop_classifier.classifier"),
        ],
        heads=("predictions.", "albert.pooler.", "sop_classifier."),
        aliases={
            "predictions.decoder.weight": f"{within}.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        twins=twins,
        ignored=r"(albert\.)?embeddings\.position_ids",
    )


def _layers(c: AlbertConfig) -> tuple[list[Rule], dict[str, str]]:
    """Name each half of a layer once, and where else it is written."""
    rules: dict[str, Rule] = {}
    twins: dict[str, str] = {}
    for number, (attend, feed) in enumerate(c.layers()):
        # Whole layers that are shared are numbered through their groups, else through all runs.
        group, layer = divmod(attend if c.shared == "all" else number, c.group_depth)
        there = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{layer}"
        for rule in (*_attend(attend, there), *_feed(feed, there)):
            first = rules.setdefault(rule.ours, rule)
            pairs = zip(rule.theirs, first.theirs, strict=True)
            twins |= {name: of for name, of in pairs if name != of}
    return list(rules.values()), twins


def _attend(number: int, there: str) -> list[Rule]:
    ours, seen = f"blocks.attends.{number}", f"{there}.attention"
    return [
        *part(f"{ours}.branch.qkv", *(f"{seen}.{name}" for name in ("query", "key", "value"))),
        *part(f"{ours}.branch.out", f"{seen}.dense"),
        *part(f"{ours}.norm", f"{seen}.LayerNorm"),
    ]


def _feed(number: int, there: str) -> list[Rule]:
    ours = f"blocks.feeds.{number}"
    return [
        *part(f"{ours}.branch.widen", f"{there}.ffn"),
        *part(f"{ours}.branch.narrow", f"{there}.ffn_output"),
        *part(f"{ours}.norm", f"{there}.full_layer_layer_norm"),
    ]
