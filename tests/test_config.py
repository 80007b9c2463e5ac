"""Configuration: fields by path, JSON both ways, and errors that name the way out."""

import dataclasses
import importlib
import json
import pkgutil
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinfolk.models
from kinfolk.config import from_json, nearest, override, to_json
from kinfolk.errors import UserError
from kinfolk.recipes.catalogue import members
from kinfolk.text.tokenizer import Specials
from kinfolk.training.settings import Train

SPECIALS = Specials(
    pad=0, unk=1, bos=None, eos=3, cls=4, sep=5, mask=6, sentinels=tuple(range(7, 107))
)
MODELS = [
    importlib.import_module(f"kinfolk.models.{m.name}")
    for m in pkgutil.iter_modules(kinfolk.models.__path__)
]
PRESETS = {f"{m.__name__}:{size}": c for m in MODELS for size, c in m.PRESETS.items()}
OBJECTIVES = {
    name: member.objective(name)(specials=SPECIALS, vocab=500)
    for member in members().values()
    for name in member.objectives
}


@dataclass(frozen=True)
class Inner:
    width: int = 4
    rate: float = 0.5
    inner: int | None = None
    tied: bool = True
    kind: Literal["full", "causal"] = "full"
    betas: tuple[float, float] = (0.9, 0.98)
    many: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    name: str = "outer"
    model: Inner = field(default_factory=Inner)


def through(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(value))))


def lost(values: dict[str, Any]) -> list[str]:
    """Name the values that do not come back from JSON as they were."""
    return [
        name
        for name, value in values.items()
        if through(value) != value or type(through(value)) is not type(value)
    ]


def test_every_preset_comes_back_from_json() -> None:
    assert len(PRESETS) > 100
    assert not lost(PRESETS)


def test_every_objective_comes_back_from_json() -> None:
    assert len(OBJECTIVES) >= 13
    assert not lost(OBJECTIVES)
    assert not lost({name: value.exam() for name, value in OBJECTIVES.items()})


def test_the_settings_of_every_member_come_back_from_json() -> None:
    assert not lost({name: member.recipe.TRAIN for name, member in members().items()})
    assert not lost({name: member.recipe.PAPER for name, member in members().items()})


def told(value: Any) -> str:
    """Write a value as one writes it on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(told, value))
    return str(value)


def test_every_field_of_every_preset_can_be_set_to_what_it_is() -> None:
    wrong = []
    for name, value in {**PRESETS, "Train": Train()}.items():
        said = [f"{f.name}={told(getattr(value, f.name))}" for f in dataclasses.fields(value)]
        if override(value, said) != value:
            wrong.append(f"{name}: {said}")
    assert not wrong, "\n".join(wrong)


@given(
    st.builds(
        Inner,
        width=st.integers(),
        rate=st.floats(allow_nan=False),
        inner=st.none() | st.integers(),
        tied=st.booleans(),
        kind=st.sampled_from(["full", "causal"]),
        betas=st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2),
        many=st.lists(st.integers(), min_size=1).map(tuple),
    )
)
@settings(max_examples=100)
def test_any_values_survive_json_and_the_command_line(inner: Inner) -> None:
    value = Outer("any", inner)
    assert through(value) == value
    said = [f"model.{f.name}={told(getattr(inner, f.name))}" for f in dataclasses.fields(inner)]
    assert override(Outer("any"), said) == value


def test_fields_are_set_by_path_and_the_last_word_counts() -> None:
    said = [
        "model.width=8",
        "name=a=b",
        "model.width=1_000",
        "model.inner=None",
        "model.tied=False",
    ]
    found = override(Outer(), [*said, "model.tied=False"])
    assert found == Outer("a=b", Inner(width=1000, tied=False))
    assert Outer() == Outer("outer", Inner()), "the old value is left as it was"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.widht=8", r"model.widht: no field 'widht': did you mean width\?"),
        ("modle.width=8", r"modle.width: no field 'modle': did you mean model\?"),
        ("model.zzz=8", r"no field 'zzz': there are width, rate, inner, tied, kind, betas, many"),
        ("model.width.deep=8", r"'deep' is not a field"),
        ("model.width=wide", r"model.width=wide: it must be a whole number"),
        ("model.width=1.5", r"it must be a whole number"),
        ("model.width=", r"it must be a whole number"),
        ("model.rate=much", r"it must be a number"),
        ("model.inner=x", r"it must be a whole number"),
        ("model.tied=maybe", r"it must be true or false"),
        ("model.kind=half", r"it must be full or causal"),
        ("model.betas=0.9", r"it must be 2 values"),
        ("model.betas=0.9,x", r"it must be a number"),
        ("model=8", r"holds parts of its own"),
        ("model.width", r"is not a setting: write field.path=value"),
    ],
)
def test_a_wrong_setting_is_told_with_the_way_out(setting: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        override(Outer(), [setting])


def test_the_nearest_names_are_offered_and_else_all() -> None:
    assert nearest("gpt", ["gpt2", "bert"]) == "did you mean gpt2?"
    assert nearest("xyz", ["gpt2", "bert"]) == "there are gpt2, bert"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"is": "kinfolk.nowhere:Thing"}, "cannot be found"),
        ({"is": "kinfolk.training.settings:Nothing"}, "cannot be found"),
        ({"is": "kinfolk.errors:UserError"}, "is not a configuration"),
        ({"is": "kinfolk.training.settings:Train", "stepps": 3}, "has no field stepps"),
        ({"steps": 3}, "says not what it is"),
    ],
)
def test_json_that_describes_nothing_is_refused(value: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_json(value)


def test_json_holds_import_paths_and_plain_values() -> None:
    assert to_json(Outer()) == {
        "is": f"{__name__}:Outer",
        "name": "outer",
        "model": {
            "is": f"{__name__}:Inner",
            "width": 4,
            "rate": 0.5,
            "inner": None,
            "tied": True,
            "kind": "full",
            "betas": [0.9, 0.98],
            "many": [],
        },
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("steps=0", "train.steps=0: it must be at least 1"),
        ("accumulate=3", "train.accumulate=3 does not divide train.batch=32"),
        ("workers=-1", "cannot be negative"),
        ("seed=-1", "train.seed=-1"),
        ("precision=half", "it must be auto, float32 or bfloat16"),
    ],
)
def test_settings_that_cannot_be_are_refused_as_soon_as_they_are_made(
    setting: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        override(Train(), [setting])
