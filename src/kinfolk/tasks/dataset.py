"""TaskDataset: the labelled rows of a task, from files or memory, read once."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.rng import Stream, generator
from kinfolk.tasks.formats.base import FileSpec, ReadReport, parse_columns, read_rows
from kinfolk.tasks.formats.detect import detect_format, first_spec, unused_columns
from kinfolk.tasks.formats.labelled_file import LabelledFile, json_lines
from kinfolk.tasks.rows_in_memory import DataFrame, HubDataset, records_of
from kinfolk.tasks.task import Task, task_class

DEV_FRACTION = 0.1  # of the training rows, where no dev rows are given
MAX_DEV_ROWS = 2000
MISSING_LABELS = ("na", "n/a", "null", "none", "nil", "missing")  # where several of them occur
FEW_SINGLES = 20  # classes with one row each, of which nothing is said
MAX_LABELS_SHOWN = 8  # labels in one message


RowType = TypeVar("RowType")
RowSource: TypeAlias = (
    Path | str | DataFrame | HubDataset | Sequence[Any]
)  # a sequence of dictionaries


@config("labelled_file")
class TaskDataset:
    """Training and dev rows, and the format in which their files are read.

    Each file is opened once, when its rows are first read. Rows given in memory become files of
    JSON lines that `write_rows` writes.
    """

    train: str = field(help="file of training rows")
    file_spec: FileSpec = field(help="file format and task")
    dev: str | None = field(
        default=None, help="file of dev rows; None holds some training rows out"
    )
    target: str | None = field(default=None, help="file of target lines, for line-aligned text")
    dev_target: str | None = field(default=None, help="file of target lines of the dev rows")
    max_rows: int | None = field(
        default=None, ge=2, help="number of rows to draw from each file; None for all"
    )

    @cached_property
    def files(self) -> dict[str, LabelledFile]:
        """The files of each split."""
        files = {"train": LabelledFile(self.train, target=self.target)}
        if self.dev is not None:
            files["dev"] = LabelledFile(self.dev, target=self.dev_target)
        return files

    @cached_property
    def report(self) -> ReadReport:
        """The rows that were skipped or repaired, so far."""
        return ReadReport()

    @cached_property
    def rows(self) -> list[Any]:
        """All training rows, also those without a label."""
        return self._read("train")

    @cached_property
    def splits(self) -> tuple[list[Any], list[Any]]:
        """The training rows and the dev rows: those of a file, or some of the training rows.

        The same rows are held out for every seed, so that runs can be compared.
        """
        labelled = self._labelled_rows()
        if self.dev is not None:
            return labelled, self._dev_file_rows()
        return split_rows(labelled)

    @cached_property
    def fingerprints(self) -> list[tuple[str, str]]:
        """The path and the fingerprint of each file, in the order in which a run saves them."""
        opened = self.files.values()
        targets = [file.target for file in opened if file.target is not None]
        return [(str(file), file.fingerprint) for file in (*opened, *targets)]

    def messages(self) -> Iterator[str]:
        """Yield messages about the format, unused columns, the classes and unknown dev labels.

        Dev rows without a label are refused.
        """
        name = Path(self.train).name
        yield f"{name}: {self.file_spec.description}"
        if unused := unused_columns(self.files["train"], self.file_spec):
            yield f"{name}: columns that are not used: {', '.join(unused)}"
        cls = task_class(self.file_spec.task)
        labels = Counter(label for row in self.rows for label in cls.row_labels(row))
        if labels:
            one, noun = ("tag", "tags") if cls.output == "tags" else ("class", "classes")
            counted = noun if len(labels) > 1 else one
            yield f"{name}: {len(labels):,} {counted}: {format_counts(labels)}"
        singles = sum(count == 1 for count in labels.values())
        if cls.output == "label" and singles > max(FEW_SINGLES, len(self.rows) / 2):
            yield (
                f"{name}: {singles:,} classes have one row each, from which nothing is learned: "
                "check the column of labels, or predict numbers with --task regress"
            )
        if cls.output == "label" and (differing := differing_labels(self.rows, cls)):
            yield (
                f"{name}: {differing:,} {'texts have' if differing > 1 else 'text has'} rows of "
                "different labels, of which a model learns the mean: correct or remove them"
            )
        for same in similar_labels(labels):
            yield (
                f"{name}: {' and '.join(same)} are different {noun}: write them alike if they "
                "mean the same, or remove the rows if they mean no label"
            )
        train_rows, dev_rows = self.splits
        texts = {row.text for row in train_rows}
        if known := sum(row.text in texts for row in dev_rows):
            yield (
                f"{name}: {known:,} of {len(dev_rows):,} dev rows have the text of a training row, "
                "so that dev scores are too high"
            )
        if self.dev is None:
            return
        if unseen := cls(labels=tuple(labels)).unseen_labels(dev_rows):
            yield (
                f"{Path(self.dev).name} has labels that {name} lacks, counted as errors: "
                f"{format_counts(unseen)}"
            )

    def stored_in(self, folder: Path, prefix: str = "") -> "TaskDataset":
        """Return the dataset with paths in a run folder for the rows that are in memory."""
        files = {
            split: LabelledFile(folder.resolve() / f"{prefix}{split}.jsonl", data=file.data)
            for split, file in self.files.items()
            if file.in_memory
        }
        if not files:
            return self
        files = self.files | files
        dev = str(files["dev"]) if "dev" in files else None
        stored = replace(self, train=str(files["train"]), dev=dev)
        vars(stored)["files"] = files
        return stored

    def write_rows(self, folder: Path) -> None:
        """Write the rows that are in memory into a folder."""
        for file in self.files.values():
            if file.in_memory:
                (folder / file.path.name).write_bytes(file.data)

    def _read(self, split: str) -> list[Any]:
        file = self.files[split]
        try:
            read = [*read_rows(file, self.file_spec, report=self.report)]
        except UserError as error:
            other = first_spec(file)
            if split == "train" or other is None or other.format == self.file_spec.format:
                raise
            if other.task == "lm":  # read as text: it is of the same form, and lacks a column
                raise
            raise UserError(
                f"{file} and {self.train} have different forms ({other.description}; "
                f"{self.file_spec.description}): give files of one form"
            ) from error
        rows = sample_rows(read, self.max_rows)
        file.release()
        return rows

    def _labelled_rows(self) -> list[Any]:
        cls, rows = task_class(self.file_spec.task), []
        for row in self.rows:
            if cls.reference(row) is None:
                self.report.count("rows without a label skipped, on lines", row.number)
            else:
                rows.append(row)
        if not rows:
            self._check_label_column()
            raise UserError(f"{self.train} has no labelled rows: training needs at least one")
        return rows

    def _check_label_column(self) -> None:
        """Refuse a table in which no column was taken for the label, with its other columns."""
        columns, file = self.file_spec.columns, self.files["train"]
        if self.file_spec.format != "table" or columns is None or columns.label is not None:
            return
        texts = ",".join(map(str, columns.texts))
        others = unused_columns(file, self.file_spec)
        found = f": {', '.join(others)}" if others else ""
        named = f"{texts},{others[0] if others else 'label'}"
        raise UserError(
            f"{self.train}: no column of labels was found beside the text ({texts}){found}; a "
            "label is a number or one of a few short values: name its column with "
            f"{file.option('columns', named)}"
        )

    def _dev_file_rows(self) -> list[Any]:
        rows, cls = self._read("dev"), task_class(self.file_spec.task)
        for row in rows:
            if cls.reference(row) is None:
                raise UserError(
                    f"row {row.number:,} of {self.dev} has no label, but dev rows select the best "
                    "checkpoint: label it, or remove --dev"
                )
        if not rows:
            raise UserError(f"{self.dev} has no rows: add labelled rows, or remove --dev")
        return rows


def task_dataset(
    train: RowSource,
    dev: RowSource | None = None,
    *,
    task: str | None = None,
    columns: str | None = None,
    target: Path | str | None = None,
    dev_target: Path | str | None = None,
    max_rows: int | None = None,
) -> TaskDataset:
    """Describe labelled rows; the task and the columns are detected unless they are given.

    Rows are a file, a list of dictionaries, a DataFrame, or a Dataset:
    `task_dataset([{"text": "a fine film", "label": "good"}, ...])`.
    """
    files = {"train": open_rows(train, "train", target)}
    if dev is not None:
        files["dev"] = open_rows(dev, "dev", dev_target)
    for file in files.values():
        for part in (file, file.target):
            if part is not None and not part.in_memory and not part.path.is_file():
                raise UserError(f"no such file: {part}")
    if target is not None and dev is not None and dev_target is None:
        raise UserError("--dev requires --dev-target, the target lines aligned with it")
    spec = detect_format(
        files["train"],
        task=None if task in (None, "auto") else task_class(str(task)).name,
        columns=None if columns is None else parse_columns(columns),
    )
    paths = {split: str(file) for split, file in files.items()}
    dataset = TaskDataset(
        train=paths["train"],
        file_spec=spec,
        dev=paths.get("dev"),
        target=_path_of(files["train"].target),
        dev_target=_path_of(files["dev"].target) if dev is not None else None,
        max_rows=max_rows,
    )
    vars(dataset)["files"] = files
    return dataset


def as_datasets(
    train: RowSource | TaskDataset | Sequence[TaskDataset],
    folder: Path,
    *,
    dev: RowSource | None = None,
    task: str | None = None,
    columns: str | None = None,
) -> list[TaskDataset]:
    """Return the datasets of a run from what a user gives: one or several, or rows of one."""
    sources: Any = [train] if isinstance(train, TaskDataset) else train
    several = sources if isinstance(sources, Sequence) else ()
    datasets = [source for source in several if isinstance(source, TaskDataset)]
    if datasets and any(value is not None for value in (dev, task, columns)):
        raise UserError("dev, task and columns are part of a task_dataset: give them there")
    if not datasets:
        datasets = [task_dataset(sources, dev, task=task, columns=columns)]
    prefixes = [f"{n}-" if len(datasets) > 1 else "" for n in range(1, len(datasets) + 1)]
    return [dataset.stored_in(folder, p) for dataset, p in zip(datasets, prefixes, strict=True)]


def sample_rows(rows: list[Any], max_rows: int | None) -> list[Any]:
    """Draw the same random rows every time and keep their order (files may be sorted by label)."""
    if max_rows is None or len(rows) <= max_rows:
        return rows
    drawn = generator(0, Stream.SUBSAMPLE).permutation(len(rows))[:max_rows]
    return [rows[index] for index in sorted(drawn.tolist())]


def held_out_rows(rows: Sequence[Any]) -> set[int]:
    """Return the indices of the dev rows; rows with the same text are all held out, or none."""
    count = min(MAX_DEV_ROWS, round(DEV_FRACTION * len(rows)))
    order = generator(0, Stream.SPLIT).permutation(len(rows)).tolist()
    texts = [row.text or row.texts_and_labels for row in rows]
    same_text: dict[Any, list[int]] = {}
    for index, text in enumerate(texts):
        same_text.setdefault(text, []).append(index)
    held_out: set[int] = set()
    for index in order:
        group = same_text[texts[index]]
        if index not in held_out and len(held_out) + len(group) <= count:
            held_out.update(group)
    return held_out or {*order[:count]}


def split_rows(rows: Sequence[RowType]) -> tuple[list[RowType], list[RowType]]:
    """Return the training rows, and those that are held out as dev rows, in their order."""
    held_out = held_out_rows(rows)
    splits: tuple[list[RowType], list[RowType]] = [], []
    for index, row in enumerate(rows):
        splits[index in held_out].append(row)
    return splits


def differing_labels(rows: Iterable[Any], task: type[Task]) -> int:
    """Return how many texts, or pairs of texts, occur with more than one label."""
    labels: dict[str, set[Any]] = {}
    for row in rows:
        labels.setdefault(row.text, set()).add(task.reference(row))
    return sum(len(found) > 1 for found in labels.values())


def similar_labels(labels: Iterable[str]) -> list[list[str]]:
    """Return groups of labels that differ in writing alone: `1` and `1.0`, `true` and `True`."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        text = label.casefold()
        try:
            key = repr(float(text))
        except ValueError:
            key = "missing" if text in MISSING_LABELS else text
        groups.setdefault(key, []).append(label)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def format_counts(labels: Mapping[str, int]) -> str:
    """Return labels with their counts, the most frequent first: `neutral (3), mixed (1)`."""
    ordered = sorted(labels.items(), key=lambda item: -item[1])
    shown = [f"{label} ({count:,})" for label, count in ordered[:MAX_LABELS_SHOWN]]
    return ", ".join([*shown, *(["…"] if len(labels) > MAX_LABELS_SHOWN else [])])


def open_rows(source: RowSource, split: str, target: Path | str | None = None) -> LabelledFile:
    """Return the file of rows that are given as a path or in memory."""
    if isinstance(source, str | Path):
        return LabelledFile(_resolve(source), target=None if target is None else _resolve(target))
    return LabelledFile(f"{split}.jsonl", data=json_lines(records_of(source, split)))


def _resolve(path: Path | str) -> Path:
    """Return the absolute path of a file; a loop of links is refused."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} cannot be opened ({error}): check its links") from error


def _path_of(file: LabelledFile | None) -> str | None:
    return None if file is None else str(file)
