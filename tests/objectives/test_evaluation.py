"""Scores of pretraining tasks: ROC AUC against the count of ordered pairs, and accuracies."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives.evaluation import pair_accuracy, roc_auc, rtd_scores
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.rtd import RTD
from kinfolk.objectives.sop import SOP
from kinfolk.text.tokenizer import SpecialTokens

SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6)
TEXT = InMemoryDocuments.from_lists(
    [[list(range(10, 16)), list(range(16, 22))], [list(range(30, 38)), [38, 39]]]
)


class LogitsProcessor(LanguageModel):
    """Says the same of everything; its generator always draws one token."""

    def __init__(self, *, token: int = 9, verdict: int = 0, wary: bool = False) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=40)
        self.weight = nn.Parameter(torch.zeros(1))
        self.token, self.verdict, self.wary = token, verdict, wary

    def forward(self, inputs: Inputs) -> Output:
        assert not self.training
        return Output(inputs.input_ids[..., None].float())

    def lm_logits(self, hidden: Tensor) -> Any:
        logits = torch.full((len(hidden), 40), float("-inf"))
        logits[:, self.token] = 0.0
        return SimpleNamespace(logits=lambda: logits)

    def discriminator_logits(self, hidden: Tensor) -> Tensor:
        """Suspect the one token, or nothing at all."""
        return torch.where((hidden[..., 0] == self.token) & self.wary, 1.0, -1.0)

    def seq_relationship_logits(self, hidden: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.full((len(hidden),), self.verdict), 2).float()


def test_the_area_is_the_share_of_pairs_in_their_order() -> None:
    draws = np.random.default_rng(0)
    for size in (2, 7, 40):
        scores = draws.integers(0, 5, size).astype(float)  # many are equal
        positive = draws.random(size) < 0.4
        positive[:2] = True, False
        pairs = list(product(scores[positive], scores[~positive]))
        expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
        assert roc_auc(scores, positive) == pytest.approx(expected)


def test_nothing_can_be_told_apart_where_all_are_alike() -> None:
    assert roc_auc(np.array([1.0, 2.0]), np.array([True, True])) == 0.5
    assert roc_auc(np.array([1.0, 2.0]), np.array([False, False])) == 0.5


def test_a_perfect_detector_and_a_blind_one() -> None:
    way = RTD(special_tokens=SPECIALS, vocab_size=40, max_length=16, mask_rate=0.25)
    perfect = rtd_scores(LogitsProcessor(wary=True), way, TEXT)
    # 12 and 10 tokens in stretches of up to 14, framed: a quarter of each is replaced.
    assert perfect.base_rate == pytest.approx((3 + 2) / (14 + 12))
    assert (perfect.auc, perfect.accuracy) == (1.0, 1.0)
    blind = rtd_scores(LogitsProcessor(), way, TEXT)
    assert (blind.auc, blind.accuracy) == (0.5, pytest.approx(1 - blind.base_rate))


def test_a_token_drawn_as_it_was_is_not_replaced() -> None:
    way = RTD(special_tokens=SPECIALS, vocab_size=40, max_length=16, mask_rate=0.25)
    same = InMemoryDocuments.from_lists([[[9] * 12]])
    assert rtd_scores(LogitsProcessor(wary=True), way, same).base_rate == 0.0


@pytest.mark.parametrize("kind", [NSP, SOP])
def test_the_share_of_one_verdict_and_of_the_other_add_up(kind: type[NSP]) -> None:
    way = kind(special_tokens=SPECIALS, vocab_size=40, max_length=16)
    text = InMemoryDocuments.from_lists([[[10 + i, 11], [12, 13, 14]] for i in range(20)])
    shares = [pair_accuracy(LogitsProcessor(verdict=v), way, text, rows=3) for v in (0, 1)]
    assert None not in shares
    assert sum(filter(None, shares)) == pytest.approx(1.0)
    assert min(filter(None, shares)) > 0.2


def test_single_sentences_have_no_order_to_judge() -> None:
    way = SOP(special_tokens=SPECIALS, vocab_size=40, max_length=16)
    assert (
        pair_accuracy(
            LogitsProcessor(), way, InMemoryDocuments.from_lists([[[10, 11, 12]], [[13, 14]]])
        )
        is None
    )


def test_a_model_that_learns_goes_on_learning() -> None:
    model = LogitsProcessor().train()
    pair_accuracy(model, SOP(special_tokens=SPECIALS, vocab_size=40, max_length=16), TEXT)
    assert model.training
