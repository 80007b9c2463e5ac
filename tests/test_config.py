"""Configuration: fields by path, JSON both ways, and errors that name the way out."""

import dataclasses
import importlib
import importlib.util
import json
import math
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinfolk
from kinfolk.config import (
    CLASSES,
    TYPES,
    apply_overrides,
    config,
    convert_value,
    describe,
    did_you_mean,
    from_json,
    read_json,
    read_type,
    register_config,
    to_json,
)
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.workflows.recipe import CorpusShare

SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=None, eos=3, cls=4, sep=5, mask=6, sentinels=tuple(range(7, 107))
)
SIZES = {f"{m.name}/{size}": c for m in families().values() for size, c in m.sizes.items()}
OBJECTIVES = {
    name: member.objective(name)(special_tokens=SPECIALS, vocab_size=500)
    for member in families().values()
    for name in member.objectives
}
TOKEN_IDS = ("decoder_start_token_id", "padding_idx", "first_position")


@config("test_inner", group="test")
class Inner:
    hidden_size: int = 4
    rate: float = 0.5
    intermediate_size: int | None = None
    tie_word_embeddings: bool = True
    kind: Literal["full", "causal"] = "full"
    betas: tuple[float, float] = (0.9, 0.98)
    many: tuple[int, ...] = ()


@config("test_outer", group="recipe", kw_only=False)
class Outer:
    name: str = "outer"
    model: Inner = Inner()


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
    assert len(SIZES) > 100
    assert not lost(SIZES)


def test_every_objective_comes_back_from_json() -> None:
    assert len(OBJECTIVES) >= 13
    assert not lost(OBJECTIVES)
    assert not lost({name: value.for_evaluation() for name, value in OBJECTIVES.items()})


def test_the_settings_of_every_member_come_back_from_json() -> None:
    every = families().values()
    assert not lost({f"{m.name}/{size}": m.train(size) for m in every for size in m.sizes})


