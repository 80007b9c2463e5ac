"""Probes of frozen layers: every family, the controls, texts, pairs, numbers and tags."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.families import families, family
from kinfolk.metrics.bootstrap import ConfidenceInterval
from kinfolk.metrics.classification import Accuracy
from kinfolk.nn.language_model import LanguageModel
from kinfolk.tasks.rows import LabelledText, SourceTarget, TaggedSentence
from kinfolk.tasks.task import Task, task_class
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.probing.dataset import (
    LayerProbes,
    TextPooling,
    center_of_gravity,
    expected_layer,
)
from kinfolk.workflows.probing.probes import ProbeResult, probe_layers
from support.runs import WHO

PRETRAINED = [name for name in families() if family(name).objectives and name != "ngram"]
ADJECTIVES = {"good": ("fine", "lovely", "bright"), "bad": ("dull", "awful", "weak")}
TAGS = {**dict.fromkeys(("a", "the"), "DET"), **dict.fromkeys(("film", "song", "book"), "NOUN")}
TAGS |= dict.fromkeys(("saw", "found", "wrote"), "VERB")
TAGS |= {word: "ADJ" for words in ADJECTIVES.values() for word in words}


def texts(count: int, seed: int) -> list[LabelledText]:
    """Make up texts whose class is in one word."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        label = chance.choice(("good", "bad"))
        words = ["the", chance.choice(("film", "song", "book")), "was"]
        rows.append(
            LabelledText((" ".join([*words, chance.choice(ADJECTIVES[label])]),), label, number)
        )
    return rows


