"""Models that count tokens: the baselines of a loss curve, and an n-gram model that generates."""

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
COUNT_SCALE = 1 << 50  # tokens that a mixture is scaled to, so that shares become counts
IDS, DOCUMENTS = 0, 1  # keys of the cache: the last tokens, and the document of each

CountableText = Corpus | TargetDocuments  # of pairs of texts, the targets alone are predicted


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


def fit_ngram(texts: Sequence[tuple[CountableText, float]], order: int = 3) -> KneserNey:
    """Count n-grams in all documents or, where there are too many, in some by weight."""
    total = sum(weight for _, weight in texts)
    fits = sum(text.tokens for text, _ in texts) <= MAX_NGRAM_TOKENS
    sizes = [MAX_NGRAM_TOKENS if fits else MAX_NGRAM_TOKENS * weight / total for _, weight in texts]
    limits = [int(np.searchsorted(t.starts, n)) for (t, _), n in zip(texts, sizes, strict=True)]
    documents = (
        text.document(i)
        for (text, _), limit in zip(texts, limits, strict=True)
        for i in range(min(limit, text.documents))
    )
    special_tokens = texts[0][0].tokenizer().special_tokens
    eos = special_tokens.require("eos")
    bos = eos if special_tokens.bos is None else special_tokens.bos
    vocab_size = texts[0][0].vocab_size
    return KneserNey.fit(documents, vocab_size=vocab_size, order=order, bos=bos, eos=eos)


def ngram_of_corpus(folder: Path | str, order: int = 3) -> tuple[NGram, Tokenizer]:
    """Fit an n-gram model on a corpus; return it with the tokenizer."""
    corpus = Corpus.open(folder)
    return NGram(fit_ngram([(corpus, 1.0)], order)), corpus.tokenizer()


def load_or_fit(path: Path | str) -> tuple[Any, Tokenizer]:
    """Load a model folder, or fit a 3-gram model on a corpus folder; with the tokenizer."""
    return ngram_of_corpus(path) if (Path(path) / "corpus.json").is_file() else load(path)


@dataclass(frozen=True)
class Baselines:
    """The two baselines of every loss curve, in nats a token.

    `unigram` is the entropy of single tokens in the text that is scored: no model of single tokens
    can be below it. `trigram` is fitted on the training text and scored on held-out text, if any.
    """

    unigram: float
    trigram: LikelihoodScores | None


def baselines(corpus: CountableText, held_out: CountableText | None) -> Baselines:
    """Return the unigram entropy, and the loss of a 3-gram model on held-out text."""
    return mixture_baselines([(corpus, held_out, 1.0)])


def mixture_baselines(
    texts: Sequence[tuple[CountableText, CountableText | None, float]],
) -> Baselines:
    """Return the baselines of a mixture: each corpus, what it holds out, and its weight.

    A token is weighted as its corpus is in the rows of training. The 3-gram model is fitted on the
    documents of all corpora, each once.
    """
    scored = [(held_out, weight) for _, held_out, weight in texts if held_out is not None]
    if not scored:
        return Baselines(unigram_entropy([(corpus, weight) for corpus, _, weight in texts]), None)
    model = fit_ngram([(corpus, weight) for corpus, _, weight in texts])
    whole = sum(weight for _, weight in scored)
    found = []
    for text, weight in scored:
        losses = [model.nll(text.document(i)) for i in range(text.documents)]
        nats, tokens = sum(float(x.sum()) for x in losses), sum(map(len, losses))
        found.append((weight / whole / tokens, LikelihoodScores(nats, tokens, text.bytes)))
    tokens = sum(one.tokens for _, one in found)
    nats = tokens * sum(share * one.nats for share, one in found)
    size = round(tokens * sum(share * one.bytes for share, one in found))
    return Baselines(unigram_entropy(scored), LikelihoodScores(nats, tokens, size))


def unigram_entropy(texts: Sequence[tuple[CountableText, float]]) -> float:
    """Return the entropy of single tokens in corpora, each with its weight."""
    if len(texts) == 1:
        return entropy(texts[0][0].token_counts())
    shares = sum(text.token_counts() * (weight / text.tokens) for text, weight in texts)
    return entropy(np.rint(shares * (COUNT_SCALE / np.sum(shares))).astype(np.int64))
