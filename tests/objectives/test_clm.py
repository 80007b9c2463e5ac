"""Causal language modelling: the picture, who sees whom, and where a text ends."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.objectives.clm import CLM
from kinfolk.rng import Stream, generator

RNG = np.random.default_rng(0)


def clm(special_tokens: Any, **settings: Any) -> CLM:
    return CLM(special_tokens=special_tokens, vocab_size=100, **settings)


def test_the_picture_holds(special_tokens: Any, ids: Any, chunk: Any) -> None:
    example = clm(special_tokens).example(chunk(ids("the cat sat"), extra=1), RNG)
    assert example.input_ids.tolist() == ids("<s> the cat sat")
    assert example.labels.tolist() == ids("the cat sat </s>")


def test_sight_is_the_past_of_ones_own_text(special_tokens: Any, ids: Any, chunk: Any) -> None:
    way = clm(special_tokens, max_length=8)
    texts = [chunk(ids("the cat"), extra=1), chunk(ids("sat down"), extra=1)]
    batch = way.collate([[way.example(text, RNG) for text in texts]])
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1, 1],
    ]
    assert batch.inputs.input_ids[0].tolist() == ids("<s> the cat <s> sat down <p> <p>")
    assert batch.inputs.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    assert batch.targets.labels.tolist() == ids("the cat </s> sat down </s> . .")
    assert batch.targets.positions is None
    assert batch.counts == {"clm": 6}


def test_a_long_text_is_cut_and_each_part_begins_with_the_token_before(special_tokens: Any) -> None:
    way = clm(special_tokens, max_length=4)
    chunks = way.chunks(InMemoryDocuments.from_lists([[list(range(20, 30))]]))
    lines = [way.example(p, RNG) for p in chunks]
    assert [line.input_ids.tolist() for line in lines] == [
        [special_tokens.bos, 20, 21, 22],
        [23, 24, 25, 26],
        [27, 28, 29],
    ]
    assert [line.labels.tolist() for line in lines] == [
        [20, 21, 22, 23],
        [24, 25, 26, 27],
        [28, 29, special_tokens.eos],
    ]


@pytest.mark.parametrize("length", [4, 5, 8])
def test_the_end_is_predicted_even_where_it_fills_a_row_by_itself(
    special_tokens: Any, length: int
) -> None:
    way = clm(special_tokens, max_length=4)
    chunks = way.chunks(InMemoryDocuments.from_lists([[list(range(20, 20 + length))]]))
    labels = [i for p in chunks for i in way.example(p, RNG).labels.tolist()]
    assert labels == [*range(20, 20 + length), special_tokens.eos]


def test_where_there_is_no_beginning_the_end_serves(
    special_tokens: Any, ids: Any, chunk: Any
) -> None:
    way = clm(dataclasses.replace(special_tokens, bos=None))
    example = way.example(chunk(ids("the cat"), extra=1), RNG)
    assert example.input_ids.tolist() == ids("</s> the cat")


def test_a_tokenizer_without_an_end_is_refused(special_tokens: Any) -> None:
    with pytest.raises(UserError, match="eos"):
        clm(dataclasses.replace(special_tokens, eos=None))


def test_nothing_is_drawn(special_tokens: Any) -> None:
    way = clm(special_tokens, max_length=8)
    text = InMemoryDocuments.from_lists([[list(range(20, 40))]])
    feed = PackedDataset(way, text, batch_size=1)
    lines = [way.example(feed.chunks[1], generator(seed, Stream.EXAMPLE, 0, 1)) for seed in (0, 1)]
    assert np.array_equal(lines[0].input_ids, lines[1].input_ids)
    assert int((feed[0].targets.labels != IGNORE_INDEX).sum()) == 8
    assert torch.equal(
        feed[0].inputs.input_ids, PackedDataset(way, text, batch_size=1)[0].inputs.input_ids
    )
