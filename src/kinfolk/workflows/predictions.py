"""Write predictions in the format of the file they answer."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kinfolk.data.files import content_suffix
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import is_json, read_json, read_lines, read_table
from kinfolk.tasks.formats.conll import DOCSTART
from kinfolk.tasks.formats.registry import FileSpec
from kinfolk.tasks.task import PROBABILITY_DIGITS, Prediction, Task
from kinfolk.workflows.predict import Predictor

RowPredictions: TypeAlias = list[
    tuple[Any, Prediction]
]  # rows of one line or record, with their answers


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


def predict_file(
    found: Predictor,
    file: Path,
    rows: Sequence[Any],
    guess: FileSpec,
    *,
    every: bool = False,
    watch: Callable[[int], None] = lambda done: None,
) -> Predictions:
    """Ask a model about rows of a file."""
    if found.task.output == "likelihood":
        raise UserError("a text has no label to predict: score it with evaluate --test")
    if not rows:
        raise UserError(f"{file} holds no rows: there is nothing to predict")
    return Predictions(file, found.task, guess, rows, found.answers(rows, watch=watch), every)


def write_predictions(found: Predictions) -> Iterator[str]:
    """Write the file anew, with the answers in it, a line at a time."""
    match found.guess.format:
        case "squad":
            said = {row.id: answer.value for row, answer in zip_rows(found)}
            yield json.dumps(said, ensure_ascii=False) + "\n"
        case "parallel":
            yield from (one_line(answer.value) + "\n" for answer in found.answers)
        case "columns" | "digits" | "roles":
            yield from write_conll(found)
        case "conll2012":
            yield from write_conll2012(found)
        case "slashes":
            yield from write_word_tag(found)
        case "trees" | "lines":
            yield from write_lines(found)
        case _ if is_json(found.file):
            yield from write_json(found)
        case _:
            yield from write_table(found)


def write_jsonl(found: Predictions) -> Iterator[str]:
    """Write answers alone, a JSON object a line, whatever form the file has."""
    for row, answer in zip_rows(found):
        where = {"id": row.id} if hasattr(row, "id") else {}
        yield json.dumps({"number": row.number, **where, **found.task.to_json(row, answer)},
                         ensure_ascii=False) + "\n"  # fmt: skip


def zip_rows(found: Predictions) -> Iterator[tuple[Any, Prediction]]:
    """Pair rows with their answers."""
    return zip(found.rows, found.answers, strict=True)


def write_json(found: Predictions) -> Iterator[str]:
    """Add fields to each object of JSON lines, or of a list."""
    records, by_record = list(read_json(found.file)), found.told
    parts = zip_rows(found)
    lines = is_jsonl(found.file)
    for place, (number, record) in enumerate(records):
        if found.task.output == "option":  # whose rows are counted by questions, not by records
            own = [next(parts) for _ in range(count_questions(record))]
        else:
            own = by_record.get(number, [])
        known = [found.task.to_json(row, answer) for row, answer in own]
        joined: dict[str, Any] = known[0] if len(known) == 1 else {
            name: [one[name] for one in known] for name in (known[0] if known else ())
        }  # fmt: skip
        whole = {**record, **joined} if isinstance(record, dict) else [*record, joined]
        text = json.dumps(whole, ensure_ascii=False)
        if lines:
            yield text + "\n"
            continue
        yield ("[" if place == 0 else "") + text + (",\n" if place + 1 < len(records) else "]\n")


def count_questions(record: Any) -> int:
    """Count the questions of a record of options: C3 and RACE have several about one text."""
    if isinstance(record, list):
        return len(record[1])
    several = isinstance(record.get("questions"), list) and isinstance(record.get("options"), list)
    return len(record["questions"]) if several else 1


def is_jsonl(file: Path) -> bool:
    """Tell JSON lines from a file that is one list."""
    first = next((line for _, line in read_lines(file) if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict)
    except ValueError:
        return False


def write_table(found: Predictions) -> Iterator[str]:
    """Add columns to a table."""
    by_line, task = found.told, found.task
    names = task.cell_names(all_probabilities=found.every)
    for place, (number, row) in enumerate(read_table(found.file)):
        own = by_line.get(number, [])
        if place == 0 and (found.guess.header or found.guess.format == "gap"):
            added, titles = names, row
        elif found.guess.format == "gap":
            added = [gap_answer(dict(zip(titles, row, strict=True)), *own[0])]
        else:
            added = [""] * len(names)
            if own:
                added = task.to_cells(own[0][1], all_probabilities=found.every)
        yield format_row([*row, *added], content_suffix(found.file) == ".csv")


def format_row(row: Sequence[str], commas: bool) -> str:
    """Write a row of a table."""
    if not commas:
        return "\t".join(one_line(one) for one in row) + "\n"
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(row)
    return line.getvalue()


def gap_answer(fields: dict[str, str], row: Any, answer: Prediction) -> str:
    """Say which of GAP's two names the pronoun means, by the order they have in the text."""
    order = sorted(("Pronoun", "A", "B"), key=lambda who: int(fields[f"{who}-offset"]))
    indices = dict(zip(order, row.mentions, strict=True))
    groups = [group for group in answer.value if indices["Pronoun"] in group]
    same = [who for who in "AB" if any(indices[who] in group for group in groups)]
    return " and ".join(same) or "neither"
