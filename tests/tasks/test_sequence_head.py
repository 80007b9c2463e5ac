"""Heads on one token per text, and GPT's: targets, losses, distillation, packing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.errors import UserError
from kinfolk.tasks.formulations.base import Formulation, Instance
from kinfolk.tasks.formulations.head import (
    BareCausalHead,
    CausalHead,
    SequenceHead,
    causal_special_tokens,
)
from kinfolk.tasks.formulations.sequences import encode_plain
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import LabelledText, MultipleChoiceRow
from kinfolk.text.tokenizer import SpecialTokens
from support.task_rows import CLASSES, alone, apart, cases, rows, same, solving, task, tokenizer

WHOLE = [case for case in cases("head", "transformed") if issubclass(case[2], SequenceHead)]
NAMES = [f"{name}-{kind}-{formulation.name}" for name, kind, formulation in WHOLE]
every = pytest.mark.parametrize(("name", "kind", "formulation"), WHOLE, ids=NAMES)
SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6)


def test_the_first_token_of_the_frame_is_read() -> None:
    whole = SequenceHead(task=task("classify"), max_length=16)
    (example,) = whole.instances(LabelledText(("red cat",), "fine", 1), tokenizer())
    (reading,), special_tokens = example.examples, tokenizer().special_tokens
    ids = encode_plain(tokenizer(), ["red cat"])[0]
    assert reading.input_ids.tolist() == [special_tokens.cls, *ids, special_tokens.sep]
    assert reading.order.tolist() == [0] * len(reading.input_ids)
    assert reading.read_positions.tolist() == [0]
    assert (example.target, example.truncated_tokens) == (1, 0)


def test_every_option_is_read_behind_its_context() -> None:
    whole = SequenceHead(task=task("choose"), max_length=16)
    row = MultipleChoiceRow("red cat", ("dog", "old king"), 1, 1, question="who")
    (example,) = whole.instances(row, tokenizer())
    first, second = example.examples
    for reading, option in ((first, "who dog"), (second, "who old king")):
        a, b = encode_plain(tokenizer(), ["red cat", option])
        assert reading.token_type_ids is not None
        assert reading.token_type_ids.tolist() == [0] * (2 + len(a)) + [1] * (1 + len(b))
    other = MultipleChoiceRow("blue", ("a", "b", "c"), 0, 2)
    batch = whole.make_batch([example, *whole.instances(other, tokenizer())])
    assert batch.targets.target.tolist() == [1, 2]  # among all options of the batch
    assert batch.targets.instance_ids.tolist() == [0, 0, 1, 1, 1]
    assert batch.counts["label"] == 2


def test_a_long_context_loses_its_start_and_an_option_nothing() -> None:
    whole = SequenceHead(task=task("choose"), max_length=16)
    row = MultipleChoiceRow(" ".join(["cat"] * 5 + ["dog"] * 15), ("old king",), 0, 1)
    (example,) = whole.instances(row, tokenizer())
    (reading,) = example.examples
    context, said = encode_plain(tokenizer(), (row.context, "old king"))
    room = 16 - 3 - len(said)
    assert len(reading.input_ids) == 16 and example.truncated_tokens == len(context) - room
    assert reading.input_ids[1 : 1 + room].tolist() == context[-room:]
    assert reading.input_ids[2 + room : -1].tolist() == said


def test_gpt_reads_a_line_at_its_end_and_predicts_the_text() -> None:
    assert causal_special_tokens(SPECIALS) == (2, 5, 4)
    assert causal_special_tokens(replace(SPECIALS, bos=None, sep=None, cls=None)) == (3, 3, 3)
    line = CausalHead(task=task("pair"), max_length=16, lm_loss_weight=0.5)
    (example,) = line.instances(LabelledText(("red cat", "dog"), "bad", 1), tokenizer())
    (reading,) = example.examples
    start, delimiter, extract = causal_special_tokens(tokenizer().special_tokens)
    a, b = encode_plain(tokenizer(), ["red cat", "dog"])
    assert reading.input_ids.tolist() == [start, *a, delimiter, *b, extract]
    assert reading.read_positions.tolist() == [len(reading.input_ids) - 1]
    assert reading.labels is not None
    assert reading.labels.tolist() == [*a, delimiter, *b, IGNORE_INDEX, IGNORE_INDEX]
    (bare,) = BareCausalHead(task=task("classify")).instances(
        LabelledText(("red cat",), "bad", 1), tokenizer()
    )
    assert bare.examples[0].input_ids.tolist() == a and bare.examples[0].labels is None


@torch.no_grad()
def test_both_orders_of_a_pair_are_read_and_count_once() -> None:
    formulation, model = solving("gpt2", "regress", CausalHead)
    row = rows("regress", 1)[0]
    (example,) = formulation.instances(row, tokenizer())
    there, back = example.examples
    turned = replace(row, texts=row.texts[::-1])
    (other,) = formulation.instances(turned, tokenizer())
    assert [r.input_ids.tolist() for r in other.examples] == [
        back.input_ids.tolist(),
        there.input_ids.tolist(),
    ]
    one, two = predict_rows(formulation, model, [row, turned], tokenizer())
    assert one.value == pytest.approx(two.value, abs=1e-5)
    states = sum(model(alone(r)).hidden[0, -1] for r in example.examples)
    assert one.value == pytest.approx(float(model.logits(states)), abs=1e-5)


def scores(formulation: SequenceHead, model: Any, example: Instance) -> Tensor:
    """Score an example by itself: (classes,) or (options,)."""
    states = [model(alone(r)).hidden[0, r.read_positions].mean(0) for r in example.examples]
    if formulation.task.kind == "choose":
        return torch.cat([model.logits(state) for state in states])
    return model.logits(torch.stack(states).sum(0))  # type: ignore[no-any-return]


def plain(
    formulation: SequenceHead, model: Any, example: Instance, row: Any
) -> tuple[Tensor, Tensor]:
    """Compute the loss of an example by itself, and that of predicting its tokens."""
    found = scores(formulation, model, example)
    if formulation.task.kind == "regress":
        blame = (found[0] - row.label) ** 2
    else:
        place = row.label if formulation.task.kind == "choose" else CLASSES.index(row.label)
        blame = -found.log_softmax(0)[place]
    language = torch.zeros(())
    for reading in example.examples:
        if reading.labels is not None:
            logits = model.lm_logits(model(alone(reading)).hidden[0]).logits()
            language += F.cross_entropy(
                logits, torch.from_numpy(reading.labels), ignore_index=IGNORE_INDEX, reduction="sum"
            )
    return blame, language


@every
@torch.no_grad()
def test_packing_changes_no_loss(name: str, kind: str, formulation: type[SequenceHead]) -> None:
    made, model = solving(name, kind, formulation)
    assert isinstance(made, SequenceHead)
    some = rows(kind)
    examples = [example for row in some for example in made.instances(row, tokenizer())]
    batch = made.make_batch(examples)
    sums = made.loss(model, batch).sums
    each = [plain(made, model, e, row) for e, row in zip(examples, some, strict=True)]
    blame, language = (torch.stack(part).sum() for part in zip(*each, strict=True))
    torch.testing.assert_close(sums["label"], blame, rtol=1e-5, atol=1e-5)
    if "lm_auxiliary" in sums:
        torch.testing.assert_close(sums["lm_auxiliary"], language, rtol=1e-5, atol=1e-5)
        labels = [r.labels for e in examples for r in e.examples if r.labels is not None]
        predicted = sum(int((some != IGNORE_INDEX).sum()) for some in labels)
        assert batch.counts["lm_auxiliary"] == predicted
    assert ("lm_auxiliary" in sums) == (formulation is CausalHead)
    assert batch.counts["label"] == len(some)


@every
def test_no_answer_depends_on_who_else_is_asked(
    name: str, kind: str, formulation: type[Formulation]
) -> None:
    same(*solving(name, kind, formulation), rows(kind))


@every
def test_neighbours_have_no_gradient(name: str, kind: str, formulation: type[Formulation]) -> None:
    made, model = solving(name, kind, formulation)
    apart(made, model, [e for row in rows(kind) for e in made.instances(row, tokenizer())])


def test_labels_play_no_part_in_questions() -> None:
    for kind in ("classify", "regress", "choose"):
        formulation, model = solving("bert", kind, SequenceHead)
        some = rows(kind, 5)
        unknown = [replace(row, label=None) for row in some]
        known = [
            answer.probabilities for answer in predict_rows(formulation, model, some, tokenizer())
        ]
        assert [
            a.probabilities for a in predict_rows(formulation, model, unknown, tokenizer())
        ] == known


def test_probabilities_are_those_of_the_classes() -> None:
    formulation, model = solving("bert", "classify", SequenceHead)
    some = rows("classify")
    for row, answer in zip(some, predict_rows(formulation, model, some, tokenizer()), strict=True):
        (example,) = formulation.instances(row, tokenizer())
        with torch.no_grad():
            shares = scores(formulation, model, example).softmax(0)  # type: ignore[arg-type]
        assert answer.probabilities == pytest.approx(shares.tolist(), abs=1e-5)
        assert answer.value == CLASSES[int(shares.argmax())]
        assert answer.probability == max(answer.probabilities)


@torch.no_grad()
def test_rare_classes_can_weigh_more() -> None:
    formulation, model = solving("bert", "classify", SequenceHead, class_weights=(0.5, 2.0, 3.0))
    assert isinstance(formulation, SequenceHead)
    some = rows("classify")
    examples = [example for row in some for example in formulation.instances(row, tokenizer())]
    wanted = sum(
        formulation.class_weights[CLASSES.index(row.label)]
        * plain(formulation, model, example, row)[0]
        for row, example in zip(some, examples, strict=True)
    )
    found = formulation.loss(model, formulation.make_batch(examples)).sums["label"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["classify", "regress", "choose"])
def test_a_teacher_has_its_share_of_the_loss(kind: str) -> None:
    share, heat = 0.3, 2.5
    formulation, model = solving(
        "bert", kind, SequenceHead, distillation_weight=share, temperature=heat
    )
    assert isinstance(formulation, SequenceHead)
    some = rows(kind, 6)
    plainly = [e for row in some for e in formulation.instances(row, tokenizer())]
    torch.manual_seed(1)
    replies = [torch.randn_like(scores(formulation, model, e)) * 3 for e in plainly]
    examples = [
        replace(
            e,
            teacher_probs=formulation.soft_labels(reply.double().numpy(), formulation.temperature),
        )
        for e, reply in zip(plainly, replies, strict=True)
    ]
    wanted = torch.zeros(())
    for example, row, teacher in zip(examples, some, replies, strict=True):
        blame, own = plain(formulation, model, example, row)[0], scores(formulation, model, example)
        if kind == "regress":  # one target between the label and what the teacher says
            wanted += (own[0] - (1 - share) * row.label - share * teacher[0]) ** 2
            continue
        soft = -((teacher / heat).softmax(0) * (own / heat).log_softmax(0)).sum()
        wanted += (1 - share) * blame + share * heat**2 * soft
    found = formulation.loss(model, formulation.make_batch(examples)).sums["label"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_class_that_training_had_not_is_named() -> None:
    whole = SequenceHead(task=task("classify"))
    with pytest.raises(UserError, match=r"'odd' does not occur in the training rows \(labels: bad"):
        whole.instances(LabelledText(("a",), "odd", 1), tokenizer())
    (question,) = whole.instances(LabelledText(("a",), "odd", 1), tokenizer(), labelled=False)
    assert question.target is None
    assert np.array_equal(question.examples[0].read_positions, [0])
