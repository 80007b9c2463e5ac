"""Asking a model that learned no task (Brown et al., 2020): by a prompt, some solved rows in it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes import ways
from kinfolk.recipes.answering import Solver
from kinfolk.recipes.opening import load
from kinfolk.recipes.pretraining import pick
from kinfolk.recipes.tuning import Sheet, asked, labelled, read, sheet
from kinfolk.rng import Stream, generator
from kinfolk.tasks.notes import Notes


def prompted(
    model: Path | str,
    test: Path,
    *,
    train: Path | None = None,
    shots: int = 0,
    seed: int = 0,
    task: str | None = None,
    columns: str | None = None,
    target: Path | None = None,
    pattern: str | None = None,
    words: Sequence[str] | None = None,
    length: int | None = None,
    device: str = "auto",
    notes: Notes | None = None,
) -> tuple[Solver, list[Any]]:
    """Open a model that is asked as it is, and the rows it is asked about.

    Its labels are those of the training file, from which the solved rows are drawn, or else those
    of the test.
    """
    if shots < 0:
        raise UserError(f"--shots {shots}: use 0 or more")
    if shots and train is None:
        raise UserError(
            f"--shots {shots} are solved rows: give the file to draw them from, --train"
        )
    notes = notes or Notes()
    file = sheet(test, task=task, columns=columns, target=target)
    rows = file.learned(notes)
    known = rows if train is None else solved(train, file, notes)
    network, tokenizer = load(model)
    network.to(pick(device))
    body: Any = network.backbone if isinstance(network, ModelWithHead) else network
    asking = asked(file, [row for row in known if labelled(file.guess.task, row)])
    kind = ways.choose(body.config, asking.kind, "prompt")
    if words is not None and len(words) != len(asking.labels):
        raise UserError(
            f"--words {','.join(words)}: {len(words)} words for {len(asking.labels)} classes; give "
            f"one for each of {', '.join(asking.labels)}"
        )
    way: Any = ways.build(
        kind,
        asking,
        body.config,
        tokenizer,
        length=length,
        pattern=pattern,
        words=None if words is None else tuple(words),
    )
    way = replace(way, shots=tuple(way.solved(row) for row in drawn(known, shots, seed)))
    return Solver(body, tokenizer, way, file.guess), rows


def solved(train: Path, file: Sheet, notes: Notes) -> list[Any]:
    """Read the rows that solved ones are drawn from, in the form of the test or its own."""
    if not train.is_file():
        raise UserError(f"{train} is not there: give a file with labelled examples")
    try:
        found = read(train, file.guess, notes=notes)
    except UserError:
        found = sheet(train, task=file.guess.task).learned(notes)
    rows = [row for row in found if labelled(file.guess.task, row)]
    if not rows:
        raise UserError(f"{train} has no labelled row: there is nothing to show as solved")
    return rows


def drawn(rows: Sequence[Any], shots: int, seed: int) -> list[Any]:
    """Draw solved rows; the same seed draws the same."""
    if shots > len(rows):
        raise UserError(f"--shots {shots}: there are only {len(rows)} rows to draw them from")
    order = generator(seed, Stream.SPLIT).permutation(len(rows))
    return [rows[place] for place in order[:shots]]
