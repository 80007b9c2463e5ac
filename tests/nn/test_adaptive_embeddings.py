"""Tables in clusters: one vector an id, probabilities that sum to one, and torch's own numbers."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from kinfolk.batch import IGNORE_INDEX
from kinfolk.errors import UserError
from kinfolk.nn.embeddings import AdaptiveEmbedding, AdaptiveLogits, LinearLogits

VOCAB, WIDTH, CUTOFFS = 150, 16, (70, 100)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def clusters(
    *, cutoffs: tuple[int, ...] = CUTOFFS, divisor: int = 2, vocab: int = VOCAB
) -> AdaptiveEmbedding:
    found = AdaptiveEmbedding(vocab, WIDTH, cutoffs=cutoffs, div_val=divisor).double()
    with torch.no_grad():
        for weight in found.parameters():
            weight.normal_(0.0, 0.5)
    return found


SHAPES = pytest.mark.parametrize(
    ("cutoffs", "divisor"), [((), 1), ((), 3), (CUTOFFS, 1), (CUTOFFS, 2), ((1, 149), 4)]
)


def biases(part: AdaptiveEmbedding) -> Iterator[Tensor]:
    for low, high in zip(part.cutoff_ends[1:-1], part.cutoff_ends[2:], strict=True):
        yield part.bias[low:high]


@SHAPES
def test_an_id_has_the_vector_of_its_row_in_its_cluster(
    cutoffs: tuple[int, ...], divisor: int
) -> None:
    part = clusters(cutoffs=cutoffs, divisor=divisor)
    found = part(torch.arange(VOCAB).view(3, -1)).flatten(0, 1)
    bounds = [0, *cutoffs, VOCAB]
    for i in range(VOCAB):
        cluster = max(c for c, low in enumerate(bounds[:-1]) if low <= i)
        vector = part.weight_of(cluster)[i - bounds[cluster]]
        assert len(vector) == WIDTH // divisor**cluster
        if divisor > 1:
            vector = part.projections[cluster].weight @ vector  # type: ignore[operator]
        torch.testing.assert_close(found[i], vector)


@SHAPES
def test_the_nll_is_that_of_probabilities_which_sum_to_one(
    cutoffs: tuple[int, ...], divisor: int
) -> None:
    part = clusters(cutoffs=cutoffs, divisor=divisor)
    hidden = torch.randn(40, WIDTH, dtype=torch.float64)
    labels = torch.randint(VOCAB, (40,))
    labels[::7] = IGNORE_INDEX
    scores = part.lm_logits(hidden).logits().log_softmax(-1)
    assert scores.shape == (40, VOCAB)
    if cutoffs:
        sums = part.lm_logits(hidden).logits().logsumexp(-1)
        torch.testing.assert_close(sums, torch.zeros_like(sums))
    expected = nn.functional.nll_loss(scores, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    torch.testing.assert_close(part.lm_logits(hidden).nll(labels), expected)
    rows = part.lm_logits(hidden.view(4, 10, -1)).logits()
    torch.testing.assert_close(rows.log_softmax(-1).flatten(0, 1), scores)


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "compiled"])
def test_gradients_are_those_of_all_scores(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    part = clusters()
    hidden = torch.randn(40, WIDTH, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(VOCAB, (40,))
    labels[5] = IGNORE_INDEX
    output = {n: p for n, p in part.named_parameters() if n != "projections.0.weight"}
    wanted = [hidden, *output.values()]
    scores = part.lm_logits(hidden).logits()
    loss = nn.functional.nll_loss(scores, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    expected = torch.autograd.grad(loss, wanted)
    if traced:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = torch.autograd.grad(part.lm_logits(hidden).nll(labels), wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_it_is_the_adaptive_softmax_of_torch() -> None:
    """torch's has its own tables and no bias in the clusters."""
    part = clusters(divisor=4)
    peer = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCAB, CUTOFFS, div_value=4.0, head_bias=True)
    peer = peer.double()
    with torch.no_grad():
        for bias in biases(part):
            bias.zero_()
        hidden, weight, bias = AdaptiveLogits(torch.eye(WIDTH).double(), part)._frequent()
        peer.head.weight.copy_(weight @ hidden.T)
        peer.head.bias.copy_(bias)
        for cluster, tail in enumerate(peer.tail, start=1):
            narrow, wide = tail
            narrow.weight.copy_(part.projections[cluster].weight.T)  # type: ignore[operator]
            wide.weight.copy_(part.weight_of(cluster)[: len(wide.weight)])
        given = torch.randn(9, WIDTH, dtype=torch.float64)
        torch.testing.assert_close(part.lm_logits(given).logits(), peer.log_prob(given))


def test_cutoffs_past_the_vocabulary_fall_away() -> None:
    part = clusters(cutoffs=(200, 300), divisor=1)
    assert isinstance(part.lm_logits(torch.zeros(1, WIDTH)), LinearLogits)
    assert {name for name, _ in part.named_parameters()} == {"embeddings.0.weight", "bias"}
    assert part.cutoff_ends == [0, 150]


@pytest.mark.parametrize("cutoffs", [(0, 5), (40, 20), (20, 20), (-3,)])
def test_cutoffs_that_do_not_rise_are_refused(cutoffs: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="must be positive and increasing"):
        clusters(cutoffs=cutoffs)


def test_clusters_without_any_width_are_refused() -> None:
    with pytest.raises(UserError, match=r"gives embeddings of size 0 \(hidden_size=16\)"):
        clusters(divisor=5)
