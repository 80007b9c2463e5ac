"""The table engine: one table, read both ways."""

import pytest
import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, per_layer

NAMES = ParameterMap(
    base_model_prefix="body.",
    rules=[
        ParameterRule("tokens.weight", ("body.words.weight",), vocab_rows=5),
        *per_layer(
            2,
            [
                *module("blocks.{i}.qkv", "body.h.{i}.q", "body.h.{i}.k", "body.h.{i}.v"),
                *module("blocks.{i}.out", "body.h.{i}.proj", transposed=True),
            ],
        ),
        *module("judge", "top.judge"),
    ],
    optional_prefixes=("top.judge.",),
    aliases={"top.words.weight": "body.words.weight"},
    ignored_pattern=r"(body\.)?h\.\d+\.mask",
)


def ours() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"tokens.weight": (8, 4)}
    for i in range(2):
        shapes |= {f"blocks.{i}.qkv.weight": (6, 4), f"blocks.{i}.qkv.bias": (6,)}
        shapes |= {f"blocks.{i}.out.weight": (4, 2), f"blocks.{i}.out.bias": (4,)}
    shapes |= {"judge.weight": (2, 4), "judge.bias": (2,)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors["tokens.weight"][5:] = 0.0
    return tensors


def test_giving_and_taking_are_inverse() -> None:
    mine = ours()
    back = NAMES.from_hf(NAMES.to_hf(mine), mine, "there")
    assert back.keys() == mine.keys()
    assert all(torch.equal(back[name], mine[name]) for name in mine)


def test_parts_are_stacked_turned_and_cut_as_the_rules_say() -> None:
    mine = ours()
    given = NAMES.to_hf(mine)
    assert torch.equal(given["body.words.weight"], mine["tokens.weight"][:5])
    assert torch.equal(given["body.h.1.k.weight"], mine["blocks.1.qkv.weight"][2:4])
    assert torch.equal(given["body.h.0.proj.weight"], mine["blocks.0.out.weight"].T)


def test_what_is_taken_is_a_copy_in_float32() -> None:
    mine = ours()
    given = {name: tensor.double() for name, tensor in NAMES.to_hf(mine).items()}
    assert all(t.dtype == torch.float32 for t in NAMES.from_hf(given, mine, "there").values())
    given = NAMES.to_hf(mine)
    NAMES.from_hf(given, mine, "there")["tokens.weight"].zero_()
    assert mine["tokens.weight"].any()


def test_missing_and_left_over_names_are_listed_in_full() -> None:
    mine = ours()
    given = NAMES.to_hf(mine)
    lacking = {k: v for k, v in given.items() if k not in ("body.h.0.q.bias", "top.judge.bias")}
    with pytest.raises(
        UserError, match=r"missing weights in there: body\.h\.0\.q\.bias, top\.judge\.bias;"
    ):
        NAMES.from_hf(lacking, mine, "there")
    more = given | {"body.a": torch.zeros(1), "body.b": torch.zeros(1)}
    with pytest.raises(UserError, match=r"unexpected weights in there: body\.a, body\.b;"):
        NAMES.from_hf(more, mine, "there")
    with pytest.warns(UserWarning, match=r"does not use, .*: a, top\.b"):
        NAMES.from_hf(given | {"a": torch.zeros(1), "top.b": torch.zeros(1)}, mine, "there")


def test_a_wrong_shape_is_named_with_both_shapes() -> None:
    given = NAMES.to_hf(ours())
    given["body.words.weight"] = torch.zeros(6, 4)
    with pytest.raises(UserError, match=r"body\.words\.weight is \(6, 4\) and should be \(5, 4\)"):
        NAMES.from_hf(given, ours(), "there")


def test_a_second_name_must_hold_the_same() -> None:
    mine = ours()
    given = NAMES.to_hf(mine)
    words = given["body.words.weight"]
    NAMES.from_hf(given | {"top.words.weight": words.clone()}, mine, "there")
    with pytest.raises(UserError, match=r"top\.words\.weight and body\.words\.weight differ"):
        NAMES.from_hf(given | {"top.words.weight": words + 1}, mine, "there")


def test_a_second_name_stands_in_for_the_first() -> None:
    mine = ours()
    given = NAMES.to_hf(mine)
    given["top.words.weight"] = given.pop("body.words.weight")
    assert torch.equal(NAMES.from_hf(given, mine, "there")["tokens.weight"], mine["tokens.weight"])


def test_a_body_saved_alone_leaves_its_heads_fresh_and_says_so() -> None:
    mine = ours()
    body = {
        name.removeprefix("body."): tensor
        for name, tensor in NAMES.to_hf(mine).items()
        if name.startswith("body.")
    }
    body["h.0.mask"] = torch.ones(3, 3)
    taken = NAMES.from_hf(body, mine, "there")
    assert taken.keys() == mine.keys() - {"judge.weight", "judge.bias"}


def test_a_table_that_forgets_a_parameter_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        NAMES.to_hf(ours() | {"forgotten": torch.zeros(1)})
