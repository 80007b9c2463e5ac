"""Checks of the first rows of an input, made before torch is imported and a model is loaded."""

from itertools import islice
from pathlib import Path

from kinfolk.config import from_fields
from kinfolk.data.documents import read_documents
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.formats.labelled_file import SAMPLE_ROWS, LabelledFile
from kinfolk.tasks.formats.match import match_format
from kinfolk.tasks.task import task_class
from kinfolk.workflows.model_use import recipe_values


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
    spec = matched_format(model, file, task_index, labelled=True)
    if spec is not None:
        rows = [*islice(read_rows(file, spec), SAMPLE_ROWS)]
        task_class(spec.task).check_references(rows)


def check_inputs(model: Path, file: LabelledFile, task_index: int) -> None:
    """Refuse a file whose first rows are not in the format that the model was trained on."""
    matched_format(model, file, task_index, labelled=False)


def matched_format(
    model: Path, file: LabelledFile, task_index: int, *, labelled: bool
) -> FileSpec | None:
    """Return how a file is read for a fine-tuned run; None for another folder."""
    trained = trained_format(model, task_index)
    if trained is None or trained[0].format == "parallel":
        return None
    return match_format(file, trained[0], labelled=labelled, labels=trained[1])


def trained_format(model: Path, task_index: int) -> tuple[FileSpec, tuple[str, ...]] | None:
    """Return the format of the training file of a run and its labels; None where there is none."""
    value = recipe_values(model)
    if value is None or task_index < 1:
        return None
    try:
        spec = from_fields(FileSpec, value["datasets"][task_index - 1]["file_spec"], "")
        return spec, tuple(value["formulations"][task_index - 1]["task"]["labels"])
    except (ValueError, LookupError, TypeError):  # of another kind, or damaged
        return None
