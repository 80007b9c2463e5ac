"""Checks of the first rows of an input, made before torch is imported and a model is loaded."""

import json
from itertools import islice
from pathlib import Path

from kinfolk.config import from_fields
from kinfolk.data.documents import read_documents
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.formats.labelled_file import SAMPLE_ROWS, LabelledFile
from kinfolk.tasks.formats.match import match_format
from kinfolk.tasks.task import task_class

RECIPES = ("recipe.json", "kinfolk.json")  # of a run, and of a checkpoint


def check_text(path: Path) -> None:
    """Refuse a file or a folder whose first document cannot be read."""
    if path.is_file() or path.is_dir():  # a pipe is read once
        next(read_documents([path]), None)


def check_rows(file: LabelledFile) -> None:
    """Refuse a file that is empty or whose first lines are not text."""
    if not any(line.strip() for line in file.sample_lines):
        raise UserError(f"{file} is empty: give a file with rows")


def check_labels(model: Path, file: LabelledFile, task_index: int) -> None:
    """Refuse a file whose first rows have no labels, in the format that the model was trained on.

    A folder that is no fine-tuned run is not judged.
    """
    trained = trained_format(model, task_index)
    if trained is None or trained[0].format == "parallel":
        return
    spec = match_format(file, trained[0], labelled=True, labels=trained[1])
    rows = [*islice(read_rows(file, spec), SAMPLE_ROWS)]
    task_class(spec.task).check_references(rows)


def trained_format(model: Path, task_index: int) -> tuple[FileSpec, tuple[str, ...]] | None:
    """Return the format of the training file of a run and its labels; None where there is none."""
    recipe = next((model / name for name in RECIPES if (model / name).is_file()), None)
    if recipe is None or task_index < 1:
        return None
    try:
        value = json.loads(recipe.read_text(encoding="utf-8"))
        spec = from_fields(FileSpec, value["datasets"][task_index - 1]["file_spec"], "")
        return spec, tuple(value["formulations"][task_index - 1]["task"]["labels"])
    except (ValueError, LookupError, TypeError, OSError):  # of another kind, or damaged
        return None
