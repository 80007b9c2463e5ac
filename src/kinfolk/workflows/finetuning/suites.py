"""Fine-tune on every labelled dataset of a folder, scored as in GLUE (Wang et al., 2018).

The score of a dataset is in percent, the mean of its metrics where GLUE averages them; the score of
a suite is the mean over its datasets.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.files import new_file, new_folder
from kinfolk.tasks.dataset import TaskDataset, sample_rows, task_dataset
from kinfolk.tasks.formats.base import read_rows
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.formats.match import match_format, without_labels
from kinfolk.tasks.suite import SplitFiles, SuiteTask, discover_suite
from kinfolk.tasks.task import find_metric, task_class
from kinfolk.training.distributed import Processes
from kinfolk.types import OnMessage
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe, mean_and_std
from kinfolk.workflows.finetuning.seeds import is_multi_seed, read_scores, seed_folders
from kinfolk.workflows.folders import check_new_folder, exclusive_run
from kinfolk.workflows.predict import load_predictor

AVERAGED_OUTPUTS = ("label", "number")  # accuracy and F1, Pearson and Spearman
# Of datasets, a run folder and a metric.
TrainFn = Callable[[Sequence[TaskDataset], Path, str | None], Path]


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """The scores of one dataset, or why it has none."""

    name: str
    task: str
    formulation: str = ""
    num_train_rows: int = 0
    num_eval_rows: int = 0
    split: str = ""  # the rows it is scored on: test, dev, or some held out
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    stds: dict[str, float] = dataclasses.field(default_factory=dict)  # of several seeds
    skip_reason: str = ""  # why the dataset was skipped

    @property
    def score(self) -> float:
        """The score of the dataset, in percent."""
        values = [as_percent(name, value) for name, value in self.scores.items()]
        averaged = task_class(self.task).output in AVERAGED_OUTPUTS  # else the first counts
        return sum(values) / len(values) if averaged else values[0]

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the score; `way` and `learned` are keys that programs read."""
        earlier = {"way": self.formulation, "learned": self.num_train_rows}
        return asdict(self) | earlier | ({"score": self.score} if self.scores else {})


def select_tasks(folder: Path, only: str | None) -> list[SuiteTask]:
    """Return the datasets of a folder, or those in `only`."""
    sets = discover_suite(folder)
    if only is None:
        return sets
    known = {task.name: task for task in sets}
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--tasks {name}: unknown dataset; {did_you_mean(name, [*known])}")
    return [known[name] for name in names]


def skipped_folders(folder: Path, sets: Sequence[SuiteTask]) -> list[SuiteResult]:
    """Return the folders without a dataset, with the reason."""
    known = {task.name.partition("/")[0] for task in sets}
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in known)
    return [
        SuiteResult(name=path.name, task="", skip_reason=skip_reason(path))
        for path in inner
        if not path.name.startswith(".") and any(path.iterdir())
    ]


def skip_reason(folder: Path) -> str:
    """Return why a folder has no dataset: the format of its first file."""
    file = next((path for path in sorted(folder.rglob("*")) if path.is_file()), None)
    if file is None:
        return "no files"
    try:
        return f"{file.name} is {detect_format(file).description}"
    except UserError as error:
        return str(error)


def run_suite(
    sets: Sequence[SuiteTask],
    train_fn: TrainFn,
    out: Path,
    *,
    limit: int | None = None,
    device: str = "auto",
    on_message: OnMessage = lambda message: None,
    skipped: Sequence[SuiteResult] = (),
) -> list[SuiteResult]:
    """Fine-tune on every dataset and score it; one that fails is skipped with the reason."""
    if limit is not None and limit < 2:
        raise UserError(f"--limit must be at least 2 (got {limit})")
    if Processes.from_environment().several:
        # One that fails in one process alone would leave the others waiting for it.
        raise UserError(
            "a suite runs in one process: start it without torchrun, or fine-tune on each of its "
            "datasets with torchrun"
        )
    check_new_folder(out)
    try:
        with new_folder(out) as partial:  # not empty, so that no other process takes it
            for task in sets:
                (partial / task.name).mkdir(parents=True)
    except (BlockingIOError, FileExistsError) as error:
        raise UserError(f"{out} exists by now: another run was started in it") from error
    with exclusive_run(out):
        try:
            return train_suite(
                *(sets, train_fn, out),
                limit=limit,
                device=device,
                on_message=on_message,
                skipped=skipped,
            )
        finally:
            for name in (*(task.name for task in sets), "."):  # of datasets that were skipped
                with suppress(OSError):
                    (out / name).resolve().rmdir()


