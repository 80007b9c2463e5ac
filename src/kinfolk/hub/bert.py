"""BERT as Hugging Face names it, with the two heads it was pretrained with."""

from collections.abc import Mapping
from dataclasses import replace
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
from kinfolk.models.bert import BertConfig
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "bert"
CONFIG = BertConfig
FRAME = "bert"

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
    "mimetic_init": "near_start",  # ours alone: transformers keeps what it does not know
}


def to_config(c: BertConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["BertForPreTraining"],
        **to_hf_fields(c, FIELDS),
        "intermediate_size": c.intermediate_size or 4 * c.hidden_size,
        "tie_word_embeddings": True,
        "pad_token_id": special_tokens.pad if special_tokens else None,
    }


def from_config(data: Mapping[str, Any]) -> BertConfig:
    """Read config.json."""
    require(
        data,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
        pruned_heads={},
    )
    c = BertConfig(**from_hf_fields(data, FIELDS))
    inner = data.get("intermediate_size", 3072)
    return c if inner == 4 * c.hidden_size else replace(c, intermediate_size=inner)


def names(c: BertConfig) -> ParameterMap:
    """Name every parameter."""
    within = "bert.embeddings"
    return ParameterMap(
        base_model_prefix="bert.",
        rules=[
            *embedding_rules(within, c.vocab_size),
            *layer_rules("layers", "bert", c.num_layers),
            *module("mlm_head.dense", "cls.predictions.transform.dense"),
            *module("mlm_head.norm", "cls.predictions.transform.LayerNorm"),
            ParameterRule("mlm_head.bias", ("cls.predictions.bias",)),
            *module("pooler", "bert.pooler.dense"),
            *module("seq_relationship", "cls.seq_relationship"),
        ],
        optional_prefixes=("cls.predictions.", "bert.pooler.", "cls.seq_relationship."),
        aliases={
            "cls.predictions.decoder.weight": f"{within}.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        legacy_suffixes={
            ".gamma": ".weight",
            ".beta": ".bias",
        },  # TensorFlow's, in the published folders
        ignored_pattern=r"(bert\.)?embeddings\.position_ids",
    )


def embedding_rules(within: str, vocab: int) -> list[ParameterRule]:
    """Name the three tables of BERT's line, and their norm."""
    return [
        ParameterRule(
            "token_embeddings.weight", (f"{within}.word_embeddings.weight",), vocab_rows=vocab
        ),
        *module("position_embeddings", f"{within}.position_embeddings", bias=False),
        *module("token_type_embeddings", f"{within}.token_type_embeddings", bias=False),
        *module("embedding_norm", f"{within}.LayerNorm"),
    ]


def layer_rules(ours: str, theirs: str, depth: int) -> list[ParameterRule]:
    """Name the blocks of BERT's line."""
    block, layer = f"{ours}.{{i}}", f"{theirs}.encoder.layer.{{i}}"
    seen, told = f"{layer}.attention", f"{layer}.output"
    triple = [f"{seen}.self.{name}" for name in ("query", "key", "value")]
    return per_layer(
        depth,
        [
            *module(f"{block}.self_attention.sublayer.qkv_proj", *triple),
            *module(f"{block}.self_attention.sublayer.out_proj", f"{seen}.output.dense"),
            *module(f"{block}.self_attention.norm", f"{seen}.output.LayerNorm"),
            *module(f"{block}.feed_forward.sublayer.up_proj", f"{layer}.intermediate.dense"),
            *module(f"{block}.feed_forward.sublayer.down_proj", f"{told}.dense"),
            *module(f"{block}.feed_forward.norm", f"{told}.LayerNorm"),
        ],
    )
