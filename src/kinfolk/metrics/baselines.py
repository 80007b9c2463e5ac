"""Baselines of every loss curve: unigram entropy and a Kneser-Ney n-gram model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.errors import UserError

Ids: TypeAlias = npt.NDArray[np.integer[Any]]
Keys: TypeAlias = npt.NDArray[np.int64]
Reals: TypeAlias = npt.NDArray[np.float64]


def entropy(counts: Ids) -> float:
    """Return the entropy of token frequencies, in nats per token."""
    frequencies = np.asarray(counts, dtype=np.float64)
    p = frequencies[frequencies > 0] / frequencies.sum()
    return float((p * np.log(1 / p)).sum())


@dataclass(frozen=True)
class Unigram:
    """Token frequencies with add-one smoothing."""

    costs: Reals  # nats, by token

    @classmethod
    def fit(cls, counts: Ids) -> "Unigram":
        """Estimate from the count of each token of the vocabulary."""
        smoothed = np.asarray(counts, dtype=np.float64) + 1
        return cls(np.log(smoothed.sum()) - np.log(smoothed))

    def nll(self, ids: Ids) -> Reals:
        """Return the negative log-likelihood of each token, in nats."""
        return self.costs[ids]


@dataclass(frozen=True)
class NGramOrder:
    """One order of the model: p(w | context) = mass(context w) + weight(context) * lower order."""

    grams: Keys
    probabilities: Reals
    contexts: Keys
    weights: Reals

    @classmethod
    def fit(cls, grams: Keys, counts: Keys, base: int) -> "NGramOrder":
        """Discount the counts of sorted n-grams; the rest is the weight of the lower order."""
        cut = discounts(counts)[np.minimum(counts, 3)]
        contexts, starts = np.unique(grams // base, return_index=True)
        totals = np.add.reduceat(counts, starts)
        weights = np.add.reduceat(cut, starts) / totals
        sizes = np.diff(starts, append=len(grams))
        return cls(grams, (counts - cut) / np.repeat(totals, sizes), contexts, weights)

    def apply(self, keys: Keys, base: int, lower: Reals) -> Reals:
        """Return the probability of each n-gram, given that of its lower order."""
        mass = look_up(self.grams, self.probabilities, keys, missing=0.0)
        weight = look_up(self.contexts, self.weights, keys // base, missing=1.0)
        return mass + weight * lower

    def distributions(self, contexts: Keys, base: int, lower: Reals) -> Reals:
        """Return the probability of every token after each context, given the lower order."""
        probs = look_up(self.contexts, self.weights, contexts, missing=1.0)[:, None] * lower
        # The n-grams of a context are contiguous.
        starts = np.searchsorted(self.grams, contexts * base)
        stops = np.searchsorted(self.grams, contexts * base + (base - 1), side="right")
        sizes = stops - starts
        rows = np.repeat(np.arange(len(contexts)), sizes)
        indices = np.arange(len(rows)) + np.repeat(stops - np.cumsum(sizes), sizes)
        probs[rows, self.grams[indices] % base] += self.probabilities[indices]
        return probs


@dataclass(frozen=True)
class KneserNey:
    """Interpolated modified Kneser-Ney (Chen & Goodman 1998, section 4.1.6) over token ids.

    An n-gram is an integer in base `vocab_size`, the last token its last digit: its context is
    `gram // vocab_size`, and the n-gram without its first token is a remainder.
    """

    vocab_size: int
    bos: int
    eos: int
    orders: tuple[NGramOrder, ...]  # the unigram first

    @property
    def context_size(self) -> int:
        """The number of tokens that a prediction is conditioned on."""
        return len(self.orders) - 1

    @classmethod
    def fit(
        cls, documents: Iterable[Ids], *, vocab_size: int, order: int = 3, bos: int, eos: int
    ) -> "KneserNey":
        """Count the n-grams of documents, each from its start to its final `eos`."""
        if order < 1 or vocab_size**order > 2**63:
            raise UserError(
                f"order {order} with a vocabulary of {vocab_size} does not fit 63 bits: "
                "use an order of at least 1 with vocab_size ** order below 2 ** 63"
            )
        tokens, ends = padded(documents, vocab_size, order - 1, bos, eos)
        if not len(ends):
            raise UserError("no documents to count: an n-gram model needs at least one")
        orders: list[NGramOrder] = []
        longer: Keys | None = None
        for size in range(order, 0, -1):
            grams, counts = np.unique(
                packed(tokens, ends, size, vocab_size, bos), return_counts=True
            )
            if not len(grams):  # every document is shorter than this order
                continue
            if longer is not None:
                continued = np.bincount(
                    np.searchsorted(grams, longer % vocab_size**size), minlength=len(grams)
                )
                # An n-gram at the start of a document has no left context and keeps its count.
                first = (grams // vocab_size ** (size - 1) == bos) & (size > 1)
                counts = np.where(first, counts, continued)
            orders.append(NGramOrder.fit(grams, counts, vocab_size))
            longer = grams
        return cls(vocab_size, bos, eos, tuple(reversed(orders)))

    def nll(self, document: Ids) -> Reals:
        """Return the negative log-likelihood of each token of a document and of its `eos`."""
        return self.costs(
            *padded([document], self.vocab_size, self.context_size, self.bos, self.eos)
        )

    def costs(self, tokens: Keys, ends: Keys) -> Reals:
        """Return the negative log-likelihood of the tokens at `ends`, each after a full context."""
        probs = np.full(len(ends), 1 / self.vocab_size)
        for size, order in enumerate(self.orders, start=1):
            keys = packed(tokens, ends, size, self.vocab_size, None)
            probs = order.apply(keys, self.vocab_size, probs)
        costs: Reals = -np.log(probs)
        return costs

    def next_token_probs(self, contexts: Keys) -> Reals:
        """Return the probability of every token after each context: (contexts, vocabulary).

        A context is the last `context_size` tokens, padded with `bos` at the start.
        """
        probs = np.full((1, self.vocab_size), 1 / self.vocab_size)
        keys = np.zeros(1, np.int64)  # the empty context of the unigram
        for size, order in enumerate(self.orders):
            if size:
                keys = contexts[:, -size] * self.vocab_size ** (size - 1) + keys
            probs = order.distributions(keys, self.vocab_size, probs)
        return np.repeat(probs, len(contexts), 0) if len(self.orders) == 1 else probs


def discounts(counts: Keys) -> Reals:
    """Return the discounts of counts of 0, 1, 2 and 3 or more (Chen & Goodman, equation 26)."""
    n1, n2, n3, n4 = (int((counts == times).sum()) for times in (1, 2, 3, 4))
    if min(n1, n2, n3):
        y = n1 / (n1 + 2 * n2)
        cuts = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        if min(cuts) > 0:
            return np.array([0.0, *cuts])
    return np.array([0.0, 0.5, 1.0, 1.5])  # too little text to estimate them


def padded(
    documents: Iterable[Ids], vocab_size: int, pads: int, bos: int, eos: int
) -> tuple[Keys, Keys]:
    """Concatenate documents with `bos` before each; return tokens and the positions scored."""
    start, end = np.full(pads, bos), np.array([eos])
    rows = [part for document in documents for part in (start, document, end)]
    if not rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    tokens = np.concatenate(rows, dtype=np.int64)
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        wrong = tokens[(tokens < 0) | (tokens >= vocab_size)][0]
        raise UserError(
            f"token id {wrong} is outside a vocabulary of {vocab_size}: check the tokenizer"
        )
    sizes = np.array([len(document) + 1 for document in rows[1::3]])
    skipped = pads * np.arange(1, len(sizes) + 1)
    return tokens, np.arange(sizes.sum()) + np.repeat(skipped, sizes)


def packed(tokens: Keys, ends: Keys, size: int, base: int, bos: int | None) -> Keys:
    """Return the n-gram that ends at each position, without those that start with `bos` twice."""
    if bos is not None and size > 2:
        ends = ends[(tokens[ends - size + 1] != bos) | (tokens[ends - size + 2] != bos)]
    keys = tokens[ends - size + 1]
    for back in range(size - 2, -1, -1):
        keys = keys * base + tokens[ends - back]
    return keys


def look_up(keys: Keys, values: Reals, wanted: Keys, *, missing: float) -> Reals:
    """Return the value of each wanted key, or `missing`; the keys are sorted."""
    indices = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[indices] == wanted, values[indices], missing)
