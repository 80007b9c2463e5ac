"""The head over sentences: inputs, labels, label sets, summaries, packing, and what it learns."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.config import from_json, to_json
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.hub import load, save
from kinfolk.tasks.formulations.choose import build_formulation, choose_formulation, model_config
from kinfolk.tasks.formulations.sentence_selection import SentenceSelection, select_sentences
from kinfolk.tasks.instances import TaskBatches, predict_rows
from kinfolk.tasks.rows import Article
from kinfolk.tasks.task import Prediction, Task, task_class
from kinfolk.tasks.word_replacement import read_dictionary, replace_words
from support.task_rows import LENGTH, WORDS, alone, config, same, tokenizer

FAMILIES = ("bert", "roberta", "albert", "electra", "xlnet", "bilstm", "cvt")
POOLED = pytest.mark.parametrize("mean", [False, True], ids=["cls", "mean"])


def article(number: int, sentences: int = 5) -> Article:
    """Make up a text with one sentence of names, which is its summary."""
    chance = random.Random(number)
    lines = [" ".join(chance.choices(WORDS[:8], k=3)).capitalize() + "." for _ in range(sentences)]
    key = chance.randrange(sentences)
    lines[key] = " ".join(["Old", *chance.choices(WORDS[8:], k=2)]) + "."
    return Article(" ".join(lines), lines[key], number)


def solving(name: str, *, length: int = LENGTH, **said: Any) -> tuple[SentenceSelection, Any]:
    """Build the formulation and a network with weights so large that every input matters."""
    body = config(name)
    task = Task(kind="extract", num_sentences=1)
    cls = choose_formulation(family_of(body), type(task))
    made: Any = build_formulation(
        cls, task, family_of(body), body, tokenizer(), length=length, **said
    )
    assert type(made) is SentenceSelection
    torch.manual_seed(3)
    model = model_config(made, body, dropout=0.0).build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.15 / float(parameter.std()))
    return made, model.eval()


def formulation(**said: Any) -> SentenceSelection:
    given = {"task": Task(kind="extract", num_sentences=1), "max_length": 64} | said
    return SentenceSelection(**given)


def test_the_picture_holds() -> None:
    row = Article("King cat. Old dog.", "Old dog.", 1)
    (instance,) = formulation().instances(row, tokenizer())
    (example,) = instance.examples
    special, parts = tokenizer().special_tokens, [tokenizer().offsets(s)[0] for s in row.sentences]
    first, second = ([special.cls, *part, special.sep] for part in parts)
    assert example.input_ids.tolist() == [*first, *second]
    assert example.token_type_ids is not None
    assert example.token_type_ids.tolist() == [0] * len(first) + [1] * len(second)
    assert example.read_positions.tolist() == [0, len(first)]
    assert instance.target == [0.0, 1.0]
    batch = formulation().make_batch([instance, instance])
    targets: Any = batch.targets
    assert targets.position_ids.tolist() == [0, 1, 0, 1]
    assert targets.instance_ids.tolist() == [0, 0, 1, 1]
    assert batch.counts == {"label": 4, "tokens": 2 * len(example.input_ids)}


def test_the_mean_is_that_of_the_tokens_of_each_sentence() -> None:
    solve, model = solving("bert", mean_pooling=True)
    row = Article("King cat. Old dog sat.", "Old dog.", 1)
    (instance,) = solve.instances(row, tokenizer())
    batch = solve.make_batch([instance])
    with torch.no_grad():
        (hidden,) = model(alone(instance.examples[0])).hidden
        sizes = [len(tokenizer().offsets(s)[0]) + 2 for s in row.sentences]
        vectors = torch.stack([part.mean(0) for part in hidden.split(sizes)])
        expected = model.sentence_scores(vectors, torch.tensor([0, 0]), torch.tensor([0, 1]))
        torch.testing.assert_close(solve.scores(model, batch), expected)


@POOLED
@pytest.mark.parametrize("name", FAMILIES)
def test_who_else_is_in_a_batch_changes_nothing(name: str, mean: bool) -> None:
    solve, model = solving(name, mean_pooling=mean)
    rows = [article(number, sentences=2 + number % 9) for number in range(6)]
    assert any(len(solve.instances(row, tokenizer())[0].examples) > 1 for row in rows)
    same(solve, model, rows)


@torch.no_grad()
def test_a_score_depends_on_sentences_of_another_window_and_on_the_position() -> None:
    solve, model = solving("bert", length=16)
    rows = [article(7, sentences=6), article(7, sentences=6)]
    other = rows[1].source.replace(rows[1].sentences[0], "Blue morning house.")
    rows[1] = replace(rows[1], source=other)
    groups = [solve.instances(row, tokenizer(), labelled=False) for row in rows]
    assert len(groups[0][0].examples) > 1
    first, second = (solve.logits(model, solve.make_batch(group))[0] for group in groups)
    assert abs(first[-1] - second[-1]) > 1e-6
    again = Article("Old cat. " * 3, None, 1)
    (scores,) = solve.logits(
        model, solve.make_batch(solve.instances(again, tokenizer(), labelled=False))
    )
    assert len({round(float(score), 5) for score in scores}) == 3


def test_a_long_text_is_read_in_windows_of_whole_sentences_and_a_long_sentence_is_cut() -> None:
    row = Article("King cat. Red " + "dog " * 60 + "end. Old dog. Red ball.", "Old dog.", 1)
    (instance,) = formulation(max_length=24).instances(row, tokenizer())
    assert max(len(example.input_ids) for example in instance.examples) <= 24
    assert sum(len(example.read_positions) for example in instance.examples) == 4
    whole = [len(tokenizer().offsets(sentence)[0]) for sentence in row.sentences]
    assert instance.truncated_tokens == max(whole) - 22


def test_texts_of_one_sentence_are_not_trained_on_and_are_their_own_summary() -> None:
    solve, model = solving("bert")
    rows = [Article("Old dog.", "Old dog.", 1), Article(" ", None, 2), article(3)]
    assert solve.instances(rows[0], tokenizer()) == []
    found = predict_rows(solve, model, rows, tokenizer())
    assert (found[0].value, found[0].sentences) == ("Old dog.", (0,))
    assert found[1] == Prediction("")


def test_the_best_sentences_are_the_summary_in_the_order_of_the_text() -> None:
    solve = formulation(task=Task(kind="extract", num_sentences=2))
    row = Article("One a. Two b. Three c.", None, 1)
    instances = solve.instances(row, tokenizer(), labelled=False)
    found = solve.decode(row, instances, [np.array([0.5, -1.0, 2.0])])
    assert (found.value, found.sentences) == ("One a. Three c.", (0, 2))
    assert found.probabilities == pytest.approx([0.6225, 0.2689, 0.8808], abs=1e-4)
    chinese = Article("今天下雨。股市大涨。他去上海。", None, 1)
    found = solve.decode(chinese, instances, [np.array([0.5, -1.0, 2.0])])
    assert found.value == "今天下雨。他去上海。"


def test_trigram_blocking_leaves_out_what_repeats() -> None:
    sentences = ["the old king slept", "so the old king ate", "a bird sang"]
    assert select_sentences(sentences, [0, 1, 2], 2, trigram_blocking=False) == (0, 1)
    assert select_sentences(sentences, [0, 1, 2], 2, trigram_blocking=True) == (0, 2)
    assert select_sentences(sentences, [1, 0, 2], 2, trigram_blocking=True) == (1, 2)
    assert select_sentences(sentences[:2], [0, 1], 2, trigram_blocking=True) == (0,)


def learn(solve: SentenceSelection, model: Any, rows: list[Article], steps: int) -> list[float]:
    """Take some steps; return the loss of each."""
    instances = [instance for row in rows for instance in solve.instances(row, tokenizer())]
    batches = TaskBatches(solve, [instances], batch=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(steps):
        loss = solve.loss(model.train(), batches[step]).mean(batches[step].counts)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


@POOLED
def test_the_sentences_that_summarize_are_learned_and_stay_so_on_disk(
    mean: bool, tmp_path: Path
) -> None:
    solve, _ = solving("bert", mean_pooling=mean)
    torch.manual_seed(0)
    model = model_config(solve, config("bert"), dropout=0.0).build()
    losses = learn(solve, model, [article(number) for number in range(160)], 70)
    assert losses[-1] < 0.2 * losses[0]
    fresh = [article(number) for number in range(1000, 1040)]
    found = predict_rows(solve, model, fresh, tokenizer())
    assert solve.task.evaluate(fresh, found)["rouge1"] > 0.95
    save(tmp_path, model, tokenizer())
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (saved["model_type"], saved["head"]["head"]) == ("kinfolk_bert", "sentences")
    again, words = load(tmp_path)
    kept = from_json(json.loads(json.dumps(to_json(solve))))
    assert kept == solve
    assert predict_rows(kept, again, fresh, words) == found


def test_a_gradient_reaches_every_weight() -> None:
    solve, model = solving("bert")
    batch = solve.make_batch(solve.instances(article(1), tokenizer()))
    solve.loss(model, batch).mean(batch.counts).backward()  # type: ignore[no-untyped-call]
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


# Label sets.


@pytest.fixture
def dictionary(tmp_path: Path) -> str:
    path = tmp_path / "en-zh.txt"
    path.write_text("cat 猫\nCat 喵\n\ndog\t狗\nfeline 猫\nsat 坐 了\n", encoding="utf-8")
    return str(path)


def test_words_are_replaced_by_their_first_translation(dictionary: str) -> None:
    assert read_dictionary(dictionary) == {"cat": "猫", "dog": "狗", "feline": "猫", "sat": "坐 了"}
    known = read_dictionary(dictionary)
    assert replace_words("The Cat and a dog.", known) == "The猫and a狗."
    assert replace_words("cat dog", known) == "猫狗"


def test_a_label_is_the_weighted_mean_of_the_label_sets(dictionary: str) -> None:
    row = Article("A feline ran. A dog ran home. Nobody.", "The cat.", 1)
    assert row.oracle == ()  # no word in common; in the other language, the first sentence has one
    solve = formulation(dictionary=(dictionary,), label_weights=(3.0, 1.0)).fit([], tokenizer())
    assert solve.label_weights == (0.75, 0.25)
    (instance,) = solve.instances(row, tokenizer())
    assert instance.target == [0.25, 0.0, 0.0]
    (instance,) = solve.instances(replace(row, target="A dog ran home."), tokenizer())
    assert instance.target == [0.0, 1.0, 0.0]
    equal = formulation(dictionary=(dictionary,)).fit([], tokenizer())
    assert equal.label_weights == (0.5, 0.5)


def test_replaced_articles_are_trained_on_with_the_same_labels(dictionary: str) -> None:
    solve = formulation(dictionary=(dictionary,), replace_words=True).fit([], tokenizer())
    row = Article("A cat ran. A dog ran home.", "A cat ran.", 1)
    first, second = solve.instances(row, tokenizer())
    assert first.target == second.target == [1.0, 0.0]
    assert first.examples[0].input_ids.tolist() != second.examples[0].input_ids.tolist()
    assert len(solve.instances(row, tokenizer(), labelled=False)) == 1


def test_a_resume_notices_another_dictionary(dictionary: str) -> None:
    solve = formulation(dictionary=(dictionary,)).fit([], tokenizer())
    before = solve.fingerprints()
    with Path(dictionary).open("a", encoding="utf-8") as file:
        file.write("bird 鸟\n")
    assert solve.fingerprints() != before and "bird" in read_dictionary(dictionary)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"label_weights": (1.0, 2.0)}, "--label-weights 1,2: give 1 number, of"),
        ({"label_weights": (0.0,)}, "which are not all 0"),
        ({"replace_words": True}, "--replace-words needs a --dictionary"),
        ({"dictionary": ("none.txt",)}, "--dictionary none.txt: no such file"),
    ],
)
def test_label_sets_that_do_not_fit_are_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        formulation(**said).fit([], tokenizer())


def test_a_dictionary_needs_two_words_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("cat 猫\ndog\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2 of .*bad.txt is 'dog': write a word"):
        read_dictionary(str(path))
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(UserError, match=r"empty\.txt is empty"):
        read_dictionary(str(empty))


# The task.


def test_a_summary_has_as_many_sentences_as_oracles_have() -> None:
    cls = task_class("extractive_summarization")
    rows = [Article("A cat sat. A dog ran. Birds flew.", "A cat sat. A dog ran.", 1)]
    assert rows[0].oracle == (0, 1)
    assert cls.from_rows(rows).num_sentences == 2
    assert cls.from_rows(rows, num_sentences=1).num_sentences == 1
    with pytest.raises(UserError, match=r"--num-sentences must be at least 1 \(got 0\)"):
        cls.from_rows(rows, num_sentences=0)
    with pytest.raises(UserError, match="applies to extractive summarization, not to write"):
        task_class("write").from_rows(rows, num_sentences=1)
    with pytest.raises(UserError, match=r"every text of a\.tsv is one sentence"):
        cls.from_rows([Article("A cat sat.", "A cat.", 1)], file="a.tsv")
