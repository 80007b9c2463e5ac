"""Interpolated modified Kneser-Ney smoothing (Chen & Goodman 1998, section 4.1.6) of n-gram counts.

    p(w | h) = (c(h w) - D(c)) / c(h .) + weight(h) * p(w | h without its first token)

The counts of the longest n-grams are those of the text. A shorter one counts the distinct tokens
before it, except at the start of a document, where there is none. The single tokens are
interpolated with the uniform distribution over the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.data.ngram_counts import (
    CHUNK,
    NGramCounter,
    NumberFile,
    OrderCounts,
    gather,
    occurrences,
)
from kinfolk.types import FloatArray, IntArray

FALLBACK = (0.0, 0.5, 1.0, 1.5)  # discounts where there is too little text to estimate them


@dataclass(frozen=True)
class OrderEstimate:
    """The n-grams that a model keeps of one order, in files; logarithms are natural."""

    keys: NumberFile
    log_probs: NumberFile
    backoffs: NumberFile | None  # log weights of the order above; None for the longest n-grams

    def __len__(self) -> int:
        return len(self.log_probs)


def estimate(counter: NGramCounter, order: int, prune: Sequence[int] = ()) -> list[OrderEstimate]:
    """Estimate a model from counts; return its orders, single tokens first.

    `prune` has a threshold for each order, and the last one serves all orders above: n-grams that
    occur at most as often are left out, as by KenLM's `--prune`. The first is 0, and none is less
    than the one before, so that no context of an n-gram that is kept is left out.
    """
    thresholds = [*prune, *[prune[-1] if prune else 0] * (order - len(prune))]
    orders = [counter.count(size) for size in range(1, order + 1)]
    first = (counter.bos, counter.bos + 1)  # n-grams that begin with bos: a range of every order
    probs = _unigrams(counter, orders)
    for counts, below in zip(orders[1:], orders, strict=False):
        bounds = [_start_of_context(counts, context, counter.vocab_size) for context in first]
        first = (bounds[0], bounds[1])
        adjusted = _adjusted(counts, orders, first)
        probs = _interpolate(
            counts, below, adjusted, probs, counter.vocab_size, thresholds[counts.order - 1]
        )
    return _kept(orders, thresholds, counter.vocab_size)


def discounts(counts_of_counts: IntArray) -> FloatArray:
    """Return the discounts of counts of 0, 1, 2 and 3 or more (Chen & Goodman, equation 26).

    `counts_of_counts` says how many n-grams have a count of 0, 1, 2, 3 and 4.
    """
    _, n1, n2, n3, n4 = (int(number) for number in counts_of_counts[:5])
    if min(n1, n2, n3):
        y = n1 / (n1 + 2 * n2)
        cuts = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        if min(cuts) > 0:
            return np.array([0.0, *cuts])
    return np.array(FALLBACK)


def _discounts_of(counts: NumberFile) -> FloatArray:
    totals = np.zeros(6, np.int64)
    for _, part in counts.chunks():
        totals += np.bincount(np.minimum(part, 5), minlength=6)
    return discounts(totals)


def _unigrams(counter: NGramCounter, orders: Sequence[OrderCounts]) -> NumberFile:
    """Write the probabilities of single tokens."""
    adjusted = _adjusted(orders[0], orders, (0, 0))
    counts, cuts = adjusted.read(0, counter.vocab_size), _discounts_of(adjusted)
    cut = cuts[np.minimum(counts, 3)]
    total = counts.sum()
    probs = (counts - cut) / total + cut.sum() / total / counter.vocab_size
    return orders[0].file("probs", np.float64).write([probs])


def _adjusted(
    counts: OrderCounts, orders: Sequence[OrderCounts], first: tuple[int, int]
) -> NumberFile:
    """Return the counts that an order is estimated from."""
    if counts.order == len(orders):
        return counts.counts

    def parts() -> Iterator[IntArray]:
        done = 0
        for part in occurrences(orders[counts.order].suffixes, len(counts)):
            low, high = (min(max(bound - done, 0), len(part)) for bound in first)
            if low < high:
                part[low:high] = counts.counts.read(done + low, done + high)
            done += len(part)
            yield part

    return counts.file("adjusted").write(parts())


def _start_of_context(counts: OrderCounts, context: int, vocab_size: int) -> int:
    """Return the index of the first n-gram whose context is not before this one."""
    low, high = 0, len(counts)
    while low < high:
        middle = (low + high) // 2
        if counts.keys.read(middle, middle + 1)[0] < context * vocab_size:
            low = middle + 1
        else:
            high = middle
    return low


def _interpolate(
    counts: OrderCounts,
    below: OrderCounts,
    adjusted: NumberFile,
    lower: NumberFile,
    vocab_size: int,
    threshold: int,
) -> NumberFile:
    """Write the probabilities of an order, and the weight of each context in the order below."""
    cuts = _discounts_of(adjusted)
    suffix_probs = gather(lower, counts.suffixes, counts.file("lower", np.float64))
    weights = below.file("weights", np.float64)
    with weights.path.open("wb") as file:
        written = 0  # contexts whose weight is in the file

        def write_weights(contexts: IntArray, values: FloatArray, stop: int) -> None:
            nonlocal written
            all_weights = np.ones(stop - written)  # a context without n-grams passes all mass on
            all_weights[contexts - written] = values
            all_weights.tofile(file)
            written = stop

        def parts() -> Iterator[FloatArray]:
            for start, keys in whole_contexts(counts.keys, vocab_size):
                stop = start + len(keys)
                of_context, raw = adjusted.read(start, stop), counts.counts.read(start, stop)
                contexts, starts = np.unique(keys // vocab_size, return_index=True)
                totals = np.add.reduceat(of_context, starts)
                cut = np.where(raw > threshold, cuts[np.minimum(of_context, 3)], of_context)
                weight = np.add.reduceat(cut, starts) / totals
                write_weights(contexts, weight, int(contexts[-1]) + 1)
                sizes = np.diff(starts, append=len(keys))
                mass = (of_context - cut) / np.repeat(totals, sizes)
                yield mass + np.repeat(weight, sizes) * suffix_probs.read(start, stop)

        probs = counts.file("probs", np.float64).write(parts())
        for start in range(written, len(below), CHUNK):
            np.ones(min(CHUNK, len(below) - start)).tofile(file)
    suffix_probs.path.unlink()
    return probs


def whole_contexts(keys: NumberFile, vocab_size: int) -> Iterator[tuple[int, IntArray]]:
    """Yield the n-grams in parts that divide no context, each with its start."""
    start, total = 0, len(keys)
    while start < total:
        room = CHUNK
        while True:
            part = keys.read(start, min(start + room, total))
            if start + len(part) == total:
                break
            context = part[-1] // vocab_size
            cut = int(np.searchsorted(part, context * vocab_size))
            if cut:
                part = part[:cut]
                break
            room *= 2  # one context fills the part
        yield start, part
        start += len(part)


def _kept(
    orders: Sequence[OrderCounts], thresholds: Sequence[int], vocab_size: int
) -> list[OrderEstimate]:
    """Write logarithms, without the pruned n-grams."""
    estimates: list[OrderEstimate] = []
    for counts, threshold in zip(orders, thresholds, strict=True):
        is_longest = counts.order == len(orders)
        keys = counts.keys
        if threshold:
            keys = _renumbered(counts, orders[counts.order - 2], thresholds, vocab_size)
        probs, weights = (counts.file(name, np.float64) for name in ("probs", "weights"))
        log_probs = counts.file("log_probs", np.float32).write(_logs(counts, probs, threshold))
        backoffs = None
        if not is_longest:
            backoffs = counts.file("backoffs", np.float32)
            backoffs.write(_logs(counts, weights, threshold))
        estimates.append(OrderEstimate(keys, log_probs, backoffs))
    return estimates


def _logs(counts: OrderCounts, values: NumberFile, threshold: int) -> Iterator[FloatArray]:
    for start, part in values.chunks():
        if threshold:
            part = part[counts.counts.read(start, start + len(part)) > threshold]
        yield np.log(part)


def _renumbered(
    counts: OrderCounts, below: OrderCounts, thresholds: Sequence[int], vocab_size: int
) -> NumberFile:
    """Write the n-grams that are kept; their contexts are numbered among those that are kept."""
    threshold = thresholds[counts.order - 1]
    # Single tokens are all kept, those that do not occur as well.
    context_threshold = thresholds[counts.order - 2] if below.order > 1 else -1

    def parts() -> Iterator[IntArray]:
        passed = kept = 0  # contexts before the part, and those that are kept
        for start, keys in counts.keys.chunks():
            keys = keys[counts.counts.read(start, start + len(keys)) > threshold]
            if not len(keys):
                continue
            contexts, tokens = keys // vocab_size, keys % vocab_size
            while passed < contexts[0]:
                step = min(passed + CHUNK, int(contexts[0]))
                kept += int((below.counts.read(passed, step) > context_threshold).sum())
                passed = step
            occur = below.counts.read(passed, int(contexts[-1]) + 1)
            numbers = kept + np.cumsum(occur > context_threshold) - 1
            yield numbers[contexts - passed] * vocab_size + tokens

    return counts.file("kept").write(parts())
