"""A folder of labelled sets, GLUE-like: each with its task, its files and what it is scored by.

    glue/cola/train.tsv, dev.tsv         cola: classify, matthews
    glue/mt/train.en, train.de, val.en   mt: write, bleu and chrf

A set is the files of one folder. Train, dev and test are told by their names; where none
says, each file is a set, to be split. Two languages or sides of one split are a pair of files.
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
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.rows import SourceTarget, TaggedSentence

SplitFiles: TypeAlias = tuple[Path, ...]  # none, one, or a source and its target
SPLIT_NAMES = {
    "train": "train", "training": "train", "development": "train",  # as GAP has it
    "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev",
    "trial": "test", "test": "test", "eval": "test",
}  # fmt: skip
SPLIT = re.compile(
    rf"(?<![a-z])({'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?![a-z])", re.I
)
SIDE_SUFFIX = re.compile(r"src|source|tgt|target|[a-z]{2}")  # of a pair; or its language
DATA_SUFFIX = re.compile(r"\.(txt|tsv|csv|jsonl?|ndjson|conllu?)$")
FLORES_CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")  # as FLORES writes them
MCC_TASKS, ACCURACY_AND_F1_TASKS = ("cola",), ("mrpc", "qqp")  # scored otherwise than most
SAMPLE_ROWS = 200  # rows


@dataclass(frozen=True)
class SuiteTask:
    """One set of a suite; where a split has no files, it is empty."""

    name: str
    task: str
    file_spec: FileSpec
    train: SplitFiles
    dev: SplitFiles
    test: SplitFiles
    metrics: tuple[str, ...]  # the first decides


def discover_suite(folder: Path) -> list[SuiteTask]:
    """List the labelled sets in a folder, by name; plain text is none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give one with a folder for each labelled set")
    found = [one for inner in _folders(folder) for one in _sets(inner, folder)]
    if not found:
        raise UserError(
            f"{folder} holds no labelled sets: give a folder for each, with files such as "
            "train.tsv and dev.tsv in it"
        )
    return found


def _folders(folder: Path) -> list[Path]:
    inner = sorted(p for p in folder.rglob("*") if p.is_dir() and not p.name.startswith("."))
    return [folder, *inner]


def _sets(inner: Path, folder: Path) -> Iterator[SuiteTask]:
    """Tell the sets of one folder apart by what their names share besides the split."""
    files = sorted(p for p in inner.iterdir() if p.is_file() and p.suffix != ".md")
    files = [path for path in files if not path.name.startswith(".")]
    name = str(inner.relative_to(folder)) if inner != folder else folder.name
    groups = _groups(files, name)
    for key, splits in groups.items():
        one = _set(name if len(groups) == 1 else f"{name}/{key}".rstrip("/"), splits)
        if one is not None:
            yield one


def _set(name: str, splits: dict[str, SplitFiles]) -> SuiteTask | None:
    first = next(files for split in SPLIT_NAMES.values() if (files := splits.get(split)))
    try:
        found = detect_format(first[0], target=first[1] if len(first) > 1 else None)
    except UserError:
        return None  # neither text nor labels: a list of label names, for one
    if found.task == "lm":
        return None
    train, dev, test = (splits.get(split, ()) for split in ("train", "dev", "test"))
    return SuiteTask(name, found.task, found, train, dev, test, default_metrics(name, first, found))


def default_metrics(name: str, files: SplitFiles, found: FileSpec) -> tuple[str, ...]:
    """Name what a set is scored by, as its authors do where that is known."""
    target = files[1] if len(files) > 1 else None
    match found.task:
        case "classify" if _known(name, MCC_TASKS):
            return ("matthews",)
        case "classify":
            return ("accuracy", "f1") if _known(name, ACCURACY_AND_F1_TASKS) else ("accuracy",)
        case "regress":
            return ("pearson", "spearman")
        case "tag":
            some = islice(read_rows(files[0], found), SAMPLE_ROWS)
            tags = {
                tag for row in some if isinstance(row, TaggedSentence) for tag in row.tags or ()
            }
            parts = any(tag.startswith("B-") for tag in tags)
            return ("f1", "accuracy") if parts else ("accuracy",)
        case "span":
            return ("f1", "exact")
        case "write":
            some = islice(read_rows(files[0], found, target=target), SAMPLE_ROWS)
            return _writing([row for row in some if isinstance(row, SourceTarget)])
        case "complete":
            return ("accuracy", "perplexity")
        case "coref":
            return ("conll_f1",)
        case _:
            return ("accuracy",)


