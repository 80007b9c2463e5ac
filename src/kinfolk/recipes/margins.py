"""Answers in the margin of a file: behind each of its lines, or behind each of its words.

EU  NNP  B-NP  B-ORG          EU  NNP  B-NP  B-ORG  B-LOC
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kinfolk.tasks.columns import DOCSTART
from kinfolk.tasks.forms import FileSpec
from kinfolk.tasks.records import read_lines
from kinfolk.tasks.task import Prediction, Task

RowPredictions: TypeAlias = list[
    tuple[Any, Prediction]
]  # rows of one line or record, with their answers
PROBABILITY_DIGITS = 4  # of a probability in a table


@dataclass(frozen=True)
class Predictions:
    """The answers to the rows of a file."""

    file: Path
    task: Task
    guess: FileSpec
    rows: Sequence[Any]
    answers: Sequence[Prediction]
    every: bool = False  # the probability of each class, in tables too

    @property
    def told(self) -> dict[int, RowPredictions]:
        """The rows and answers of each line or record."""
        found: dict[int, RowPredictions] = {}
        for row, answer in zip(self.rows, self.answers, strict=True):
            found.setdefault(row.number, []).append((row, answer))
        return found


def write_conll(found: Predictions) -> Iterator[str]:
    """Add a last column to every word; where there are roles, one for each predicate."""
    by_line, universal = found.told, ".conllu" in found.file.name.lower()
    lines = [line for _, line in read_lines(found.file)]
    tabs = any("\t" in line for line in lines)
    own: RowPredictions = []
    word = 0
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts:
            own = []
        elif number in by_line:
            own, word = by_line[number], 0
        if not own or parts[0] == DOCSTART or (universal and not parts[0].isdecimal()):
            yield line + "\n"
            continue
        said = [answer.value[word] for _, answer in own]
        if found.every:
            said = [
                f"{answer.value[word]} {answer.probabilities[word]:.{PROBABILITY_DIGITS}f}"
                for _, answer in own
            ]
        between = "\t" if tabs else " "
        yield between.join([line, *(one.replace(" ", between) for one in said)]) + "\n"
        word += 1


def write_word_tag(found: Predictions) -> Iterator[str]:
    """Put the answer behind each word and its tag."""
    by_line = found.told
    for number, line in read_lines(found.file):
        tags = by_line[number][0][1].value if number in by_line else ()
        yield "  ".join(f"{one}/{tag}" for one, tag in zip(line.split(), tags, strict=True)) + "\n"


def write_lines(found: Predictions) -> Iterator[str]:
    """Put the answer behind each line, after a tab."""
    by_line = found.told
    for number, line in read_lines(found.file):
        said = [str(answer.value) for _, answer in by_line.get(number, [])]
        yield "\t".join([line, *said]) + "\n"


def write_conll2012(found: Predictions) -> Iterator[str]:
    """Add a last column with brackets, as CoNLL-2012 has one."""
    by_line = found.told
    marks: list[list[str]] = []
    word = 0
    for number, line in read_lines(found.file):
        if number in by_line:
            ((row, answer),) = by_line[number]
            marks, word = coref_column(answer.value, len(row.words)), 0
        if not line.strip() or line.startswith("#"):
            yield line + "\n"
            continue
        yield f"{line}\t{'|'.join(marks[word]) or '-'}\n"
        word += 1


def coref_column(clusters: Sequence[Sequence[tuple[int, int]]], size: int) -> list[list[str]]:
    """Write clusters as the marks of each word: (0 opens, 0) closes, (0) is one word."""
    marks: list[list[str]] = [[] for _ in range(size)]
    for number, group in enumerate(clusters):
        for first, stop in group:
            if stop - first == 1:
                marks[first].append(f"({number})")
            else:
                marks[first].append(f"({number}")
                marks[stop - 1].append(f"{number})")
    return marks


def one_line(text: Any) -> str:
    """Write a text in one line and one cell."""
    return str(text).replace("\t", " ").replace("\n", " ")
