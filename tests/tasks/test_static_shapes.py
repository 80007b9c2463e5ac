"""Batches of few static shapes give the losses of packed ones, and few positions are padding."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX, Batch
from kinfolk.families import family_of
from kinfolk.tasks.dataset import task_dataset
from kinfolk.tasks.formulations.base import Formulation, Instance
from kinfolk.tasks.formulations.choose import (
    ALL_FORMULATIONS,
    build_formulation,
    choose_formulation,
    with_mean_pooling,
)
from kinfolk.tasks.formulations.head import SequenceHead, TokenHead
from kinfolk.tasks.formulations.scoring import Cloze
from kinfolk.tasks.formulations.span_head import SpanHead
from kinfolk.tasks.instances import TaskBatches
from kinfolk.tasks.static_shapes import MAX_SHAPES, StaticBatches, choose_shapes, static_batches
from kinfolk.tasks.task import task_class
from kinfolk.training.capture import batch_key
from kinfolk.training.step import Learner
from support.host_guard import HostGuard
from support.task_rows import cases, config, rows, sampled, solving, tokenizer

STATIC = [
    case
    for case in cases("head", "transformed", "bare", "text", "cloze")
    if case[2].static_shapes and config(case[0]).network.static_shapes
]


def instances(formulation: Formulation, some: Sequence[Any]) -> list[Instance]:
    return [one for row in some for one in formulation.instances(row, tokenizer())]


def suited(kind: str, formulation: Formulation, count: int) -> list[Any]:
    """Return rows that a formulation can solve: a cloze needs options."""
    some = rows(kind, count)
    if isinstance(formulation, Cloze):
        some = [row for row in some if getattr(row, "options", ()) is not None]
    return some


def padding(batch: Batch[Any]) -> tuple[int, int]:
    """Count the positions of padding, and all."""
    streams = [batch.inputs, batch.inputs.encoder_inputs]
    ids = [one.attention_mask.document_ids for one in streams if one is not None]
    return sum(int((i == PADDING_ID).sum()) for i in ids), sum(i.numel() for i in ids)


def padded(formulation: Formulation, some: Sequence[Instance]) -> Batch[Any]:
    """Return a batch in a shape that larger batches share."""
    sample = [some, [*some, *some[: len(some) // 2]]]
    longest = np.max([e.lengths for i in some for e in i.examples], axis=0)
    shapes = choose_shapes(formulation, sample, longest).shapes[-1:]
    shapes = (replace(shapes[0], num_rows=shapes[0].num_rows + 2),)
    static = StaticBatches(formulation, shapes)
    batch = static.make_batch(some)
    assert batch in static
    return batch


def compare(formulation: Formulation, model: Any, some: Sequence[Instance]) -> None:
    """Compare the loss and the gradients of a padded batch with those of the packed one."""
    batches = [formulation.make_batch(some), padded(formulation, some)]
    assert padding(batches[1])[0] > padding(batches[0])[0]
    assert batches[0].counts == batches[1].counts
    losses, gradients = [], []
    for batch in batches:
        mean = formulation.loss(model, batch).mean(batch.counts)
        parameters = dict(model.named_parameters())
        found = torch.autograd.grad(mean, [*parameters.values()], allow_unused=True)
        losses.append(mean.item())
        gradients.append(dict(zip(parameters, found, strict=True)))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    largest = max(float(g.abs().max()) for g in gradients[0].values() if g is not None)
    for name, one in gradients[0].items():
        other = gradients[1][name]
        assert (one is None) == (other is None), name
        if one is not None and other is not None:
            assert torch.allclose(one, other, atol=2e-5 * largest), name


@pytest.mark.parametrize(("name", "kind", "formulation"), sampled(STATIC))
def test_padding_changes_neither_loss_nor_gradients(
    name: str, kind: str, formulation: type[Formulation]
) -> None:
    made, model = solving(name, kind, formulation)
    some = instances(made, suited(kind, made, 9))
    compare(made, model, some)


@pytest.mark.parametrize("kind", ["classify", "pair", "choose"])
def test_padding_changes_nothing_in_a_mean_of_tokens(kind: str) -> None:
    made, model = solving("bert", kind, SequenceHead)
    made = with_mean_pooling(made)
    compare(made, model, instances(made, rows(kind)))


@pytest.mark.parametrize(
    ("kind", "formulation"),
    [(kind, SequenceHead) for kind in ("classify", "regress", "choose")] + [("tag", TokenHead)],
)
def test_padding_changes_nothing_in_distillation_and_class_weights(
    kind: str, formulation: type[Formulation]
) -> None:
    weights = {"class_weights": (0.5, 2.0, 1.0)} if kind in ("classify", "tag") else {}
    made, model = solving("bert", kind, formulation, distillation_weight=0.4, **weights)
    chance = np.random.default_rng(0)
    taught = []
    for one in instances(made, rows(kind)):
        shape = {"classify": (3,), "regress": (1,), "choose": (len(one.examples), 1)}.get(kind)
        shape = shape or (len(one.examples[0].read_positions), 3)
        taught.append(replace(one, teacher_probs=chance.random(shape)))
    compare(made, model, taught)


@pytest.mark.parametrize(("name", "kind", "formulation"), sampled(STATIC))
def test_a_padded_step_reads_nothing_back(
    name: str, kind: str, formulation: type[Formulation]
) -> None:
    """Whatever waits for the device cannot be recorded."""
    made, model = solving(name, kind, formulation)
    if isinstance(made, Cloze):
        made = replace(made, length_normalized=True)
    batch = padded(made, instances(made, suited(kind, made, 5)))
    learner = Learner(model.train(), made)
    with HostGuard():
        learner(batch.inputs, batch.targets).mean(batch.counts).backward()


def test_formulations_of_recurrent_networks_and_of_documents_are_not_static() -> None:
    static = {f.__name__ for f in ALL_FORMULATIONS if f.static_shapes}
    assert static == {
        *("SequenceHead", "CausalHead", "TokenHead", "SpanHead", "TextToText", "Cloze")
    }


def lengths_of(sizes: Sequence[int], made: Formulation) -> list[Instance]:
    """Return instances of a classification with so many tokens."""
    known = instances(made, rows("classify", 1))[0]
    ids = np.resize(known.examples[0].input_ids, max(sizes))
    return [
        replace(
            known,
            examples=(
                replace(
                    known.examples[0],
                    input_ids=ids[:size],
                    order=np.zeros(size, np.int64),
                    token_type_ids=np.zeros(size, np.int64),
                ),
            ),
        )
        for size in sizes
    ]


@pytest.mark.parametrize(("outliers", "limit"), [(0, 0.15), (3, 0.25)])
def test_a_run_has_few_shapes_and_little_padding(outliers: int, limit: float) -> None:
    """Texts of 4 to 40 tokens, and some that are much longer."""
    chance, made = random.Random(0), solving("bert", "classify", SequenceHead)[0]
    sizes = [chance.randint(4, 40) for _ in range(1000)] + [200] * outliers
    batches = TaskBatches(made, [lengths_of(sizes, made)], batch=32, seed=1)
    static = static_batches(made, batches, 90)
    assert 1 < len(static.shapes) <= MAX_SHAPES
    assert static_batches(made, batches, 90) == static, "a function of the data"
    found = [static.make_batch(batches.instances(number)) for number in range(90)]
    assert np.mean([batch in static for batch in found]) > 0.95
    assert len({batch_key(b) for b in found if b in static}) <= len(static.shapes)
    empty, positions = np.sum([padding(batch) for batch in found], axis=0)
    assert empty / positions < limit
    assert len({batch_key(batches[number]) for number in range(90)}) > MAX_SHAPES


def test_a_batch_that_fits_into_no_shape_is_packed_as_without_them() -> None:
    made = solving("bert", "classify", SequenceHead)[0]
    small, large = lengths_of([8] * 8, made), lengths_of([40] * 8, made)
    static = choose_shapes(made, [small, small], np.array([8]))
    batch = static.make_batch(large)
    assert batch not in static and static.make_batch(small) in static
    expected = made.make_batch(large)
    assert torch.equal(batch.inputs.input_ids, expected.inputs.input_ids)
    assert torch.equal(batch.targets.target, expected.targets.target)


def test_padding_has_an_instance_of_its_own_with_weight_0() -> None:
    made, _ = solving("bert", "span", SpanHead)
    some = instances(made, rows("span"))
    targets, plain = padded(made, some).targets, made.make_batch(some).targets
    assert len(targets.target) == len(some) + 1 or len(targets.target) % 8 == 0
    assert (targets.target[len(some) :] == IGNORE_INDEX).all()
    assert (targets.weight[len(some) :] == 0).all() and (targets.weight[: len(some)] == 1).all()
    assert (targets.instance_ids[len(plain.instance_ids) :] == len(some)).all()
    assert len(targets.read_at) > len(plain.read_at)


REAL_FILES = (
    "sst2/train.tsv.gz",
    "mrpc/train.tsv",
    "conll2003/train.txt.gz",
    "squad/dev-v1.1.json.gz",
)


@pytest.mark.real
@pytest.mark.parametrize("name", REAL_FILES)
def test_real_rows_have_few_shapes_and_little_padding(name: str, real: Path) -> None:
    data = task_dataset(real / name)
    train = data.splits[0][:1500]
    task = task_class(data.file_spec.task).from_rows(train, file=data.train)
    body = config("bert")
    cls = choose_formulation(family_of(body), type(task), None)
    length = 384 if "squad" in name else 128
    made = build_formulation(cls, task, family_of(body), body, tokenizer(), length=length)
    every = [one for row in train for one in made.instances(row, tokenizer())]
    batches = TaskBatches(made, [every], batch=32)
    static = static_batches(made, batches, 3 * len(every) // 32)
    assert len(static.shapes) <= MAX_SHAPES
    found = [static.make_batch(batches.instances(number)) for number in range(0, 90, 3)]
    assert np.mean([batch in static for batch in found]) > 0.9
    empty, positions = np.sum([padding(batch) for batch in found], axis=0)
    assert empty / positions < 0.2