def train_suite(
    sets: Sequence[SuiteTask],
    train_fn: TrainFn,
    out: Path,
    *,
    limit: int | None,
    device: str,
    on_message: OnMessage,
    skipped: Sequence[SuiteResult],
) -> list[SuiteResult]:
    """Fine-tune on every dataset into a folder that exists; write suite.json."""
    for result in skipped:
        on_message(f"{result.name} skipped: {result.skip_reason}")
    results = [*skipped]
    for task in sets:
        try:
            if task.error:
                raise UserError(task.error)
            on_message(f"{task.name}: {task.file_spec.description}")
            results.append(run_task(task, train_fn, out / task.name, limit, device, on_message))
        except UserError as error:
            on_message(f"{task.name} skipped: {error}")
            results.append(SuiteResult(name=task.name, task=task.task, skip_reason=str(error)))
    if any(result.scores for result in results):
        values = [result.to_json() for result in results]
        text = json.dumps(
            {"mean": suite_mean(results), "sets": values}, indent=2, ensure_ascii=False
        )
        with new_file(out / "suite.json") as file:
            file.write(text + "\n")
    return results


def run_task(
    task: SuiteTask,
    train_fn: TrainFn,
    out: Path,
    limit: int | None,
    device: str,
    on_message: OnMessage,
) -> SuiteResult:
    """Fine-tune on one dataset, and score it on its test rows, else on its dev rows."""
    train, dev = (task.train, task.dev) if task.train else (task.dev, ())
    if not train:
        raise UserError("no training data")
    file = dataset_of(train, dev, limit)
    run = train_fn([file], out, task.metrics[0])
    runs = seed_folders(run) if is_multi_seed(run) else [run]
    recipe = FineTuneRecipe.read(runs[0] / "recipe.json")
    rows = read_test_rows(task.test, file, limit, on_message)
    if rows:
        scores = [evaluate_run(path, rows, device) for path in runs]
        split, size = "test", len(rows)
    else:
        scores = list(read_scores(run).runs.values())
        split = "dev" if dev else "held out"
        size = len(file.splits[1])
    metrics = {name: find_metric(name) for name in task.metrics if name in scores[0]}
    names = [name for name, metric in metrics.items() if metric and not metric.lower_is_better]
    if not names:
        raise UserError("no rows to score: add dev or test rows")
    means = {name: mean_and_std([values[name] for values in scores]) for name in names}
    return SuiteResult(
        name=task.name,
        task=task.task,
        formulation=recipe.formulations[0].name,
        num_train_rows=len(file.splits[0]),
        num_eval_rows=size,
        split=split,
        scores={name: value for name, (value, _) in means.items()},
        stds={name: std for name, (_, std) in means.items()} if len(runs) > 1 else {},
    )


def dataset_of(train: SplitFiles, dev: SplitFiles, limit: int | None) -> TaskDataset:
    """Return the dataset of the files of each split."""
    targets = [files[1] if len(files) > 1 else None for files in (train, dev)]
    return task_dataset(
        train[0],
        dev[0] if dev else None,
        target=targets[0],
        dev_target=targets[1],
        max_rows=limit,
    )


def read_test_rows(
    files: SplitFiles, file: TaskDataset, limit: int | None, on_message: OnMessage
) -> list[Any]:
    """Read the labelled rows of a test file; some test files have no labels.

    A file that cannot be read is reported, and the dev rows are scored instead.
    """
    if not files:
        return []
    opened = LabelledFile(files[0], target=files[1] if len(files) > 1 else None)
    try:
        rows = list(read_rows(opened, file.file_spec))
    except UserError as error:
        try:
            spec = without_labels(match_format(opened, file.file_spec, labelled=False))
            list(read_rows(opened, spec))
        except UserError:
            on_message(f"{files[0]} cannot be read; scoring dev rows instead: {error}")
        return []
    cls = task_class(file.file_spec.task)
    rows = [row for row in rows if cls.reference(row) is not None]
    return sample_rows(rows, limit)


def evaluate_run(run: Path, rows: list[Any], device: str) -> dict[str, float]:
    """Score the best model of a run on rows."""
    predictor = load_predictor(run, device=device)
    return predictor.task.evaluate(rows, predictor.predict(rows))


def suite_mean(results: Sequence[SuiteResult]) -> float:
    """Return the mean of the datasets that have a score."""
    values = [result.score for result in results if result.scores]
    return sum(values) / len(values)


def as_percent(name: str, value: float) -> float:
    """Return a score in percent."""
    metric = find_metric(name)
    return value if metric is not None and metric.maximum == 100 else 100 * value
