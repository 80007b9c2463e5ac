"""N-gram models: the baselines of a loss curve, and a model that generates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.attention_mask import EMPTY_SLOT_ID
from kinfolk.batch import IGNORE_INDEX, Inputs, Output
from kinfolk.data.corpus import Corpus
from kinfolk.data.parallel_text import TargetDocuments
from kinfolk.metrics.baselines import KneserNey, entropy
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from kinfolk.objectives.evaluation import LikelihoodScores
from kinfolk.text import Tokenizer
from kinfolk.workflows.load import load

MAX_NGRAM_TOKENS = 20_000_000  # tokens that an n-gram model is fitted on: a minute, and 2 GB
COUNT_SCALE = 1 << 50  # total count that the frequencies of a mixture are scaled to
IDS, DOCUMENTS = 0, 1  # keys of the cache: the last tokens, and the document of each

CountableText = Corpus | TargetDocuments  # of pairs of texts, the targets alone are predicted


@dataclass(frozen=True, kw_only=True)
class NGramConfig(ModelConfig):
    """The vocabulary size of an n-gram model."""

    vocab_size: int


class NGram(LanguageModel):
    """Predict a token from the n - 1 before it, by interpolated Kneser-Ney smoothing.

    The hidden state of a token is its context, which ends with the token itself:

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
        """Return the context of every token within its document."""
        size, document = self.counts.context_size, inputs.attention_mask.document_ids
        before = self._history(inputs)
        ids = torch.cat([before[IDS], inputs.input_ids], dim=1)
        documents = torch.cat([before[DOCUMENTS], document], dim=1)
        if inputs.cache is not None:
            start = ids.shape[1] - size
            inputs.cache.extra = {IDS: ids[:, start:], DOCUMENTS: documents[:, start:]}
        same = documents.unfold(1, size, 1)[:, 1:] == document[:, :, None]
        contexts = ids.unfold(1, size, 1)[:, 1:].masked_fill(~same, self.counts.bos)
        return Output(contexts, cache=inputs.cache)  # (batch, length, history)

    def lm_logits(self, hidden: Tensor) -> "NGramPrediction":
        """Return the lazy log-probabilities after each context."""
        return NGramPrediction(hidden, self.counts)

    def _history(self, inputs: Inputs) -> dict[int, Tensor]:
        """Return the tokens before these and their documents; empty slots at the start."""
        if inputs.cache is not None and inputs.cache.extra:
            return inputs.cache.extra
        empty = inputs.input_ids.new_full(
            (len(inputs.input_ids), self.counts.context_size), EMPTY_SLOT_ID
        )
        return {IDS: empty, DOCUMENTS: empty}


@dataclass(frozen=True, eq=False)
class NGramPrediction:
    """Log-probabilities over the vocabulary, computed on demand."""

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


def fit_ngram(texts: Sequence[tuple[CountableText, float]], order: int = 3) -> KneserNey:
    """Count n-grams in all documents or, above MAX_NGRAM_TOKENS, in a sample by weight."""
    total = sum(weight for _, weight in texts)
    fits = sum(text.tokens for text, _ in texts) <= MAX_NGRAM_TOKENS
    sizes = [MAX_NGRAM_TOKENS if fits else MAX_NGRAM_TOKENS * weight / total for _, weight in texts]
    limits = [int(np.searchsorted(t.starts, n)) for (t, _), n in zip(texts, sizes, strict=True)]
    documents = (
        text.document(i)
        for (text, _), limit in zip(texts, limits, strict=True)
        for i in range(min(limit, text.documents))
    )
    special_tokens = texts[0][0].tokenizer().with_end_token(["eos"]).special_tokens
    eos = special_tokens.require("eos")
    bos = eos if special_tokens.bos is None else special_tokens.bos
    vocab_size = texts[0][0].vocab_size
    return KneserNey.fit(documents, vocab_size=vocab_size, order=order, bos=bos, eos=eos)


def ngram_of_corpus(folder: Path | str, order: int = 3) -> tuple[NGram, Tokenizer]:
    """Fit an n-gram model on a corpus; return it with the tokenizer."""
    corpus = Corpus.open(folder)
    return NGram(fit_ngram([(corpus, 1.0)], order)), corpus.tokenizer()


def load_or_fit(
    path: Path | str, tokenizer: Tokenizer | Path | str | None = None
) -> tuple[Any, Tokenizer]:
    """Load a model folder, or fit a 3-gram model on a corpus folder; with the tokenizer."""
    if (Path(path) / "corpus.json").is_file():
        return ngram_of_corpus(path)
    return load(path, tokenizer)


@dataclass(frozen=True)
class Baselines:
    """The two baselines of every loss curve, in nats per token.

    `unigram` is the entropy of single tokens in the text that is scored: no model of single tokens
    can be below it. `trigram` is fitted on the training text and scored on held-out text, if any.
    """

    unigram: float
    trigram: LikelihoodScores | None


def baselines(texts: Sequence[tuple[CountableText, CountableText | None, float]]) -> Baselines:
    """Return the baselines of corpora, each with its held-out documents and its weight.

    A token is weighted as its corpus is in the rows of training. The 3-gram model is fitted on the
    documents of all corpora, each once.
    """
    scored = [(held_out, weight) for _, held_out, weight in texts if held_out is not None]
    if not scored:
        return Baselines(unigram_entropy([(corpus, weight) for corpus, _, weight in texts]), None)
    model = fit_ngram([(corpus, weight) for corpus, _, weight in texts])
    total = sum(weight for _, weight in scored)
    parts = []
    for text, weight in scored:
        losses = [model.nll(text.document(i)) for i in range(text.documents)]
        nats, tokens = sum(float(x.sum()) for x in losses), sum(map(len, losses))
        parts.append((weight / total / tokens, LikelihoodScores(nats, tokens, text.bytes)))
    tokens = sum(scores.tokens for _, scores in parts)
    nats = tokens * sum(factor * scores.nats for factor, scores in parts)
    size = round(tokens * sum(factor * scores.bytes for factor, scores in parts))
    return Baselines(unigram_entropy(scored), LikelihoodScores(nats, tokens, size))


def unigram_entropy(texts: Sequence[tuple[CountableText, float]]) -> float:
    """Return the entropy of single tokens in corpora, each with its weight."""
    if len(texts) == 1:
        return entropy(texts[0][0].token_counts())
    frequencies = sum(text.token_counts() * (weight / text.tokens) for text, weight in texts)
    return entropy(np.rint(frequencies * (COUNT_SCALE / np.sum(frequencies))).astype(np.int64))
