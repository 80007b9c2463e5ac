"""Answers in the form of the file that was asked about: all that was there stays, and they join it.

a fine film        a fine film    good   0.93      tables, and words in columns, get columns
{"text": ...}      {"text": ..., "prediction": "good", "probability": 0.93, ...}
SQuAD's json       {"56be4db0acb8001400a502ec": "Denver Broncos", ...}
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kinfolk.data.streams import content_suffix
from kinfolk.errors import UserError
from kinfolk.recipes.answering import Predictor
from kinfolk.recipes.margins import (
    PROBABILITY_DIGITS,
    Predictions,
    one_line,
    write_conll,
    write_conll2012,
    write_lines,
    write_word_tag,
)
from kinfolk.tasks.forms import FileSpec
from kinfolk.tasks.records import is_json, read_json, read_lines, read_table
from kinfolk.tasks.task import Prediction, Task


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
    if found.task.kind == "lm":
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
        yield json.dumps({"number": row.number, **where, **to_json(found.task, row, answer)},
                         ensure_ascii=False) + "\n"  # fmt: skip


def zip_rows(found: Predictions) -> Iterator[tuple[Any, Prediction]]:
    """Pair rows with their answers."""
    return zip(found.rows, found.answers, strict=True)


def to_json(task: Task, row: Any, answer: Prediction) -> dict[str, Any]:
    """Say an answer in JSON."""
    match task.kind:
        case "classify":
            return {
                "prediction": answer.value,
                "probability": round_probability(answer.probability),
                "probabilities": dict(
                    zip(task.labels, map(round_probability, answer.probabilities), strict=True)
                ),
            }
        case "choose":
            return {
                "prediction": answer.value,
                "option": row.options[answer.value],
                "probability": round_probability(answer.probability),
                "probabilities": [round_probability(share) for share in answer.probabilities],
            }
        case "tag":
            tags: dict[str, Any] = {"prediction": list(answer.value)}
            shares = {"probability": [round_probability(share) for share in answer.probabilities]}
            return tags | shares if answer.probabilities else tags
        case "coref":
            spans = [[[first, stop - 1] for first, stop in group] for group in answer.value]
            return {"prediction": spans}
        case _:
            known = (
                {}
                if answer.probability is None
                else {"probability": round_probability(answer.probability)}
            )
            return {"prediction": answer.value, **known}


def round_probability(share: float | None) -> float | None:
    """Cut a probability to what can be trusted of it."""
    return None if share is None else round(share, 6)


def write_json(found: Predictions) -> Iterator[str]:
    """Add fields to each object of JSON lines, or of a list."""
    records, by_record = list(read_json(found.file)), found.told
    parts = zip_rows(found)
    lines = is_jsonl(found.file)
    for place, (number, record) in enumerate(records):
        if found.task.kind == "choose":  # whose rows are counted by questions, not by records
            own = [next(parts) for _ in range(count_questions(record))]
        else:
            own = by_record.get(number, [])
        known = [to_json(found.task, row, answer) for row, answer in own]
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
    names = ["prediction"]
    if task.kind == "classify":
        names += ["probability", *(f"probability_{n}" for n in task.labels if found.every)]
    for place, (number, row) in enumerate(read_table(found.file)):
        own = by_line.get(number, [])
        if place == 0 and (found.guess.header or found.guess.format == "gap"):
            added, titles = names, row
        elif found.guess.format == "gap":
            added = [gap_answer(dict(zip(titles, row, strict=True)), *own[0])]
        else:
            added = to_cells(own[0][1], found) if own else [""] * len(names)
        yield format_row([*row, *added], content_suffix(found.file) == ".csv")


def to_cells(answer: Prediction, found: Predictions) -> list[str]:
    """Say an answer in the cells of a table."""
    if found.task.kind != "classify":
        return [
            answer.value
            if isinstance(answer.value, str)
            else f"{answer.value:.{PROBABILITY_DIGITS}f}"
        ]
    shares = (
        [f"{share:.{PROBABILITY_DIGITS}f}" for share in answer.probabilities] if found.every else []
    )
    return [answer.value, f"{answer.probability:.{PROBABILITY_DIGITS}f}", *shares]


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