def _writing(some: Sequence[SourceTarget]) -> tuple[str, ...]:
    """Tell a translation, which is as long as its source, from a summary."""
    source = sum(len(row.source.encode()) for row in some)
    target = sum(len((row.target or "").encode()) for row in some)
    return ("rouge1", "rouge2", "rougeL") if target < source / 2 else ("bleu", "chrf")


def _known(name: str, names: Sequence[str]) -> bool:
    return Path(name).name.split("_")[0].lower() in names


def _groups(files: Sequence[Path], name: str) -> dict[str, dict[str, SplitFiles]]:
    """Sort files into sets and splits; those whose names say no split are left where others do."""
    if len(files) > 1 and all(FLORES_CODE.fullmatch(_plain(path).stem) for path in files):
        return _languages(files)
    groups: dict[str, dict[str, list[Path]]] = {}
    for path in files:
        if (parted := _parted(path)) is not None:
            groups.setdefault(parted[0], {}).setdefault(parted[1], []).append(path)
    if not groups:
        return {DATA_SUFFIX.sub("", _plain(path).name): {"train": (path,)} for path in files}
    return _joined({k: {s: _pair(f, name) for s, f in v.items()} for k, v in groups.items()})


def _joined(groups: dict[str, dict[str, SplitFiles]]) -> dict[str, dict[str, SplitFiles]]:
    """Make one set of those that share no split; a set without a test takes the first alone."""
    splits = [split for one in groups.values() for split in one]
    if splits and len(splits) == len(set(splits)):
        return {"": {split: files for one in groups.values() for split, files in one.items()}}
    alone = [key for key, one in groups.items() if one.keys() == {"test"}]
    whole = [key for key, one in groups.items() if "train" in one and "test" not in one]
    if len(whole) == 1 and alone:
        groups[whole[0]]["test"] = groups[alone[0]]["test"]
        return {key: one for key, one in groups.items() if key not in alone}
    return groups


def _parted(path: Path) -> tuple[str, str] | None:
    """Return what a name says besides its split, its kind and its side; and the split."""
    name = DATA_SUFFIX.sub("", _plain(path).name)
    match = SPLIT.search(name)
    if match is None:
        return None
    rest = name[match.end() :].removesuffix(f".{_side(path)}")
    return (name[: match.start()] + rest).strip("._-"), SPLIT_NAMES[match[1].lower()]


def _pair(files: Sequence[Path], name: str) -> SplitFiles:
    """Put the source before the target: as the folder's name has it, else English first."""
    sides = [_side(path) for path in files]
    if len(files) != 2 or None in sides:
        return tuple(files[:1])
    order = ["src", "source", *re.split(r"[^a-z]", name), "en"]
    ranks = [order.index(side) if side in order else len(order) for side in map(str, sides)]
    return tuple(path for _, path in sorted(zip(ranks, files, strict=True)))


def _side(path: Path) -> str | None:
    """Return which side of a pair a name says: a language, or source and target."""
    last = _plain(path).name.removesuffix(".txt").rpartition(".")[2]
    return last if SIDE_SUFFIX.fullmatch(last) else None


def _languages(files: Sequence[Path]) -> dict[str, dict[str, SplitFiles]]:
    """Pair English, or else the first language, with every other: all have the same lines."""
    english = [path for path in files if path.name.startswith("eng")]
    first = (english or list(files))[0]
    return {
        f"{first.stem}-{path.stem}": {(_parted(path) or ("", "dev"))[1]: (first, path)}
        for path in files
        if path != first
    }


def _plain(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in COMPRESSION_SUFFIXES else path
