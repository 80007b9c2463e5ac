"""An n-gram model that writes: counts of a corpus behind the same decoder as every network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.attention_mask import EMPTY_SLOT_ID
from kinfolk.batch import IGNORE_INDEX, Inputs, Output
from kinfolk.data.corpus import Corpus
from kinfolk.metrics.baselines import KneserNey
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from kinfolk.text import Tokenizer
from kinfolk.workflows.evaluate import MAX_NGRAM_TOKENS
from kinfolk.workflows.load import load

IDS, DOCUMENTS = 0, 1  # what a state carries: the last tokens, and which text each belongs to


@dataclass(frozen=True, kw_only=True)
class NGramConfig(ModelConfig):
    """How many ids an n-gram model knows; the rest of it are its counts."""

    vocab_size: int


class NGram(LanguageModel):
    """Predict a token from the few before it, as interpolated Kneser-Ney counted them.

    The hidden state of a token is its context, itself the last of it:

        ids        .   .   a   b   c        with order 3
        context               <a   <ab  <bc
    """

    architecture = "decoder"
    decoding = "causal"

    def __init__(self, counts: KneserNey) -> None:
        super().__init__()
        self.config = NGramConfig(vocab_size=counts.vocab_size)
        self.counts = counts

    def forward(self, inputs: Inputs) -> Output:
        """Find the context of every token, in its own text alone."""
        size, document = self.counts.context_size, inputs.attention_mask.document_ids
        before = self._history(inputs)
        ids = torch.cat([before[IDS], inputs.input_ids], dim=1)
        documents = torch.cat([before[DOCUMENTS], document], dim=1)
        if inputs.cache is not None:
            start = ids.shape[1] - size
            inputs.cache.extra = {IDS: ids[:, start:], DOCUMENTS: documents[:, start:]}
        own = documents.unfold(1, size, 1)[:, 1:] == document[:, :, None]
        contexts = ids.unfold(1, size, 1)[:, 1:].masked_fill(~own, self.counts.bos)
        return Output(contexts, cache=inputs.cache)  # (batch, length, history)

    def lm_logits(self, hidden: Tensor) -> "NGramPrediction":
        """Look up what was seen after each context."""
        return NGramPrediction(hidden, self.counts)

    def _history(self, inputs: Inputs) -> dict[int, Tensor]:
        """Return what stands before these tokens: of nobody's text, where a text begins."""
        if inputs.cache is not None and inputs.cache.extra:
            return inputs.cache.extra
        nothing = inputs.input_ids.new_full(
            (len(inputs.input_ids), self.counts.context_size), EMPTY_SLOT_ID
        )
        return {IDS: nothing, DOCUMENTS: nothing}


@dataclass(frozen=True, eq=False)
class NGramPrediction:
    """Log-probabilities over the vocabulary, computed when asked for."""

    contexts: Tensor  # (..., history)
    counts: KneserNey

    def logits(self) -> Tensor:
        """Return the log-probabilities: (..., vocabulary), in double precision."""
        flat = self.contexts.flatten(0, -2).numpy(force=True)
        scores = torch.from_numpy(np.log(self.counts.next_token_probs(flat)))
        return scores.view(*self.contexts.shape[:-1], -1).to(self.contexts.device)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        kept = labels != IGNORE_INDEX
        lines = torch.cat([self.contexts[kept], labels[kept][:, None]], dim=1).numpy(force=True)
        ends = np.arange(1, len(lines) + 1) * lines.shape[1] - 1
        return torch.tensor(self.counts.costs(lines.ravel(), ends).sum(), device=labels.device)


def counted(folder: Path | str, order: int = 3) -> tuple[NGram, Tokenizer]:
    """Count the grams of a corpus, of a large one those of its first documents."""
    corpus = Corpus.open(folder)
    tokenizer = corpus.tokenizer()
    eos, bos = tokenizer.special_tokens.require("eos"), tokenizer.special_tokens.bos
    limit = min(int(np.searchsorted(corpus.starts, MAX_NGRAM_TOKENS)), corpus.documents)
    counts = KneserNey.fit(
        (corpus.document(i) for i in range(limit)),
        vocab_size=corpus.vocab_size,
        order=order,
        bos=eos if bos is None else bos,
        eos=eos,
    )
    return NGram(counts), tokenizer


def opened(path: Path | str) -> tuple[Any, Tokenizer]:
    """Open what can write, with its tokenizer: a model by its folder, a corpus by its 3-grams."""
    return counted(path) if (Path(path) / "corpus.json").is_file() else load(path)
