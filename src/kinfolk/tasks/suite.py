"""Discover the labelled datasets of a folder like GLUE's: task, files of each split, metrics.

    glue/cola/train.tsv, dev.tsv         cola: classify, matthews
    glue/mt/train.en, train.de, val.en   mt: write, bleu and chrf

A dataset is the files of one folder. The split is in the names of the files; if it is in none, each
file is a dataset. Two languages or sides of one split are a pair of files.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from kinfolk.data.files import COMPRESSION_SUFFIXES
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.formats.detect import detect_format, first_spec
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows import SourceTarget
from kinfolk.tasks.task import task_class

SplitFiles: TypeAlias = tuple[Path, ...]  # none, one, or a source and its target
SPLIT_NAMES = {
    "train": "train", "training": "train", "development": "train",  # as GAP has it
    "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev",
    "trial": "test", "test": "test", "eval": "test",
}  # fmt: skip
SPLIT = re.compile(
    rf"(?<![a-z])({'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?![a-z])", re.I
)
SIDE_SUFFIX = re.compile(r"src|source|tgt|target|[a-z]{2}")  # or a language code
DATA_SUFFIX = re.compile(r"\.(txt|tsv|csv|jsonl?|ndjson|conllu?)$")
FLORES_CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
MCC_TASKS, ACCURACY_AND_F1_TASKS = ("cola",), ("mrpc", "qqp")  # with other metrics than accuracy
METRIC_SAMPLE_ROWS = 200  # read to choose the metrics


@dataclass(frozen=True)
class SuiteTask:
    """One dataset of a suite; a split without files is empty."""

    name: str
    task: str
    file_spec: FileSpec
    train: SplitFiles
    dev: SplitFiles
    test: SplitFiles
    metrics: tuple[str, ...]  # the main metric first
    error: str = ""  # why its files cannot be read


def discover_suite(folder: Path) -> list[SuiteTask]:
    """Return the labelled datasets of a folder by name; plain text is skipped."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    inner = sorted(p for p in folder.rglob("*") if p.is_dir() and not p.name.startswith("."))
    tasks = [task for part in (folder, *inner) for task in _datasets(part, folder)]
    if not tasks:
        raise UserError(
            f"{folder} has no labelled datasets: make a folder for each, with files such as "
            "train.tsv and dev.tsv"
        )
    return tasks


def _datasets(inner: Path, folder: Path) -> Iterator[SuiteTask]:
    """Group the files of one folder into datasets by their names without the split."""
    files = sorted(p for p in inner.iterdir() if p.is_file() and p.suffix != ".md")
    files = [path for path in files if not path.name.startswith(".")]
    name = str(inner.relative_to(folder)) if inner != folder else folder.name
    groups = _groups(files, name)
    for key, splits in groups.items():
        task = _dataset(name if len(groups) == 1 else f"{name}/{key}".rstrip("/"), splits)
        if task is not None:
            yield task


def _dataset(name: str, splits: dict[str, SplitFiles]) -> SuiteTask | None:
    first = next(files for split in SPLIT_NAMES.values() if (files := splits.get(split)))
    file = LabelledFile(first[0], target=first[1] if len(first) > 1 else None)
    train, dev, test = (splits.get(split, ()) for split in ("train", "dev", "test"))
    try:
        spec = first_spec(file) if file.target is None else detect_format(file)
        if spec is None or spec.task == "lm":
            return None  # no labels: plain text, or for example a list of label names
        metrics = default_metrics(name, file, spec)
    except UserError as error:
        return SuiteTask(name, "", FileSpec("", "", ""), train, dev, test, (), str(error))
    return SuiteTask(name, spec.task, spec, train, dev, test, metrics)


def default_metrics(name: str, file: LabelledFile, spec: FileSpec) -> tuple[str, ...]:
    """Return the metrics of a dataset: those of its authors, if known."""
    match spec.task:
        case "classify" if _known(name, MCC_TASKS):
            return ("matthews",)
        case "classify":
            return ("accuracy", "f1") if _known(name, ACCURACY_AND_F1_TASKS) else ("accuracy",)
        case "tag":
            rows = islice(read_rows(file, spec), METRIC_SAMPLE_ROWS)
            has_entities = any(tag.startswith("B-") for row in rows for tag in row.tags or ())
            return ("f1", "accuracy") if has_entities else ("accuracy",)
        case "write":
            return _text_metrics([*islice(read_rows(file, spec), METRIC_SAMPLE_ROWS)])
        case task:
            return task_class(task).metric_names()


