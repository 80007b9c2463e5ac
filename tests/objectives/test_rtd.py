"""Replaced tokens: the picture, who sees whom, and what the generator draws."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, Output, TokenTargets
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.data.examples import Example
from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives import rtd
from kinfolk.objectives.rtd import RTD, UNIFORM_LEVELS, RTDTargets, replace_tokens
from kinfolk.rng import Stream, generator

VOCAB = 30


class Writer(LanguageModel):
    """A generator that finds certain tokens likely, and a discriminator that says what it saw."""

    def __init__(self, likely: dict[int, float], doubt: float = 0.0) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCAB)
        self.scores = torch.full((VOCAB,), float("-inf"))
        for token, chance in likely.items():
            self.scores[token] = np.log(chance)
        self.doubt = doubt
        self.read: list[Tensor] = []

    def forward_lm(self, inputs: Inputs) -> Output:
        return Output(inputs.input_ids[..., None].float())

    def forward(self, inputs: Inputs) -> Output:
        self.read.append(inputs.input_ids)
        return Output(inputs.input_ids[..., None].float())

    def lm_logits(self, hidden: Tensor) -> Any:
        logits = self.scores.expand(len(hidden), -1)

        def nll(labels: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(
                logits, labels, ignore_index=IGNORE_INDEX, reduction="sum"
            )

        return SimpleNamespace(logits=lambda: logits, nll=nll)

    def discriminator_logits(self, hidden: Tensor) -> Tensor:
        return hidden[..., 0] * 0 + self.doubt


def way(special_tokens: Any, **settings: Any) -> RTD:
    return RTD(special_tokens=special_tokens, vocab_size=VOCAB, **settings)


def example(special_tokens: Any, ids: Any, text: str, hidden: list[int], draws: list[int]) -> Any:
    """Hide chosen tokens of a text, with chosen random numbers."""
    framed = np.array([special_tokens.cls, *ids(text), special_tokens.sep])
    labels, numbers = np.full_like(framed, IGNORE_INDEX), np.zeros_like(framed)
    labels[hidden], numbers[hidden] = framed[hidden], draws
    shown = np.where(labels == IGNORE_INDEX, framed, special_tokens.mask)
    return Example(input_ids=shown, labels=labels, uniforms=numbers)


def test_the_picture_holds(special_tokens: Any, ids: Any) -> None:
    one = example(special_tokens, ids, "the cat sat down", [2, 4], [0, UNIFORM_LEVELS - 1])
    assert one.input_ids.tolist() == ids("[C] the [M] sat [M] [S]")
    assert one.labels.tolist() == ids(". . cat . down .")
    batch = way(special_tokens, max_length=6).collate([[one]])
    drawn = torch.tensor(ids("mat down"))
    given, wrong = replace_tokens(batch.inputs, batch.targets.tokens, drawn)
    assert given.input_ids[0].tolist() == ids("[C] the mat sat down [S]")
    assert wrong[0].int().tolist() == [0, 0, 1, 0, 0, 0]
    assert batch.counts == {"mlm": 2, "rtd": 6}


def test_sight_is_the_whole_text(special_tokens: Any, ids: Any) -> None:
    texts = [example(special_tokens, ids, text, [1], [0]) for text in ("the cat", "sat")]
    batch = way(special_tokens, max_length=9).collate([texts])
    table = [[1] * 4 + [0] * 5] * 4 + [[0] * 4 + [1] * 3 + [0] * 2] * 3 + [[0] * 7 + [1] * 2] * 2
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == table
    assert batch.counts == {"mlm": 2, "rtd": 7}
    given, _ = replace_tokens(batch.inputs, batch.targets.tokens, torch.zeros(2, dtype=torch.long))
    assert (
        given.attention_mask is batch.inputs.attention_mask
    )  # the discriminator sees what the generator saw


def test_every_hidden_token_is_behind_the_mask(special_tokens: Any) -> None:
    text = InMemoryDocuments.from_lists([[list(range(12, 28))]])
    objective = way(special_tokens, max_length=32, mask_rate=0.25)
    (chunk,) = objective.chunks(text)
    for number in range(20):
        one = objective.example(chunk, generator(0, Stream.EXAMPLE, 0, number))
        hidden = one.labels != IGNORE_INDEX
        assert hidden.sum() == 4
        assert (one.input_ids[hidden] == special_tokens.mask).all()
        assert (one.uniforms[~hidden] == 0).all() and (one.uniforms < UNIFORM_LEVELS).all()


def test_a_token_is_drawn_as_often_as_it_is_likely(special_tokens: Any) -> None:
    likely = {11: 0.5, 15: 0.3, 29: 0.2}
    numbers = (
        torch.from_numpy(generator(0, Stream.EXAMPLE, 0, 0).integers(UNIFORM_LEVELS, size=20_000))
        + 0.5
    ) / UNIFORM_LEVELS
    found = rtd.sample_tokens(Writer(likely), torch.zeros(20_000, 1), numbers.float())
    shares = torch.bincount(found, minlength=VOCAB) / len(found)
    for token, chance in likely.items():
        assert abs(shares[token].item() - chance) < 4 * 0.5 / np.sqrt(len(found))
    assert shares.count_nonzero() == 3


@pytest.mark.parametrize("vocab", [5, 63, 64, 65, 200])
def test_the_drawn_token_is_where_the_cumulative_distribution_reaches_the_number(
    vocab: int,
) -> None:
    draws = torch.Generator().manual_seed(vocab)
    logits = 3 * torch.randn(500, vocab, generator=draws, dtype=torch.float64)
    numbers = torch.rand(500, generator=draws, dtype=torch.float64)
    cumulative = logits.softmax(-1).cumsum(-1)
    plain = torch.searchsorted(cumulative, numbers[:, None])[:, 0]
    assert torch.equal(rtd.sample_ids(logits, numbers), plain)


def test_the_least_and_the_greatest_random_number_draw_what_can_be_drawn() -> None:
    ends = torch.tensor([0.5 / UNIFORM_LEVELS, (UNIFORM_LEVELS - 0.5) / UNIFORM_LEVELS])
    assert rtd.sample_tokens(Writer({3: 0.4, 9: 0.6}), torch.zeros(2, 1), ends).tolist() == [3, 9]


def test_drawing_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.rand(50, generator=torch.Generator().manual_seed(0))
    writer = Writer(dict.fromkeys(range(20), 1 / 20))
    whole = rtd.sample_tokens(writer, torch.zeros(50, 1), numbers)
    monkeypatch.setattr(rtd, "chunk_rows", lambda *_: 7)
    assert torch.equal(rtd.sample_tokens(writer, torch.zeros(50, 1), numbers), whole)


def test_empty_predictions_replace_nothing(special_tokens: Any, ids: Any) -> None:
    one = example(special_tokens, ids, "the cat", [2], [0])
    inputs = way(special_tokens, max_length=4).collate([[one]]).inputs
    labels = TokenTargets(torch.tensor([*ids("cat"), IGNORE_INDEX]), torch.tensor([2, 0]))
    given, wrong = replace_tokens(inputs, labels, torch.tensor([15, 15]))
    assert given.input_ids[0].tolist() == [special_tokens.cls, *ids("the"), 15, special_tokens.sep]
    assert wrong[0].tolist() == [False, False, True, False]


def test_the_loss_counts_every_token_but_padding(special_tokens: Any, ids: Any) -> None:
    objective = way(special_tokens, max_length=9)
    one = example(special_tokens, ids, "the cat sat", [2, 3], [0, UNIFORM_LEVELS - 1])
    batch = objective.collate([[one]])
    cat, sat = ids("cat sat")
    # The first number draws the lesser id, `cat`, the last the greater, `mat`: one is wrong.
    writer = Writer({cat: 0.5, ids("mat")[0]: 0.25, sat: 0.25}, doubt=1.0)
    loss = objective.loss(writer, batch)
    assert writer.read[0][0, :5].tolist() == ids("[C] the cat mat [S]")
    assert loss.sums["mlm"].item() == pytest.approx(-np.log(0.5) - np.log(0.25), rel=1e-6)
    sure, unsure = np.log1p(np.exp(-1.0)), np.log1p(np.exp(1.0))
    assert loss.sums["rtd"].item() == pytest.approx(sure + 4 * unsure, rel=1e-6)
    assert batch.counts == {"mlm": 2, "rtd": 5}
    mean = loss.mean(batch.counts).item()
    expected = loss.sums["mlm"].item() / 2 + 50 * loss.sums["rtd"].item() / 5
    assert mean == pytest.approx(expected, rel=1e-6)


def test_no_gradient_flows_through_the_draw(special_tokens: Any, ids: Any) -> None:
    hidden = torch.zeros(2, 1, requires_grad=True)
    found = rtd.sample_tokens(Writer({3: 1.0}), hidden, torch.full((2,), 0.5))
    assert not found.requires_grad


def test_what_is_drawn_depends_on_neither_packing_nor_micro_batches(special_tokens: Any) -> None:
    text = InMemoryDocuments.from_lists([[list(range(12, 12 + size))] for size in (5, 9, 14, 3)])
    objective = way(special_tokens, max_length=40)

    def numbers(rows: int) -> list[float]:
        feed = PackedDataset(objective, text, batch_size=rows, shuffled=False)
        parts = [feed[i].targets for i in range(len(feed))]
        return sorted(
            d for p in parts for d in p.uniforms[p.tokens.labels != IGNORE_INDEX].tolist()
        )

    assert numbers(1) == numbers(4)


def test_an_exam_asks_the_generator(special_tokens: Any, ids: Any) -> None:
    exam = way(special_tokens, max_length=8).for_evaluation()
    feed = PackedDataset(
        exam, InMemoryDocuments.from_lists([[ids("the cat")]]), batch_size=9, shuffled=False
    )
    batch: Batch[TokenTargets] = feed[0]
    writer = Writer(dict.fromkeys(ids("the cat"), 0.5))
    assert exam.loss(writer, batch).sums["mlm"].item() == pytest.approx(2 * np.log(2))
    assert not writer.read  # the discriminator was left alone
    assert isinstance(batch.targets, TokenTargets) and not isinstance(batch.targets, RTDTargets)
