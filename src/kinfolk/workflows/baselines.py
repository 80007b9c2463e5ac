"""N-gram models that are counted at once: the baselines of a loss curve, a model of a corpus."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.data.corpus import Corpus
from kinfolk.data.ngram_counts import NGramCounter, TokenBlock
from kinfolk.data.parallel_text import TargetDocuments
from kinfolk.families.ngram import NGram, NGramConfig
from kinfolk.hub.weights import write_safetensors
from kinfolk.metrics.baselines import Ids, Unigram, entropy
from kinfolk.metrics.kneser_ney import OrderEstimate, estimate
from kinfolk.nn.meta import meta_network
from kinfolk.objectives.evaluation import LikelihoodScores
from kinfolk.text import Tokenizer
from kinfolk.types import FloatArray
from kinfolk.workflows.load import load

MAX_NGRAM_TOKENS = 20_000_000  # tokens that the 3-gram model of a report is counted on: a minute
SCORED_TOKENS = 1 << 20  # of documents that are scored at once; many are found faster together
COUNT_SCALE = 1 << 50  # total count that the frequencies of a mixture are scaled to

CountableText = Corpus | TargetDocuments  # of pairs of texts, the targets alone are predicted


def end_ids(text: CountableText) -> tuple[int, int]:
    """Return the ids before and after a document."""
    special_tokens = text.tokenizer().with_end_token(["eos"]).special_tokens
    eos = special_tokens.require("eos")
    return eos if special_tokens.bos is None else special_tokens.bos, eos


def count_model(counter: NGramCounter, c: NGramConfig, file: Path) -> NGram:
    """Count and estimate a model into a file; return the network, mapped from it."""
    return open_estimates(estimate(counter, c.order, c.prune), c, file)


def open_estimates(orders: Sequence[OrderEstimate], c: NGramConfig, file: Path) -> NGram:
    """Write what was estimated as the weights of a network, and open it."""
    columns: dict[str, tuple[int, str, Any]] = {}
    for n, order in enumerate(orders):
        parts: dict[str, tuple[str, Any]] = {"log_probs": ("F32", order.log_probs)}
        if n:
            parts["keys"] = ("I64", order.keys)
        if order.backoffs is not None:
            parts["backoffs"] = ("F32", order.backoffs)
        for name, (dtype, numbers) in parts.items():
            chunks = (part for _, part in numbers.chunks())
            columns[f"orders.{n}.{name}"] = (len(order), dtype, chunks)
    write_safetensors(file, columns)
    model: Any = meta_network(replace(c, sizes=tuple(map(len, orders))))
    model.load_state_dict(load_file(file), assign=True)  # mapped, not read
    model.weights_file = file
    return model


def fit_documents(
    documents: Iterable[Ids],
    *,
    vocab_size: int,
    order: int = 3,
    bos: int,
    eos: int,
    prune: Sequence[int] = (),
) -> NGram:
    """Count the n-grams of documents, each from its start to its final `eos`."""
    blocks = ((np.asarray(ids, np.int64), np.array([len(ids)])) for ids in documents)
    c = NGramConfig(vocab_size=vocab_size, order=order, prune=tuple(prune))
    return _fit(blocks, c, bos, eos)


def _fit(blocks: Iterable[TokenBlock], c: NGramConfig, bos: int, eos: int) -> NGram:
    with tempfile.TemporaryDirectory(prefix="kinfolk-ngram-") as folder:
        counter = NGramCounter(
            Path(folder) / "counts", lambda: blocks, vocab_size=c.vocab_size, bos=bos, eos=eos
        )
        model = count_model(counter, c, Path(folder) / "weights.safetensors")
    model.weights_file = None  # the mapped file is removed
    return model.eval()


def fit_ngram(texts: Sequence[tuple[CountableText, float]], order: int = 3) -> NGram:
    """Count n-grams in all documents or, above MAX_NGRAM_TOKENS, in a sample by weight."""
    total = sum(weight for _, weight in texts)
    fits = sum(text.tokens for text, _ in texts) <= MAX_NGRAM_TOKENS
    sizes = [MAX_NGRAM_TOKENS if fits else MAX_NGRAM_TOKENS * weight / total for _, weight in texts]
    limits = [int(np.searchsorted(t.starts, n)) for (t, _), n in zip(texts, sizes, strict=True)]
    blocks = (
        block
        for (text, _), limit in zip(texts, limits, strict=True)
        for block in text.blocks(min(limit, text.documents))
    )
    c = NGramConfig(vocab_size=texts[0][0].vocab_size, order=order)
    return _fit(blocks, c, *end_ids(texts[0][0]))


def document_nll(
    model: NGram, documents: Iterable[Ids], bos: int, eos: int
) -> Iterator[FloatArray]:
    """Yield the negative log-likelihood of each token of each document and of its `eos`."""
    group, tokens = list[Ids](), 0
    for ids in documents:
        group.append(ids)
        tokens += len(ids) + 1
        if tokens >= SCORED_TOKENS:
            yield from _group_nll(model, group, bos, eos)
            group, tokens = [], 0
    if group:
        yield from _group_nll(model, group, bos, eos)


@torch.no_grad()
def _group_nll(model: NGram, documents: Sequence[Ids], bos: int, eos: int) -> list[FloatArray]:
    start, end = np.array([bos]), np.array([eos])
    parts = [part for ids in documents for part in (start, ids, end)]
    sizes = np.array([len(ids) + 1 for ids in documents])
    document_ids = torch.from_numpy(np.repeat(np.arange(len(documents)), sizes + 1))[None]
    input_ids = torch.from_numpy(np.concatenate(parts, dtype=np.int64))
    inputs = Inputs(
        input_ids=input_ids[None],
        attention_mask=AttentionMask(document_ids, document_ids, document_ids),
        position_ids=document_ids,
    )
    hidden = model(inputs).hidden[0]
    nll = (
        model.lm_logits(hidden).token_nll(hidden[:-1], input_ids[1:], hidden[1:]).numpy(force=True)
    )
    # The first token of each document is not predicted.
    ends = np.cumsum(sizes + 1) - 1
    return [nll[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


def score_text(model: NGram, text: CountableText) -> LikelihoodScores:
    """Score whole documents, each from its start to its end."""
    documents = (text.document(i) for i in range(text.documents))
    nats, tokens = 0.0, 0
    for nll in document_nll(model, documents, *end_ids(text)):
        nats, tokens = nats + float(nll.sum()), tokens + len(nll)
    return LikelihoodScores(nats, tokens, text.bytes)


def document_scores(model: NGram | Unigram, text: CountableText) -> list[tuple[float, float]]:
    """Return nats and bytes of each document, each scored from its start to its end."""
    documents = [text.document(i) for i in range(text.documents)]
    bos, eos = end_ids(text)
    if isinstance(model, Unigram):
        nats = [float(model.nll(np.append(ids, eos)).sum()) for ids in documents]
    else:
        nats = [float(nll.sum()) for nll in document_nll(model, documents, bos, eos)]
    sizes = document_bytes(documents, text.tokenizer(), text.bytes)
    return list(zip(nats, sizes.tolist(), strict=True))


def document_bytes(documents: Sequence[Ids], tokenizer: Tokenizer, total: int) -> FloatArray:
    """Return the bytes of each document, `total` in all.

    A corpus has only the total on disk. Tokens of a tokenizer that loses nothing give the text
    back; where some is lost, documents share the total by what is left.
    """
    sizes = np.array(
        [len(tokenizer.decode(ids, add_special_tokens=True).encode()) for ids in documents], float
    )
    return sizes * (total / sizes.sum())


def fit_unigram(texts: Sequence[CountableText]) -> Unigram:
    """Count the tokens of documents, and their ends, with add-one smoothing."""
    counts = np.sum([text.token_counts() for text in texts], axis=0)
    counts[end_ids(texts[0])[1]] += sum(text.documents for text in texts)
    return Unigram.fit(counts)


def score_mixture(model: NGram, texts: Sequence[tuple[CountableText, float]]) -> LikelihoodScores:
    """Score texts; a token is weighted as its text is in the rows of training."""
    total = sum(weight for _, weight in texts)
    parts = [(weight / total, score_text(model, text)) for text, weight in texts]
    tokens = sum(scores.tokens for _, scores in parts)
    nats = tokens * sum(share * scores.nats / scores.tokens for share, scores in parts)
    size = tokens * sum(share * scores.bytes / scores.tokens for share, scores in parts)
    return LikelihoodScores(nats, tokens, round(size))


def ngram_of_corpus(folder: Path | str, order: int = 3) -> tuple[NGram, Tokenizer]:
    """Fit an n-gram model on a corpus; return it with the tokenizer."""
    corpus = Corpus.open(folder)
    return fit_ngram([(corpus, 1.0)], order), corpus.tokenizer()


def load_or_fit(
    path: Path | str, tokenizer: Tokenizer | Path | str | None = None
) -> tuple[Any, Tokenizer]:
    """Load a model folder, or fit a 3-gram model on a corpus folder; with the tokenizer."""
    if (Path(path) / "corpus.json").is_file():
        return ngram_of_corpus(path)
    return load(path, tokenizer)


class Baselines:
    """The two baselines of every loss curve, in nats per token, computed when they are first read.

    Corpora come with their held-out documents and their weights: a token is weighted as its corpus
    is in the rows of training. The 3-gram model is fitted on the documents of all, each once.
    """

    def __init__(self, texts: Sequence[tuple[CountableText, CountableText | None, float]]) -> None:
        self._corpora = [(corpus, weight) for corpus, _, weight in texts]
        self._held_out = [(text, weight) for _, text, weight in texts if text is not None]

    @cached_property
    def unigram(self) -> float:
        """The entropy of single tokens in the text that is scored, the least of such models."""
        return unigram_entropy(self._held_out or self._corpora)

    @cached_property
    def trigram(self) -> LikelihoodScores | None:
        """The score of a 3-gram model of the training text on held-out text, if there is any."""
        return score_mixture(fit_ngram(self._corpora), self._held_out) if self._held_out else None


def unigram_entropy(texts: Sequence[tuple[CountableText, float]]) -> float:
    """Return the entropy of single tokens in corpora, each with its weight."""
    if len(texts) == 1:
        return entropy(texts[0][0].token_counts())
    frequencies = sum(text.token_counts() * (weight / text.tokens) for text, weight in texts)
    return entropy(np.rint(frequencies * (COUNT_SCALE / np.sum(frequencies))).astype(np.int64))
