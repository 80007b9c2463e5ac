"""Prefix language modelling (Liu et al., 2018): read the first tokens both ways, write the others.

text      the  cat  sat  down
ids       <s>  the  cat  sat  down
labels     .    .   sat  down </s>
time       0    0    0    1    2
sight     the prefix sees all of itself; the tokens after it see it and the past

How long the prefix is, is drawn: from the first token alone, which is causal language modelling, to
all but the last. It was named by Raffel et al. (2020, section 3.2.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, TokenTargets
from kinfolk.config import config
from kinfolk.data.chunks import Chunk, IntArray, Rng
from kinfolk.data.examples import pad_rows
from kinfolk.objectives.clm import CLM, Line


@dataclass(frozen=True)
class Opened(Line):
    """Tokens and the token after each; the first of them, so many, are only read."""

    prefix: int

    @property
    def order(self) -> IntArray:
        """0 in the prefix, then 1, 2, 3 ..."""
        return np.maximum(np.arange(len(self.ids)) - self.prefix + 1, 0)


@config("prefix")
class PrefixLM(CLM):
    """Predict the tokens after a prefix, and where a text ends."""

    def example(self, chunk: Chunk, rng: Rng, /) -> Opened:
        """Draw how much is only read."""
        line = super().example(chunk, rng)
        return opened(line, int(rng.integers(1, len(line.ids) + 1)))

    def collate(self, rows: Sequence[Sequence[Line]], /) -> Batch[TokenTargets]:
        """Lay lines side by side, and open the prefixes."""
        batch = super().collate(rows)
        times = [[e.order for e in row if isinstance(e, Opened)] for row in rows]
        time = pad_rows(times, self.max_length, 0).to(
            batch.inputs.attention_mask.document_ids.dtype
        )
        attention_mask = AttentionMask(batch.inputs.attention_mask.document_ids, time, time)
        inputs = Inputs(
            input_ids=batch.inputs.input_ids,
            attention_mask=attention_mask,
            position_ids=batch.inputs.position_ids,
        )
        return Batch(inputs, batch.targets, batch.counts)

    def for_evaluation(self) -> CLM:
        """Every token is predicted exactly once where no prefix is longer than its first token."""
        return CLM(
            special_tokens=self.special_tokens,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
        )


def opened(line: Line, prefix: int) -> Opened:
    """Let the first tokens be read both ways; the last of them predicts what comes after."""
    labels = line.labels.copy()
    labels[: prefix - 1] = IGNORE_INDEX
    return Opened(line.ids, labels, prefix)
