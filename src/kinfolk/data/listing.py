"""What is to be read: the files that are named, found in folders or matched, and other sources."""

import os
from collections.abc import Iterator, Sequence
from glob import iglob
from pathlib import Path

from kinfolk.data.streams import STDIN, content_suffix
from kinfolk.errors import UserError

TEXT = ("", ".txt", ".md")
JSON = (".jsonl", ".ndjson", ".json")
DELIMITED_SUFFIXES = (".tsv", ".csv")
PARQUET = (".parquet",)
DATASET_PREFIX = "hf:"
# In folders, a .json file is more often somebody's settings than text.
FOLDER_SUFFIXES = {*TEXT, *JSON, *DELIMITED_SUFFIXES, *PARQUET} - {".json"}


def is_dataset_name(path: Path) -> bool:
    """Return whether a path names a Hugging Face dataset."""
    return str(path).startswith(DATASET_PREFIX) and not path.exists()


def find_files(paths: Sequence[Path]) -> list[Path]:
    """List what is to be read, each once: files, those of folders in sorted order, other sources.

    `-` is the standard input and `hf:NAME` a dataset; a pattern that the shell left alone, such as
    `notes/**/*.txt`, means what it means there.
    """
    if not paths:
        raise UserError("no text was named: give files or folders of text")
    return list(dict.fromkeys(file for path in paths for file in _within(Path(path))))


def file_sizes(paths: Sequence[Path]) -> dict[Path, int | None]:
    """Return the bytes of each of them, None where nobody knows before the end."""
    return {path: path.stat().st_size if path.is_file() else None for path in find_files(paths)}


def _within(path: Path) -> list[Path]:
    if path == STDIN or is_dataset_name(path):
        return [path]
    try:
        if path.exists() and not path.is_dir():
            return [path]
        found = _files_in_folder(path) if path.is_dir() else _expand_glob(path)
        if any(file.stat().st_size for file in found):
            return found
    except OSError as error:
        raise UserError(
            f"{error.filename or path} cannot be read ({error.strerror}): check its rights"
        ) from error
    raise UserError(
        f"{path} holds no text: kinfolk reads .txt, .md, .jsonl, .tsv, .csv, .parquet and files "
        "without a suffix in folders, also with .gz, .xz or .zst; name other files one by one"
    )


def _files_in_folder(folder: Path) -> list[Path]:
    """Find the files of a folder that hold text, none of them hidden."""
    found = [
        file for file in _walk(folder) if content_suffix(file) in FOLDER_SUFFIXES and file.is_file()
    ]
    return sorted(found, key=lambda file: file.relative_to(folder).parts)


def _walk(folder: Path) -> Iterator[Path]:
    def refused(error: OSError) -> None:
        raise error

    for inner, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(inner, name) for name in names if not name.startswith("."))


def _expand_glob(pattern: Path) -> list[Path]:
    """Find what a pattern matches; the files of a folder that it matches, too."""
    if not any(mark in str(pattern) for mark in "*?["):
        raise UserError(f"{pattern} does not exist: give a file or folder of text")
    # Path.glob would find hidden files, too.
    matches = [Path(match) for match in sorted(iglob(str(pattern), recursive=True))]  # noqa: PTH207
    if not matches:
        raise UserError(f"{pattern} matches nothing: check the pattern, or name files")
    return [
        file for path in matches for file in (_files_in_folder(path) if path.is_dir() else [path])
    ]
