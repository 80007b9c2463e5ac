"""What every way of learning must do, run for each file in objectives/."""

from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.datasets import PackedDataset
from kinfolk.rng import Stream, generator
from support.contracts import (
    FIRST,
    LENGTH,
    SPECIALS,
    across,
    documents,
    equal,
    labels_of,
    learns,
    modules,
    objective,
    predicted,
    short,
    text_of,
)
from support.loops import every_case
from support.pairs import targets

FILES = modules()
OBJECTIVES = pytest.mark.parametrize("module", FILES, ids=[short(m) for m in FILES])

# What the papers let be seen though it is predicted: BERT keeps a tenth of the chosen tokens.
KEPT = {"mlm": 0.1, "nsp": 0.1, "full_sentences": 0.1, "sop": 0.1, "unilm": 0.1}
# T5's own code begins with text and ends with a span, so the first token is never hidden.
# The first side of a pair is read, never written.
NEVER_HIDDEN = {"spans": {0}, "pairs": set(range(7))}
# A pair has a token on each side: one that is left over is let go.
PAIRED = ("nsp", "sop")


@OBJECTIVES
def test_the_picture_has_its_own_test(module: ModuleType) -> None:
    assert module.__doc__ and "\nattention " in module.__doc__ and "\ntext " in module.__doc__
    path = (
        Path(__file__).parents[1] / "objectives" / f"test_{module.__name__.rpartition('.')[2]}.py"
    )
    assert path.is_file()
    tests = path.read_text(encoding="utf-8")
    assert "def test_the_picture" in tests and "def test_sight" in tests


@OBJECTIVES
def test_the_text_can_be_rebuilt_from_the_example(module: ModuleType) -> None:
    way = objective(module)
    chunks = way.chunks(documents())
    whole = 0
    for i in range(len(chunks)):
        for turn in range(5):
            example = way.example(chunks[i], generator(0, Stream.EXAMPLE, turn, i))
            text, chunk = text_of(short(module), example), chunks[i].ids
            if example.sequence_label == 1:
                chunk = chunk[: len(text)]
            else:
                whole += 1
            assert text.tolist() == chunk.tolist()
    assert whole >= len(chunks)


@OBJECTIVES
def test_pieces_hold_every_token_of_every_document_once(module: ModuleType) -> None:
    text = documents()
    chunks = objective(module).chunks(text)
    found: dict[int, list[int]] = {}
    for chunk in chunks:
        found.setdefault(chunk.document, []).extend(chunk.ids.tolist())
    starts = chunks.documents.starts  # fewer where documents are joined
    assert (starts[0], starts[-1]) == (0, len(text.token_ids))
    for number, (start, stop) in enumerate(pairwise(starts)):
        lost = 1 if short(module) in PAIRED and (stop - start) % (LENGTH - 3) == 1 else 0
        assert found[number] == text.token_ids[start : stop - lost].tolist()


@OBJECTIVES
def test_nothing_to_be_predicted_is_visible(module: ModuleType) -> None:
    """No token comes twice in a document: whoever sees the label's id, sees the answer."""
    way = objective(module)
    feed = PackedDataset(way, documents(apart=True), batch_size=4)
    seen = total = 0
    for number in range(40 * len(feed) if short(module) in KEPT else len(feed)):
        batch = feed[number]
        looks = learns(batch)
        for row, slot, label in predicted(batch):
            if label < FIRST:
                continue  # a sentinel names its own hole, and an end is no word
            visible = batch.inputs.input_ids[row, looks[row, slot]]
            if batch.inputs.encoder_inputs is not None:
                there = across(batch)[row, slot]
                visible = torch.cat([visible, batch.inputs.encoder_inputs.input_ids[row, there]])
            seen += int((visible == label).any())
            total += 1
    share = KEPT.get(short(module), 0.0)
    if not share:
        assert seen == 0
    else:
        # One swapped in at random may also be the right one, or stand for it elsewhere.
        assert share - 0.03 < seen / total < share + 0.04, (seen, total)


