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

from kinfolk.data.streams import suffix
from kinfolk.errors import UserError
from kinfolk.recipes.answering import Solver
from kinfolk.recipes.margins import DIGITS, Answers, bracketed, columned, lined, plain, slashed
from kinfolk.tasks.forms import Guess
from kinfolk.tasks.records import cells, holds_json, objects, text_lines
from kinfolk.tasks.task import Answer, Task


def answered(
    found: Solver,
    file: Path,
    rows: Sequence[Any],
    guess: Guess,
    *,
    every: bool = False,
    watch: Callable[[int], None] = lambda done: None,
) -> Answers:
    """Ask a model about rows of a file."""
    if found.task.kind == "lm":
        raise UserError("a text has no label to predict: score it with evaluate --test")
    if not rows:
        raise UserError(f"{file} holds no rows: there is nothing to predict")
    return Answers(file, found.task, guess, rows, found.answers(rows, watch=watch), every)


def written(found: Answers) -> Iterator[str]:
    """Write the file anew, with the answers in it, a line at a time."""
    match found.guess.form:
        case "squad":
            said = {row.id: answer.value for row, answer in told(found)}
            yield json.dumps(said, ensure_ascii=False) + "\n"
        case "parallel":
            yield from (plain(answer.value) + "\n" for answer in found.answers)
        case "columns" | "digits" | "roles":
            yield from columned(found)
        case "conll2012":
            yield from bracketed(found)
        case "slashes":
            yield from slashed(found)
        case "trees" | "lines":
            yield from lined(found)
        case _ if holds_json(found.file):
            yield from recorded(found)
        case _:
            yield from tabled(found)


def listed(found: Answers) -> Iterator[str]:
    """Write answers alone, a JSON object a line, whatever form the file has."""
    for row, answer in told(found):
        where = {"id": row.id} if hasattr(row, "id") else {}
        yield json.dumps({"number": row.number, **where, **fields(found.task, row, answer)},
                         ensure_ascii=False) + "\n"  # fmt: skip


def told(found: Answers) -> Iterator[tuple[Any, Answer]]:
    """Pair rows with their answers."""
    return zip(found.rows, found.answers, strict=True)


def fields(task: Task, row: Any, answer: Answer) -> dict[str, Any]:
    """Say an answer in JSON."""
    match task.kind:
        case "classify":
            return {
                "prediction": answer.value,
                "probability": rounded(answer.sure),
                "probabilities": dict(zip(task.labels, map(rounded, answer.scores), strict=True)),
            }
        case "choose":
            return {
                "prediction": answer.value,
                "option": row.options[answer.value],
                "probability": rounded(answer.sure),
                "probabilities": [rounded(share) for share in answer.scores],
            }
        case "tag":
            tags: dict[str, Any] = {"prediction": list(answer.value)}
            shares = {"probability": [rounded(share) for share in answer.scores]}
            return tags | shares if answer.scores else tags
        case "coref":
            spans = [[[first, stop - 1] for first, stop in group] for group in answer.value]
            return {"prediction": spans}
        case _:
            known = {} if answer.sure is None else {"probability": rounded(answer.sure)}
            return {"prediction": answer.value, **known}


def rounded(share: float | None) -> float | None:
    """Cut a probability to what can be trusted of it."""
    return None if share is None else round(share, 6)


def recorded(found: Answers) -> Iterator[str]:
    """Add fields to each object of JSON lines, or of a list."""
    records, by_record = list(objects(found.file)), found.told
    parts = told(found)
    lines = in_lines(found.file)
    for place, (number, record) in enumerate(records):
        if found.task.kind == "choose":  # whose rows are counted by questions, not by records
            own = [next(parts) for _ in range(questions(record))]
        else:
            own = by_record.get(number, [])
        known = [fields(found.task, row, answer) for row, answer in own]
        joined: dict[str, Any] = known[0] if len(known) == 1 else {
            name: [one[name] for one in known] for name in (known[0] if known else ())
        }  # fmt: skip
        whole = {**record, **joined} if isinstance(record, dict) else [*record, joined]
        text = json.dumps(whole, ensure_ascii=False)
        if lines:
            yield text + "\n"
            continue
        yield ("[" if place == 0 else "") + text + (",\n" if place + 1 < len(records) else "]\n")


def questions(record: Any) -> int:
    """Count the questions of a record of options: C3 and RACE have several about one text."""
    if isinstance(record, list):
        return len(record[1])
    several = isinstance(record.get("questions"), list) and isinstance(record.get("options"), list)
    return len(record["questions"]) if several else 1


def in_lines(file: Path) -> bool:
    """Tell JSON lines from a file that is one list."""
    first = next((line for _, line in text_lines(file) if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict)
    except ValueError:
        return False


def tabled(found: Answers) -> Iterator[str]:
    """Add columns to a table."""
    by_line, task = found.told, found.task
    names = ["prediction"]
    if task.kind == "classify":
        names += ["probability", *(f"probability_{n}" for n in task.labels if found.every)]
    for place, (number, row) in enumerate(cells(found.file)):
        own = by_line.get(number, [])
        if place == 0 and (found.guess.header or found.guess.form == "gap"):
            added, titles = names, row
        elif found.guess.form == "gap":
            added = [meant(dict(zip(titles, row, strict=True)), *own[0])]
        else:
            added = cell(own[0][1], found) if own else [""] * len(names)
        yield joined([*row, *added], suffix(found.file) == ".csv")


def cell(answer: Answer, found: Answers) -> list[str]:
    """Say an answer in the cells of a table."""
    if found.task.kind != "classify":
        return [answer.value if isinstance(answer.value, str) else f"{answer.value:.{DIGITS}f}"]
    shares = [f"{share:.{DIGITS}f}" for share in answer.scores] if found.every else []
    return [answer.value, f"{answer.sure:.{DIGITS}f}", *shares]


def joined(row: Sequence[str], commas: bool) -> str:
    """Write a row of a table."""
    if not commas:
        return "\t".join(plain(one) for one in row) + "\n"
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(row)
    return line.getvalue()


def meant(fields: dict[str, str], row: Any, answer: Answer) -> str:
    """Say which of GAP's two names the pronoun means, by the order they have in the text."""
    order = sorted(("Pronoun", "A", "B"), key=lambda who: int(fields[f"{who}-offset"]))
    places = dict(zip(order, row.mentions, strict=True))
    groups = [group for group in answer.value if places["Pronoun"] in group]
    same = [who for who in "AB" if any(places[who] in group for group in groups)]
    return " and ".join(same) or "neither"