def told(value: Any) -> str:
    """Write a value as one writes it on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(told, value))
    return str(value)


def test_every_field_of_every_preset_can_be_set_to_what_it_is() -> None:
    wrong = []
    for name, value in {**SIZES, "Train": TrainConfig()}.items():
        said = [f"{f.name}={told(getattr(value, f.name))}" for f in dataclasses.fields(value)]
        if apply_overrides(value, said) != value:
            wrong.append(f"{name}: {said}")
    assert not wrong, "\n".join(wrong)


@given(
    st.builds(
        Inner,
        hidden_size=st.integers(),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        intermediate_size=st.none() | st.integers(),
        tie_word_embeddings=st.booleans(),
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
    assert apply_overrides(Outer("any"), said) == value


def test_fields_are_set_by_path_and_the_last_word_counts() -> None:
    said = [
        "model.hidden_size=8",
        "name=a=b",
        "model.hidden_size=1_000",
        "model.intermediate_size=None",
        "model.tie_word_embeddings=False",
    ]
    found = apply_overrides(Outer(), [*said, "model.tie_word_embeddings=False"])
    assert found == Outer("a=b", Inner(hidden_size=1000, tie_word_embeddings=False))
    assert Outer() == Outer("outer", Inner()), "the old value is left as it was"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "model.raet=8",
            r"model.raet: no field 'raet': did you mean rate\?",
        ),
        ("modle.hidden_size=8", r"modle.hidden_size: no field 'modle': did you mean model\?"),
        (
            "model.zzz=8",
            r"no field 'zzz': there are hidden_size, rate, intermediate_size, tie_word_embeddings, "
            r"kind, betas, many",
        ),
        ("model.hidden_size.deep=8", r"'deep' is not a field"),
        ("model.hidden_size=wide", r"model.hidden_size=wide: it must be a whole number"),
        ("model.hidden_size=1.5", r"it must be a whole number"),
        ("model.hidden_size=", r"it must be a whole number"),
        ("model.rate=much", r"it must be a number"),
        ("model.intermediate_size=x", r"it must be a whole number"),
        ("model.tie_word_embeddings=maybe", r"it must be true or false"),
        ("model.kind=half", r"it must be full or causal"),
        ("model.betas=0.9", r"it must be 2 values"),
        ("model.betas=0.9,x", r"it must be a number"),
        ("model=8", r"is a group of fields: set one of them"),
        ("model.rate=nan", r"it must be a number"),
        ("model.rate=inf", r"it must be a number"),
        ("model.hidden_size", r"is not a setting: write field.path=value"),
    ],
)
def test_a_wrong_setting_is_told_with_the_way_out(setting: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        apply_overrides(Outer(), [setting])


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("compile=true", "yes"),
        ("compile=on", "yes"),
        ("compile=False", "no"),
        ("compile=auto", "auto"),
        ("precision=bf16", "bfloat16"),
        ("precision=fp32", "float32"),
        ("schedule=inverse_sqrt", "inverse_root"),
    ],
)
def test_other_words_for_a_choice_are_accepted(setting: str, expected: str) -> None:
    name = setting.partition("=")[0]
    assert vars(apply_overrides(TrainConfig(), [setting]))[name] == expected


@pytest.mark.parametrize("word", ["true", "yes", "on", "True", "ON"])
def test_a_boolean_has_several_spellings(word: str) -> None:
    opposite = {"true": "false", "yes": "no", "on": "off"}[word.lower()]
    for text, expected in ((word, True), (opposite, False)):
        found = apply_overrides(FineTuneConfig(), [f"gradual_unfreezing={text}"])
        assert found.gradual_unfreezing is expected


def test_the_nearest_names_are_offered_and_else_all() -> None:
    assert did_you_mean("stpes", ["steps", "eps", "lr"]) == "did you mean steps?"
    assert did_you_mean("gpt", ["gpt2", "bert"]) == "did you mean gpt2?"
    assert did_you_mean("xyz", ["gpt2", "bert"]) == "there are gpt2, bert"


@pytest.mark.parametrize(
    ("name", "names", "said"),
    [
        ("learning_rate", ["min_lr_ratio", "lr"], "did you mean lr?"),
        ("n_embd", ["hidden_size", "num_heads"], "did you mean hidden_size?"),
        ("width", ["hidden_size", "num_heads"], "did you mean hidden_size?"),
        ("n_layer", ["hidden_size", "num_layers"], "did you mean num_layers?"),
        ("max_iters", ["steps", "batch_size"], "did you mean steps?"),
        ("block_size", ["batch_size", "max_length"], "did you mean max_length?"),
    ],
)
def test_names_of_other_libraries_are_known_before_letters_are_compared(
    name: str, names: list[str], said: str
) -> None:
    assert did_you_mean(name, names) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"is": "kinfolk.families.gpt2:GPT2Config"},
            r"^missing 'type' \(expected one of: pretrain",
        ),
        (
            {"type": "kinfolk.families.gpt2:GPT2Config"},
            "unknown type 'kinfolk.families.gpt2:GPT2Conf",
        ),
        ({"type": "this"}, "unknown type 'this'"),
        ({"type": "brt"}, r"unknown type 'brt': did you mean bert"),
        ({"type": 3}, "unknown type 3"),
        ({"type": ["bert"]}, "unknown type"),
        ({"type": None}, "unknown type None"),
        ({"steps": 3}, "missing 'type'"),
        ({"type": "train", "stepps": 3}, r"stepps: no field 'stepps': did you mean steps\?"),
        (
            {"type": "train", "peak": 3},
            r"peak: no field 'peak': did you mean lr\?",
        ),
        ({"type": "mlm", "vocab_size": 3}, "special_tokens is missing"),
        ({"type": "train", "steps": "x"}, "^steps='x': it must be a whole number$"),
        ({"type": "train", "steps": "5"}, "it must be a whole number"),
        ({"type": "train", "steps": 2.5}, "it must be a whole number"),
        ({"type": "train", "steps": True}, "it must be a whole number"),
        ({"type": "train", "steps": None}, "it must be a whole number"),
        ({"type": "train", "lr": "x"}, "it must be a number"),
        ({"type": "train", "lr": math.nan}, "it must be a number"),
        ({"type": "train", "lr": 10**400}, "it must be a number"),
        ({"type": "train", "betas": [0.9]}, "it must be a list of 2 values, each a number"),
        ({"type": "train", "betas": [0.9, "x"]}, "betas.1='x': it must be a number"),
        ({"type": "train", "betas": 5}, "it must be a list of 2 values"),
        ({"type": "train", "precision": "x"}, "it must be auto, float32 or bfloat16"),
        (
            {"type": "gpt2", "vocab_size": "abc", "hidden_size": [1, 2]},
            "vocab_size='abc': it must be a whole",
        ),
        ({"type": "gpt2", "hidden_size": None}, "it must be a whole number"),
        ({"type": "bert", "mimetic_init": 1}, "it must be true or false"),
        ({"type": "test_outer", "model": 5}, "model=5: it must be an object whose type is test_in"),
        ({"type": "test_outer", "model": None}, "it must be an object whose type is test_inner"),
        ({"type": "test_outer", "model": {}}, "^model: missing 'type' .expected one of: test_inn"),
        ({"type": "test_outer", "model": {"type": "train"}}, "^model: unknown type 'train'"),
        (
            {"type": "test_outer", "model": {"type": "test_inner", "rate": "x"}},
            "^model.rate='x': it must be a number",
        ),
        (
            {"type": "pretrain", "name": "a", "model": {"type": "clm"}},
            "^model: unknown type 'clm': did you mean glm",
        ),
        ({"type": "corpus", "corpus": 5}, "corpus=5: it must be text"),
    ],
)
def test_json_that_describes_no_configuration_is_refused_with_the_path(
    value: Any, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        from_json(value)


def test_a_union_is_read_as_the_one_that_fits() -> None:
    corpora = str | tuple[CorpusShare, ...]
    assert convert_value("news", corpora, "corpus") == "news"
    share = {"type": "corpus", "corpus": "news", "weight": 1}
    found = convert_value([share], corpora, "corpus")
    assert found == (CorpusShare("news", 1.0),)
    assert type(found[0].weight) is int, "what is read is written as it was"
    with pytest.raises(UserError, match=r"^corpus.0.weight='x': it must be a number"):
        convert_value([share | {"weight": "x"}], corpora, "corpus")
    with pytest.raises(UserError, match=r"^corpus=5: it must be text or a list of values"):
        convert_value(5, corpora, "corpus")
    assert convert_value("none", str | None, "label") == "none"
    assert convert_value("none", str | None, "label", text=True) is None
    assert convert_value(3, str | int | None, "column") == 3


def test_python_callers_are_told_the_same_as_files() -> None:
    with pytest.raises(UserError, match=r"train.precision='half': it must be auto, float32 or bf"):
        TrainConfig(precision="half")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"train.steps=2.5: it must be a whole number"):
        TrainConfig(steps=2.5)  # type: ignore[arg-type]


def test_reading_json_imports_only_the_home_of_the_type() -> None:
    code = """
