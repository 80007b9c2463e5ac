"""Shared by tests of tasks: rows of every kind, a tokenizer, and networks with large weights."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Inputs
from kinfolk.data.examples import Example
from kinfolk.families import families, family, family_of
from kinfolk.nn.task_heads import TaskModel
from kinfolk.tasks.formulations import base as layout
from kinfolk.tasks.formulations.base import Formulation, Instance
from kinfolk.tasks.formulations.choose import ALL_FORMULATIONS, build_formulation, model_config
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import (
    CompletionRow,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.task import Task
from kinfolk.text import Tokenizer, train_tokenizer

WORDS = (
    "cat", "dog", "bird", "king", "river", "song", "letter", "garden", "apple", "ball", "house",
    "morning", "red", "old", "blue",
)  # fmt: skip
NAMES = ("Anna", "Berlin", "Otto", "Paris", "Wolfgang")
CLASSES = ("bad", "fine", "very good")
TAGS = ("O", "B-X", "I-X")
KINDS = ("classify", "pair", "regress", "choose", "tag", "span", "write", "complete", "lm")
# An n-gram model without counts gives every answer the same probability.
TRAINED = [name for name, one in families().items() if one.model.gradient_free is None]
MEMBERS = (*TRAINED, "bilstm", "cvt")
LENGTH = 32  # some rows are longer


@cache
def tokenizer() -> Tokenizer:
    """Learn one tokenizer for the whole family; names are spelled in several pieces."""
    chance = random.Random(0)
    known = [*WORDS, *" ".join(CLASSES).split(), "sentence", "question", "context", "options"]
    lines = [" ".join(chance.choices(known, k=8)) for _ in range(60)]
    letters = ["abcdefghijklmnopqrstuvwxyz ABCOPW 0123456789.,:?()>- -", "sentence1: sentence2:"]
    return train_tokenizer([*lines, *letters * 2], kind="wordpiece", vocab_size=400, fewer=True)


def task(kind: str) -> Task:
    """Describe the task of a kind; a pair is a task of its own here."""
    if kind in ("classify", "pair"):
        return Task(kind="classify", labels=CLASSES, is_pair=kind == "pair")
    if kind == "regress":
        return Task(kind="regress", is_pair=True)
    return Task(kind=kind, labels=TAGS if kind == "tag" else ())


def rows(kind: str, count: int = 9, seed: int = 0) -> list[Any]:
    """Draw labelled rows of many lengths."""
    chance = random.Random(seed)

    def row(number: int) -> Any:
        def text(most: int = 12) -> str:
            most = most if number % 3 else 2  # some are so short that they share a row
            return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))

        match kind:
            case "classify":
                return LabelledText(
                    (text(40 if number == 4 else 12),), chance.choice(CLASSES), number
                )
            case "pair":
                return LabelledText((text(), text(30)), chance.choice(CLASSES), number)
            case "regress":
                return LabelledText((text(4), text(6)), round(5 * chance.random(), 2), number)
            case "choose":
                first = chance.sample(WORDS, chance.randint(2, 4))  # no two options are alike
                options = tuple(f"{word} {text(4)}" for word in first)
                right = chance.randrange(len(options))
                return MultipleChoiceRow(
                    text(), options, right, number, chance.choice(["", text(4)])
                )
            case "tag":
                words = tuple(chance.choices([*WORDS, *NAMES], k=chance.randint(1, 20)))
                return TaggedSentence(words, tuple(chance.choices(TAGS, k=len(words))), number)
            case "span":
                context = text(9 if number % 2 else 60)
                word = chance.choice(context.split())
                answers = ((word, context.index(word)),) if number % 4 else ()
                return QuestionRow(str(number), context, text(6), answers, bool(answers), number)
            case "write":
                return SourceTarget(text(), text(6), number)
            case "complete":
                if number % 2:
                    return CompletionRow(text(), chance.choice(WORDS), None, number)
                some = tuple(chance.sample(WORDS, 3))
                return CompletionRow(text(), some[1], some, number, " .")
        return SourceTarget("", text(50), number)

    return [row(number) for number in range(1, count + 1)]


def config(name: str) -> Any:
    """Return the smallest network of a member, over the tokenizer's ids."""
    found: Any = family(name).config("nano")
    pad = tokenizer().special_tokens.pad
    sizes = {
        "vocab_size": tokenizer().vocab_size,
        "decoder_start_token_id": pad,
        "padding_idx": pad,
    }
    return replace(found, **{k: v for k, v in sizes.items() if hasattr(found, k)})


def cases(*names: str) -> Iterator[tuple[str, str, type[Formulation]]]:
    """Yield every family with every kind and the named formulations that it supports."""
    for name in MEMBERS:
        body = config(name)
        for kind in KINDS:
            output = task(kind).output
            for formulation in dict.fromkeys(w for w in ALL_FORMULATIONS if w.name in names):
                own = (
                    formulation.name in family_of(body).formulations
                    and output in formulation.outputs
                )
                able = family_of(body).frame is not None or not formulation.needs_template
                able &= family_of(body).layout is not None or not formulation.needs_layout
                if own and able:
                    yield name, kind, formulation