@OBJECTIVES
def test_every_position_is_touched_in_some_draw_and_no_special_ever(module: ModuleType) -> None:
    way = objective(module)
    chunks = way.chunks(documents())
    index = int(np.argmax(chunks.sizes[:, 0]))
    chunk = chunks[index]
    touched: set[int] = set()
    for epoch in range(300):
        example = way.example(chunk, generator(1, Stream.EXAMPLE, epoch, index))
        labels = example.labels[example.labels != IGNORE_INDEX]
        if example.token_type_ids is not None:  # a stranger's tokens are not this text's
            labels = labels[np.isin(labels, text_of(short(module), example))]
        touched |= set(labels.tolist())
    untouched = {int(chunk.ids[i]) for i in NEVER_HIDDEN.get(short(module), ())}
    special = {i for i in touched if i < FIRST}
    assert touched - special == set(chunk.ids.tolist()) - untouched
    assert special <= {SPECIALS.eos, *SPECIALS.sentinels}
    if short(module) in KEPT:
        assert not special


@OBJECTIVES
def test_the_count_is_that_of_the_labels(module: ModuleType) -> None:
    way = objective(module)
    feed = PackedDataset(way, documents(), batch_size=3)
    for number in range(len(feed)):
        batch = feed[number]
        assert batch.counts[way.loss_name] == len(predicted(batch)) > 0
        if short(module) in PAIRED:
            texts = sum(
                len(d.unique()) - int((d < 0).any())
                for d in batch.inputs.attention_mask.document_ids
            )
            asked = int((batch.targets.sequence_labels != IGNORE_INDEX).sum())
            assert batch.counts[way.pair_loss_name] == asked
            # A single sentence is no pair, and nothing is asked about it.
            assert asked == texts or (short(module) in PAIRED and asked < texts)


@OBJECTIVES
def test_every_label_lies_on_a_slot_with_text(module: ModuleType) -> None:
    feed = PackedDataset(objective(module), documents(), batch_size=3)
    for number in range(len(feed)):
        batch = feed[number]
        assert all(
            batch.inputs.attention_mask.document_ids[r, s] >= 0 for r, s, _ in predicted(batch)
        )


@OBJECTIVES
def test_examples_take_no_more_room_than_was_said(module: ModuleType) -> None:
    with every_case() as case:
        for length, examined in product([8, 9, 13, LENGTH, 100], [False, True]):
            with case((length, examined)):
                way = objective(module, max_length=length)
                way = way.for_evaluation() if examined else way
                chunks = way.chunks(documents())
                assert (chunks.sizes <= np.array(way.row_lengths)).all()
                for i in range(len(chunks)):
                    found = way.example(chunks[i], generator(0, Stream.EXAMPLE, 0, i)).lengths
                    assert len(found) == len(way.row_lengths)
                    assert all(s <= said for s, said in zip(found, chunks.sizes[i], strict=True))
                PackedDataset(way, documents(), batch_size=2)[0]


@OBJECTIVES
@pytest.mark.parametrize("length", [8, LENGTH])
def test_an_exam_asks_for_every_token_exactly_once(module: ModuleType, length: int) -> None:
    text = documents()
    feed = PackedDataset(
        objective(module, max_length=length).for_evaluation(), text, batch_size=4, shuffled=False
    )
    asked: Counter[int] = Counter()
    for number in range(len(feed)):
        asked.update(labels_of(feed[number]).labels.tolist())
    del asked[IGNORE_INDEX]
    ends = asked.pop(SPECIALS.eos, 0)
    assert ends in (0, len(feed.chunks.documents.starts) - 1)
    paired = short(module) == "pairs"
    assert asked == (targets(text) if paired else Counter(text.token_ids.tolist()))


