"""Answers against what is right: every metric of a task, and the one of each row that adds up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.errors import UserError
from kinfolk.metrics import classification as of_labels
from kinfolk.metrics.bootstrap import ConfidenceInterval
from kinfolk.metrics.classification import precision_recall_f1 as counted
from kinfolk.metrics.coreference import coref_scores
from kinfolk.metrics.entities import entity_scores
from kinfolk.metrics.squad import cmrc2, cmrc2018, squad_v1, squad_v2
from kinfolk.metrics.text import bleu, chrf, rouge
from kinfolk.tasks.task import Prediction, Task


@dataclass(frozen=True)
class EvaluationResult:
    """The predictions for a file with labels, and their scores."""

    task: Task
    rows: list[Any]
    answers: list[Prediction]
    scores: dict[str, float]
    confidence_interval: ConfidenceInterval  # of the main metric
    unseen_labels: dict[str, int]  # labels that the training rows lack, and how often each occurs


def reference(task: Task, row: Any) -> Any:
    """Return what is right of a row, None where the file does not say."""
    match task.kind:
        case "classify":
            return None if row.label is None else str(row.label)
        case "regress" | "choose":
            return row.label
        case "tag":
            return row.tags
        case "span":
            known = tuple(text for text, _ in row.answers)
            return known if known or not row.answerable else None
        case "write" | "complete" | "lm":
            return row.target
        case _:
            return row.clusters


def score(task: Task, rows: Sequence[Any], answers: Sequence[Prediction]) -> dict[str, float]:
    """Score answers by every metric of their task."""
    right = [reference(task, row) for row in rows]
    if None in right:
        row = rows[right.index(None)]
        raise UserError(f"row {row.number} has no label to score against: predict it instead")
    if not rows:
        raise UserError("there are no rows to score: give a file with labelled examples")
    said = [answer.value for answer in answers]
    match task.kind:
        case "classify":
            return _classes(task, said, right)
        case "regress":
            return {
                "pearson": of_labels.pearsonr(said, right),
                "spearman": of_labels.spearmanr(said, right),
            }
        case "choose":
            return {"accuracy": of_labels.accuracy(said, right)}
        case "tag":
            return _tags(said, right)
        case "span":
            return _spans(task, said, right)
        case "write":
            return _texts(said, [row.references for row in rows])
        case "complete":
            return _completions(answers, said, right)
        case "lm":
            return _language(rows, answers)
        case _:
            return {"conll_f1": coref_scores(said, right).conll}


def _classes(task: Task, said: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    found = of_labels.confusion_matrix(said, right)
    scores = {"accuracy": found.accuracy}
    if task.positive_label is not None:
        scores["f1"] = of_labels.binary_prf(said, right, task.positive_label).f1
    return scores | {"macro_f1": of_labels.f1(said, right), "matthews": found.matthews}


def _tags(said: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score entities; tags that name none, like parts of speech, by F1 over words, O left out."""
    if any(tag[:2] in ("B-", "I-", "S-", "E-") for tags in right for tag in tags):
        found = entity_scores(said, right)
        return {"f1": found.micro.f1, "accuracy": found.accuracy}
    ours, theirs = ([tag for tags in side for tag in tags] for side in (said, right))
    hits = sum(one == other != "O" for one, other in zip(ours, theirs, strict=True))
    named = [sum(tag != "O" for tag in side) for side in (ours, theirs)]
    return {"f1": counted(hits, *named).f1, "accuracy": of_labels.accuracy(ours, theirs)}


def _spans(task: Task, said: Sequence[str], right: Sequence[Sequence[str]]) -> dict[str, float]:
    if task.language:
        scores = cmrc2018(said, right) if all(right) else cmrc2(said, right)
    elif all(right):
        scores = squad_v1(said, right)
    else:
        scores = squad_v2(said, right).overall
    return {"f1": scores.f1, "exact": scores.exact_match}


def _texts(said: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    found = rouge(said, references)
    return {
        "bleu": bleu(said, references).score,
        "chrf": chrf(said, references).score,
        "rouge1": found.rouge1,
        "rouge2": found.rouge2,
        "rougeL": found.rougeL,
    }


def _completions(
    answers: Sequence[Prediction], said: Sequence[str], right: Sequence[str]
) -> dict[str, float]:
    hits = [one.strip() == other.strip() for one, other in zip(said, right, strict=True)]
    scores = {"accuracy": sum(hits) / len(hits)}
    known = [answer for answer in answers if answer.nll is not None]
    if known:
        scores["perplexity"] = perplexity(known)
    return scores


def _language(rows: Sequence[Any], answers: Sequence[Prediction]) -> dict[str, float]:
    size = sum(len(row.target.encode()) for row in rows)
    nats = sum(answer.nll or 0.0 for answer in answers)
    return {"perplexity": perplexity(answers), "bits_per_byte": nats / math.log(2) / size}


def perplexity(answers: Sequence[Prediction]) -> float:
    """Return the perplexity of a token of what is right."""
    tokens = sum(answer.tokens for answer in answers)
    return math.exp(min(700.0, sum(answer.nll or 0.0 for answer in answers) / max(tokens, 1)))
