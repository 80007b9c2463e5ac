"""Asking a model that learned no task (Brown et al., 2020): by a prompt, some solved rows in it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes import ways
from kinfolk.recipes.answering import Predictor
from kinfolk.recipes.opening import load
from kinfolk.recipes.pretraining import select_device
from kinfolk.recipes.tuning import (
    TaskDataset,
    has_label,
    infer_task,
    read_labelled_rows,
    task_dataset,
)
from kinfolk.rng import Stream, generator
from kinfolk.tasks.notes import ReadReport


def few_shot_predictor(
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
    notes: ReadReport | None = None,
) -> tuple[Predictor, list[Any]]:
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
    notes = notes or ReadReport()
    file = task_dataset(test, task=task, columns=columns, target=target)
    rows = file.train_rows(notes)
    known = rows if train is None else fewshot_rows(train, file, notes)
    network, tokenizer = load(model)
    network.to(select_device(device))
    body: Any = network.backbone if isinstance(network, ModelWithHead) else network
    asking = infer_task(file, [row for row in known if has_label(file.guess.task, row)])
    kind = ways.choose_formulation(body.config, asking.kind, "prompt")
    if words is not None and len(words) != len(asking.labels):
        raise UserError(
            f"--words {','.join(words)}: {len(words)} words for {len(asking.labels)} classes; give "
            f"one for each of {', '.join(asking.labels)}"
        )
    way: Any = ways.build_formulation(
        kind,
        asking,
        body.config,
        tokenizer,
        length=length,
        pattern=pattern,
        verbalizer=None if words is None else tuple(words),
    )
    way = replace(
        way, examples=tuple(way.format_example(row) for row in sample_fewshot(known, shots, seed))
    )
    return Predictor(body, tokenizer, way, file.guess), rows


def fewshot_rows(train: Path, file: TaskDataset, notes: ReadReport) -> list[Any]:
    """Read the rows that solved ones are drawn from, in the form of the test or its own."""
    if not train.is_file():
        raise UserError(f"{train} is not there: give a file with labelled examples")
    try:
        found = read_labelled_rows(train, file.guess, notes=notes)
    except UserError:
        found = task_dataset(train, task=file.guess.task).train_rows(notes)
    rows = [row for row in found if has_label(file.guess.task, row)]
    if not rows:
        raise UserError(f"{train} has no labelled row: there is nothing to show as solved")
    return rows


def sample_fewshot(rows: Sequence[Any], shots: int, seed: int) -> list[Any]:
    """Draw solved rows; the same seed draws the same."""
    if shots > len(rows):
        raise UserError(f"--shots {shots}: there are only {len(rows)} rows to draw them from")
    order = generator(seed, Stream.SPLIT).permutation(len(rows))
    return [rows[place] for place in order[:shots]]