@OBJECTIVES
def test_an_exam_shows_no_answer(module: ModuleType) -> None:
    feed = PackedDataset(
        objective(module).for_evaluation(), documents(), batch_size=4, shuffled=False
    )
    for number in range(len(feed)):
        batch = feed[number]
        looks = learns(batch)
        for row, slot, label in predicted(batch):
            if label == SPECIALS.eos:
                continue
            assert label not in batch.inputs.input_ids[row, looks[row, slot]]
            if batch.inputs.encoder_inputs is not None:
                assert (
                    label
                    not in batch.inputs.encoder_inputs.input_ids[row, across(batch)[row, slot]]
                )


@OBJECTIVES
def test_an_exam_draws_nothing(module: ModuleType) -> None:
    exam = objective(module).for_evaluation()
    feeds = [
        PackedDataset(exam, documents(), batch_size=2, seed=seed, shuffled=False) for seed in (0, 1)
    ]
    assert all(equal(feeds[0][i], feeds[1][i]) for i in range(len(feeds[0])))


@OBJECTIVES
def test_workers_change_nothing(module: ModuleType) -> None:
    feed = PackedDataset(objective(module), documents(), batch_size=2, seed=3)
    numbers = range(2, 7)
    alone = [feed[number] for number in numbers]
    loader = DataLoader(feed, batch_size=None, sampler=numbers, num_workers=2)  # type: ignore[arg-type]
    together = list(loader)
    assert len(together) == 5
    assert all(equal(a, b) for a, b in zip(alone, together, strict=True))


@OBJECTIVES
def test_every_token_and_all_padding_attend_to_something(module: ModuleType) -> None:
    # The softmax of a query without keys is not defined: 0 in some kernels, NaN in others.
    feed = PackedDataset(objective(module), documents(), batch_size=2, seed=3)
    for number in range(len(feed)):
        inputs = feed[number].inputs
        assert inputs.attention_mask.dense().any(-1).all()
        if inputs.encoder_inputs is not None:
            assert inputs.encoder_inputs.attention_mask.dense().any(-1).all()
            queries, keys = inputs.cross_masks()
            assert queries.dense(keys).any(-1).all()


@OBJECTIVES
def test_a_batch_is_a_function_of_seed_and_number(module: ModuleType) -> None:
    def fresh(seed: int) -> PackedDataset:
        return PackedDataset(objective(module), documents(), batch_size=2, seed=seed)

    forward = [fresh(0)[number] for number in range(6)]
    feed = fresh(0)
    backward = [feed[number] for number in reversed(range(6))]
    assert all(equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))
    assert not all(equal(fresh(0)[n], fresh(1)[n]) for n in range(3))


@OBJECTIVES
def test_every_document_comes_in_every_epoch_drawn_anew(module: ModuleType) -> None:
    way = objective(module)
    text = documents()
    feed = PackedDataset(way, text, batch_size=1)
    rows = len(feed.packing)
    epochs = []
    for epoch in range(3):
        order = feed.epoch_order(epoch)
        assert sorted(order.tolist()) == list(range(rows))
        chunks = [int(i) for row in order for i in feed.packing[int(row)]]
        assert sorted(chunks) == list(range(len(feed.chunks)))
        numbers = range(len(feed.chunks.documents.starts) - 1)
        assert {feed.chunks[i].document for i in chunks} == set(numbers)
        # The batches are those rows, and no others.
        for place, row in enumerate(order.tolist()):
            ids = [
                way.example(feed.chunks[int(i)], generator(0, Stream.EXAMPLE, epoch, int(i)))
                for i in feed.packing[row]
            ]
            assert equal(feed[epoch * rows + place], way.collate([ids]))
        epochs.append(order.tolist())
    assert epochs[0] != epochs[1] != epochs[2]
    if short(module) not in ("bilm", "bptt", "clm", "pairs", "stream"):  # nothing to draw
        long = int(np.argmax(feed.chunks.sizes[:, 0]))
        drawn = [
            way.example(feed.chunks[long], generator(0, Stream.EXAMPLE, epoch, long))
            for epoch in (1, 2)
        ]
        assert not equal(*drawn)
