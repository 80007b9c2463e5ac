"""The n-gram models under the loss curves, against the formulas and a published figure."""

import gzip
import math
import resource
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.baselines import KneserNey, Unigram, entropy

Gram = tuple[int, ...]
VOCAB, BOS, EOS = 9, 7, 8
CORPUS = st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=30)


def arrays(documents: list[list[int]]) -> list[npt.NDArray[np.int64]]:
    return [np.array(document, dtype=np.int64) for document in documents]


class Slow:
    """The formulas of Chen & Goodman with dictionaries, one gram at a time."""

    def __init__(self, documents: list[list[int]], order: int) -> None:
        # A document starts with one bos, and no gram reaches before it.
        plain = [Counter[Gram]() for _ in range(order + 1)]
        for document in documents:
            line = [BOS, *document, EOS]
            for end in range(1, len(line)):
                for size in range(1, min(order, end + 1) + 1):
                    plain[size][tuple(line[end - size + 1 : end + 1])] += 1
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
        saved = sum(cuts[min(count, 3)] for count in followers.values())
        count = followers.get((*context, token), 0)
        return (count - cuts[min(count, 3)]) / total + saved / total * lower


@given(CORPUS, st.integers(1, 4), st.lists(st.integers(0, 6), max_size=8))
@settings(max_examples=40)
def test_chances_over_the_vocabulary_sum_to_one(
    corpus: list[list[int]], order: int, document: list[int]
) -> None:
    model = KneserNey.fit(arrays(corpus), vocab_size=VOCAB, order=order, bos=BOS, eos=EOS)
    every = [model.nll(np.array([*document, token], dtype=np.int64))[-2] for token in range(VOCAB)]
    assert np.exp(-np.array(every)).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_the_formulas(order: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = [rng.zipf(1.5, rng.integers(0, 12)).clip(max=6).tolist() for _ in range(80)]
    corpus, held = drawn[:60], drawn[60:]
    model = KneserNey.fit(arrays(corpus), vocab_size=VOCAB, order=order, bos=BOS, eos=EOS)
    slow = Slow(corpus, order)
    for document in held:
        line = (BOS, *document, EOS)
        expected = [
            -math.log(slow.chance(line[max(0, end - order + 1) : end], line[end]))
            for end in range(1, len(line))
        ]
        np.testing.assert_allclose(model.nll(np.array(document, np.int64)), expected, rtol=1e-12)


def test_eos_is_counted_and_may_be_the_same_token_as_bos() -> None:
    model = KneserNey.fit(arrays([[0, 1], [0, 1], [0, 2, 1], []]), vocab_size=4, bos=3, eos=3)
    assert len(model.nll(np.array([0, 1]))) == 3
    every = [model.nll(np.array([0, token]))[1] for token in range(4)]
    assert np.exp(-np.array(every)).sum() == pytest.approx(1, abs=1e-12)
    assert model.nll(np.array([0, 1]))[-1] < math.log(2)  # a 1 is mostly the last


def test_what_does_not_fit_is_a_sentence() -> None:
    with pytest.raises(UserError, match="63 bits"):
        KneserNey.fit([], vocab_size=200_000, order=4, bos=0, eos=1)
    with pytest.raises(UserError, match="no documents"):
        KneserNey.fit([], vocab_size=5, bos=0, eos=1)
    with pytest.raises(UserError, match="token id 5 is outside a vocabulary of 5"):
        KneserNey.fit([np.array([2, 5])], vocab_size=5, bos=0, eos=1)


def test_unigram_costs_approach_the_entropy() -> None:
    counts = np.array([500_000, 300_000, 200_000])
    ids = np.repeat([0, 1, 2], [5, 3, 2])
    assert Unigram.fit(counts).nll(ids).mean() == pytest.approx(entropy(counts), abs=1e-5)
    assert entropy(np.array([4, 4, 0, 4, 4])) == pytest.approx(math.log(4))
    assert np.isfinite(Unigram.fit(np.array([3, 0])).nll(np.array([1]))).all()


@pytest.mark.real
@pytest.mark.slow
def test_penn_treebank_costs_what_the_literature_says(real: Path) -> None:
    packed = (real / "ptb_lm" / f"ptb.{part}.txt.gz" for part in ("train", "test"))
    texts = (gzip.decompress(path.read_bytes()).decode() for path in packed)
    train, test = ([line.split() for line in text.splitlines()] for text in texts)
    ids: defaultdict[str, int] = defaultdict(lambda: len(ids))
    bos, eos = ids["<s>"], ids["</s>"]
    sentences = [np.array([ids[word] for word in line], dtype=np.int64) for line in train]
    held = [np.array([ids[word] for word in line], dtype=np.int64) for line in test]

    def perplexity(order: int) -> float:
        model = KneserNey.fit(sentences, vocab_size=len(ids), order=order, bos=bos, eos=eos)
        return float(np.exp(np.concatenate([model.nll(sentence) for sentence in held]).mean()))

    counts = np.bincount(np.concatenate([*sentences, np.full(len(sentences), eos)]))
    ends = np.concatenate([np.append(sentence, eos) for sentence in held])
    unigram = float(np.exp(Unigram.fit(counts).nll(ends).mean()))
    assert perplexity(2) < unigram / 3
    # Mikolov et al. 2011, "Empirical Evaluation and Combination of Advanced Language Modeling
    # Techniques": 148.3 for the 3-gram and 141.2 for the 5-gram.
    assert perplexity(3) == pytest.approx(148.3, rel=0.02)
    assert perplexity(4) == pytest.approx(142, rel=0.03)


@pytest.mark.slow
def test_five_million_tokens_take_seconds() -> None:
    rng = np.random.default_rng(0)
    tokens = (50_000 * rng.random(5_000_000) ** 4).astype(np.uint16)
    before = time.process_time()
    KneserNey.fit(np.array_split(tokens, 5_000), vocab_size=50_257, bos=50_256, eos=50_256)
    assert time.process_time() - before < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3e6  # kilobytes
