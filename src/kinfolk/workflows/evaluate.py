"""Evaluate a model on a text by its likelihood, or on labelled rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import nn

from kinfolk.data.chunks import InMemoryDocuments, TokenizedDocuments
from kinfolk.data.corpus import Corpus, corpus_fingerprint
from kinfolk.data.documents import read_documents
from kinfolk.data.encode import DocumentEncoder
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.metrics.baselines import Reals
from kinfolk.nn.embeddings import TokenEmbedding
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
from kinfolk.tasks.task import EvaluationResult
from kinfolk.text import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.workflows.baselines import document_bytes
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load
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


@overload
def evaluate(
    model: Path | str,
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
    model: Path | str | Predictor,
    *,
    text: str | None = None,
    file: Path | str | None = None,
    corpus: Path | str | None = None,
    test: RowSource | None = None,
    columns: str | None = None,
    length: int | None = None,
    max_tokens: int | None = None,
    device: str = "auto",
    rows: int = 32,
) -> LikelihoodScores | EvaluationResult:
    """Score a saved model by the likelihood of a text, a file or a corpus, or on labelled rows.

    `evaluate("runs/gpt2", file="chapter.txt").perplexity`; the scores also have `loss`,
    `bits_per_byte`, `tokens`, `bytes` and `kind`: only the kind "likelihood, left to right" is the
    probability of the text. An encoder scores at most `max_tokens` tokens, 16,384 by default,
    evenly spread; `sampled_from` is then the number of all.
    `evaluate("runs/triage", test="test.tsv").scores` are the metrics of the task.
    """
    given = {"text": text, "file": file, "corpus": corpus, "test": test}
    if sum(value is not None for value in given.values()) != 1:
        raise UserError(f"give one of the parameters {', '.join(given)} to evaluate on")
    if text is not None and is_file(text):
        raise UserError(f"text={text!r} is the name of a file: use file={text!r}")
    if test is not None:
        if length is not None or max_tokens is not None:
            raise UserError(
                "length and max_tokens do not apply to test, whose rows are read as in training"
            )
        predictor = as_predictor(model, device=device)
        labelled = predictor.read(test, columns=columns, labelled=True)
        return evaluate_rows(predictor, labelled)
    if columns is not None:
        raise UserError("columns applies to test only")
    if not isinstance(model, Path | str):
        raise UserError(
            f"model is of type {type(model).__name__}: give the folder of a run or of a model"
        )
    evaluation = open_evaluation(model, corpus, file, length, device, text=text)
    return evaluation.likelihood(rows, max_tokens=max_tokens)


@dataclass(frozen=True, eq=False)
class TextEvaluation:
    """A model and the text that it is scored on, both opened once."""

    model: Any
    objective: Any  # of its training
    scoring: Any  # the objective that predicts every token once
    documents: TokenizedDocuments
    bytes: int
    tokenizer: Tokenizer
    length: int | None  # of rows, where it was given

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

    def document_bytes(self) -> Reals:
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
    path: Path | str,
    corpus: Path | str | None,
    file: Path | str | None,
    length: int | None = None,
    device: str = "auto",
    *,
    text: str | None = None,
    tokenizer: Tokenizer | Path | str | None = None,
) -> TextEvaluation:
    """Open a model, and the corpus, the file or the text that it is scored on."""
    folder = find_model_folder(path)  # of a run the newest checkpoint, whose files are hashed here
    model, tokenizer = load(folder, tokenizer)
    model.check_lm_head()
    model.to(select_device(device))
    if text is not None and not text.strip():
        raise UserError("text is empty: there is nothing to score")
    if corpus is None:
        texts = [text or ""] if file is None else [d.text for d in read_documents([Path(file)])]
        documents, size = encode_documents(tokenizer, texts)
    else:
        documents = opened = Corpus.open(Path(corpus))
        if opened.tokenizer_hash != tokenizer.fingerprint:
            raise UserError(
                f"corpus {corpus} was tokenized with another tokenizer than {path}: prepare it "
                "with the tokenizer of the model, or evaluate on the text itself"
            )
        corpus_fingerprint(opened.folder)  # refuses damaged files
        size = opened.bytes
    objective = training_objective(model, tokenizer, folder)
    scoring = scoring_objective(model, objective, length)
    return TextEvaluation(model, objective, scoring, documents, size, tokenizer, length)


def training_objective(model: LanguageModel, tokenizer: Tokenizer, folder: Path) -> Any:
    """Return the objective of a model's run, else of its family."""
    recipe = recipe_of(folder)
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


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[TokenizedDocuments, int]:
    """Encode documents in memory; also count their bytes."""
    encoded = DocumentEncoder(tokenizer)(texts)
    ends = np.cumsum(encoded.sentences, dtype=np.int64)
    starts = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(encoded.documents)])]
    return InMemoryDocuments(encoded.ids, ends, starts), int(encoded.bytes.sum())


def count_parameters(model: nn.Module) -> int:
    """Count the parameters as papers do: once where tied, and no padding."""
    total = sum(p.numel() for p in model.parameters())
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding)]
    return total - sum((t.num_embeddings - t.vocab_size) * t.embedding_dim for t in tables)


def parameter_count(config: Any) -> int:
    """Return the number of parameters of a network, without allocating them."""
    with torch.device("meta"):
        return count_parameters(config.build())
