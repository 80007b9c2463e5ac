"""Filling holes with tokens and with spans."""

from dataclasses import replace

import pytest
import torch

from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.families.bert import Bert
from kinfolk.families.gpt2 import GPT2
from kinfolk.families.t5 import T5
from kinfolk.generation.config import GREEDY
from kinfolk.generation.fill import fill_masks, fill_sentinels, split_at_sentinels
from support.decoding import write

MASK = 4
SENTINELS = (40, 41, 42, 43)
THIRTY = replace(GREEDY, max_new_tokens=30)


def test_each_mask_gets_its_best_tokens_with_their_probabilities(bert: Bert) -> None:
    bert.train()
    ids = [1, 10, MASK, 12, MASK, 2]
    found = fill_masks(bert, ids, MASK, candidates=3, suppress_ids={20, 21})
    assert bert.training
    bert.eval()
    hidden = bert(Inputs.from_ids(torch.tensor([ids]), causal=False)).hidden[0, [2, 4]]
    shares = bert.lm_logits(hidden).logits().softmax(-1)
    assert len(found) == 2
    for choices, share in zip(found, shares, strict=True):
        expected = [i for i in share.argsort(descending=True).tolist() if i not in (20, 21)][:3]
        assert [id for id, _ in choices] == expected
        assert [p for _, p in choices] == pytest.approx(share[expected].tolist())


def test_all_choices_are_all_that_is_not_banned(bert: Bert) -> None:
    (choices,) = fill_masks(bert, [MASK], MASK, candidates=999, suppress_ids={3, 4, 77})
    assert {id for id, _ in choices} == set(range(50)) - {3, 4}


def test_masks_that_cannot_be_filled_are_refused(bert: Bert, gpt2: GPT2) -> None:
    with pytest.raises(UserError, match="contains no mask"):
        fill_masks(bert, [1, 2], MASK)
    with pytest.raises(UserError, match="candidates=0"):
        fill_masks(bert, [MASK], MASK, candidates=0)
    with pytest.raises(UserError, match=r"25 tokens, and the model's context is 24"):
        fill_masks(bert, [MASK] * 25, MASK)
    with pytest.raises(UserError, match="decoder models cannot fill"):
        fill_masks(gpt2, [MASK], MASK)


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ([40, 7, 8, 41, 9], [[7, 8], [9], []]),
        ([40, 7, 42, 9, 43, 5], [[7], [], [9]]),  # one is skipped, and 43 closes
        ([6, 40, 7], [[7], [], []]),  # what comes before the first belongs nowhere
        ([41, 7, 40, 8, 42, 9], [[], [7], [9]]),  # 40 is late
        ([40, 7, 40, 8], [[7], [], []]),  # 40 again
        ([], [[], [], []]),
    ],
)
def test_spans_are_split_at_their_sentinels(written: list[int], parts: list[list[int]]) -> None:
    assert split_at_sentinels(written, [40, 41, 42], SENTINELS) == parts


def test_spans_are_what_the_decoder_writes(t5: T5) -> None:
    source = [5, 40, 6, 41, 7, 1]
    options = {"start": 0, "eos": 1, "sentinels": SENTINELS, "config": THIRTY}
    spans = fill_sentinels(t5, source, **options)  # type: ignore[arg-type]
    (written,) = write(
        t5, [[0]], max_new_tokens=30, eos_ids={1, 42}, method=GREEDY, encoder_ids=[source]
    )
    assert spans == split_at_sentinels(written.ids, [40, 41], SENTINELS)
    with pytest.raises(UserError, match="no sentinel"):
        fill_sentinels(t5, [5, 6, 1], **options)  # type: ignore[arg-type]


def test_xlnet_sees_nothing_of_its_holes() -> None:
    torch.manual_seed(0)
    model = replace(family("xlnet").sizes["nano"], vocab_size=60).build().eval()
    found = [fill_masks(model, [10, hole, 12, hole, 5, 4], hole, candidates=4) for hole in (6, 40)]
    assert [len(choices) for choices in found[0]] == [4, 4]
    for one, other in zip(*found, strict=True):
        assert [id for id, _ in one] == [id for id, _ in other]
        assert [share for _, share in one] == pytest.approx([share for _, share in other])
    assert fill_masks(model, [11, 6, 12, 6, 5, 4], 6, candidates=4) != found[0], (
        "nothing is seen at all"
    )


def test_electra_fills_with_its_generator() -> None:
    torch.manual_seed(0)
    model = replace(family("electra").sizes["nano"], vocab_size=60, max_length=16).build().eval()
    ids = [4, 10, 6, 12, 5]
    ((best, share), *_) = fill_masks(model, ids, 6, candidates=3)[0]
    with torch.no_grad():
        hidden = model.forward_lm(Inputs.from_ids(torch.tensor([ids]), causal=False)).hidden[0, 2]
        expected = model.lm_logits(hidden).logits().softmax(-1)
    assert best == int(expected.argmax())
    assert share == pytest.approx(float(expected.max()))
