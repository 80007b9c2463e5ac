"""Where answers go wrong: what is taken for what, on which texts, and how sure it was."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.metrics.classification import ConfusionMatrix, confusion_matrix
from kinfolk.metrics.coreference import ConllF1
from kinfolk.metrics.entities import scores_by_type
from kinfolk.metrics.metric import PRF
from kinfolk.metrics.text import CHRF
from kinfolk.tasks.formulations.sequences import detokenize
from kinfolk.tasks.rows import (
    CompletionRow,
    CorefDocument,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.scoring import EvaluationResult, reference, score
from kinfolk.tasks.task import Prediction, Task

MAX_CONFUSION_CLASSES = 12  # of a table of confusions; the rest are one
OTHERS = "(others)"
NUM_WORST = 10
BINS = 10  # of probabilities
NUM_LENGTH_BUCKETS = 6  # groups of rows, as large as each other
MIN_BUCKET_ROWS = 20  # rows of a group, at least


@dataclass(frozen=True)
class ErrorExample:
    """A row with a wrong answer."""

    number: int  # its line or record
    text: str
    right: str
    said: str
    probability: float | None


@dataclass(frozen=True)
class CalibrationBin:
    """Answers of about the same probability, and how many of them are right."""

    low: float
    high: float
    answers: int
    sure: float  # on average
    right: float  # the share


@dataclass(frozen=True)
class LengthBucket:
    """Rows with texts of about the same length, and their score."""

    low: int  # characters
    high: int
    rows: int
    score: float


def confusion_table(
    verdict: EvaluationResult, most: int = MAX_CONFUSION_CLASSES
) -> ConfusionMatrix | None:
    """Count which class is taken for which, for the most frequent ones."""
    if verdict.task.kind != "classify":
        return None
    right = [str(reference(verdict.task, row)) for row in verdict.rows]
    said = [str(answer.value) for answer in verdict.answers]
    counts = Counter(right)
    counts.update(dict.fromkeys(said, 0))
    kept = [label for label, _ in counts.most_common(most)]
    order = [label for label in verdict.task.labels if label in kept]
    order += [label for label in kept if label not in order]
    if len(counts) > len(kept):
        order.append(OTHERS)
    known = set(kept)
    return confusion_matrix(
        [label if label in known else OTHERS for label in said],
        [label if label in known else OTHERS for label in right],
        order,
    )


def per_class_scores(verdict: EvaluationResult) -> dict[str, PRF]:
    """Score every class or type of entity by itself, the most frequent first."""
    task = verdict.task
    right = [reference(task, row) for row in verdict.rows]
    said = [answer.value for answer in verdict.answers]
    if task.kind == "classify":
        found = {str(label): one for label, one in confusion_matrix(said, right).scores.items()}
    elif task.kind == "tag" and has_entity_tags(task):
        found = scores_by_type(said, right)
    elif task.kind == "tag":
        words = confusion_matrix(
            [t for tags in said for t in tags], [t for tags in right for t in tags]
        )
        found = {str(label): one for label, one in words.scores.items()}
    else:
        return {}
    return dict(sorted(found.items(), key=lambda item: -item[1].support))


def has_entity_tags(task: Task) -> bool:
    """Say whether tags are parts of entities, and not classes of words."""
    return any(tag[:2] in ("B-", "I-") for tag in task.labels)


def worst_errors(verdict: EvaluationResult, most: int = NUM_WORST) -> list[ErrorExample]:
    """Return the wrong answers that were given with most confidence, or are furthest off."""
    found = []
    for row, answer in zip(verdict.rows, verdict.answers, strict=True):
        right = reference(verdict.task, row)
        if (badness := error_size(verdict.task, row, right, answer)) is not None:
            found.append((badness, row, right, answer))
    found.sort(key=lambda item: -item[0])
    return [
        ErrorExample(
            row.number, row_text(row), *gold_and_predicted(verdict.task, row, right, answer), sure
        )
        for badness, row, right, answer in found[:most]
        for sure in (badness if answer.probability is not None else None,)
    ]


def error_size(task: Task, row: Any, right: Any, answer: Prediction) -> float | None:
    """Say how bad an answer is, None where it is right."""
    match task.kind:
        case "classify" | "choose":
            return None if answer.value == right else answer.probability or 0.0
        case "complete":
            return None if answer.value.strip() == right.strip() else answer.probability or 0.0
        case "tag":
            off = [place for place, tag in enumerate(answer.value) if tag != right[place]]
            if not off:
                return None
            return (
                max(answer.probabilities[i] for i in off)
                if answer.probabilities
                else float(len(off))
            )
        case "regress":
            return float(abs(answer.value - right))
        case "span":
            return None if score(task, [row], [answer])["exact"] else answer.probability or 0.0
        case "write":
            return 100 - CHRF([answer.value], [row.references])
        case "lm":
            return (answer.nll or 0.0) / max(1, answer.tokens)
        case _:
            return 1 - ConllF1()([answer.value], [right])


def gold_and_predicted(task: Task, row: Any, right: Any, answer: Prediction) -> tuple[str, str]:
    """Write what is right and what was said, for a reader."""
    match task.kind:
        case "choose":
            return row.options[right], row.options[answer.value]
        case "tag":
            off = [place for place, tag in enumerate(answer.value) if tag != right[place]]
            return (
                ", ".join(f"{row.words[place]} {right[place]}" for place in off),
                ", ".join(f"{row.words[place]} {answer.value[place]}" for place in off),
            )
        case "regress":
            return f"{right:g}", f"{answer.value:.2f}"
        case "span":
            return (right[0] if right else "(no answer)"), answer.value or "(no answer)"
        case "lm":
            return "", f"{(answer.nll or 0.0) / max(1, answer.tokens):.2f} nats a token"
        case "coref":
            return f"{len(right)} clusters", f"{len(answer.value)} clusters"
        case _:
            return str(right), str(answer.value)


def row_text(row: Any) -> str:
    """Write the text of a row, for a reader."""
    match row:
        case LabelledText(texts=texts):
            return " ‖ ".join(texts)
        case MultipleChoiceRow(context=context, question=question):
            return f"{context} {question}".strip()
        case QuestionRow(context=context, question=question):
            return f"{question} ‖ {context}"
        case SourceTarget(source=source, target=target):
            return source or target or ""
        case CompletionRow(context=context):
            return context
        case TaggedSentence(words=words):
            return detokenize(words)
        case CorefDocument() as document:
            return detokenize(document.words)
    raise AssertionError(f"{type(row).__name__} is no row")


def calibration_bins(verdict: EvaluationResult) -> list[CalibrationBin]:
    """Group answers by their probability, and say how many of each group are right."""
    pairs = np.array(list(confidences(verdict)), np.float64).reshape(-1, 2)
    indices = np.minimum((pairs[:, 0] * BINS).astype(int), BINS - 1)
    groups = [(place, pairs[indices == place]) for place in range(BINS)]
    return [
        CalibrationBin(place / BINS, (place + 1) / BINS, len(some), *some.mean(0).tolist())
        for place, some in groups
        if len(some)
    ]


def confidences(verdict: EvaluationResult) -> Iterator[tuple[float, bool]]:
    """Yield the probability of each answer and whether it is right; of tags, each word's."""
    task = verdict.task
    for row, answer in zip(verdict.rows, verdict.answers, strict=True):
        right = reference(task, row)
        if task.kind == "tag":
            for share, tag, true in zip(answer.probabilities, answer.value, right, strict=False):
                yield share, tag == true
        elif (
            task.kind in ("classify", "choose", "complete", "span")
            and answer.probability is not None
        ):
            yield answer.probability, error_size(task, row, right, answer) is None


def expected_calibration_error(groups: Sequence[CalibrationBin]) -> float:
    """Return how far probabilities are from what they promise (Guo et al., 2017): 0 is best."""
    whole = sum(group.answers for group in groups)
    return sum(group.answers * abs(group.sure - group.right) for group in groups) / max(1, whole)


def scores_by_length(verdict: EvaluationResult) -> list[LengthBucket]:
    """Part rows by the length of their texts into groups of one size, and score each."""
    sizes = [len(row_text(row)) for row in verdict.rows]
    groups = min(NUM_LENGTH_BUCKETS, len(sizes) // MIN_BUCKET_ROWS)
    if groups < 2:
        return []
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    found = []
    for some in np.array_split(np.array(order), groups):
        rows = [verdict.rows[place] for place in some]
        answers = [verdict.answers[place] for place in some]
        value = score(verdict.task, rows, answers)[verdict.task.main_metric]
        found.append(LengthBucket(sizes[some[0]], sizes[some[-1]], len(some), value))
    return found
