"""A kind of task from outside the package is one class and one file format."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinfolk.metrics.metric import MeanMetric
from kinfolk.tasks.dataset import task_dataset
from kinfolk.tasks.formats import base
from kinfolk.tasks.formats.base import FileSpec, Format, Predictions, ReadReport, write_lines
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.task import TASK_KINDS, Task, register_kind, sort_labels
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights
from kinfolk.workflows.predict import evaluate_rows, load_predictor


@dataclass(frozen=True)
class MeanAbsoluteError(MeanMetric):
    """The mean number of stars that predictions are off."""

    name: str = "mae"
    title: str = "MAE"
    lower_is_better: bool = True

    def values(self, predictions: Sequence[str], references: Sequence[str], /) -> list[float]:
        pairs = zip(predictions, references, strict=True)
        return [abs(float(prediction) - float(reference)) for prediction, reference in pairs]


class StarRating(Task):
    """Predict how many stars a review gives."""

    name = "stars"
    alias = "star_rating"
    output = "label"
    all_metrics = (MeanAbsoluteError(),)

    @classmethod
    def label_fields(
        cls, rows: Sequence[LabelledText], *, file: str, positive_label: str | None
    ) -> dict[str, Any]:
        return {"labels": sort_labels({str(row.label) for row in rows})}

    @staticmethod
    def reference(row: LabelledText) -> str | None:
        return None if row.label is None else str(row.label)

    def options(self, row: LabelledText) -> tuple[str, ...]:
        return self.labels


def detect(file: LabelledFile) -> FileSpec | None:
    return FileSpec("stars", "stars", "rate reviews") if file.path.suffix == ".stars" else None


def read(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[LabelledText]:
    for number, line in file.lines():
        stars, _, text = line.partition(" ")
        yield LabelledText((text,), str(len(stars)), number)


@pytest.fixture
def star_rating(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the kind and its file format for one test."""
    base.all_formats()
    monkeypatch.setattr(base, "_FORMATS", [*base._FORMATS])
    monkeypatch.setitem(TASK_KINDS, "stars", StarRating)
    assert register_kind(StarRating) is StarRating
    base.register(Format("stars", ("stars",), read, write_lines, detect, order=-1))
    yield


def test_a_new_kind_is_fine_tuned_evaluated_and_predicted(
    star_rating: None, tmp_path: Path
) -> None:
    file = tmp_path / "train.stars"
    lines = ("* a dull film", "** a grey play", "*** a fine book", "* an awful plot")
    file.write_text("\n".join(lines * 8) + "\n", encoding="utf-8")
    dataset = task_dataset(file)
    weights = parse_initial_weights("bert/nano")
    run = finetune(weights, [dataset], tmp_path / "run", settings=["train.steps=2"])
    predictor = load_predictor(run)
    assert type(predictor.task) is StarRating and predictor.task.labels == ("1", "2", "3")
    assert json.loads((run / "scores.json").read_text("utf-8"))["metric"] == "mae"
    rows = list(base.read_rows(file, dataset.file_spec))
    result = evaluate_rows(predictor, rows, n_resamples=20)
    values = [int(prediction.value) for prediction in result.predictions]
    off = [abs(value - int(str(row.label))) for value, row in zip(values, rows, strict=True)]
    assert result.scores == {"mae": pytest.approx(sum(off) / len(off))}
    assert result.confidence_interval.low <= result.scores["mae"]
    written = base.write_predictions(
        Predictions(LabelledFile(file), dataset.file_spec, predictor.task, rows, result.predictions)
    )
    assert next(iter(written)) == f"{lines[0]}\t{values[0]}\n"
