"""Scoring a model on a text, and the lines it has to beat."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from kinfolk.data.chunks import InMemoryDocuments, TokenizedDocuments
from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import read_documents
from kinfolk.data.encode import DocumentEncoder
from kinfolk.data.parallel_text import TargetDocuments
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.metrics.baselines import KneserNey, entropy
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.objectives.evaluation import (
    LikelihoodScores,
    pair_accuracy,
    rtd_scores,
    score_documents,
)
from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.rtd import RTD
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.sop import SOP
from kinfolk.text import Tokenizer
from kinfolk.training.run import select_device
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load, recipe_of, scoring_objective

# What the score of each kind of model is; only the first is the probability of the text.
SCORE_KINDS = {
    "decoder": "likelihood, left to right",
    "encoder": "pseudo-likelihood, each token from all others",
    "encoder-decoder": "pseudo-likelihood, each span from the text around it",
    "pairs": "likelihood of each target, left to right, given its source",
}
MAX_NGRAM_TOKENS = 20_000_000  # tokens an n-gram baseline is counted on at most: a minute, and 2 GB
COUNT_SCALE = 1 << 50  # tokens that a mixture is scaled to, so that shares become counts

CountableText = (
    Corpus | TargetDocuments
)  # text that lines are drawn for: of pairs, what is predicted


def evaluate(
    path: Path | str,
    *,
    corpus: Path | str | None = None,
    text: Path | str | None = None,
    length: int | None = None,
    device: str = "auto",
    rows: int = 32,
) -> tuple[LikelihoodScores, str]:
    """Score a saved model on a corpus or a text file; also say what kind of score it is."""
    return opened(path, corpus, text, length, device).likelihood(rows)


def auxiliary_metrics(
    path: Path | str,
    *,
    corpus: Path | str | None = None,
    text: Path | str | None = None,
    length: int | None = None,
    device: str = "auto",
    rows: int = 32,
) -> dict[str, float]:
    """Score what a saved model learned besides tokens: pairs of texts, or replaced tokens."""
    return opened(path, corpus, text, length, device).verdicts(rows)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model and a text that it is scored on, both opened once."""

    model: Any
    objective: Any  # that it learned by
    exam: Any  # the objective that predicts every token once
    documents: TokenizedDocuments
    bytes: int
    length: int | None  # of rows, where it was said

    def likelihood(self, rows: int = 32) -> tuple[LikelihoodScores, str]:
        """Return how likely the text is, and what kind of score that is."""
        way = self.exam
        kind = (
            "encoder-decoder"
            if isinstance(way, BlankInfilling)
            else family_of(self.model).architecture
        )
        if isinstance(way, Seq2Seq):
            kind, way = (
                "pairs",
                way.with_max_length_for(self.documents) if self.length is None else way,
            )
        return score_documents(self.model, way, self.documents, self.bytes, rows=rows), SCORE_KINDS[
            kind
        ]

    def verdicts(self, rows: int = 32) -> dict[str, float]:
        """Return the scores of what was learned besides tokens."""
        way = self.objective
        if isinstance(way, MLM):  # a text that is scored need not know its words
            way = replace(way, max_length=self.exam.max_length, whole_word_masking=False)
        if isinstance(way, RTD):
            found = rtd_scores(self.model, way, self.documents, rows=rows)
            return {
                "detection_auc": found.auc,
                "detection_accuracy": found.accuracy,
                "replaced_share": found.base_rate,
            }
        if isinstance(way, NSP) and has_sentence_pairs(way, self.documents):
            share = pair_accuracy(self.model, way, self.documents, rows=rows)
            return {} if share is None else {"pair_accuracy": share}
        return {}


def has_sentence_pairs(way: NSP, read: TokenizedDocuments) -> bool:
    """Say whether a text has pairs: strangers come from other documents, and sides have tokens."""
    sizes = np.diff(read.starts)
    enough = 1 if isinstance(way, SOP) else 2
    return int(sizes.max(initial=0)) > 1 and int(np.count_nonzero(sizes)) >= enough


