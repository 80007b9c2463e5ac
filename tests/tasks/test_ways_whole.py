"""A head on one token a text, and GPT's transformed input: targets, losses, teachers, packing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Example
from kinfolk.tasks.framing import encoded
from kinfolk.tasks.lessons import answers
from kinfolk.tasks.rows import Choice, Labelled
from kinfolk.tasks.ways.transformed import Bare, Transformed, line_marks
from kinfolk.tasks.ways.way import Way
from kinfolk.tasks.ways.whole import Whole
from kinfolk.text.tokenizer import Specials
from solving import CLASSES, alone, apart, cases, rows, same, solving, task, tokenizer

WHOLE = [case for case in cases("head", "transformed") if issubclass(case[2], Whole)]
NAMES = [f"{name}-{kind}-{way.name}" for name, kind, way in WHOLE]
every = pytest.mark.parametrize(("name", "kind", "way"), WHOLE, ids=NAMES)
SPECIALS = Specials(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6)


def test_the_first_token_of_the_frame_is_read() -> None:
    whole = Whole(task=task("classify"), length=16)
    (example,) = whole.lessons(Labelled(("red cat",), "fine", 1), tokenizer())
    (reading,), specials = example.readings, tokenizer().specials
    ids = encoded(tokenizer(), ["red cat"])[0]
    assert reading.ids.tolist() == [specials.cls, *ids, specials.sep]
    assert reading.time.tolist() == [0] * len(reading.ids)
    assert reading.slots.tolist() == [0]
    assert (example.target, example.cut) == (1, 0)


def test_every_option_is_read_behind_its_context() -> None:
    whole = Whole(task=task("choose"), length=16)
    row = Choice("red cat", ("dog", "old king"), 1, 1, question="who")
    (example,) = whole.lessons(row, tokenizer())
    first, second = example.readings
    for reading, option in ((first, "who dog"), (second, "who old king")):
        a, b = encoded(tokenizer(), ["red cat", option])
        assert reading.segments is not None
        assert reading.segments.tolist() == [0] * (2 + len(a)) + [1] * (1 + len(b))
    other = Choice("blue", ("a", "b", "c"), 0, 2)
    batch = whole.collate([example, *whole.lessons(other, tokenizer())])
    assert batch.targets.target.tolist() == [1, 2]  # among all options of the batch
    assert batch.targets.group.tolist() == [0, 0, 1, 1, 1]
    assert batch.counts["labels"] == 2


def test_a_long_context_loses_its_start_and_an_option_nothing() -> None:
    whole = Whole(task=task("choose"), length=16)
    row = Choice(" ".join(["cat"] * 5 + ["dog"] * 15), ("old king",), 0, 1)
    (example,) = whole.lessons(row, tokenizer())
    (reading,) = example.readings
    context, said = encoded(tokenizer(), (row.context, "old king"))
    room = 16 - 3 - len(said)
    assert len(reading.ids) == 16 and example.cut == len(context) - room
    assert reading.ids[1 : 1 + room].tolist() == context[-room:]
    assert reading.ids[2 + room : -1].tolist() == said


def test_gpt_reads_a_line_at_its_end_and_predicts_the_text() -> None:
    assert line_marks(SPECIALS) == (2, 5, 4)
    assert line_marks(replace(SPECIALS, bos=None, sep=None, cls=None)) == (3, 3, 3)
    line = Transformed(task=task("pair"), length=16, auxiliary=0.5)
    (example,) = line.lessons(Labelled(("red cat", "dog"), "bad", 1), tokenizer())
    (reading,) = example.readings
    start, delimiter, extract = line_marks(tokenizer().specials)
    a, b = encoded(tokenizer(), ["red cat", "dog"])
    assert reading.ids.tolist() == [start, *a, delimiter, *b, extract]
    assert reading.slots.tolist() == [len(reading.ids) - 1]
    assert reading.labels is not None
    assert reading.labels.tolist() == [*a, delimiter, *b, IGNORE_INDEX, IGNORE_INDEX]
    (bare,) = Bare(task=task("classify")).lessons(Labelled(("red cat",), "bad", 1), tokenizer())
    assert bare.readings[0].ids.tolist() == a and bare.readings[0].labels is None


@torch.no_grad()
def test_both_orders_of_a_pair_are_read_and_count_once() -> None:
    way, model = solving("gpt2", "regress", Transformed)
    row = rows("regress", 1)[0]
    (example,) = way.lessons(row, tokenizer())
    there, back = example.readings
    turned = replace(row, texts=row.texts[::-1])
    (other,) = way.lessons(turned, tokenizer())
    assert [r.ids.tolist() for r in other.readings] == [back.ids.tolist(), there.ids.tolist()]
    one, two = answers(way, model, [row, turned], tokenizer())
    assert one.value == pytest.approx(two.value, abs=1e-5)
    states = sum(model(alone(r)).hidden[0, -1] for r in example.readings)
    assert one.value == pytest.approx(float(model.logits(states)), abs=1e-5)


def scores(way: Whole, model: Any, example: Example) -> Tensor:
    """Score an example by itself: (classes,) or (options,)."""
    states = [model(alone(r)).hidden[0, int(r.slots[0])] for r in example.readings]
    if way.task.kind == "choose":
        return torch.cat([model.logits(state) for state in states])
    return model.logits(torch.stack(states).sum(0))  # type: ignore[no-any-return]


def plain(way: Whole, model: Any, example: Example, row: Any) -> tuple[Tensor, Tensor]:
    """Compute the loss of an example by itself, and that of predicting its tokens."""
    found = scores(way, model, example)
    if way.task.kind == "regress":
        blame = (found[0] - row.label) ** 2
    else:
        place = row.label if way.task.kind == "choose" else CLASSES.index(row.label)
        blame = -found.log_softmax(0)[place]
    language = torch.zeros(())
    for reading in example.readings:
        if reading.labels is not None:
            logits = model.lm_logits(model(alone(reading)).hidden[0]).logits()
            language += F.cross_entropy(
                logits, torch.from_numpy(reading.labels), ignore_index=IGNORE_INDEX, reduction="sum"
            )
    return blame, language


@every
@torch.no_grad()
def test_packing_changes_no_loss(name: str, kind: str, way: type[Whole]) -> None:
    made, model = solving(name, kind, way)
    assert isinstance(made, Whole)
    some = rows(kind)
    examples = [example for row in some for example in made.lessons(row, tokenizer())]
    batch = made.collate(examples)
    sums = made.loss(model, batch).sums
    each = [plain(made, model, e, row) for e, row in zip(examples, some, strict=True)]
    blame, language = (torch.stack(part).sum() for part in zip(*each, strict=True))
    torch.testing.assert_close(sums["labels"], blame, rtol=1e-5, atol=1e-5)
    if "language" in sums:
        torch.testing.assert_close(sums["language"], language, rtol=1e-5, atol=1e-5)
        labels = [r.labels for e in examples for r in e.readings if r.labels is not None]
        predicted = sum(int((some != IGNORE_INDEX).sum()) for some in labels)
        assert batch.counts["language"] == predicted
    assert ("language" in sums) == (way is Transformed)
    assert batch.counts["labels"] == len(some)


@every
def test_no_answer_depends_on_who_else_is_asked(name: str, kind: str, way: type[Way]) -> None:
    same(*solving(name, kind, way), rows(kind))


@every
def test_neighbours_have_no_gradient(name: str, kind: str, way: type[Way]) -> None:
    made, model = solving(name, kind, way)
    apart(made, model, [e for row in rows(kind) for e in made.lessons(row, tokenizer())])


def test_labels_play_no_part_in_questions() -> None:
    for kind in ("classify", "regress", "choose"):
        way, model = solving("bert", kind, Whole)
        some = rows(kind, 5)
        unknown = [replace(row, label=None) for row in some]
        known = [answer.scores for answer in answers(way, model, some, tokenizer())]
        assert [a.scores for a in answers(way, model, unknown, tokenizer())] == known


def test_probabilities_are_those_of_the_classes() -> None:
    way, model = solving("bert", "classify", Whole)
    some = rows("classify")
    for row, answer in zip(some, answers(way, model, some, tokenizer()), strict=True):
        (example,) = way.lessons(row, tokenizer())
        with torch.no_grad():
            shares = scores(way, model, example).softmax(0)  # type: ignore[arg-type]
        assert answer.scores == pytest.approx(shares.tolist(), abs=1e-5)
        assert answer.value == CLASSES[int(shares.argmax())]
        assert answer.sure == max(answer.scores)


@torch.no_grad()
def test_rare_classes_can_weigh_more() -> None:
    way, model = solving("bert", "classify", Whole, weights=(0.5, 2.0, 3.0))
    assert isinstance(way, Whole)
    some = rows("classify")
    examples = [example for row in some for example in way.lessons(row, tokenizer())]
    wanted = sum(
        way.weights[CLASSES.index(row.label)] * plain(way, model, example, row)[0]
        for row, example in zip(some, examples, strict=True)
    )
    found = way.loss(model, way.collate(examples)).sums["labels"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["classify", "regress", "choose"])
def test_a_teacher_has_its_share_of_the_loss(kind: str) -> None:
    share, heat = 0.3, 2.5
    way, model = solving("bert", kind, Whole, teaching=share, heat=heat)
    assert isinstance(way, Whole)
    some = rows(kind, 6)
    plainly = [e for row in some for e in way.lessons(row, tokenizer())]
    torch.manual_seed(1)
    replies = [torch.randn_like(scores(way, model, e)) * 3 for e in plainly]
    examples = [
        replace(e, soft=way.opinion(reply.double().numpy()))
        for e, reply in zip(plainly, replies, strict=True)
    ]
    wanted = torch.zeros(())
    for example, row, teacher in zip(examples, some, replies, strict=True):
        blame, own = plain(way, model, example, row)[0], scores(way, model, example)
        if kind == "regress":  # one target between the label and what the teacher says
            wanted += (own[0] - (1 - share) * row.label - share * teacher[0]) ** 2
            continue
        soft = -((teacher / heat).softmax(0) * (own / heat).log_softmax(0)).sum()
        wanted += (1 - share) * blame + share * heat**2 * soft
    found = way.loss(model, way.collate(examples)).sums["labels"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_class_that_training_had_not_is_named() -> None:
    whole = Whole(task=task("classify"))
    with pytest.raises(UserError, match="'odd' was not there in training: the model knows bad"):
        whole.lessons(Labelled(("a",), "odd", 1), tokenizer())
    (question,) = whole.questions(Labelled(("a",), "odd", 1), tokenizer())
    assert question.target is None
    assert np.array_equal(question.readings[0].slots, [0])
