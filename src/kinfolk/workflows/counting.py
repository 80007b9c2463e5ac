"""The step of a run that counts: one more order of n-grams."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.batch import Batch, Loss
from kinfolk.data.corpus import Corpus
from kinfolk.data.ngram_counts import NGramCounter, TokenBlock
from kinfolk.errors import UserError
from kinfolk.families.ngram import NGram, NGramConfig
from kinfolk.objectives.objective import Objective
from kinfolk.training.step import StepOutput
from kinfolk.types import IntArray
from kinfolk.workflows.baselines import count_model, document_nll, end_ids

TRAINING_SAMPLE = 1 << 18  # first tokens of a corpus, whose documents the training loss is of


@dataclass(kw_only=True)
class CountingStep:
    """Count one more order, and estimate the model of all orders so far."""

    config: NGramConfig  # of the last step
    objective: Objective
    corpora: Sequence[Corpus]
    source: Sequence[str]  # hashes of the corpora
    folder: Path  # of the counts, which a resumed run reads
    model: Callable[[], NGram]  # returns the newest
    on_model: Callable[[NGram], None]  # receives that of each step

    def __call__(self, number: int, batches: Sequence[Batch[Any]]) -> StepOutput:
        order = number + 1
        bos, eos = end_ids(self.corpora[0])
        counter = NGramCounter(
            self.folder,
            self._blocks,
            vocab_size=self.config.vocab_size,
            bos=bos,
            eos=eos,
            source=self.source,
            durable=True,
        )
        # Thresholds of longer n-grams do not apply yet.
        c = replace(self.config, order=order, prune=self.config.prune[:order])
        try:
            self.on_model(count_model(counter, c, self.folder / f"{order}.safetensors").eval())
        except OSError as error:  # numpy writes without an error number
            raise UserError(
                f"{order}-grams could not be counted in {self.folder} ({error}): free some space "
                "and resume the run"
            ) from error
        losses = np.concatenate([*document_nll(self.model(), self._sample(), bos, eos)])
        tokens = sum(corpus.tokens + corpus.documents for corpus in self.corpora)
        counts = {self.objective.loss_name: len(losses)}
        return StepOutput(torch.tensor(losses.mean()), None, {}, counts, None, tokens)

    def forward(self, batch: Batch[Any]) -> Loss:
        """Return the loss of a batch."""
        return self.objective.loss(self.model(), batch)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: counts follow from the corpora."""
        return {}

    def load_state_dict(self, state: Any) -> bool:
        """Restore nothing."""
        return state == {}

    def _blocks(self) -> Iterator[TokenBlock]:
        for corpus in self.corpora:
            yield from corpus.blocks()

    def _sample(self) -> Iterator[IntArray]:
        """Yield the first documents of each corpus; of a longer first one, its beginning."""
        for corpus in self.corpora:
            for ids, ends in islice(corpus.blocks(), 1):
                ends = ends[ends <= TRAINING_SAMPLE]
                bounds = [0, *ends.tolist()] if len(ends) else [0, TRAINING_SAMPLE]
                yield from (ids[start:end] for start, end in pairwise(bounds))