def opened(
    path: Path | str,
    corpus: Path | str | None,
    text: Path | str | None,
    length: int | None,
    device: str,
) -> Evaluation:
    """Open a model and what it is scored on."""
    if (corpus is None) == (text is None):
        raise UserError("give either --corpus or --text to evaluate on")
    folder = find_model_folder(path)  # of a run the newest checkpoint, whose files are hashed here
    model, tokenizer = load(folder)
    model.to(select_device(device))
    if text is not None:
        read, size = encode_file(tokenizer, Path(text))
        documents: TokenizedDocuments = read
    else:
        assert corpus is not None
        documents = found = Corpus.open(Path(corpus))
        if found.tokenizer_hash != tokenizer.fingerprint:
            raise UserError(
                f"{corpus} was made with another tokenizer than {path}: prepare its text again "
                f"with --tokenizer {path}, or evaluate with --text"
            )
        size = found.bytes
    before = recipe_of(folder)
    if before is not None:
        objective = before.objective
    else:
        objective = family_of(model).objective()(
            special_tokens=tokenizer.special_tokens, vocab_size=tokenizer.vocab_size
        )
    way = scoring_objective(model, tokenizer, folder, length)
    return Evaluation(model, objective, way, documents, size, length)


def encode_file(tokenizer: Tokenizer, path: Path) -> tuple[InMemoryDocuments, int]:
    """Encode a text file, a document a block between blank lines; also count its bytes."""
    found = DocumentEncoder(tokenizer)([d.text for d in read_documents([path])])
    ends = np.cumsum(found.sentences, dtype=np.int64)
    starts = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(found.documents)])]
    return InMemoryDocuments(found.ids, ends, starts), int(found.bytes.sum())


@dataclass(frozen=True)
class Baselines:
    """The two lines under every curve, in nats a token.

    `unigram` is the entropy of single tokens in the text that is scored: no model that looks at
    one token at a time can be under it. `trigram` is counted on the training text and scored on
    held-out text, where there is any.
    """

    unigram: float
    trigram: LikelihoodScores | None


def baselines(corpus: CountableText, held_out: CountableText | None) -> Baselines:
    """Count the text: its entropy by single tokens, and a 3-gram model's loss on unseen text."""
    return mixture_baselines([(corpus, held_out, 1.0)])


def mixture_baselines(
    texts: Sequence[tuple[CountableText, CountableText | None, float]],
) -> Baselines:
    """Find the lines of a mixture: each corpus, what it holds out, and its weight.

    A token weighs what its corpus weighs among the rows that the curve above is drawn from. The
    3-gram model is counted on the documents of all corpora, each once: seen again they would teach
    it nothing new.
    """
    scored = [(held_out, weight) for _, held_out, weight in texts if held_out is not None]
    if not scored:
        return Baselines(unigram_entropy([(corpus, weight) for corpus, _, weight in texts]), None)
    model = trigram([(corpus, weight) for corpus, _, weight in texts])
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


def trigram(texts: Sequence[tuple[CountableText, float]]) -> KneserNey:
    """Count grams of three tokens, in all documents or, of too many, in some by weight."""
    whole, fit = (
        sum(weight for _, weight in texts),
        sum(t.tokens for t, _ in texts) <= MAX_NGRAM_TOKENS,
    )
    room = [MAX_NGRAM_TOKENS if fit else MAX_NGRAM_TOKENS * weight / whole for _, weight in texts]
    limits = [int(np.searchsorted(t.starts, r)) for (t, _), r in zip(texts, room, strict=True)]
    some = (
        text.document(i)
        for (text, _), limit in zip(texts, limits, strict=True)
        for i in range(min(limit, text.documents))
    )
    special_tokens = texts[0][0].tokenizer().special_tokens
    eos = special_tokens.eos
    assert eos is not None
    bos = eos if special_tokens.bos is None else special_tokens.bos
    return KneserNey.fit(some, vocab_size=texts[0][0].vocab_size, order=3, bos=bos, eos=eos)


def count_parameters(model: nn.Module) -> int:
    """Count the parameters as papers do: once where tied, and no padding."""
    total = sum(p.numel() for p in model.parameters())
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding)]
    return total - sum((t.num_embeddings - t.vocab_size) * t.embedding_dim for t in tables)
