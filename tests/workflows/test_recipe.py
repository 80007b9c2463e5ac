"""A recipe: one value for a whole run, put together from a name and a corpus."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kinfolk.data.corpus import Corpus
from kinfolk.errors import UserError
from kinfolk.families import families, family
from kinfolk.workflows.recipe import CorpusShare, Recipe, default_length, parse_corpora, recipe
from support.loops import every_case
from support.runs import Home

PAIRS = [(m.name, way) for m in families().values() for way in m.objectives]


def test_a_recipe_fits_its_corpus_and_comes_back_from_its_file(home: Home, tmp_path: Path) -> None:
    tokenizer = Corpus.open(home.corpus).tokenizer()
    with every_case() as case:
        for name, way in PAIRS:
            with case((name, way)):
                found = recipe(f"{name}/nano", home.corpus, objective=way, length=32)
                assert found.name == f"{name}/nano"
                assert found.model.vocab_size == found.objective.vocab_size == tokenizer.vocab_size
                assert found.objective.special_tokens == tokenizer.special_tokens
                assert found.objective.max_length == 32
                assert found.model.max_length in (None, 32)
                assert found.corpus == str(home.corpus.resolve())
                found.write(tmp_path / "recipe.json")
                assert Recipe.read(tmp_path / "recipe.json") == found


def test_a_name_without_a_size_is_tiny_and_learns_its_own_way(home: Home) -> None:
    found = recipe("bert", home.corpus)
    assert found.name == "bert/tiny" and type(found.objective).__name__ == "NSP"
    assert found.model.hidden_size == 128
    assert type(recipe("bert", home.corpus, objective="mlm").objective).__name__ == "MLM"


def test_settings_reach_every_part(home: Home) -> None:
    said = ["train.steps=7", "model.num_layers=1", "objective.mask_rate=0.3"]
    found = recipe("bert/nano", home.corpus, settings=said)
    assert (found.train.steps, found.model.num_layers, found.objective.mask_rate) == (7, 1, 0.3)


def test_a_short_run_keeps_the_shape_of_a_long_one(home: Home) -> None:
    assert recipe("gpt2/nano", home.corpus, settings=["train.steps=50"]).train.warmup == 5
    assert recipe("gpt2/nano", home.corpus, settings=["train.steps=3"]).train.warmup == 1
    assert recipe("gpt2/nano", home.corpus).train.warmup == family("gpt2").train("nano").warmup


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("gpt2/nano", 128),
        ("gpt2/mini", 128),
        ("gpt2/small", 512),
        ("gpt2/base", 1024),
        ("bert/base", 512),
        ("t5/base", 512),
    ],
)
def test_rows_are_as_long_as_a_network_makes_use_of(name: str, length: int) -> None:
    family_name, _, size = name.partition("/")
    assert default_length(family(family_name).config(size)) == length


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "gtp2"}, r"gtp2 is neither a folder nor a family: did you mean gpt2\?"),
        ({"name": "gpt2/teeny"}, r"gpt2 has no size 'teeny': did you mean tiny"),
        ({"objective": "mlm"}, r"gpt2 has no objective 'mlm' \(supported: clm"),
        ({"length": 7}, r"at least 8 .got 7"),
        ({"length": 0}, r"at least 8 .got 0"),
        ({"length": 10**6}, r"tokens, fewer than one sequence of 1000000"),
        ({"settings": ["train.stepps=3"]}, r"did you mean steps"),
        ({"settings": ["objective.max_length=64"]}, r"64"),
        (
            {"name": "t5/nano", "settings": ["model.decoder_start_token_id=7"]},
            r"must be the padding id",
        ),
        ({"corpus": "/nowhere/at/all"}, r"/nowhere/at/all"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(
    home: Home, wrong: dict[str, Any], said: str
) -> None:
    given = {"name": "gpt2/nano", "corpus": home.corpus, "length": 32} | wrong
    name, where = given.pop("name"), given.pop("corpus")
    with pytest.raises(UserError, match=said):
        recipe(name, where, **given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not a run"),
        ("{", "is not JSON"),
        ('{"type": "train"}', "recipe.json: unknown type 'train': did you mean pretrain"),
        ("3", "recipe.json: missing 'type' .expected one of: pretrain, finetune"),
        ('{"is": "kinfolk.workflows.recipe:Recipe"}', "recipe.json: missing 'type'"),
    ],
)
def test_a_file_that_is_no_recipe_is_told(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "recipe.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=said):
        Recipe.read(path)


def test_a_mixture_comes_back_from_its_file(home: Home, second: Path, tmp_path: Path) -> None:
    mixture = [CorpusShare(str(home.corpus), 0.7), CorpusShare(str(second), 0.3)]
    found = recipe("gpt2/nano", mixture, length=32)
    assert found.corpora == found.corpus == tuple(mixture)
    found.write(tmp_path / "recipe.json")
    assert Recipe.read(tmp_path / "recipe.json") == found


def test_one_corpus_is_written_as_it_always_was(home: Home, tmp_path: Path) -> None:
    found = recipe("gpt2/nano", [CorpusShare(str(home.corpus), 0.7)], length=32)
    assert found == recipe("gpt2/nano", home.corpus, length=32)
    assert found.corpora == (CorpusShare(str(home.corpus)),)
    found.write(tmp_path / "recipe.json")
    said = json.loads((tmp_path / "recipe.json").read_text(encoding="utf-8"))
    assert said["corpus"] == str(home.corpus)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["news"], [("news", 1)]),
        (["news=0.7", "law=0.3"], [("news", 0.7), ("law", 0.3)]),
        (["news", "law"], [("news", 1), ("law", 1)]),
        (["a=b/c=2"], [("a=b/c", 2)]),
        (["a=b"], [("a=b", 1)]),
        (["=3"], [("=3", 1)]),
        (["rate=1e-3=5"], [("rate=1e-3", 5)]),
        (["here=3"], [("here=3", 1)]),  # there is such a folder
        (["here=3=3"], [("here=3", 3)]),
    ],
)
def test_a_corpus_may_be_named_with_its_weight(
    said: list[str],
    expected: list[tuple[str, float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here=3").mkdir()
    assert parse_corpora(said) == [CorpusShare(*pair) for pair in expected]


def test_weights_are_for_all_corpora_or_for_none() -> None:
    with pytest.raises(UserError, match="--corpus law has no weight, but another one has"):
        parse_corpora(["news=0.7", "law"])


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float, home: Home, second: Path) -> None:
    with pytest.raises(UserError, match=rf"weight={weight}: it must be (above 0|a number)"):
        recipe(
            "gpt2/nano",
            [CorpusShare(str(home.corpus), weight), CorpusShare(str(second))],
            length=32,
        )


def test_corpora_that_cannot_be_mixed_are_refused(home: Home, second: Path, tmp_path: Path) -> None:
    twice = [CorpusShare(str(second)), CorpusShare(str(second / ".." / "second"))]
    with pytest.raises(UserError, match="given twice"):
        recipe("gpt2/nano", twice, length=32)
    with pytest.raises(UserError, match="no corpus given"):
        recipe("gpt2/nano", [], length=32)
    other = Home.make(tmp_path, seed=1)
    with pytest.raises(UserError, match="tokenized with different tokenizers") as said:
        recipe("gpt2/nano", [CorpusShare(str(second)), CorpusShare(str(other.corpus))], length=32)
    assert str(second) in str(said.value) and str(other.corpus) in str(said.value)
    few = [CorpusShare(str(home.corpus)), CorpusShare(str(second / "holdout"))]
    with pytest.raises(UserError, match=r"holdout has .* tokens, fewer than one sequence of 1000"):
        recipe("gpt2/nano", few, length=1000)