def _text_metrics(rows: Sequence[SourceTarget]) -> tuple[str, ...]:
    """Return BLEU and chrF, or ROUGE for a summary, whose target is shorter than its source."""
    source = sum(len(row.source.encode()) for row in rows)
    target = sum(len((row.target or "").encode()) for row in rows)
    return ("rouge1", "rouge2", "rougeL") if target < source / 2 else ("bleu", "chrf")


def _known(name: str, names: Sequence[str]) -> bool:
    return Path(name).name.split("_")[0].lower() in names


def _groups(files: Sequence[Path], name: str) -> dict[str, dict[str, SplitFiles]]:
    """Group files by dataset and split; if some names have a split, files without are skipped."""
    if len(files) > 1 and all(FLORES_CODE.fullmatch(_uncompressed(path).stem) for path in files):
        return _languages(files)
    groups: dict[str, dict[str, list[Path]]] = {}
    for path in files:
        if (key_and_split := _key_and_split(path)) is not None:
            key, split = key_and_split
            groups.setdefault(key, {}).setdefault(split, []).append(path)
    if not groups:
        return {DATA_SUFFIX.sub("", _uncompressed(path).name): {"train": (path,)} for path in files}
    return _merge_groups({k: {s: _pair(f, name) for s, f in v.items()} for k, v in groups.items()})


def _merge_groups(groups: dict[str, dict[str, SplitFiles]]) -> dict[str, dict[str, SplitFiles]]:
    """Merge groups that share no split; the only group without a test file gets a lone one."""
    names = [split for splits in groups.values() for split in splits]
    if names and len(names) == len(set(names)):
        return {"": {split: files for s in groups.values() for split, files in s.items()}}
    only_test = [key for key, splits in groups.items() if splits.keys() == {"test"}]
    no_test = [key for key, splits in groups.items() if "train" in splits and "test" not in splits]
    if len(no_test) == 1 and only_test:
        groups[no_test[0]]["test"] = groups[only_test[0]]["test"]
        return {key: splits for key, splits in groups.items() if key not in only_test}
    return groups


def _key_and_split(path: Path) -> tuple[str, str] | None:
    """Return the name of a file without split, suffix and side, and the split."""
    name = DATA_SUFFIX.sub("", _uncompressed(path).name)
    match = SPLIT.search(name)
    if match is None:
        return None
    rest = name[match.end() :].removesuffix(f".{_side(path)}")
    return (name[: match.start()] + rest).strip("._-"), SPLIT_NAMES[match[1].lower()]


def _pair(files: Sequence[Path], name: str) -> SplitFiles:
    """Return the source, then the target: in the order of the folder's name, else English first."""
    sides = [_side(path) for path in files]
    if len(files) != 2 or None in sides:
        return tuple(files[:1])
    order = ["src", "source", *re.split(r"[^a-z]", name), "en"]
    ranks = [order.index(side) if side in order else len(order) for side in map(str, sides)]
    return tuple(path for _, path in sorted(zip(ranks, files, strict=True)))


def _side(path: Path) -> str | None:
    """Return the side of a pair in the name of a file: a language, source or target."""
    last = _uncompressed(path).name.removesuffix(".txt").rpartition(".")[2]
    return last if SIDE_SUFFIX.fullmatch(last) else None


def _languages(files: Sequence[Path]) -> dict[str, dict[str, SplitFiles]]:
    """Pair English, or else the first language, with every other; all have the same lines."""
    english = [path for path in files if path.name.startswith("eng")]
    first = (english or list(files))[0]
    return {
        f"{first.stem}-{path.stem}": {(_key_and_split(path) or ("", "dev"))[1]: (first, path)}
        for path in files
        if path != first
    }


def _uncompressed(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in COMPRESSION_SUFFIXES else path
