"""The CRF against all sequences of tags, written out."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from kinfolk.nn.crf import CRF, bio_transitions
from kinfolk.packed_texts import PackedTexts

LENGTHS = [3, 1, 4, 4, 2]
LABELS = ("O", "B-X", "I-X", "B-Y", "I-Y")


def drawn(seed: int = 0) -> tuple[CRF, Tensor, Tensor, Tensor]:
    """Draw a CRF, emissions and tags of texts, one after the other, and the text of each word."""
    draws = torch.Generator().manual_seed(seed)
    crf = CRF(len(LABELS)).double()
    with torch.no_grad():
        for weight in crf.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draws, dtype=torch.float64))
    words = sum(LENGTHS)
    emissions = torch.randn(words, len(LABELS), generator=draws, dtype=torch.float64)
    tags = torch.randint(len(LABELS), (words,), generator=draws)
    return crf, emissions, tags, torch.repeat_interleave(torch.tensor(LENGTHS))


def slow_score(crf: CRF, emissions: Tensor, tags: tuple[int, ...]) -> Tensor:
    total = crf.first[tags[0]] + crf.last[tags[-1]]
    total = total + sum(emissions[i, tag] for i, tag in enumerate(tags))
    return total + sum(crf.transitions[a, b] for a, b in pairwise(tags))


def every(crf: CRF, emissions: Tensor) -> dict[tuple[int, ...], Tensor]:
    """Score every sequence of tags of one text."""
    choices = product(range(len(LABELS)), repeat=len(emissions))
    return {tags: slow_score(crf, emissions, tags) for tags in choices}


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1])
def test_partition_score_marginals_and_best_tags_equal_those_of_all_sequences(seed: int) -> None:
    crf, emissions, tags, text = drawn(seed)
    packed = PackedTexts.of(text[None])
    order = packed.positions
    partition = crf.log_partition(emissions[order], packed)
    score = crf.score(emissions[order], tags[order], packed)
    found = torch.empty_like(tags)
    found[order] = crf.decode(emissions[order], packed)
    marginals = torch.empty_like(emissions)
    marginals[order] = crf.marginals(emissions[order], packed)
    number = text[order[: len(LENGTHS)]]  # of the text of each result
    for rank, index in enumerate(number.tolist()):
        mine = text == index
        scores = every(crf, emissions[mine])
        together = torch.stack([*scores.values()])
        torch.testing.assert_close(partition[rank], together.logsumexp(0))
        torch.testing.assert_close(score[rank], scores[tuple(tags[mine].tolist())])
        assert tuple(found[mine].tolist()) == max(scores, key=lambda t: scores[t].item())
        chance = together.softmax(0)
        for place in range(int(mine.sum())):
            for tag in range(len(LABELS)):
                has = torch.tensor([t[place] == tag for t in scores])
                torch.testing.assert_close(marginals[mine][place, tag], chance[has].sum())
    torch.testing.assert_close(
        crf.nll(emissions[order], tags[order], packed), (partition - score).sum()
    )


def test_gradients_are_finite_and_right() -> None:
    crf, emissions, tags, text = drawn()
    packed = PackedTexts.of(text[None])
    emissions = emissions[packed.positions].requires_grad_()
    tags = tags[packed.positions]

    def nll(emissions: Tensor, *_: Tensor) -> Tensor:
        return crf.nll(emissions, tags, packed)

    assert torch.autograd.gradcheck(nll, (emissions, *crf.parameters()))
    extreme = (1e3 * emissions.detach().float()).requires_grad_()
    crf.float().nll(extreme, tags, packed).backward()
    assert extreme.grad is not None and extreme.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in crf.parameters())


def test_a_constraint_predicts_no_tag_inside_a_span_of_another_type() -> None:
    first, pairs = bio_transitions(LABELS)
    allowed = {(a, b) for a in LABELS for b in LABELS if not b.startswith("I-")}
    allowed |= {(f"{p}-{t}", f"I-{t}") for p in "BI" for t in "XY"}
    for (i, a), (j, b) in product(enumerate(LABELS), repeat=2):
        assert (pairs[i, j].item() == 0) == ((a, b) in allowed)
    assert [score.item() == 0 for score in first] == [not n.startswith("I-") for n in LABELS]
    broken = 0
    for seed in range(10):
        crf, emissions, _, text = drawn(seed)
        packed = PackedTexts.of(text[None])
        order = packed.positions
        for constraint in (None, bio_transitions(LABELS)):
            found = torch.empty(len(text), dtype=torch.int64)
            found[order] = crf.decode(emissions[order], packed, constraint)
            for index in range(len(LENGTHS)):
                names = ["O", *(LABELS[tag] for tag in found[text == index].tolist())]
                wrong = any(pair not in allowed for pair in pairwise(names))
                broken += wrong and constraint is None
                assert not (wrong and constraint is not None)
    assert broken, "the constraint changes nothing here"