import sys
from kinfolk.config import from_json
from kinfolk.errors import UserError
for name in ("this:X", "this", "kinfolk.families.bert:BertConfig", "antigravity"):
    for key in ("is", "type"):
        try:
            from_json({key: name})
        except UserError:
            continue
        raise AssertionError(name)
assert "this" not in sys.modules and "antigravity" not in sys.modules
assert not [name for name in sys.modules if name.startswith("kinfolk.families")]
from_json({"type": "bilstm"})
from kinfolk.families import index
loaded = [name for name in index() if f"kinfolk.families.{name}" in sys.modules]
assert loaded == ["bilstm"], loaded
from_json({"type": "train"})
assert "kinfolk.workflows" not in sys.modules
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_the_table_of_types_is_that_of_the_classes() -> None:
    """Every name in `TYPES` is declared by the module it names, and no other name is declared."""
    for names in TYPES.values():
        for module in names.values():
            importlib.import_module(module)
    table = {name: module for names in TYPES.values() for name, module in names.items()}
    assert len(table) == sum(map(len, TYPES.values())), "a name is in two groups"
    assert {name: cls.__module__ for name, cls in CLASSES.items()} == table
    homes = [m.name for m in pkgutil.walk_packages(kinfolk.__path__, "kinfolk.")]
    text = [Path(importlib.util.find_spec(home).origin).read_text() for home in homes]  # type: ignore[union-attr, arg-type]
    declared = {name for one in text for name in re.findall(r'^@config\("(\w+)"', one, re.M)}
    assert declared == {name for name, module in table.items() if module.startswith("kinfolk.")}


