"""BERT as Hugging Face names it, with the two heads it was pretrained with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.hub.names import Names, Rule, given, layers, part, refuse, taken
from kinfolk.models.bert import BertConfig
from kinfolk.text.tokenizer import Specials

TYPE = "bert"
CONFIG = BertConfig
FRAME = "bert"

FIELDS = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "context": "max_position_embeddings",
    "segments": "type_vocab_size",
    "bend": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "epsilon": "layer_norm_eps",
    "std": "initializer_range",
    "near": "near_start",  # ours alone: transformers keeps what it does not know
}


def to_config(c: BertConfig, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["BertForPreTraining"],
        **given(c, FIELDS),
        "intermediate_size": c.inner or 4 * c.width,
        "tie_word_embeddings": True,
        "pad_token_id": specials.pad if specials else None,
    }


def from_config(data: Mapping[str, Any]) -> BertConfig:
    """Read config.json."""
    refuse(
        data,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
        pruned_heads={},
    )
    c = BertConfig(**taken(data, FIELDS))
    inner = data.get("intermediate_size", 3072)
    return c if inner == 4 * c.width else replace(c, inner=inner)


def names(c: BertConfig) -> Names:
    """Name every parameter."""
    within = "bert.embeddings"
    return Names(
        prefix="bert.",
        rules=[
            *tables(within, c.vocab),
            *stack("blocks", "bert", c.depth),
            *part("head.dense", "cls.predictions.transform.dense"),
            *part("head.norm", "cls.predictions.transform.LayerNorm"),
            Rule("head.bias", ("cls.predictions.bias",)),
            *part("pooler", "bert.pooler.dense"),
            *part("pairs", "cls.seq_relationship"),
        ],
        heads=("cls.predictions.", "bert.pooler.", "cls.seq_relationship."),
        aliases={
            "cls.predictions.decoder.weight": f"{within}.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        endings={".gamma": ".weight", ".beta": ".bias"},  # TensorFlow's, in the published folders
        ignored=r"(bert\.)?embeddings\.position_ids",
    )


def tables(within: str, vocab: int) -> list[Rule]:
    """Name the three tables of BERT's line, and their norm."""
    return [
        Rule("tokens.weight", (f"{within}.word_embeddings.weight",), rows=vocab),
        *part("places", f"{within}.position_embeddings", bias=False),
        *part("segments", f"{within}.token_type_embeddings", bias=False),
        *part("norm", f"{within}.LayerNorm"),
    ]


def stack(ours: str, theirs: str, depth: int) -> list[Rule]:
    """Name the blocks of BERT's line."""
    block, layer = f"{ours}.{{i}}", f"{theirs}.encoder.layer.{{i}}"
    seen, told = f"{layer}.attention", f"{layer}.output"
    triple = [f"{seen}.self.{name}" for name in ("query", "key", "value")]
    return layers(
        depth,
        [
            *part(f"{block}.attend.branch.qkv", *triple),
            *part(f"{block}.attend.branch.out", f"{seen}.output.dense"),
            *part(f"{block}.attend.norm", f"{seen}.output.LayerNorm"),
            *part(f"{block}.feed.branch.widen", f"{layer}.intermediate.dense"),
            *part(f"{block}.feed.branch.narrow", f"{told}.dense"),
            *part(f"{block}.feed.norm", f"{told}.LayerNorm"),
        ],
    )
