"""Kneser-Ney smoothing of n-gram counts, against the formulas, KenLM and published figures."""

import gzip
import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.data import ngram_counts
from kinfolk.errors import UserError
from kinfolk.families.ngram import NGram
from kinfolk.metrics import kneser_ney
from kinfolk.metrics.baselines import Unigram
from kinfolk.workflows.baselines import document_nll, fit_documents

Gram = tuple[int, ...]
VOCAB, BOS, EOS = 9, 7, 8
CORPUS = st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=30)
PRUNE = st.sampled_from([(), (0, 1), (0, 0, 2), (0, 1, 1, 3)])


def fitted(documents: list[list[int]], order: int, prune: Gram = (), *, bos: int = BOS) -> NGram:
    return fit_documents(
        arrays(documents), vocab_size=VOCAB, order=order, bos=bos, eos=EOS, prune=prune[:order]
    )


def nll(model: NGram, document: list[int], bos: int = BOS) -> npt.NDArray[np.float64]:
    (found,) = document_nll(model, arrays([document]), bos, EOS)
    return found


def arrays(documents: list[list[int]]) -> list[npt.NDArray[np.int64]]:
    return [np.array(document, dtype=np.int64) for document in documents]


class Slow:
    """The formulas of Chen & Goodman with dictionaries, one gram at a time."""

    def __init__(self, documents: list[list[int]], order: int, prune: Gram = ()) -> None:
        # A document starts with one bos, and no gram reaches before it.
        plain = [Counter[Gram]() for _ in range(order + 1)]
        for document in documents:
            line = [BOS, *document, EOS]
            for end in range(1, len(line)):
                for size in range(1, min(order, end + 1) + 1):
                    plain[size][tuple(line[end - size + 1 : end + 1])] += 1
        self.raw, self.least = plain, [0, *prune, *[(0, *prune)[-1]] * order]
        self.counts: list[dict[Gram, int]] = [dict(grams) for grams in plain]
        for size in range(1, order):
            if plain[size + 1]:
                self.counts[size] = {
                    gram: count
                    if gram[0] == BOS
                    else len({g for g in plain[size + 1] if g[1:] == gram})
                    for gram, count in plain[size].items()
                }
        self.cuts = [self.discounts(Counter(grams.values())) for grams in self.counts]

    def discounts(self, n: Counter[int]) -> list[float]:
        if n[1] and n[2] and n[3]:
            y = n[1] / (n[1] + 2 * n[2])
            cuts = [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
            if min(cuts) > 0:
                return [0.0, *cuts]
        return [0.0, 0.5, 1.0, 1.5]

    def chance(self, context: Gram, token: int) -> float:
        counts, cuts = self.counts[len(context) + 1], self.cuts[len(context) + 1]
        lower = self.chance(context[1:], token) if context else 1 / VOCAB
        followers = {gram: count for gram, count in counts.items() if gram[:-1] == context}
        total = sum(followers.values())
        if not total:
            return lower
        size = len(context) + 1
        kept = {g: n for g, n in followers.items() if self.raw[size][g] > self.least[size]}
        mass = {gram: count - cuts[min(count, 3)] for gram, count in kept.items()}
        return (mass.get((*context, token), 0) + (total - sum(mass.values())) * lower) / total


@given(CORPUS, st.integers(1, 6), PRUNE, st.lists(st.integers(0, 8), max_size=8))
@settings(max_examples=60, deadline=None)
def test_probabilities_after_every_history_sum_to_one(
    corpus: list[list[int]], order: int, prune: Gram, document: list[int]
) -> None:
    model = fitted(corpus, order, prune)
    every = [nll(model, [*document, token])[-2] for token in range(VOCAB)]
    assert np.exp(-np.array(every)).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("prune", [(), (0, 1, 1, 2)])
def test_it_equals_the_formulas(order: int, prune: Gram) -> None:
    rng = np.random.default_rng(order)
    drawn = [rng.zipf(1.5, rng.integers(0, 12)).clip(max=6).tolist() for _ in range(80)]
    corpus, held = drawn[:60], drawn[60:]
    model, slow = fitted(corpus, order, prune), Slow(corpus, order, prune)
    for document in held:
        line = (BOS, *document, EOS)
        expected = [
            -math.log(slow.chance(line[max(0, end - order + 1) : end], line[end]))
            for end in range(1, len(line))
        ]
        np.testing.assert_allclose(nll(model, document), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("prune", [(), (0, 0, 1)])
def test_many_small_runs_give_the_same_bits_as_one(
    prune: Gram, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    corpus = [rng.zipf(1.4, rng.integers(0, 30)).clip(max=6).tolist() for _ in range(45)]
    whole = fitted(corpus, 5, prune).state_dict()
    for module in (ngram_counts, kneser_ney):
        monkeypatch.setattr(module, "CHUNK", 41)
    monkeypatch.setattr(ngram_counts, "BLOCK", 57)
    parted = fitted(corpus, 5, prune).state_dict()
    assert whole.keys() == parted.keys()
    assert all(whole[name].equal(parted[name]) for name in whole)


def test_six_tokens_of_a_large_vocabulary_are_counted() -> None:
    """Their ids need 132 bits."""
    vocab = 2**22
    last = vocab - 1
    text = np.array([last, last - 1, last, 5, last, 7, last])
    model = fit_documents([text, text], vocab_size=vocab, order=6, bos=0, eos=1)
    (losses,) = document_nll(model, [text], 0, 1)
    assert model.config.sizes == (vocab, 8, 7, 6, 5, 4)
    assert losses.max() < 2


def test_eos_is_counted_and_may_be_the_same_token_as_bos() -> None:
    model = fitted([[0, 1], [0, 1], [0, 2, 1], []], 3, bos=EOS)
    assert len(nll(model, [0, 1], EOS)) == 3
    every = [nll(model, [0, token], EOS)[1] for token in range(VOCAB)]
    assert np.exp(-np.array(every)).sum() == pytest.approx(1, abs=1e-6)
    assert nll(model, [0, 1], EOS)[-1] < math.log(2)  # a 1 is mostly the last


def test_what_cannot_be_counted_is_a_sentence() -> None:
    with pytest.raises(UserError, match="no documents"):
        fitted([], 3)
    with pytest.raises(UserError, match="token id 9 is outside a vocabulary of 9"):
        fitted([[2, 9]], 3)
    for prune, message in (
        ((1,), "must start with 0"),
        ((0, 2, 1), "must not decrease"),
        ((0, 0, 0, 0), "has 4 thresholds for 3 orders"),
    ):
        with pytest.raises(UserError, match=message):
            fit_documents(arrays([[1]]), vocab_size=VOCAB, order=3, bos=BOS, eos=EOS, prune=prune)


@pytest.mark.real
@pytest.mark.slow
def test_penn_treebank_costs_what_the_literature_says(real: Path) -> None:
    packed = (real / "ptb_lm" / f"ptb.{part}.txt.gz" for part in ("train", "test"))
    texts = (gzip.decompress(path.read_bytes()).decode() for path in packed)
    train, test = ([line.split() for line in text.splitlines()] for text in texts)
    ids: defaultdict[str, int] = defaultdict(lambda: len(ids))
    eos = ids["</s>"]
    sentences = [np.array([ids[word] for word in line], dtype=np.int64) for line in train]
    held = [np.array([ids[word] for word in line], dtype=np.int64) for line in test]
    _ = ids["never seen"]  # KenLM always has an unknown word

    def perplexity(order: int, prune: Gram = ()) -> float:
        model = fit_documents(
            sentences, vocab_size=len(ids), order=order, bos=eos, eos=eos, prune=prune
        )
        losses = np.concatenate([*document_nll(model, held, eos, eos)])
        assert len(losses) == 82_430
        return float(np.exp(losses.mean()))

    counts = np.bincount(np.concatenate([*sentences, np.full(len(sentences), eos)]))
    ends = np.concatenate([np.append(sentence, eos) for sentence in held])
    unigram = float(np.exp(Unigram.fit(np.append(counts, 0)).nll(ends).mean()))
    assert perplexity(2) < unigram / 3
    # Mikolov et al. 2011, "Empirical Evaluation and Combination of Advanced Language Modeling
    # Techniques": 148.3 for the 3-gram and 141.2 for the 5-gram. The digits are those of KenLM
    # (lmplz -o N and query, with <unk> under another name).
    assert perplexity(3) == pytest.approx(148.281494, abs=1e-4)
    assert perplexity(5) == pytest.approx(141.186202, abs=1e-4)
    assert perplexity(5, (0, 0, 1)) == pytest.approx(147.400248, abs=1e-4)
    assert perplexity(6) == pytest.approx(140.836869, abs=1e-4)