def test_a_type_from_outside_the_package_is_read_once_its_module_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(
        "from kinfolk.config import config\n"
        '@config("own_network")\nclass OwnConfig:\n    width: int = 8\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TYPES, "model", dict(TYPES["model"]))
    with pytest.raises(UserError, match="unknown type 'own_network'"):
        from_json({"type": "own_network"})
    register_config("own_network", "own_network", group="model")
    assert "own_network" not in sys.modules
    found = from_json({"type": "own_network", "width": 9}, group="model")
    monkeypatch.delitem(CLASSES, "own_network")
    assert type(found).__module__ == "own_network" and found.width == 9
    with pytest.raises(ValueError, match=r"'gpt2' is already registered by kinfolk.families.gpt2"):
        register_config("gpt2", "own_network")


def test_a_class_without_a_name_is_not_written() -> None:
    @dataclasses.dataclass(frozen=True)
    class Nameless:
        width: int = 4

    with pytest.raises(UserError, match="Nameless has no registered name"):
        to_json(Nameless())


def test_json_holds_registered_names_and_plain_values() -> None:
    assert to_json(Outer()) == {
        "type": "test_outer",
        "name": "outer",
        "model": {
            "type": "test_inner",
            "hidden_size": 4,
            "rate": 0.5,
            "intermediate_size": None,
            "tie_word_embeddings": True,
            "kind": "full",
            "betas": [0.9, 0.98],
            "many": [],
        },
    }


def test_a_file_is_named_where_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    with pytest.raises(UserError, match=r"is not a run: it has no recipe.json"):
        read_json(path)
    cases = {
        '{"is": "kinfolk.workflows.recipe:Recipe"}': r"expected one of: pretrain, finetune",
        "[]": r"recipe.json: missing 'type' \(expected one of: pretrain, finetune",
        "{": "is not JSON",
        '{"type": "gpt2"}': r"recipe.json: unknown type 'gpt2': there are pretrain, finetune",
        '{"type": "test_outer", "name": 5}': r"recipe.json: name=5: it must be text",
    }
    for text, said in cases.items():
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not JSON"):
        read_json(path)
    path.write_text('{"type": "finetune", "and": "the rest is not looked at"}')
    assert read_type(path) == "finetune"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("steps=0", "train.steps=0: it must be at least 1"),
        ("batch_size=0", "train.batch_size=0: it must be at least 1"),
        (
            "batch_size=100000000000000",
            "train.batch_size=100000000000000: it must be from 1 to 16777216",
        ),
        ("gradient_accumulation=0", "it must be at least 1"),
        (
            "gradient_accumulation=3",
            "train.gradient_accumulation=3 does not divide train.batch_size=32",
        ),
        ("optimizer=sgd", "train.optimizer=sgd: it must be adamw, adafactor, adamw_rms or muon"),
        ("schedule=step", "it must be linear, cosine, inverse_root, constant, trapezoid or slan"),
        ("lr=0", "train.lr=0: it must be above 0"),
        ("lr=nan", "train.lr=nan: it must be a number"),
        ("min_lr_ratio=-0.1", "train.min_lr_ratio=-0.1: it must be from 0 to 1"),
        ("min_lr_ratio=nan", "it must be a number"),
        ("warmup=-1", "train.warmup=-1: it must be at least 0"),
        ("decay_ratio=1.5", "train.decay_ratio=1.5: it must be from 0 to 1"),
        ("weight_decay=-1", "it must be at least 0"),
        ("betas=0.9,1.0", r"train.betas=0.9,1.0: it must be from 0 to less than 1"),
        ("eps=-1e-8", "it must be above 0 and at most 1"),
        ("grad_clip=-1", "it must be at least 0"),
        ("grad_clip=nan", "it must be a number"),
        ("seed=-1", "train.seed=-1: it must be at least 0"),
        ("seed=9223372036854775808", "it must be from 0 to 9223372036854775807"),
        ("save_every=0", "it must be at least 1"),
        ("keep_checkpoints=0", "it must be at least 1"),
        ("eval_every=0", "it must be at least 1"),
        ("eval_batches=0", "it must be at least 1"),
        ("precision=half", "it must be auto, float32 or bfloat16"),
        ("eps=0", "train.eps=0: it must be above 0"),
        ("workers=-1", "train.workers=-1: it must be at least 0"),
        ("workers=100000000000", "it must be from 0 to 256"),
        ("learning_rate=1", r"train.learning_rate: no field 'learning_rate': did you mean lr\?"),
    ],
)
def test_training_settings_outside_their_range_are_refused(setting: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        apply_overrides(TrainConfig(), [setting])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("epochs=0", "finetune.epochs=0: it must be above 0"),
        ("epochs=inf", "it must be a number"),
        ("layer_lr_decay=0", "finetune.layer_lr_decay=0: it must be above 0 and at most 1"),
        ("layer_lr_decay=1.5", "it must be above 0 and at most 1"),
        ("layer_lr_decay=nan", "it must be a number"),
        ("noisy_tune=-0.1", "it must be at least 0"),
        ("noisy_tune=inf", "it must be a number"),
        ("adversarial_epsilon=-1", "finetune.adversarial_epsilon=-1: it must be at least 0"),
        ("adversarial_epsilon=nan", "it must be a number"),
        ("dropout=1", "finetune.dropout=1: it must be from 0 to less than 1"),
        ("early_stopping_patience=-1", "it must be at least 0"),
        ("class_weights=rare", "it must be none or balanced"),
        ("mixing_temperature=0", "finetune.mixing_temperature=0: it must be above 0"),
        ("evals_per_epoch=0", "it must be at least 1"),
    ],
)
def test_fine_tuning_settings_outside_their_range_are_refused(setting: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        apply_overrides(FineTuneConfig(), [setting])


@pytest.mark.parametrize("value", SIZES.values(), ids=SIZES)
def test_sizes_and_rates_of_every_network_have_a_range(value: Any) -> None:
    """Counts are 1 or more and bounded, rates of dropout less than 1; ids and memories may be 0."""
    for one in dataclasses.fields(value):
        number = getattr(value, one.name)
        if type(number) is int:
            for wrong in (-1, 10**12, 2**64):
                sentence = rf"model.{one.name}={wrong}: it must be (at least|from) \d+"
                with pytest.raises(UserError, match=sentence):
                    dataclasses.replace(value, **{one.name: wrong})
        if type(number) is float:
            with pytest.raises(UserError, match=rf"model.{one.name}=-1.0: it must be"):
                dataclasses.replace(value, **{one.name: -1.0})
            with pytest.raises(UserError, match=rf"model.{one.name}=nan: it must be a number"):
                dataclasses.replace(value, **{one.name: math.nan})
        if "dropout" in one.name:
            with pytest.raises(UserError, match=rf"model.{one.name}=1: it must be from 0 to less"):
                dataclasses.replace(value, **{one.name: 1})
        if type(number) is int and one.name not in {*TOKEN_IDS, "mem_len"}:
            with pytest.raises(UserError, match=rf"model.{one.name}=0: it must be at least [1-4]"):
                dataclasses.replace(value, **{one.name: 0})


def test_every_field_of_a_recipe_has_a_help_text() -> None:
    """One phrase without a full stop: the command line prints it."""
    groups = ("recipe", "train", "finetune", "model", "objective", "file")
    for name in [name for group in groups for name in TYPES[group]]:
        importlib.import_module(next(t[name] for t in TYPES.values() if name in t))
        if not CLASSES[name].__module__.startswith("kinfolk."):
            continue
        for field in describe(CLASSES[name]).values():
            text = field.help
            assert text and text[-1] not in ".:;" and "\n" not in text, f"{name}.{field.name}"
            assert field.rule
    lr = describe(TrainConfig)["lr"]
    assert (lr.rule, lr.help, lr.default) == ("a number, above 0", "peak learning rate", 5e-4)


@pytest.mark.parametrize(
    ("given", "cpus", "expected"),
    [(None, 16, 4), (None, 8, 2), (None, 2, 1), (0, 16, 0), (7, 2, 7)],
)
def test_batches_for_cuda_are_made_by_processes(
    given: int | None, cpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinfolk.training.config.available_cpus", lambda: cpus)
    train = TrainConfig(workers=given)
    assert train.loader_processes(cuda=True) == expected
    assert train.loader_processes(cuda=False) == (given or 0)
