"""Evaluate a model on a text by its likelihood, or on labelled rows."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.chunks import InMemoryDocuments, TokenizedDocuments
from kinfolk.data.corpus import Corpus, corpus_fingerprint
from kinfolk.data.documents import read_documents
from kinfolk.data.encode import DocumentEncoder
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives.bilm import BiLM
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.objectives.evaluation import (
    BatchProgress,
    LikelihoodScores,
    no_progress,
    pair_accuracy,
    rtd_scores,
    score_documents,
    score_each_document,
)
from kinfolk.objectives.mlm import MLM, MLMScorer
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.permutation_lm import PermutationLMScorer
from kinfolk.objectives.rtd import RTD
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.sop import SOP
from kinfolk.tasks.dataset import RowSource
from kinfolk.tasks.rows_in_memory import texts_of
from kinfolk.tasks.task import EvaluationResult
from kinfolk.text import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.types import FloatArray
from kinfolk.workflows.baselines import document_bytes
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load, restored
from kinfolk.workflows.predict import Predictor, as_predictor, evaluate_rows, is_file
from kinfolk.workflows.recipe import recipe_of

# The kind of score of each architecture; only the first two are the probability of the text.
SCORE_KINDS = {
    "decoder": "likelihood, left to right",
    "recurrent": "likelihood, left to right",
    "encoder": "pseudo-likelihood, each token from all others",
    "encoder-decoder": "pseudo-likelihood, each span from the text around it",
    "bidirectional": "likelihood of each direction: left to right, and right to left (backward)",
    "pairs": "likelihood of each target, left to right, given its source",
}
MAX_SCORED_TOKENS = 2**14  # by default, of an encoder: each takes a forward pass of its own
ENCODER_SCORERS = (MLMScorer, PermutationLMScorer)


OpenedModel: TypeAlias = tuple[LanguageModel, Tokenizer]  # what `load` returns


@overload
def evaluate(
    model: Path | str | OpenedModel,
    *,
    text: list[str] | tuple[str, ...],
    length: int | None = None,
    max_tokens: int | None = None,
    device: str = "auto",
    rows: int = 32,
) -> list[LikelihoodScores]: ...


@overload
def evaluate(
    model: Path | str | OpenedModel,
    *,
    text: str | None = None,
    file: Path | str | None = None,
    corpus: Path | str | None = None,
    length: int | None = None,
    max_tokens: int | None = None,
    device: str = "auto",
    rows: int = 32,
) -> LikelihoodScores: ...


@overload
def evaluate(
    model: Path | str | Predictor,
    *,
    test: RowSource,
    columns: str | None = None,
    device: str = "auto",
) -> EvaluationResult: ...


def evaluate(
    model: Path | str | OpenedModel | Predictor,
    *,
    text: str | list[str] | tuple[str, ...] | None = None,
    file: Path | str | None = None,
    corpus: Path | str | None = None,
    test: RowSource | None = None,
    columns: str | None = None,
    length: int | None = None,
    max_tokens: int | None = None,
    device: str = "auto",
    rows: int = 32,
) -> LikelihoodScores | list[LikelihoodScores] | EvaluationResult:
    """Score a model by the likelihood of a text, a file or a corpus, or on labelled rows.

    `evaluate("runs/gpt2", file="chapter.txt").perplexity`; the scores also have `loss`,
    `bits_per_byte`, `tokens`, `bytes` and `kind`: only the kind "likelihood, left to right" is the
    probability of the text. An encoder scores at most `max_tokens` tokens, 16,384 by default,
    evenly spread; `sampled_from` is then the number of all.
    `evaluate(load("runs/gpt2"), text=["one sentence", "another"])` returns the scores of each text
    by a model that is open; an encoder scores every token of them, and a bidirectional model only
    from the left. A model that is passed keeps its device and the mode of each module.
    `evaluate("runs/triage", test="test.tsv").scores` are the metrics of the task.
    """
    given = {"text": text, "file": file, "corpus": corpus, "test": test}
    if sum(value is not None for value in given.values()) != 1:
        raise UserError(f"give one of the parameters {', '.join(given)} to evaluate on")
    if isinstance(text, str) and is_file(text):
        raise UserError(f"text={text!r} is the name of a file: use file={text!r}")
    if test is not None:
        if length is not None or max_tokens is not None:
            raise UserError(
                "length and max_tokens do not apply to test, whose rows are read as in training"
            )
        if isinstance(model, tuple):
            raise UserError("test needs the folder of a fine-tuned model, or a predictor of it")
        predictor = as_predictor(model, device=device)
        labelled = predictor.read(test, columns=columns, labelled=True)
        return evaluate_rows(predictor, labelled)
    if columns is not None:
        raise UserError("columns applies to test only")
    if not isinstance(model, Path | str | tuple):
        raise UserError(
            f"model is of type {type(model).__name__}: give the folder of a run or of a model, or "
            "what kinfolk.load returns"
        )
    with restored(model[0]) if isinstance(model, tuple) else nullcontext():
        evaluation = open_evaluation(model, corpus, file, length, device, text=text)
        if text is None or isinstance(text, str):
            return evaluation.likelihood(rows, max_tokens=max_tokens)
        if max_tokens is not None:
            raise UserError("max_tokens applies to one text: of several every token is scored")
        return evaluation.likelihood_of_each(rows)


@dataclass(frozen=True, eq=False)
class TextEvaluation:
    """A model and the text that it is scored on, both opened once."""

    model: Any
    objective: Any  # of its training
    scoring: Any  # the objective that predicts every token once
    documents: TokenizedDocuments
    sizes: NDArray[np.int64]  # bytes: of each text, or of the whole corpus
    tokenizer: Tokenizer
    length: int | None  # of rows, where it was given

    @property
    def bytes(self) -> int:
        """Bytes of all texts."""
        return int(self.sizes.sum())

    def likelihood(
        self,
        rows: int = 32,
        progress: BatchProgress = no_progress,
        *,
        max_tokens: int | None = None,
    ) -> LikelihoodScores:
        """Return the likelihood of the text; `max_tokens` bounds the work of an encoder."""
        objective = self.limited_scoring(max_tokens)
        scores = score_documents(
            *(self.model, objective, self.documents, self.bytes), rows=rows, progress=progress
        )
        size = int(self.documents.starts[-1])
        sampled = isinstance(objective, ENCODER_SCORERS) and size > scores.tokens
        return replace(scores, kind=self.kind, sampled_from=size if sampled else None)

    def likelihood_of_each(self, rows: int = 32) -> list[LikelihoodScores]:
        """Return the likelihood of each text."""
        every = int(self.documents.starts[-1])
        encoder = isinstance(self.scoring, ENCODER_SCORERS)
        objective = self.limited_scoring(every if encoder else None)
        scores = score_each_document(self.model, objective, self.documents, rows=rows)
        return [
            LikelihoodScores(float(nats), int(tokens), int(size), self.kind)
            for nats, tokens, size in zip(scores.nats, scores.tokens, self.sizes, strict=True)
        ]

    def document_scores(
        self,
        rows: int = 32,
        progress: BatchProgress = no_progress,
        *,
        max_tokens: int | None = None,
    ) -> list[tuple[float, float]]:
        """Return nats and bytes of each document; their sums give the bits per byte of the text.

        Where only some tokens were scored, a document has as many of all nats and bytes of the text
        as it has of those tokens.
        """
        objective = self.limited_scoring(max_tokens)
        scores = score_each_document(
            self.model, objective, self.documents, rows=rows, progress=progress
        )
        size, scored = int(self.documents.starts[-1]), int(scores.tokens.sum())
        nats, sizes = scores.nats, self.document_bytes()
        if isinstance(objective, ENCODER_SCORERS) and size > scored:
            nats, sizes = nats * (size / scored), self.bytes * scores.tokens / scored
        return list(zip(nats.tolist(), sizes.tolist(), strict=True))

    def document_bytes(self) -> FloatArray:
        """Return the bytes of each document; of a pair, those of its target."""
        starts, texts = self.documents.starts.tolist(), []
        for start, end in pairwise(starts):
            if isinstance(self.scoring, Seq2Seq):
                start += int(self.documents.sentences(start, end)[0])
            texts.append(self.documents.ids(start, end))
        return document_bytes(texts, self.tokenizer, self.bytes)

    @property
    def kind(self) -> str:
        """What the score is: only a likelihood is the probability of the text."""
        objective, kind = self.scoring, family_of(self.model).architecture
        if isinstance(objective, BlankInfilling):
            kind = "encoder-decoder"
        if isinstance(objective, BiLM):
            kind = "bidirectional"
        if isinstance(objective, Seq2Seq):
            kind = "pairs"
        return SCORE_KINDS[kind]

    def limited_scoring(self, max_tokens: int | None) -> Any:
        """Return the objective that scores the text, of an encoder at most `max_tokens` tokens."""
        objective = self.scoring
        if isinstance(objective, ENCODER_SCORERS):
            limit = MAX_SCORED_TOKENS if max_tokens is None else max_tokens
            return replace(objective, max_predictions=limit)
        if max_tokens is not None:
            raise UserError(
                f"max_tokens={max_tokens} applies to encoders, which take a forward pass for each "
                f"token: {self.model.family_name} scores a text without it"
            )
        if isinstance(objective, Seq2Seq) and self.length is None:
            return objective.with_max_length_for(self.documents)
        return objective

    def auxiliary_metrics(
        self, rows: int = 32, progress: BatchProgress = no_progress
    ) -> dict[str, float]:
        """Return the scores of the other predictions of the objective, besides tokens."""
        objective = self.objective
        if isinstance(objective, MLM):  # texts have no word boundaries
            length = self.scoring.max_length
            objective = replace(objective, max_length=length, whole_word_masking=False)
        if isinstance(objective, RTD):
            scores = rtd_scores(self.model, objective, self.documents, rows=rows, progress=progress)
            return {
                "detection_auc": scores.auc,
                "detection_accuracy": scores.accuracy,
                "replaced_share": scores.base_rate,
            }
        if "seq_relationship" in self.model.random_modules:
            return {}
        if isinstance(objective, NSP) and has_sentence_pairs(objective, self.documents):
            accuracy = pair_accuracy(
                self.model, objective, self.documents, rows=rows, progress=progress
            )
            return {} if accuracy is None else {"pair_accuracy": accuracy}
        return {}


def has_sentence_pairs(objective: NSP, documents: TokenizedDocuments) -> bool:
    """Return whether a text has pairs; NSP takes its negatives from other documents."""
    sizes = np.diff(documents.starts)
    enough = 1 if isinstance(objective, SOP) else 2
    return int(sizes.max(initial=0)) > 1 and int(np.count_nonzero(sizes)) >= enough


def open_evaluation(
    given: Path | str | OpenedModel,
    corpus: Path | str | None,
    file: Path | str | None,
    length: int | None = None,
    device: str = "auto",
    *,
    text: str | list[str] | tuple[str, ...] | None = None,
    tokenizer: Tokenizer | Path | str | None = None,
) -> TextEvaluation:
    """Open a model, and the corpus, the file or the text that it is scored on.

    A model that is open already moves to `device` unless that is "auto".
    """
    folder = None
    if isinstance(given, tuple):
        model, tokenizer = given
    else:
        folder = find_model_folder(given)  # of a run the newest checkpoint, hashed here
        model, tokenizer = load(folder, tokenizer)
    model.check_lm_head()
    if folder is not None or device != "auto":
        model.to(select_device(device))
    if corpus is None:
        if file is not None:
            texts = [document.text for document in read_documents([Path(file)])]
        else:
            texts = (
                [text] if isinstance(text, str) else texts_of(() if text is None else text, "text")
            )
            check_texts(texts)
        documents, sizes = encode_documents(tokenizer, texts)
    else:
        documents = opened = Corpus.open(Path(corpus))
        of_model = "that of the model" if isinstance(given, tuple) else given
        if opened.tokenizer_hash != tokenizer.fingerprint:
            raise UserError(
                f"corpus {corpus} was tokenized with another tokenizer than {of_model}: prepare it "
                "with the tokenizer of the model, or evaluate on the text itself"
            )
        corpus_fingerprint(opened.folder)  # refuses damaged files
        sizes = np.array([opened.bytes])
    objective = training_objective(model, tokenizer, folder)
    scoring = scoring_objective(model, objective, length)
    return TextEvaluation(model, objective, scoring, documents, sizes, tokenizer, length)


def check_texts(texts: Sequence[str]) -> None:
    """Refuse no text, and texts that are empty."""
    empty = [number for number, text in enumerate(texts, 1) if not text.strip()]
    if not texts or empty:
        name = f"text {empty[0]:,}" if len(texts) > 1 else "text"
        raise UserError(f"{name} is empty: there is nothing to score")


def training_objective(model: LanguageModel, tokenizer: Tokenizer, folder: Path | None) -> Any:
    """Return the objective of a model's run, else of its family."""
    recipe = None if folder is None else recipe_of(folder)
    if recipe is not None:
        return recipe.objective
    family = family_of(model)
    tokenizer = tokenizer.with_end_token(family.required_tokens)
    objective = family.objective()(
        special_tokens=tokenizer.special_tokens, vocab_size=tokenizer.vocab_size
    )
    context = model.config.max_length
    return replace(
        objective, max_length=min(objective.max_length, 512 if context is None else context)
    )


def scoring_objective(model: LanguageModel, objective: Any, length: int | None = None) -> Any:
    """Return the objective that scores a model: every token of a text is predicted once."""
    length = objective.max_length if length is None else length
    if length < 8:
        raise UserError(f"length {length} is too short to evaluate with: use 8 or more")
    limit = model.config.max_length
    if limit is not None and length > limit:
        raise UserError(f"length {length} is more than the model's context of {limit} tokens")
    return replace(objective, max_length=length).for_evaluation()


def encode_documents(
    tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[TokenizedDocuments, NDArray[np.int64]]:
    """Encode documents in memory; also count the bytes of each."""
    encoded = DocumentEncoder(tokenizer)(texts)
    ends = np.cumsum(encoded.sentences, dtype=np.int64)
    starts = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(encoded.documents)])]
    return InMemoryDocuments(encoded.ids, ends, starts), encoded.bytes.astype(np.int64)
