"""BLEU (Papineni et al., 2002) and chrF (Popović, 2015), by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.errors import UserError

CHINESE = ("\u3400", "\u9fff")  # the first and the last character of those that are counted


@dataclass(frozen=True)
class Rating:
    """A score from 0 to 100, and the signature that says how it was counted."""

    score: float
    signature: str


def library() -> Any:
    """Open sacrebleu, or say what it takes."""
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise UserError(
            "BLEU and chrF need the sacrebleu package: pip install sacrebleu"
        ) from error
    return metrics


def bleu(written: Sequence[str], references: Sequence[str]) -> Rating:
    """Score the words of what was written against one reference each."""
    check(written, references)
    metric = library().BLEU(tokenize="zh" if chinese(references) else "13a")
    found = metric.corpus_score(list(written), [list(references)])
    return Rating(float(found.score), str(metric.get_signature()))


def chrf(written: Sequence[str], references: Sequence[str]) -> Rating:
    """Score the characters of what was written against one reference each."""
    check(written, references)
    metric = library().CHRF()
    found = metric.corpus_score(list(written), [list(references)])
    return Rating(float(found.score), str(metric.get_signature()))


def check(written: Sequence[str], references: Sequence[str]) -> None:
    """Refuse texts without a reference each, and no texts at all."""
    if len(written) != len(references) or not written:
        raise UserError(
            f"{len(written)} texts cannot be scored against {len(references)} references: "
            "give one for each"
        )


def chinese(texts: Sequence[str]) -> bool:
    """Say whether most characters are Chinese: then each of them counts as a word."""
    characters = [character for text in texts for character in text if character.isalpha()]
    inside = sum(CHINESE[0] <= character <= CHINESE[1] for character in characters)
    return 2 * inside > len(characters)
