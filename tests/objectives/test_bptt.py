"""BPTT of varying length: the picture, the lengths of rows, and the penalties of the loss."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfolk.batch import Batch
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset
from kinfolk.families.ulmfit import FAMILY, ULMFiT
from kinfolk.objectives.bptt import BPTT
from kinfolk.objectives.recurrent_clm import RecurrentCLM


def bptt(special_tokens: Any, length: int = 8, **fields: Any) -> BPTT:
    return BPTT(special_tokens=special_tokens, vocab_size=100, max_length=length, **fields)


def network(**dropouts: float) -> ULMFiT:
    torch.manual_seed(0)
    return replace(FAMILY.sizes["nano"], vocab_size=100, **dropouts).build()


def documents(count: int = 40, longest: int = 300) -> InMemoryDocuments:
    draws = np.random.default_rng(0)
    return InMemoryDocuments.from_lists(
        [[draws.integers(20, 100, draws.integers(1, longest)).tolist()] for _ in range(count)]
    )


def test_the_picture_holds(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the cat sat down")]])
    way = bptt(special_tokens, 2, variable_length=False)
    feed = ContiguousDataset(way, text, batch_size=1)
    rows = [feed[n] for n in range(len(feed))]
    assert [r.inputs.input_ids[0].tolist() for r in rows] == [
        ids("<s> the"),
        ids("cat sat"),
        ids("down <p>"),
    ]
    assert [r.counts for r in rows] == [
        {"bptt": 2, "ar": 2, "tar": 1},
        {"bptt": 2, "ar": 2, "tar": 1},
        {"bptt": 1, "ar": 1, "tar": 0},
    ]


def test_sight_goes_through_the_state_to_the_start_of_the_document(
    special_tokens: Any, ids: Any
) -> None:
    """What the last row predicts changes with the first token of the document, in another row."""
    way, model = bptt(special_tokens, 2, variable_length=False), network().eval()

    def last(words: str) -> Tensor:
        feed = ContiguousDataset(way, InMemoryDocuments.from_lists([[ids(words)]]), batch_size=1)
        memory = model.init_memory(1)
        for number in range(len(feed)):
            output = model(feed[number].with_memory(memory).inputs)
            memory = output.memory
        return output.hidden[0, 0].detach()

    assert torch.equal(last("the cat sat down"), last("the cat sat down"))
    assert not torch.equal(last("the cat sat down"), last("you cat sat down"))


def test_lengths_vary_around_the_mean_and_a_few_are_half(special_tokens: Any) -> None:
    way = bptt(special_tokens, 70)
    lengths = way.segment_lengths(70 * 4000, np.random.default_rng(0))
    assert lengths.sum() == 70 * 4000 and lengths[:-1].min() >= 5
    half = lengths[:-1] < 52
    assert 0.03 < half.mean() < 0.07
    assert lengths[:-1][~half].mean() == pytest.approx(69.5, abs=0.5)  # rounded down
    assert lengths[:-1][~half].std() == pytest.approx(5, abs=0.5)
    assert lengths[:-1][half].mean() == pytest.approx(34.5, abs=1)


def test_nearly_all_batches_have_one_of_a_few_lengths(special_tokens: Any) -> None:
    """Those that are replayed as CUDA graphs."""
    way = bptt(special_tokens, 70)
    lengths = way.segment_lengths(70 * 4000, np.random.default_rng(0))
    assert way.usual_lengths == range(55, 86)
    assert np.isin(lengths, way.usual_lengths).mean() > 0.93


def test_batches_of_varying_length_hold_every_token_once_in_every_epoch(
    special_tokens: Any,
) -> None:
    text = documents()
    feed = ContiguousDataset(bptt(special_tokens, 30), text, batch_size=4, parts=2, seed=3)
    for epoch in range(2):
        batches = [feed[epoch * len(feed) + n] for n in range(len(feed))]
        shapes = [batch.inputs.input_ids.shape[1] for batch in batches]
        assert len(set(shapes)) > 3 and shapes[::2] == shapes[1::2]  # both parts of a step
        labels = torch.cat([batch.targets.labels for batch in batches])
        found = labels[labels >= 20].sort().values
        assert torch.equal(found, torch.from_numpy(np.sort(text.token_ids)))
    again = ContiguousDataset(bptt(special_tokens, 30), text, batch_size=4, parts=2, seed=3)
    assert torch.equal(again[17].inputs.input_ids, feed[17].inputs.input_ids)


def shapes(feed: ContiguousDataset, epoch: int) -> list[int]:
    return [feed[epoch * len(feed) + n].inputs.input_ids.shape[1] for n in range(len(feed))]


def test_the_order_of_lengths_differs_by_epoch_and_seed(special_tokens: Any) -> None:
    feeds = [
        ContiguousDataset(bptt(special_tokens, 30), documents(), batch_size=4, seed=seed)
        for seed in (0, 1)
    ]
    found = [shapes(feeds[0], 0), shapes(feeds[0], 1), shapes(feeds[1], 0)]
    assert found[0] != found[1] and found[0] != found[2]
    assert sorted(found[0]) == sorted(found[1])


def test_without_variable_length_all_rows_are_full(special_tokens: Any) -> None:
    way = bptt(special_tokens, 30, variable_length=False)
    assert (way.row_length, replace(way, variable_length=True).row_length) == (30, None)
    feed = ContiguousDataset(way, documents(), batch_size=4)
    assert set(shapes(feed, 0)) == {30}


def test_the_penalties_are_those_of_the_paper(special_tokens: Any) -> None:
    """Of rows of one text: means over all tokens and features, as fastai computes them."""
    way = bptt(special_tokens, 12, ar_weight=2.0, tar_weight=0.5, variable_length=False)
    text = InMemoryDocuments.from_lists([[list(range(20, 90))]])
    batch = ContiguousDataset(way, text, batch_size=2)[0]
    model = network(output_dropout=0.3).train()
    torch.manual_seed(1)
    output = model(batch.inputs)
    torch.manual_seed(1)
    loss = way.loss(model, batch)
    assert output.undropped is not None
    raw, dropped = output.undropped, output.hidden
    assert (dropped == 0).any() and not (raw == 0).any()
    torch.testing.assert_close(loss.sums["ar"] / batch.counts["ar"], dropped.pow(2).mean())
    change = (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
    torch.testing.assert_close(loss.sums["tar"] / batch.counts["tar"], change)
    total = loss.sums["bptt"] / batch.counts["bptt"] + 2 * dropped.pow(2).mean() + 0.5 * change
    torch.testing.assert_close(loss.mean(batch.counts), total)


def test_no_change_is_penalized_from_one_text_to_another(special_tokens: Any) -> None:
    way = bptt(special_tokens, 12)
    text = InMemoryDocuments.from_lists([[[20, 21, 22]], [[30, 31]], [[40]]])
    batch = ContiguousDataset(replace(way, variable_length=False), text, batch_size=1)[0]
    assert batch.counts == {"bptt": 9, "ar": 9, "tar": 6}


def test_evaluation_has_no_penalties(special_tokens: Any) -> None:
    way, model = bptt(special_tokens, 12, variable_length=False), network()
    batch: Batch[Any] = ContiguousDataset(way, documents(3), batch_size=2)[0]
    assert list(way.loss(model.train(), batch).sums) == ["bptt", "ar", "tar"]
    assert list(way.loss(model.eval(), batch).sums) == ["bptt"]
    assert way.for_evaluation() == RecurrentCLM(**way.common_fields)
