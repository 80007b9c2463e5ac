"""ELECTRA as Hugging Face names it: the discriminator, and its generator in a sub-folder.

transformers has a class for each of the two. Both folders hold the tables that the two share, so
that each opens by itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.families.bert import BertConfig, embedding_rules, layer_rules
from kinfolk.families.mapping import (
    ParameterMap,
    ParameterRule,
    from_hf_fields,
    module,
    require,
    to_hf_fields,
)
from kinfolk.models.electra import ElectraConfig
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "electra"
CONFIG = ElectraConfig
FRAME = "bert"

FIELDS = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_size",
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
    # These two are ours alone: transformers keeps what it does not know.
    "generator_size": "generator_share",
    "mimetic_init": "near_start",
}


def to_config(c: ElectraConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["ElectraForPreTraining"],
        **to_hf_fields(c, FIELDS),
        "intermediate_size": c.intermediate_size or 4 * c.hidden_size,
        "tie_word_embeddings": True,
        "pad_token_id": special_tokens.pad if special_tokens else None,
    }


def generator(c: ElectraConfig, data: dict[str, Any]) -> dict[str, Any]:
    """Write config.json of the sub-folder."""
    small = c.encoder_config(c.generator_size)
    sizes = {
        "hidden_size": small.hidden_size,
        "num_attention_heads": small.num_heads,
        "intermediate_size": small.intermediate_size,
    }
    shared = {k: v for k, v in data.items() if k != "generator_share"}
    return shared | {"architectures": ["ElectraForMaskedLM"]} | sizes


def from_config(data: Mapping[str, Any]) -> ElectraConfig:
    """Read config.json; the sub-folder's lies in it under its name, where there is one."""
    require(
        data,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    c = ElectraConfig(**from_hf_fields(data, FIELDS))
    inner = data.get("intermediate_size", 1024)
    c = c if inner == 4 * c.hidden_size else replace(c, intermediate_size=inner)
    small = data.get("generator")
    if small is None or "generator_share" in data:
        return c
    c = replace(c, generator_size=small.get("hidden_size", 256) / c.hidden_size)
    body = c.encoder_config(c.generator_size)
    expected = {"num_hidden_layers": body.num_layers, "num_attention_heads": body.num_heads}
    require(small, **expected, intermediate_size=body.intermediate_size, hidden_act=c.activation)
    return c


def names(c: ElectraConfig) -> ParameterMap:
    """Name every parameter; those of the sub-folder begin with its name and a slash."""
    within = "electra.embeddings"
    read = embedding_rules(within, c.vocab_size)
    shared = [name for rule in read for name in rule.hf_names]
    return ParameterMap(
        base_model_prefix="electra.",
        rules=[
            *read,
            *_body("discriminator", "electra", c.encoder_config(), c.embedding_size),
            *module("discriminator_head.dense", "discriminator_predictions.dense"),
            *module("discriminator_head.out", "discriminator_predictions.dense_prediction"),
            *_body(
                "generator",
                "generator/electra",
                c.encoder_config(c.generator_size),
                c.embedding_size,
            ),
            *module("mlm_head.dense", "generator/generator_predictions.dense"),
            *module("mlm_head.norm", "generator/generator_predictions.LayerNorm"),
            ParameterRule("mlm_head.bias", ("generator/generator_lm_head.bias",)),
        ],
        optional_prefixes=("discriminator_predictions.", "generator/"),
        aliases={"generator/generator_lm_head.weight": f"{within}.word_embeddings.weight"},
        duplicates={f"generator/{name}": name for name in shared},
        ignored_pattern=r"(generator/)?(electra\.)?embeddings\.position_ids",
    )


def _body(ours: str, theirs: str, c: BertConfig, narrow: int) -> list[ParameterRule]:
    projection = (
        module(f"{ours}.embedding_projection", f"{theirs}.embeddings_project")
        if c.hidden_size != narrow
        else []
    )
    return [*projection, *layer_rules(f"{ours}.layers", theirs, c.num_layers)]
