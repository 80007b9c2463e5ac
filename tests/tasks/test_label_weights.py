"""Learned weights of label sets: what they favour, what they ignore, and where gradients go."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.config import from_json, to_json
from kinfolk.errors import UserError
from kinfolk.hub import load, save
from kinfolk.nn.label_weights import LabelWeights, label_gains, weights_of
from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of
from kinfolk.tasks.formulations import sentence_selection
from kinfolk.tasks.formulations.base import Instance
from kinfolk.tasks.formulations.choose import model_config
from kinfolk.tasks.formulations.sentence_selection import LabelSets, SentenceSelection
from kinfolk.tasks.instances import TaskBatches
from kinfolk.tasks.rows import Article
from kinfolk.tasks.task import Task
from kinfolk.workflows.finetuning.label_search import learned_label_weights, weight_messages
from support.task_rows import WORDS, config, tokenizer

SENTENCES, DOCUMENTS, LR = 6, 640, 2e-3
KINDS = (WORDS[:4], WORDS[4:8])  # words of two kinds of sentences
CHOSEN = (WORDS[8:10], WORDS[10:12])  # each occurs in sentences that are chosen, of its kind
Labels = Callable[[bool, int, random.Random], list[float]]  # of chosen, kind


@pytest.fixture
def dictionary(tmp_path: Path) -> str:
    path = tmp_path / "en-zh.txt"
    path.write_text("cat 猫\n", encoding="utf-8")
    return str(path)


def article(number: int) -> Article:
    """Make up a text of two kinds of sentences, of which about a third have a word to be chosen."""
    chance = random.Random(number)
    lines = []
    for _ in range(SENTENCES):
        kind = chance.randrange(2)
        words = chance.choices(KINDS[kind], k=2)
        words += chance.choices(CHOSEN[kind] if chance.random() < 0.35 else KINDS[kind], k=2)
        lines.append(" ".join(words).capitalize() + ".")
    return Article(" ".join(lines), lines[0], number)


def planted(
    solve: SentenceSelection, labels: Labels, rows: list[Article]
) -> tuple[list[Instance], list[int]]:
    """Return instances with planted label sets, and the kind of every sentence."""
    instances, kinds = [], []
    for row in rows:
        (instance,) = solve.instances(row, tokenizer())
        chance, own = random.Random(-row.number), []
        for sentence in row.sentences:
            words = sentence.lower().rstrip(".").split()
            kind = int(not {*words} & {*KINDS[0]})
            chosen = bool({*words} & {word.lower() for pair in CHOSEN for word in pair})
            own.append(labels(chosen, kind, chance))
            kinds.append(kind)
        instances.append(replace(instance, target=LabelSets(own, instance.target.searched)))
    return instances, kinds


def learn(dictionary: str, labels: Labels, *, steps: int = 60) -> tuple[Any, ...]:
    """Learn extractor and weights from planted label sets; return those of other documents."""
    rows = [article(number) for number in range(DOCUMENTS)]
    task = Task(kind="extract", num_sentences=1)
    solve = SentenceSelection(
        task=task,
        max_length=64,
        mean_pooling=True,
        dictionary=(dictionary,),
        label_weights="learned",
    ).fit(rows, tokenizer())
    instances, _ = planted(solve, labels, rows)
    every = torch.tensor([own for i in instances for own in i.target.labels])
    solve = replace(solve, label_rates=tuple(every.mean(0).tolist()))
    torch.manual_seed(0)
    model = model_config(solve, config("bert"), dropout=0.0).build()
    with torch.no_grad():  # vectors that tell sentences apart, as those of a trained encoder do
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and not name.startswith("label_weights."):
                parameter.mul_(0.08 / float(parameter.std()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    batches = TaskBatches(solve, [instances], batch=16)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LR * min(1, step / 10) * (1 - step / steps)
        solve.loss(model.train(), batches[step]).mean(batches[step].counts).backward()
        optimizer.step()
        optimizer.zero_grad()
    others = [article(number) for number in range(1000, 1040)]
    fresh, kinds = planted(solve, labels, others)
    batch = solve.make_batch(fresh)
    with torch.no_grad():
        weights = solve.sentence_weights(model.eval(), batch)
    return solve, model, fresh, weights, torch.tensor(kinds)


@pytest.mark.parametrize(
    "noise",
    [pytest.param(0, id="original"), pytest.param(1, id="replaced", marks=pytest.mark.slow)],
)
def test_the_weight_of_a_label_set_of_noise_falls(noise: int, dictionary: str) -> None:
    def labels(chosen: bool, kind: int, chance: random.Random) -> list[float]:
        own = [float(chosen), float(chosen)]
        own[noise] = float(chance.random() < 0.35)
        return own

    solve, model, fresh, weights, _ = learn(dictionary, labels)
    of_sets = weights_of(model.label_weights.of_sets.detach())
    assert of_sets[noise] < 0.25
    assert weights[:, noise].mean() < 0.2
    found = learned_label_weights(solve, model, fresh)
    assert found["sets"] == ["original", solve.dictionary[0]]
    assert found["set_weights"] == pytest.approx(of_sets.tolist())
    assert found["sentence_mean"] == pytest.approx(weights.mean(0).tolist(), abs=1e-5)
    said = weight_messages(found)[0]
    assert said.startswith("learned weights of label sets: original ") and "en-zh.txt" in said


@pytest.mark.slow
def test_a_label_set_weighs_more_in_the_sentences_for_which_it_is_right(dictionary: str) -> None:
    def labels(chosen: bool, kind: int, chance: random.Random) -> list[float]:
        own = [float(chance.random() < 0.35) for _ in range(2)]
        own[kind] = float(chosen)
        return own

    *_, weights, kinds = learn(dictionary, labels, steps=320)
    assert weights[kinds == 0, 0].mean() > 0.7 and weights[kinds == 1, 1].mean() > 0.7
    assert abs(weights[:, 0].mean() - 0.5) < 0.2  # neither is better in all sentences


@pytest.mark.parametrize("with_rates", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_set_that_chooses_nothing_wins_only_without_the_rates_of_sets(
    with_rates: bool, dictionary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def labels(chosen: bool, kind: int, chance: random.Random) -> list[float]:
        return [float(chosen), 0.0]

    def distances(probabilities: torch.Tensor, labels: torch.Tensor, _: Any) -> torch.Tensor:
        return -(probabilities[:, None] - labels).square()

    if not with_rates:
        monkeypatch.setattr(sentence_selection, "label_gains", distances)
    *_, weights, _ = learn(dictionary, labels)
    assert weights[:, 0].mean() > 0.8 if with_rates else weights[:, 1].mean() > 0.9


def test_a_constant_prediction_gains_nothing_for_any_set() -> None:
    labels = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).round()
    assert not label_gains(torch.full((50,), 0.3), labels, torch.tensor([0.3, 0.3])).any()
    right = label_gains(labels[:, 0], labels, labels.mean(0)).mean(0)
    assert right[0] > 0 > right[1]


def test_weights_are_positive_start_equal_and_sum_to_one() -> None:
    weights = LabelWeights(16, 3)
    vectors = torch.randn(10, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(weights_of(weights(vectors)), torch.full((10, 3), 1 / 3))
    with torch.no_grad():
        weights.set_bias.copy_(torch.tensor([0.1, -0.1, 0.0]))
        for matrix in (weights.dense.weight, weights.out_proj.weight):
            matrix.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
        found = weights_of(weights(vectors))
    torch.testing.assert_close(found.sum(-1), torch.ones(10))
    assert found.min() > 0 and found.std(0).min() > 0.01
    assert float(weights_of(weights.of_sets.detach()).sum()) == pytest.approx(1)


def test_extractor_and_weights_learn_from_different_documents(dictionary: str) -> None:
    rows = [article(number) for number in range(40)]
    task = Task(kind="extract", num_sentences=1)
    solve = SentenceSelection(
        task=task,
        max_length=64,
        mean_pooling=True,
        dictionary=(dictionary,),
        label_weights="learned",
    ).fit(rows, tokenizer())
    instances, _ = planted(solve, lambda chosen, kind, chance: [float(chosen), 0.0], rows)
    torch.manual_seed(0)
    model: Any = model_config(solve, config("bert"), dropout=0.0).build()
    torch.nn.init.normal_(model.label_weights.out_proj.weight)  # zeros would hide gradients below

    def changed(chosen: list[Instance]) -> set[str]:
        model.zero_grad()
        batch = solve.make_batch(chosen)
        solve.loss(model, batch).mean(batch.counts).backward()  # type: ignore[no-untyped-call]
        names = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        return {"weights" if name.startswith("label_weights.") else "extractor" for name in names}

    searched = [instance for instance in instances if instance.target.searched]
    others = [instance for instance in instances if not instance.target.searched]
    assert 2 <= len(searched) <= 16
    assert changed(searched) == {"weights"} and changed(others) == {"extractor"}
    counts = solve.make_batch(instances).counts
    assert counts["label"] == SENTENCES * len(others)
    assert counts["label_weights"] == SENTENCES * len(searched)


def test_learned_weights_stay_on_disk(dictionary: str, tmp_path: Path) -> None:
    rows = [article(number) for number in range(40)]
    task = Task(kind="extract", num_sentences=1)
    solve = SentenceSelection(
        task=task,
        max_length=64,
        mean_pooling=True,
        dictionary=(dictionary,),
        label_weights="learned",
    ).fit(rows, tokenizer())
    assert len(solve.label_rates) == 2 and from_json(to_json(solve)) == solve
    model = model_config(solve, config("bert")).build()
    with torch.no_grad():
        model.label_weights.set_bias[0] = 0.1
    save(tmp_path / "model", model, tokenizer())
    again: Any = load(tmp_path / "model")[0]
    assert torch.equal(again.label_weights.set_bias, model.label_weights.set_bias)


def test_learned_weights_need_two_label_sets_and_articles_to_divide(dictionary: str) -> None:
    task = Task(kind="extract", num_sentences=1)
    alone = SentenceSelection(task=task, label_weights="learned")
    with pytest.raises(UserError, match="--label-weights learned needs a --dictionary"):
        alone.fit([article(1)], tokenizer())
    two = replace(alone, dictionary=(dictionary,))
    with pytest.raises(UserError, match="learned: 1 article to learn from cannot be divided"):
        two.fit([article(1)], tokenizer())
    body = config("bert")
    with pytest.raises(UserError, match="label_sets=1 needs head='sentences' and at least 2"):
        ModelWithHeadConfig(
            backbone=body, head="sentences", labels=("score",), pooling=pooling_of(body),
            label_sets=1,
        )  # fmt: skip
