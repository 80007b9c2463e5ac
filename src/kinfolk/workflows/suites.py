"""Fine-tune on every labelled set of a folder, and score it as GLUE does (Wang et al., 2018).

The score of a set is in percent, the mean of its metrics where GLUE averages them; the score of a
suite is the mean over its sets.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.tasks.dataset import TaskDataset, sample_rows, task_dataset
from kinfolk.tasks.formats.base import read_rows
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.suite import SplitFiles, SuiteTask, discover_suite
from kinfolk.tasks.task import find_metric, task_class
from kinfolk.training.run import check_new_folder
from kinfolk.workflows.finetune_recipe import (
    FineTuneRecipe,
    OnMessage,
    mean_and_std,
)
from kinfolk.workflows.predict import load_predictor, match_format, without_labels
from kinfolk.workflows.seeds import is_multi_seed, read_scores, seed_folders

AVERAGED_OUTPUTS = ("label", "number")  # accuracy and F1, Pearson and Spearman
TrainFn = Callable[
    [Sequence[TaskDataset], Path, str | None], Path
]  # of files, a run folder, a metric


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """The scores of one set, or why it has none."""

    name: str
    task: str
    way: str = ""
    learned: int = 0  # rows
    num_eval_rows: int = 0
    split: str = ""  # the rows it is scored on: test, dev, or some held out
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    stds: dict[str, float] = dataclasses.field(
        default_factory=dict
    )  # where there are several seeds
    skip_reason: str = ""  # why it was left out

    @property
    def score(self) -> float:
        """The score of the set, in percent."""
        values = [as_percent(name, value) for name, value in self.scores.items()]
        averaged = task_class(self.task).output in AVERAGED_OUTPUTS  # else the first counts
        return sum(values) / len(values) if averaged else values[0]


def select_tasks(folder: Path, only: str | None) -> list[SuiteTask]:
    """List the sets of a folder, or those in `only`."""
    sets = discover_suite(folder)
    if only is None:
        return sets
    known = {one.name: one for one in sets}
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--only {name}: no set is called so: {did_you_mean(name, [*known])}")
    return [known[name] for name in names]


def skipped_folders(folder: Path, sets: Sequence[SuiteTask]) -> list[SuiteResult]:
    """Return the folders that hold no set, with the reason."""
    known = {one.name.partition("/")[0] for one in sets}
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in known)
    return [
        SuiteResult(name=path.name, task="", skip_reason=skip_reason(path))
        for path in inner
        if not path.name.startswith(".") and any(path.iterdir())
    ]


def skip_reason(folder: Path) -> str:
    """Return why a folder holds no set: the format of its first file."""
    file = next((path for path in sorted(folder.rglob("*")) if path.is_file()), None)
    if file is None:
        return "it holds no file"
    try:
        return f"{file.name} is {detect_format(file).description}"
    except UserError as error:
        return str(error)


def run_suite(
    sets: Sequence[SuiteTask],
    tune: TrainFn,
    out: Path,
    *,
    limit: int | None = None,
    device: str = "auto",
    on_message: OnMessage = lambda message: None,
    skipped: Sequence[SuiteResult] = (),
) -> list[SuiteResult]:
    """Fine-tune on every set and score it; a set that fails is left out, with the reason."""
    if limit is not None and limit < 2:
        raise UserError(f"--limit {limit} leaves nothing to learn from: use 2 or more")
    check_new_folder(out)
    for left_out in skipped:
        on_message(f"{left_out.name} is left out: {left_out.skip_reason}")
    results = [*skipped]
    for one in sets:
        try:
            if one.error:
                raise UserError(one.error)
            on_message(f"{one.name}: {one.file_spec.description}")
            results.append(run_task(one, tune, out / one.name, limit, device, on_message))
        except UserError as error:
            on_message(f"{one.name} is left out: {error}")
            results.append(SuiteResult(name=one.name, task=one.task, skip_reason=str(error)))
    if any(result.scores for result in results):
        values = [asdict(one) | ({"score": one.score} if one.scores else {}) for one in results]
        text = json.dumps(
            {"mean": suite_mean(results), "sets": values}, indent=2, ensure_ascii=False
        )
        (out / "suite.json").write_text(text + "\n", encoding="utf-8")
    return results


def run_task(
    one: SuiteTask, tune: TrainFn, out: Path, limit: int | None, device: str, on_message: OnMessage
) -> SuiteResult:
    """Fine-tune on one set, and score it on its test rows, else on its dev rows."""
    learned, dev = (one.train, one.dev) if one.train else (one.dev, ())
    if not learned:
        raise UserError("it has no rows to learn from, only a test")
    file = dataset_of(learned, dev, limit)
    made = tune([file], out, one.metrics[0])
    runs = seed_folders(made) if is_multi_seed(made) else [made]
    recipe = FineTuneRecipe.read(runs[0] / "recipe.json")
    rows = test_rows(one.test, file, limit, on_message)
    if rows:
        found = [evaluate_run(path, rows, device) for path in runs]
        on, size = "test", len(rows)
    else:
        found = list(read_scores(made).runs.values())
        on = "dev" if dev else "held out"
        size = len(file.splits[1])
    metrics = {name: find_metric(name) for name in one.metrics if name in found[0]}
    names = [name for name, metric in metrics.items() if metric and not metric.lower_is_better]
    if not names:
        raise UserError("none of its rows could be scored: give it more, or a test")
    means = {name: mean_and_std([values[name] for values in found]) for name in names}
    return SuiteResult(
        name=one.name,
        task=one.task,
        way=recipe.formulations[0].name,
        learned=len(file.splits[0]),
        num_eval_rows=size,
        split=on,
        scores={name: value for name, (value, _) in means.items()},
        stds={name: apart for name, (_, apart) in means.items()} if len(runs) > 1 else {},
    )


def dataset_of(learned: SplitFiles, dev: SplitFiles, limit: int | None) -> TaskDataset:
    """Describe the files of a set."""
    targets = [files[1] if len(files) > 1 else None for files in (learned, dev)]
    return task_dataset(
        learned[0],
        dev[0] if dev else None,
        target=targets[0],
        dev_target=targets[1],
        max_rows=limit,
    )


def test_rows(
    files: SplitFiles, file: TaskDataset, limit: int | None, on_message: OnMessage
) -> list[Any]:
    """Read the labelled rows of a test file; some test files have no labels.

    A file that cannot be read is reported, and the set is scored on dev rows.
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
            on_message(f"{files[0]} cannot be read, so that dev rows are scored instead: {error}")
        return []
    cls = task_class(file.file_spec.task)
    rows = [row for row in rows if cls.reference(row) is not None]
    return sample_rows(rows, limit)


def evaluate_run(run: Path, rows: list[Any], device: str) -> dict[str, float]:
    """Score the best model of a run on rows."""
    found = load_predictor(run, device=device)
    return found.task.evaluate(rows, found.predict(rows))


def suite_mean(results: Sequence[SuiteResult]) -> float:
    """Return the mean of the sets that have a score."""
    values = [result.score for result in results if result.scores]
    return sum(values) / len(values)


def as_percent(name: str, value: float) -> float:
    """Return a score in percent."""
    metric = find_metric(name)
    return value if metric is not None and metric.maximum == 100 else 100 * value
