"""Cross-view training: its losses are the equations of Clark et al. (2018)."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.batch import Batch, Inputs, Loss
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.hub import bind_tokenizer
from kinfolk.nn.views import FULL, ModelWithViews, ModelWithViewsConfig, PredictionModule
from kinfolk.tasks.formulations.choose import build_formulation, choose_formulation, model_config
from kinfolk.tasks.formulations.cross_view import (
    CrossView,
    CrossViewTags,
    CrossViewTexts,
    UnlabelledBatches,
)
from kinfolk.tasks.instances import AlternatingBatches, LazyInstances, TaskBatches
from kinfolk.tasks.rows import LabelledText, TaggedSentence
from kinfolk.tasks.task import task_class
from kinfolk.workflows.inspection.masks import dense_views
from support.task_rows import LENGTH, config, rows, same, solving, task, tokenizer

Array = NDArray[np.float64]
UNITS = {"tag": CrossViewTags, "classify": CrossViewTexts}


def made(*kinds: str) -> tuple[list[CrossView], ModelWithViews]:
    """Build the formulations of several tasks and their network, without dropout."""
    body = config("cvt").with_fields(dropout=0.0, unlabelled_dropout=0.0)
    formulations: list[Any] = [
        build_formulation(
            UNITS[kind], task(kind), family("cvt"), body, tokenizer(), length=LENGTH, task_number=n
        )
        for n, kind in enumerate(kinds)
    ]
    torch.manual_seed(3)
    model: Any = model_config(formulations[0], body, others=formulations[1:]).build()
    bind_tokenizer(model, tokenizer())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2 / float(parameter.std()))
    return formulations, model


def unlabelled(formulations: list[CrossView], count: int = 9) -> tuple[Batch[Any], list[Any]]:
    """Return a batch of rows without labels, and the rows."""
    maker = UnlabelledBatches(tuple(formulations))
    kind = "tag" if maker.reader.unit == "tokens" else "classify"
    some = rows(kind, count)
    instances = LazyInstances(maker.reader, some, tokenizer())
    return maker.make_batch([instances[i] for i in range(count)]), some


def detached(loss: Loss) -> dict[str, float]:
    """Return the sums of a loss as numbers."""
    return {name: float(total.detach()) for name, total in loss.sums.items()}


def test_views_read_the_words_that_the_grids_of_an_inspection_show() -> None:
    """A view of a word changes with another word exactly where its grid is filled."""
    formulations, model = made("tag")
    maker = UnlabelledBatches(tuple(formulations))
    sentences = [("red", "Anna", "cat", "old"), ("king",), ("Otto", "ball", "song")]
    some = [TaggedSentence(words, ("O",) * len(words), 1) for words in sentences]
    instances = LazyInstances(maker.reader, some, tokenizer())
    batch = maker.make_batch([instances[i] for i in range(len(some))])
    words, flat = batch.targets.words, batch.inputs.input_ids.flatten()
    assert words is not None
    model.eval()

    def states(ids: Tensor) -> dict[str, Tensor]:
        inputs = replace(batch.inputs, input_ids=ids.view_as(batch.inputs.input_ids))
        with torch.no_grad():
            hidden = model.backbone.encode(inputs, dropout=0.0).hidden.flatten(0, 1)
            forward, backward = model.backbone.directions(hidden)
        return {FULL: words.states(hidden), **words.views(forward, backward)}

    before = states(flat)
    grids = dense_views([*before], [len(sentence) for sentence in sentences])
    for n, (first, last) in enumerate(zip(words.first, words.last, strict=True)):
        ids = flat.clone()
        ids[first : last + 1] = tokenizer().special_tokens.require("mask")
        for name, after in states(ids).items():
            changed = (after != before[name]).any(1)
            assert changed.tolist() == grids[name][:, n].tolist(), (name, n)


# The equations, one text at a time, with plain arrays.


def hidden_states(model: ModelWithViews, ids: list[int]) -> dict[str, Array]:
    """Return the states of one text: of both layers, and of the first in each direction."""
    with torch.no_grad():
        alone = model(Inputs.from_ids(torch.tensor([ids]), causal=False)).hidden[0]
    every = alone.double().numpy()
    size = every.shape[1] // 4
    return {"all": every, "forward": every[:, :size], "backward": every[:, size : 2 * size]}


def predicted(module: Any, x: Array) -> Array:
    """softmax(U ReLU(W x) + b)."""
    assert isinstance(module, PredictionModule)
    w, c, u, b = (
        p.detach().double().numpy()
        for p in (
            module.dense.weight,
            module.dense.bias,
            module.out_proj.weight,
            module.out_proj.bias,
        )
    )
    scores = u @ np.maximum(w @ x + c, 0) + b
    scores = np.exp(scores - scores.max())
    return np.asarray(scores / scores.sum())


def encoded(row: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """Return [CLS] tokens [SEP] of a row, and the first and last token of each word."""
    special = tokenizer().special_tokens
    if isinstance(row, LabelledText):
        ids = tokenizer().encode(row.texts[0])[: LENGTH - 2]
        return [special.cls, *ids, special.sep], []  # type: ignore[list-item]
    ids, bounds = [special.cls], []
    for word in row.words:
        tokens = tokenizer().encode(word)
        if len(ids) + len(tokens) > LENGTH - 1:
            break
        bounds.append((len(ids), len(ids) + len(tokens) - 1))
        ids += tokens
    return [*ids, special.sep], bounds  # type: ignore[list-item]


def view_states(model: ModelWithViews, number: int, row: Any) -> list[Any]:
    """Return, for every word or for the text, what the primary module and each view see."""
    ids, bounds = encoded(row)
    states = hidden_states(model, ids)
    every, forward, backward = states["all"], states["forward"], states["backward"]
    if model.config.tasks[number].unit == "text":
        half = len(every) // 2
        views = {
            FULL: every.mean(0),
            "forward": forward.mean(0),
            "backward": backward.mean(0),
            "first_half": forward[:half].mean(0),
            "second_half": backward[half:].mean(0),
        }
        return [(every.mean(0), views)]
    return [
        (
            every[first],
            {
                FULL: every[first],
                "forward": forward[last],
                "backward": backward[first],
                "future": forward[first - 1],
                "past": backward[last + 1],
            },
        )
        for first, last in bounds
    ]


def plain_losses(model: ModelWithViews, number: int, some: list[Any]) -> dict[str, float]:
    """Sum KL(p || p_view) over all rows, for each view."""
    sums: dict[str, float] = {}
    modules = model.modules_of(number)
    for row in some:
        for whole, views in view_states(model, number, row):
            p = predicted(modules.primary, whole)
            for view, x in views.items():
                q = predicted(modules.auxiliary[f"{view}_view"], x)
                sums[view] = sums.get(view, 0.0) + float((p * np.log(p / q)).sum())
    return sums


def plain_label_loss(model: ModelWithViews, number: int, some: list[Any]) -> float:
    """Sum -log p(label) of the primary module over all rows."""
    total, primary = 0.0, model.modules_of(number).primary
    for row in some:
        labels = row.tags if isinstance(row, TaggedSentence) else (row.label,)
        names = model.config.tasks[number].labels
        found = view_states(model, number, row)
        for (whole, _), label in zip(found, labels, strict=True):
            total -= float(np.log(predicted(primary, whole)[names.index(label)]))
    return total


@pytest.mark.parametrize("kind", UNITS)
def test_the_loss_of_unlabelled_text_is_the_divergence_of_each_view(kind: str) -> None:
    formulations, model = made(kind)
    batch, some = unlabelled(formulations)
    assert batch.inputs.input_ids.shape[0] < len(some), "some texts share a row"
    found = detached(formulations[0].loss(model, batch))
    expected = plain_losses(model, 0, some)
    assert found.keys() == expected.keys() and min(expected.values()) > 0.01
    for view, value in expected.items():
        assert found[view] == pytest.approx(value, rel=1e-4), view
        scored = sum(len(encoded(row)[1]) or 1 for row in some)
        assert batch.counts[view] == scored


@pytest.mark.parametrize("kind", UNITS)
def test_the_loss_of_labelled_rows_is_that_of_the_primary_module(kind: str) -> None:
    (formulation,), model = made(kind)
    some = [row for row in rows(kind, 30) if len(row.text) < LENGTH]  # none is cut
    assert len(some) > 5
    instances = [i for row in some for i in formulation.instances(row, tokenizer())]
    batch = formulation.make_batch(instances)
    found = detached(formulation.loss(model, batch))
    assert [*found] == ["label"]
    expected = plain_label_loss(model, 0, some)
    assert found["label"] == pytest.approx(expected, rel=1e-4)


def test_a_batch_of_texts_is_the_sum_of_the_texts_one_by_one() -> None:
    (formulation,), model = made("tag")
    batch, some = unlabelled([formulation])
    maker = UnlabelledBatches((formulation,))
    alone = [
        maker.make_batch([formulation.instances(row, tokenizer(), labelled=False)[0]])
        for row in some
    ]
    found = detached(formulation.loss(model, batch))
    for view in found:
        parts = sum(detached(formulation.loss(model, one))[view] for one in alone)
        assert found[view] == pytest.approx(parts, rel=1e-4)


def test_several_tasks_share_the_text_and_have_modules_of_their_own() -> None:
    formulations, model = made("tag", "classify", "tag")
    batch, some = unlabelled(formulations)
    found = detached(formulations[0].loss(model, batch))
    assert len(found) == 15 and found["2_first_half"] != found["forward"] != found["3_forward"]
    assert batch.counts["2_first_half"] == len(some) < batch.counts["3_past"]
    for number, name in enumerate(("", "2_", "3_")):
        for view, value in plain_losses(model, number, some).items():
            assert found[name + view] == pytest.approx(value, rel=1e-4)


def seen_words(view: str, word: int) -> set[int]:
    """Return the words of which the module of a view learns, at one word of a sentence."""
    (formulation,), model = made("tag")
    words = ("red", "Wolfgang", "cat", "Berlin", "house")

    def logits(changed: int | None) -> Tensor:
        new = tuple("Paris" if i == changed else w for i, w in enumerate(words))
        instance = formulation.instances(TaggedSentence(new, None, 1), tokenizer())[0]
        batch = UnlabelledBatches((formulation,)).make_batch([instance])
        hidden = model(batch.inputs).hidden.flatten(0, 1)
        states = batch.targets.words.views(*model.backbone.directions(hidden))[view]
        return model.view_logits(states, 0, view)[word].detach()

    before = logits(None)
    return {i for i in range(len(words)) if not torch.allclose(logits(i), before, atol=1e-6)}


@pytest.mark.parametrize(
    ("view", "seen"),
    [
        ("forward", {0, 1, 2, 3}),
        ("backward", {3, 4}),
        ("future", {0, 1, 2}),
        ("past", {4}),
    ],
)
def test_a_view_sees_its_part_of_the_sentence_alone(view: str, seen: set[int]) -> None:
    """A word of several tokens is seen as a whole or not at all."""
    assert seen_words(view, 3) == seen


def test_the_halves_of_a_text_are_seen_by_one_view_each() -> None:
    (formulation,), model = made("classify")

    def views(text: str) -> dict[str, Tensor]:
        instance = formulation.instances(LabelledText((text,), None, 1), tokenizer())[0]
        batch = UnlabelledBatches((formulation,)).make_batch([instance])
        hidden = model(batch.inputs).hidden.flatten(0, 1)
        return batch.targets.texts.views(*model.backbone.directions(hidden))

    one, other = views("red cat old dog blue bird"), views("red cat old dog blue king")
    assert torch.equal(one["first_half"], other["first_half"])
    assert not torch.allclose(one["second_half"], other["second_half"])


def test_unlabelled_text_gives_the_primary_module_no_gradient_and_the_encoder_one() -> None:
    formulations, model = made("tag", "classify")
    batch, _ = unlabelled(formulations)
    formulations[0].loss(model, batch).mean(batch.counts).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        primary = ".primary." in name
        assert (parameter.grad is None) == primary, name
        assert primary or parameter.grad.any(), name  # type: ignore[union-attr]


def test_labels_give_the_views_no_gradient() -> None:
    (formulation,), model = made("tag")
    instances = [i for row in rows("tag") for i in formulation.instances(row, tokenizer())]
    batch = formulation.make_batch(instances)
    formulation.loss(model, batch).mean(batch.counts).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (".auxiliary." in name), name


def test_the_prediction_that_views_learn_has_no_dropout() -> None:
    """With dropout of the views alone, the divergence of equal modules is not zero."""
    (formulation,), model = made("tag")
    modules = model.modules_of(0)
    full = modules.auxiliary[f"{FULL}_view"]
    full.load_state_dict(modules.primary.state_dict())
    batch, some = unlabelled([formulation])
    assert abs(detached(formulation.loss(model.train(), batch))[FULL]) < 1e-3
    body = replace(model.config.backbone, dropout=0.9, unlabelled_dropout=0.4)
    dropped = ModelWithViewsConfig(backbone=body, tasks=model.config.tasks).build()
    dropped.load_state_dict(model.state_dict())
    torch.manual_seed(0)
    assert detached(formulation.loss(dropped.train(), batch))[FULL] > 0.1
    # In evaluation nothing is dropped: the losses are those of the equations.
    found = detached(formulation.loss(dropped.eval(), batch))
    for view, value in plain_losses(model.eval(), 0, some).items():
        assert found[view] == pytest.approx(value, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("kind", UNITS)
def test_who_shares_a_batch_changes_no_prediction(kind: str) -> None:
    formulation, model = solving("cvt", kind, UNITS[kind])
    same(formulation, model, rows(kind))


def test_steps_alternate_and_micro_batches_of_a_step_are_of_one_kind() -> None:
    formulations, _ = made("tag", "classify")
    sets = [
        [i for row in rows(kind, 12) for i in each.instances(row, tokenizer())]
        for kind, each in zip(("tag", "classify"), formulations, strict=True)
    ]
    labelled = [
        TaskBatches(each, [some], batch=4) for each, some in zip(formulations, sets, strict=True)
    ]
    maker = UnlabelledBatches(tuple(formulations))
    text = TaskBatches(maker, [LazyInstances(maker.reader, rows("tag", 30), tokenizer())], batch=4)
    batches = AlternatingBatches(labelled, text, weights=(0.5, 0.5), micro_batches=2)
    kinds = ["label" if "label" in batches[n].counts else "text" for n in range(8)]
    assert kinds == ["label", "label", "text", "text"] * 2
    tasks = [batches[n].targets.task_number for n in (0, 1, 4, 5)]
    assert sorted(tasks) == [0, 0, 1, 1]
    # Batches follow from their numbers, in any order.
    again = AlternatingBatches(labelled, text, weights=(0.5, 0.5), micro_batches=2)
    for number in random.Random(0).sample(range(12), 12):
        ids = again[number].inputs.input_ids
        assert torch.equal(ids, batches[number].inputs.input_ids)
    alone = AlternatingBatches(labelled, None, weights=(0.5, 0.5), micro_batches=2)
    assert all("label" in alone[n].counts for n in range(8))


def test_semantic_roles_are_refused() -> None:
    (formulation,), _ = made("tag")
    row = TaggedSentence(("red", "cat"), ("O", "B-X"), 1, predicate=1)
    with pytest.raises(UserError, match="semantic roles depend on a predicate"):
        formulation.fit([row], tokenizer())


def test_cvt_prefers_it_and_solves_other_tasks_with_a_head() -> None:
    for kind, name in (("tag", "cross_view"), ("classify", "cross_view"), ("span", "head")):
        assert choose_formulation(family("cvt"), task_class(kind)).name == name
    with pytest.raises(UserError, match="bert does not support the formulation 'cross_view'"):
        choose_formulation(family("bert"), task_class("tag"), "cross_view")
