"""The table between ids and vectors: longer inside than the vocabulary, and nobody notices."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kinfolk.batch import IGNORE_INDEX
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_


@pytest.mark.parametrize(("vocab", "rows"), [(1, 64), (64, 64), (65, 128), (50257, 50304)])
def test_rows_are_a_multiple_of_64(vocab: int, rows: int) -> None:
    assert TokenEmbedding(vocab, 2).weight.shape == (rows, 2)


def test_rows_past_the_end_stay_zero_while_the_others_learn() -> None:
    table = TokenEmbedding(70, 8)
    init_weights_(table, std=0.02)
    optimiser = torch.optim.AdamW(table.parameters(), lr=0.1, weight_decay=0.1)
    before = table.weight.detach().clone()
    for _ in range(3):
        hidden = table(torch.arange(70))
        table.lm_logits(hidden).nll(torch.arange(70).roll(1)).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert not table.weight[70:].any()
    assert (table.weight[:70] != before[:70]).all()


def test_scores_are_products_with_every_vector_and_no_more() -> None:
    table, bias = TokenEmbedding(70, 8), torch.randn(70)
    hidden = torch.randn(2, 3, 8)
    scores = table.lm_logits(hidden, bias)
    assert scores.logits().shape == (2, 3, 70)
    torch.testing.assert_close(scores.logits(), hidden @ table.weight[:70].T + bias)


def test_the_likelihood_is_that_of_the_scores() -> None:
    hidden, weight, bias = torch.randn(5, 8), torch.randn(128, 8), torch.randn(70)
    labels = torch.tensor([0, 69, IGNORE_INDEX, 3, 3])
    scores = LinearLogits(hidden, weight, bias, 70)
    expected = F.cross_entropy(scores.logits(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    torch.testing.assert_close(scores.nll(labels), expected)


def test_initial_weights_are_as_wide_as_asked() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(TokenEmbedding(1000, 32), nn.Linear(32, 32), nn.LayerNorm(32))
    init_weights_(model, std=0.05)
    table, linear, norm = model
    assert table.weight[:1000].std().item() == pytest.approx(0.05, rel=0.05)  # type: ignore[union-attr]
    assert linear.weight.std().item() == pytest.approx(0.05, rel=0.1)  # type: ignore[union-attr]
    assert not linear.bias.any() and (norm.weight == 1).all()  # type: ignore[union-attr]
