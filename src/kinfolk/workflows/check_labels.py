"""What is wrong with labelled files, before anything is learned from them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import ReadReport, read_rows
from kinfolk.tasks.task import Task, task_class
from kinfolk.workflows.finetune_recipe import OnMessage, TaskDataset

MAX_LABELS_SHOWN = 8  # labels in a sentence


def check_dataset(sheets: Sequence[TaskDataset], say: OnMessage) -> None:
    """Say what each file is for, and refuse dev rows that nothing can be chosen by."""
    for sheet in sheets:
        say(f"{Path(sheet.train).name}: {sheet.guess.description}")
        if sheet.dev is None:
            continue
        task = task_class(sheet.guess.task)
        rows = list(read_rows(Path(sheet.dev), sheet.guess, target=sheet.dev_target))
        for row in rows:
            if task.reference(row) is None:
                raise UserError(
                    f"row {row.number:,} of {sheet.dev} has no label: dev rows are what the best "
                    "model is chosen by; give labelled ones, or leave --dev out"
                )
        if not rows:
            raise UserError(f"{sheet.dev} holds no rows: give labelled ones, or leave --dev out")
        if strange := unseen_labels(task, sheet.train_rows(ReadReport()), rows):
            say(f"{Path(sheet.dev).name} has labels that {Path(sheet.train).name} has not, and "
                f"that count as wrong: {format_counts(strange)}")  # fmt: skip


def unseen_labels(
    task: type[Task], train_rows: Sequence[Any], rows: Sequence[Any]
) -> dict[str, int]:
    """Count the labels of rows that the training rows lack."""
    known = {label for row in train_rows for label in task.row_labels(row)}
    labels = (label for row in rows for label in task.row_labels(row))
    return dict(Counter(label for label in labels if label not in known))


def format_counts(labels: dict[str, int]) -> str:
    """Name labels with how often each is there: `neutral (3), mixed (1)`."""
    ordered = sorted(labels.items(), key=lambda item: -item[1])
    said = [f"{label} ({count:,})" for label, count in ordered[:MAX_LABELS_SHOWN]]
    return ", ".join([*said, *(["…"] if len(labels) > MAX_LABELS_SHOWN else [])])
