"""Layers by type, for the whole family, and rates that shrink from layer to layer."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from kinfolk.families import families
from kinfolk.families.base import Family
from kinfolk.families.bilstm import BiLSTMConfig
from kinfolk.nn.language_model import LayerStack
from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import (
    build_optimizer,
    layer_index,
    layerwise_param_groups,
    num_layers,
    param_groups,
)

SETTINGS: dict[str, Any] = {"lr": 0.5, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}
DEPTH = 3

# What stands before the blocks and behind them; all else is blocks, or stands beside them.
BERT = {"token_embeddings", "position_embeddings", "token_type_embeddings", "embedding_norm"}
BEFORE = {
    "albert": BERT | {"embedding_projection"},
    "bert": BERT,
    "electra": BERT | {"generator.embedding_projection", "discriminator.embedding_projection"},
    "glm": {"token_embeddings", "position_embeddings", "block_position_embeddings"},
    "gpt": {"token_embeddings", "position_embeddings"},
    "gpt2": {"token_embeddings", "position_embeddings"},
    "gpt3": {"token_embeddings", "position_embeddings"},
    "roberta": BERT,
    "t5": {
        "token_embeddings",
        "encoder.position_bias.embedding",
        "decoder.position_bias.embedding",
    },
    "transformer": {"token_embeddings"},
    "transformer_xl": {"token_embeddings", "token_embeddings.embeddings.0"},
    "xlnet": {"", "token_embeddings"},
}
MLM_HEAD = {"mlm_head", "mlm_head.dense", "mlm_head.norm"}
BEHIND = {
    "albert": MLM_HEAD | {"pooler", "seq_relationship"},
    "bert": MLM_HEAD | {"pooler", "seq_relationship"},
    "electra": MLM_HEAD | {"discriminator_head.dense", "discriminator_head.out"},
    "glm": {"final_norm"},
    "gpt2": {"final_norm"},
    "gpt3": {"final_norm"},
    "roberta": MLM_HEAD,
    "t5": {"encoder.final_norm", "decoder.final_norm", "lm_head"},
}


def config(member: Family) -> Any:
    changes = {"embedding_size": 16} if member.name == "electra" else {}  # so that something widens
    return dataclasses.replace(member.config("nano"), vocab_size=99, num_layers=DEPTH, **changes)


def headed(body: Any) -> nn.Module:
    network: nn.Module = ModelWithHeadConfig(
        backbone=body, head="text", labels=("no", "yes"), pooling=pooling_of(body)
    ).build()
    return network


def parts(found: dict[str, int], layer: int) -> set[str]:
    return {name.rpartition(".")[0] for name, number in found.items() if number == layer}


@pytest.mark.parametrize("name", BEFORE)
def test_tables_are_below_the_blocks_and_heads_above(name: str) -> None:
    model = config(families()[name]).build()
    found = layer_index(model)
    depth = 1 if name == "albert" else DEPTH
    assert num_layers(model) == depth
    assert list(found) == [name for name, _ in model.named_parameters()]
    assert parts(found, 0) == BEFORE[name]
    assert parts(found, depth + 1) == BEHIND.get(name, set())
    for layer in range(1, depth + 1):
        number = "" if name == "albert" else f"{layer - 1}."
        inside = parts(found, layer)
        assert inside and all(f"layers.{number}" in part for part in inside)


@pytest.mark.parametrize("name", ["bert", "electra", "albert", "gpt2", "xlnet", "transformer_xl"])
def test_a_head_is_the_top_of_the_member_below_it(name: str) -> None:
    body = config(families()[name])
    model = headed(body)
    found, inner = layer_index(model), layer_index(model.backbone)  # type: ignore[arg-type]
    assert {n: layer for n, layer in found.items() if n.startswith("backbone.")} == {
        f"backbone.{n}": layer for n, layer in inner.items()
    }
    top = num_layers(model) + 1
    assert {found[n] for n in found if not n.startswith("backbone.")} == {top}
    assert set(found.values()) == set(range(top + 1))


def test_a_tied_output_layer_is_the_top_of_a_language_model() -> None:
    body = config(families()["ulmfit"])
    found = layer_index(body.build())
    assert parts(found, 0) == set() and parts(found, DEPTH + 1) == {"", "token_embeddings"}
    found = layer_index(headed(body))
    assert parts(found, 0) == {"backbone.token_embeddings"}
    assert all(part.startswith("head.") for part in parts(found, DEPTH + 1))


def test_the_baseline_has_layers_too() -> None:
    found = layer_index(headed(BiLSTMConfig(vocab_size=99, hidden_size=16)))
    assert parts(found, 0) == {"backbone.token_embeddings"}
    assert parts(found, 1) == {"backbone.layers.0"} and parts(found, 2) == {"backbone.layers.1"}
    assert parts(found, 3) == {"head.out_proj"}


def test_rates_shrink_from_the_top_down() -> None:
    model = headed(config(families()["bert"]))
    found, shrink = layer_index(model), 1 / 2.6  # Howard and Ruder 2018, section 3.1
    known = {id(p): name for name, p in model.named_parameters()}
    groups = layerwise_param_groups(model, 0.1, shrink)
    for group in groups:
        (layer,) = {found[known[id(p)]] for p in group["params"]}
        assert group["scale"] == pytest.approx(shrink ** (DEPTH + 1 - layer))
    # Who is decayed is as it was, and nobody is lost or there twice.
    for decay, plain in zip((0.1, 0.0), param_groups(model, 0.1), strict=True):
        some = [id(p) for g in groups if g["weight_decay"] == decay for p in g["params"]]
        assert sorted(some) == sorted(id(p) for p in plain["params"])


def test_the_highest_layer_that_learns_has_the_whole_rate() -> None:
    model = config(families()["gpt"]).build()  # nothing stands on its blocks
    model.layers[-1].requires_grad_(False)
    scales = {group["scale"] for group in layerwise_param_groups(model, 0.1, 0.5)}
    assert scales == {1.0, 0.5, 0.25}


def test_rates_that_do_not_shrink_leave_the_groups_as_they_are() -> None:
    model = config(families()["bert"]).build()
    built = build_optimizer(model, TrainConfig(**SETTINGS), layer_lr_decay=1.0)
    for group, plain in zip(built.param_groups, param_groups(model, 0.1), strict=True):
        assert [id(p) for p in group["params"]] == [id(p) for p in plain["params"]]
        assert "scale" not in group


@pytest.mark.parametrize("name", ["adamw", "adafactor", "adamw_rms"])
def test_a_scale_is_kept_with_the_optimisers_state(name: str) -> None:
    model = config(families()["bert"]).build()
    first, second = (
        build_optimizer(model, TrainConfig(optimizer=name, **SETTINGS), layer_lr_decay=0.8)
        for _ in range(2)
    )
    second.load_state_dict(first.state_dict())
    scales = [group["scale"] for group in second.param_groups]
    assert scales == [group["scale"] for group in first.param_groups] and min(scales) < 0.5


def test_layers_are_found_by_their_type_whatever_they_are_called() -> None:
    model = nn.Module()
    model.layers = nn.Linear(2, 2)
    model.stack = LayerStack(nn.Linear(2, 2) for _ in range(2))
    model.token_embeddings = nn.Linear(2, 2)
    found = {name.rpartition(".")[0]: layer for name, layer in layer_index(model).items()}
    assert found == {"layers": 0, "stack.0": 1, "stack.1": 2, "token_embeddings": 3}


def test_a_network_without_blocks_is_one_layer() -> None:
    assert set(layer_index(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))).values()) == {0}
    (group, other) = layerwise_param_groups(nn.Linear(2, 2), 0.1, 0.5)
    assert group["scale"] == other["scale"] == 1.0
    assert torch.is_tensor(group["params"][0])