def sampled(found: Iterable[tuple[str, str, type[Formulation]]]) -> list[Any]:
    """Mark cases as slow whose formulation has been with both their family and their kind before.

    All families and all kinds of each formulation are left.
    """
    seen, marked = set[tuple[str, str]](), list[Any]()
    for name, kind, formulation in found:
        pairs = {(name, formulation.__name__), (formulation.__name__, kind)}
        marks = pytest.mark.slow if pairs <= seen else ()
        case_id = f"{name}-{kind}-{formulation.name}"
        marked.append(pytest.param(name, kind, formulation, id=case_id, marks=marks))
        seen |= pairs
    return marked


def solving(
    name: str, kind: str, formulation: type[Formulation], **said: Any
) -> tuple[Formulation, Any]:
    """Build a formulation and its network, with weights so large that every input matters."""
    body = config(name)
    if kind == "regress" and "both_orders" in formulation.__dataclass_fields__:
        said = {"both_orders": True} | said
    made = build_formulation(
        formulation, task(kind), family_of(body), body, tokenizer(), length=LENGTH, **said
    )
    torch.manual_seed(3)
    found = model_config(made, body, dropout=0.0)
    model: nn.Module = found.build()
    assert isinstance(model, TaskModel) == (made.head is not None)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.15 / float(parameter.std()))
    return made, model.eval()


def alone(reading: Example) -> Inputs:
    """Return a reading as the only text of the only row, without padding or packing."""

    def row(values: Any) -> Any:
        return None if values is None else torch.from_numpy(values)[None]

    ids = row(reading.input_ids)
    document = torch.zeros_like(ids, dtype=torch.int32)
    time = row(reading.order).to(torch.int32)
    places = (
        torch.arange(ids.shape[1])[None]
        if reading.position_ids is None
        else row(reading.position_ids)
    )
    return Inputs(
        input_ids=ids,
        attention_mask=AttentionMask(document, time, time),
        position_ids=places,
        token_type_ids=row(reading.token_type_ids),
        character_ids=row(reading.character_ids),
        block_position_ids=row(reading.block_position_ids),
        encoder_inputs=None
        if reading.encoder_input_ids is None
        else Inputs.from_ids(row(reading.encoder_input_ids), causal=False),
    )


def same(formulation: Formulation, model: Any, some: Sequence[Any], *, varied: bool = True) -> None:
    """Check that who else is asked, in which order and how much at a time changes no answer."""
    known = predict_rows(formulation, model, some, tokenizer(), tokens=4096)
    if varied:
        assert len({str(answer) for answer in known}) > 1, "whatever is asked, it says one thing"
    for tokens, order in ((64, 1), (4096, -1), (1, 1)):
        found = predict_rows(formulation, model, some[::order], tokenizer(), tokens=tokens)[::order]
        for one, other in zip(found, known, strict=True):
            assert one.value == pytest.approx(other.value, abs=1e-5)
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
            assert one.nll == pytest.approx(other.nll, abs=1e-4)


def apart(formulation: Formulation, model: Any, examples: Sequence[Instance]) -> None:
    """Check that what is read off a text has no gradient at the tokens of its neighbours."""
    readings = [reading for example in examples for reading in example.examples]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "PAD_TO_MULTIPLE_OF", 4 * LENGTH)  # so that several share a row
        page = layout.pack_examples(readings, formulation.pad_id)
    inputs, length = page.inputs, page.inputs.input_ids.shape[1]
    network = model.pretrained
    tables = [network.token_embeddings]
    if inputs.encoder_inputs is not None and network.decoder_embeddings not in tables:
        tables.append(network.decoder_embeddings)
    by_table: dict[nn.Module, list[Tensor]] = {table: [] for table in tables}

    def hear(module: nn.Module, given: Any, said: Tensor) -> None:
        said.retain_grad()
        by_table[module].append(said)

    handles = [table.register_forward_hook(hear) for table in tables]
    hidden = model(inputs).hidden.flatten(0, 1)
    for handle in handles:
        handle.remove()
    row, slot = np.divmod(page.offsets, length)
    place = next(i for i, r in enumerate(row) if (row == r).sum() > 1)  # one with a neighbour
    reading, at = readings[place], int(page.offsets[place])
    read = (
        reading.read_positions
        if reading.labels is None
        else np.flatnonzero(reading.labels != IGNORE_INDEX)
    )
    hidden[at + torch.from_numpy(read)].square().sum().backward()
    number = inputs.attention_mask.document_ids[row[place], slot[place]]
    streams = [inputs] if inputs.encoder_inputs is None else [inputs.encoder_inputs, inputs]
    vectors = [found for table in tables for found in by_table[table]]  # the encoder's first
    for stream, found in zip(streams, vectors, strict=True):
        own = stream.attention_mask.document_ids == number
        own[np.arange(len(own)) != row[place]] = False
        assert found.grad is not None and found.grad[own].abs().sum() > 0
        assert found.grad[~own].abs().max() == 0