def sentences(count: int, seed: int) -> list[TaggedSentence]:
    """Make up sentences of words with one tag each."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        words = tuple(chance.choice([*TAGS]) for _ in range(chance.randint(2, 6)))
        rows.append(TaggedSentence(words, tuple(TAGS[word] for word in words), number))
    return rows


def task_of(kind: str, rows: Sequence[Any]) -> Task:
    return task_class(kind).from_rows(rows, file="rows")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    words = " ".join(row.text for row in texts(200, 0)) + " " + " ".join(TAGS)
    return train_tokenizer([words], kind="bpe", vocab_size=420, fewer=True)


def network(name: str, tokenizer: Tokenizer) -> tuple[LanguageModel, Tokenizer]:
    """Return a network with random weights, as if it were pretrained."""
    config = InitialWeights(name=f"{name}/nano").config(tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return config.build().eval(), tokenizer


@pytest.fixture(scope="module")
def bert(tokenizer: Tokenizer) -> tuple[LanguageModel, Tokenizer]:
    return network("bert", tokenizer)


@pytest.mark.parametrize("name", PRETRAINED)
def test_every_layer_of_every_pretrained_family_is_probed(name: str, tokenizer: Tokenizer) -> None:
    model, _ = network(name, tokenizer)
    train = texts(40, 1)
    result = probe_layers(
        (model, tokenizer),
        *(train, texts(10, 2), texts(30, 3), task_of("classify", train)),
        penalties=(0.1,),
    )
    layers = model.config.num_layers + 1
    for probes in (result.pretrained, result.control):
        assert len(probes.scores) == len(probes.cumulative_scores) == layers
        assert [len(rows) for rows in probes.statistics] == [30] * layers
        # The embeddings of words tell the classes apart, whatever they are.
        assert probes.scores[0] > 0.9
    assert result.pretrained.pretrained and not result.control.pretrained


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("elmo", "gpt2", "t5") else pytest.param(name, marks=pytest.mark.slow)
        for name in PRETRAINED
    ],
)
def test_the_words_of_every_pretrained_family_are_probed(name: str, tokenizer: Tokenizer) -> None:
    train = sentences(40, 1)
    result = probe_layers(
        network(name, tokenizer),
        *(train, sentences(10, 2), sentences(20, 3), task_of("tag", train)),
        penalties=(0.1,),
    )
    assert result.metric.name == "accuracy"
    assert result.pretrained.scores[0] > 0.8


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_only_an_encoder_knows_the_words_after(name: str, tokenizer: Tokenizer) -> None:
    """The tag of the first word is the second word."""
    chance = random.Random(0)

    def row(number: int) -> TaggedSentence:
        last = chance.choice(("film", "song"))
        return TaggedSentence(("a", last), (last, "X"), number)

    train, dev, test = ([row(n) for n in range(count)] for count in (60, 20, 40))
    task = task_of("tag", train)
    result = probe_layers(network(name, tokenizer), train, dev, test, task, penalties=(0.01,))
    assert (result.pretrained.scores[-1] > 0.99) == (name == "bert")
    assert result.pretrained.scores[0] < 0.9


def test_what_pretraining_learned_is_above_random_weights(tokenizer: Tokenizer) -> None:
    """The network knows the class of a text from its embeddings, and random weights do not."""
    model, _ = network("bert", tokenizer)
    train, dev, test = unseen_words(0)
    ids = {word: tokenizer.encode(f" {word}") for words in ADJECTIVES.values() for word in words}
    with torch.no_grad():
        for label, words in ADJECTIVES.items():
            for id in {id for word in words for id in ids[word]}:
                model.token_embeddings.weight[id, :8] = 1.0 if label == "good" else -1.0
    result = probe_layers((model, tokenizer), train, dev, test, task_of("classify", train))
    assert result.pretrained.scores[0] > 0.95
    assert result.control.scores[0] < 0.8
    first = result.gains()[0]
    assert first.score == result.pretrained.scores[0] - result.control.scores[0]
    assert first.low > 0


def unseen_words(seed: int) -> tuple[list[LabelledText], ...]:
    """Make up texts whose test rows have other adjectives than the training rows."""
    rows = texts(200, seed)
    unseen = {words[-1] for words in ADJECTIVES.values()}
    known = [row for row in rows if row.texts[0].split()[-1] not in unseen]
    return known[:80], known[80:], [row for row in rows if row not in known]


def test_results_depend_on_the_seed_of_the_control_alone(
    bert: tuple[LanguageModel, Tokenizer],
) -> None:
    train = sentences(12, 1)
    splits = train, sentences(10, 2), sentences(10, 3), task_of("tag", train)

    def probe(seed: int) -> ProbeResult:
        state = torch.get_rng_state()
        result = probe_layers(bert, *splits, seed=seed, penalties=(0.1,))
        assert torch.equal(torch.get_rng_state(), state)
        return result

    first, again, other = probe(0), probe(0), probe(1)
    assert first.to_json("bert") == again.to_json("bert")
    assert first.pretrained.scores == other.pretrained.scores
    assert first.pretrained.selectivity != other.pretrained.selectivity


def test_selectivity_is_the_accuracy_above_that_of_control_tags(
    bert: tuple[LanguageModel, Tokenizer],
) -> None:
    """Every word type has one tag here as there: a probe learns both, and nothing is selective."""
    train = sentences(80, 1)
    splits = train, sentences(20, 2), sentences(40, 3), task_of("tag", train)
    result = probe_layers(bert, *splits, penalties=(0.01,))
    assert result.pretrained.scores[0] > 0.9
    assert result.pretrained.selectivity == pytest.approx([0, 0, 0], abs=0.1)


def test_a_pair_is_probed_by_both_texts(bert: tuple[LanguageModel, Tokenizer]) -> None:
    """The class is whether both texts are the same: no single text has it."""
    chance = random.Random(1)

    def row(number: int) -> LabelledText:
        first, second = (chance.choice(WHO) for _ in range(2))
        second = first if number % 2 else second
        return LabelledText((first, second), "same" if first == second else "other", number)

    train, dev, test = ([row(n) for n in range(count)] for count in (80, 20, 40))
    task = task_of("classify", train)
    assert task.is_pair
    assert probe_layers(bert, train, dev, test, task).pretrained.scores[0] > 0.8


def test_numbers_are_probed(bert: tuple[LanguageModel, Tokenizer]) -> None:
    chance = random.Random(2)

    def row(number: int) -> LabelledText:
        count = chance.randint(1, 8)
        words = ["fine"] * count + ["dull"] * (8 - count)
        return LabelledText((" ".join(words),), 100.0 + count, number)

    train, dev, test = ([row(n) for n in range(count)] for count in (60, 20, 30))
    result = probe_layers(bert, train, dev, test, task_of("regress", train))
    assert result.metric.name == "pearson"
    assert result.pretrained.scores[0] > 0.95


@pytest.mark.parametrize("pooling", ["max", "first", "last"])
def test_texts_are_pooled_as_chosen(
    pooling: TextPooling, bert: tuple[LanguageModel, Tokenizer]
) -> None:
    """The class is in the last word of a text; the embedding of the first one lacks it."""
    train = texts(60, 1)
    splits = train, texts(20, 2), texts(40, 3), task_of("classify", train)
    result = probe_layers(bert, *splits, pooling=pooling, penalties=(0.01,))
    assert (result.pretrained.scores[0] > 0.9) == (pooling != "first")


def test_rows_above_the_limits_are_left_out(bert: tuple[LanguageModel, Tokenizer]) -> None:
    train = texts(50, 1)
    splits = train, texts(50, 2), texts(50, 3), task_of("classify", train)
    result = probe_layers(bert, *splits, max_train_rows=20, max_test_rows=10, penalties=(0.1,))
    assert (result.train_rows, result.dev_rows, result.test_rows) == (20, 10, 10)
    assert len(result.pretrained.statistics[0]) == 10


def test_a_run_folder_is_probed(runs: dict[str, Path]) -> None:
    train = texts(20, 1)
    splits = train, texts(10, 2), texts(10, 3), task_of("classify", train)
    result = probe_layers(runs["t5"], *splits, penalties=(0.1,))
    rows = json.loads(json.dumps(result.to_json("t5/nano")))
    assert [row["pretrained"] for row in rows] == [True, False]
    assert len(rows[0]["layers"]) == 3
    assert 0 <= rows[0]["center_of_gravity"] <= 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ngram", "ngram models have no hidden layers"),
        ("bilstm", "bilstm has no pretraining objective"),
    ],
)
def test_a_network_without_pretrained_layers_is_refused(
    name: str, said: str, tokenizer: Tokenizer
) -> None:
    train = texts(20, 1)
    with pytest.raises(UserError, match=said):
        probe_layers(network(name, tokenizer), train, train, train, task_of("classify", train))


def test_a_task_without_classes_is_refused(bert: tuple[LanguageModel, Tokenizer]) -> None:
    rows = [SourceTarget("a", "b", 1)]
    with pytest.raises(UserError, match="linear probes apply to classification, regression"):
        probe_layers(bert, rows, rows, rows, task_of("write", rows))


def test_unlabelled_and_missing_rows_are_refused(bert: tuple[LanguageModel, Tokenizer]) -> None:
    train = texts(20, 1)
    task = task_of("classify", train)
    with pytest.raises(UserError, match="probes need dev rows"):
        probe_layers(bert, train, [], train, task)
    with pytest.raises(UserError, match="row 0 has no label"):
        probe_layers(bert, train, train, [replace(train[0], label=None)], task)


def test_labels_that_training_rows_lack_are_errors(bert: tuple[LanguageModel, Tokenizer]) -> None:
    train, test = texts(40, 1), texts(20, 2)
    test = [*test[:10], *(replace(row, label="mixed") for row in test[10:])]
    task = task_of("classify", train)
    result = probe_layers(bert, train, test, test, task, penalties=(0.01,))
    assert result.pretrained.scores[0] == pytest.approx(0.5, abs=0.05)


def probed(pretrained: bool, layers: Sequence[Sequence[int]]) -> LayerProbes:
    """Return probes that predict some of the rows of each layer."""
    statistics = tuple(np.array([[hit, 1] for hit in hits]) for hits in layers)
    scores = tuple(float(np.mean(hits)) for hits in layers)
    weights = (1 / 3,) * 3
    return LayerProbes(pretrained, scores, statistics, (), scores, statistics, weights)


def test_the_center_of_the_gains_is_where_pretraining_learned() -> None:
    half, most, all_rows = [0, 1] * 50, [1, 1, 1, 0] * 25, [1] * 100
    control = probed(False, [half, half, half])

    def center(*layers: Sequence[int]) -> ConfidenceInterval | None:
        return ProbeResult(Accuracy(), 1, 1, 100, probed(True, layers), control).gain_center()

    found = center(half, most, all_rows)
    assert found is not None
    assert found.score == pytest.approx((0.25 + 2 * 0.5) / 0.75)
    assert found.low < found.score < found.high
    assert center(half, half, half) is None
    lowest = center(all_rows, half, [0] * 100)  # below random weights is no negative weight
    assert lowest is not None and lowest.score == 0


def test_the_center_of_gravity_is_the_mean_layer() -> None:
    assert center_of_gravity([0.5, 0.5, 0.0]) == 0.5
    assert center_of_gravity([1, 0, 3]) == 1.5


def test_the_expected_layer_counts_what_each_layer_adds() -> None:
    assert expected_layer([0.5, 0.7, 0.7]) == 1
    assert expected_layer([0.5, 0.5, 0.7]) == 2
    assert expected_layer([0.5, 0.6, 0.9]) == pytest.approx(1.75)
    assert expected_layer([0.5, 0.4, 0.6]) == 2  # layer 2 adds 0.1 to the best before
    assert expected_layer([0.5, 0.4, 0.5]) is None
