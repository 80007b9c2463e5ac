"""A linear-chain conditional random field over the tags of texts (Lafferty et al., 2001).

The score of a sequence of tags is the sum of the emission of each tag at its word, of the
transition between each pair of neighbours, and of the first and the last tag. Texts come as
`PackedTexts` orders them, so that a step over all texts is one operation without padding.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from kinfolk.packed_texts import PackedTexts

INSIDE = ("I-", "E-", "M-", "L-")  # prefixes of words that continue a span
OPEN = ("B-", "I-", "M-")  # prefixes of words that the next one may continue
FORBIDDEN = -1e4  # the score of a transition that is never taken


def bio_transitions(labels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the scores of tags as the first one and of pairs: 0, or `FORBIDDEN`.

    A word inside a span follows a word of a span of the same type: B-PER I-PER, never O I-PER.
    """
    inside = torch.tensor([label.startswith(INSIDE) for label in labels])
    follows = torch.tensor(
        [
            [before.startswith(OPEN) and before[2:] == label[2:] for label in labels]
            for before in labels
        ]
    )
    return FORBIDDEN * inside.float(), FORBIDDEN * (inside & ~follows).float()


class CRF(nn.Module):
    """Scores of first tags, of last tags and of transitions between tags."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(num_labels))
        self.last = nn.Parameter(torch.zeros(num_labels))
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))  # (before, after)

    def nll(self, emissions: Tensor, tags: Tensor, texts: PackedTexts) -> Tensor:
        """Return the summed -log p(tags) of all texts; emissions are (words, labels), packed."""
        return (self.log_partition(emissions, texts) - self.score(emissions, tags, texts)).sum()

    def score(self, emissions: Tensor, tags: Tensor, texts: PackedTexts) -> Tensor:
        """Return the score of the tags of each text: (texts,)."""
        sizes, words = texts.batch_sizes, torch.arange(len(tags))
        first = int(sizes[0])
        # A word of a step follows the word of its text in the step before, whose size is between.
        before = words[first:] - torch.repeat_interleave(sizes[:-1], sizes[1:])
        # index_select and not first[tags], whose gradient adds up in no fixed order where tags
        # repeat and the CPU has several threads.
        pairs = tags[before.to(tags.device)] * len(self.first) + tags[first:]
        changes = torch.cat(
            [
                self.first.index_select(0, tags[:first]),
                self.transitions.flatten().index_select(0, pairs),
            ]
        )
        of_words = emissions.gather(1, tags[:, None])[:, 0] + changes
        scores = of_words.new_zeros(first).index_add(0, texts.text_ids, of_words)
        last = torch.zeros_like(texts.text_ids[:first])
        last = last.scatter_reduce(0, texts.text_ids, words.to(last), "amax")
        return scores + self.last.index_select(0, tags[last])

    def log_partition(self, emissions: Tensor, texts: PackedTexts) -> Tensor:
        """Return the log of the summed exp(score) over all sequences of tags: (texts,)."""
        alpha = emissions[:0]
        for step in steps(texts):
            size = step.stop - step.start
            if not len(alpha):
                alpha = self.first + emissions[step]
                continue
            pairs = alpha[:size, :, None] + self.transitions  # (texts, before, after)
            alpha = torch.cat([pairs.logsumexp(1) + emissions[step], alpha[size:]])
        return (alpha + self.last).logsumexp(1)

    def marginals(self, emissions: Tensor, texts: PackedTexts) -> Tensor:
        """Return the probability of each tag at each word: the gradient of the log-partition."""
        with torch.enable_grad():
            leaf = emissions.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.log_partition(leaf, texts).sum(), leaf)
        return found

    @torch.no_grad()
    def decode(
        self,
        emissions: Tensor,
        texts: PackedTexts,
        constraint: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the tags with the highest score (Viterbi), in the order of the emissions.

        `constraint` has scores that are added to those of first tags and of transitions.
        """
        barred = (0.0, 0.0) if constraint is None else [c.to(emissions) for c in constraint]
        first, transitions = self.first + barred[0], self.transitions + barred[1]
        best = emissions[:0]
        pointers: list[Tensor] = []  # of each step after the first: the best tag before each tag
        for step in steps(texts):
            size = step.stop - step.start
            if not len(best):
                best = first + emissions[step]
                continue
            scores, pointer = (best[:size, :, None] + transitions).max(1)
            pointers.append(pointer)
            best = torch.cat([scores + emissions[step], best[size:]])
        tag = (best + self.last).argmax(1)
        tags = torch.empty(len(emissions), dtype=torch.int64, device=emissions.device)
        for step in reversed([*steps(texts)]):
            size = step.stop - step.start
            tags[step] = tag[:size]
            if pointers:
                before = pointers.pop().gather(1, tag[:size, None])[:, 0]
                tag = torch.cat([before, tag[size:]])
        return tags


def steps(texts: PackedTexts) -> Iterator[slice]:
    """Yield the words of each step over all texts: all first ones, all second ones ..."""
    start = 0
    for size in texts.batch_sizes.tolist():
        yield slice(start, start + size)
        start += size
