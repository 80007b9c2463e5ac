"""ELECTRA as Hugging Face names it: the discriminator, and its generator in a sub-folder.

transformers has a class for each of the two. Both folders hold the tables that the two share, so
that each opens by itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.hub.bert import stack, tables
from kinfolk.hub.names import Names, Rule, given, part, refuse, taken
from kinfolk.models.bert import BertConfig
from kinfolk.models.electra import ElectraConfig
from kinfolk.text.tokenizer import Specials

TYPE = "electra"
CONFIG = ElectraConfig
FRAME = "bert"
PARTS = ("generator",)

FIELDS = {
    "vocab": "vocab_size",
    "narrow": "embedding_size",
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
    "generator": "generator_share",  # these two are ours alone: transformers keeps what it does not
    "near": "near_start",  # know
}


def to_config(c: ElectraConfig, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["ElectraForPreTraining"],
        **given(c, FIELDS),
        "intermediate_size": c.inner or 4 * c.width,
        "tie_word_embeddings": True,
        "pad_token_id": specials.pad if specials else None,
    }


def parts(c: ElectraConfig, specials: Specials | None) -> dict[str, dict[str, Any]]:
    """Write config.json of the sub-folder."""
    small = c.body(c.generator)
    sizes = {
        "hidden_size": small.width,
        "num_attention_heads": small.heads,
        "intermediate_size": small.inner,
    }
    shared = {k: v for k, v in to_config(c, specials).items() if k != "generator_share"}
    return {"generator": shared | {"architectures": ["ElectraForMaskedLM"]} | sizes}


def from_config(data: Mapping[str, Any]) -> ElectraConfig:
    """Read config.json; the sub-folder's lies in it under its name, where there is one."""
    refuse(
        data,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    c = ElectraConfig(**taken(data, FIELDS))
    inner = data.get("intermediate_size", 1024)
    c = c if inner == 4 * c.width else replace(c, inner=inner)
    small = data.get("generator")
    if small is None or "generator_share" in data:
        return c
    c = replace(c, generator=small.get("hidden_size", 256) / c.width)
    body = c.body(c.generator)
    expected = {"num_hidden_layers": body.depth, "num_attention_heads": body.heads}
    refuse(small, **expected, intermediate_size=body.inner, hidden_act=c.bend)
    return c


def names(c: ElectraConfig) -> Names:
    """Name every parameter; those of the sub-folder begin with its name and a slash."""
    within = "electra.embeddings"
    read = tables(within, c.vocab)
    shared = [name for rule in read for name in rule.theirs]
    return Names(
        prefix="electra.",
        rules=[
            *read,
            *_body("discriminator", "electra", c.body(), c.narrow),
            *part("detector.dense", "discriminator_predictions.dense"),
            *part("detector.out", "discriminator_predictions.dense_prediction"),
            *_body("generator", "generator/electra", c.body(c.generator), c.narrow),
            *part("head.dense", "generator/generator_predictions.dense"),
            *part("head.norm", "generator/generator_predictions.LayerNorm"),
            Rule("head.bias", ("generator/generator_lm_head.bias",)),
        ],
        heads=("discriminator_predictions.", "generator/"),
        aliases={"generator/generator_lm_head.weight": f"{within}.word_embeddings.weight"},
        twins={f"generator/{name}": name for name in shared},
        ignored=r"(generator/)?(electra\.)?embeddings\.position_ids",
    )


def _body(ours: str, theirs: str, c: BertConfig, narrow: int) -> list[Rule]:
    widen = part(f"{ours}.widen", f"{theirs}.embeddings_project") if c.width != narrow else []
    return [*widen, *stack(f"{ours}.blocks", theirs, c.depth)]
