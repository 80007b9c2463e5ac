"""Files and folders that are there whole or not at all, locks, and hashes of whole files.

What is written lies under a hidden name beside its place, `.NAME.partial`, and is renamed when it
is whole. A kill leaves the old file or the new one, and at most something hidden.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


def partial_path(path: Path) -> Path:
    """Return where a file or folder is written until it is whole."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def new_file(
    path: Path, mode: str = "w", *, durable: bool = False, **options: Any
) -> Iterator[Any]:
    """Open a file that replaces `path` when it is whole; on an error `path` is left as it was.

    A durable one is on the disk before it takes the name, so that a power cut cannot empty it.
    """
    partial = partial_path(path)
    if "b" not in mode:
        options = {"encoding": "utf-8"} | options
    try:
        with partial.open(mode, **options) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Lend an empty folder that becomes `path` when all is well, and that is removed when not.

    `path` may be an empty folder already; what else is there is for the caller to refuse.
    """
    partial = partial_path(path)
    made = [folder for folder in path.parents if not folder.exists()]
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        if path.exists():
            path.rmdir()
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in made:  # the innermost comes first
            with suppress(OSError):
                folder.rmdir()
        raise


def replace_link(link: Path, target: str) -> None:
    """Make a link to a neighbour, or change where it points, in one step."""
    partial = partial_path(link)
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time in; the system frees the lock of a killed one."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # by hand: a forked child may hold the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def lock_file(path: Path) -> IO[bytes]:
    """Return a lock file that no other process holds, or raise BlockingIOError.

    Whoever holds it removes it at the end; closing the file frees the lock.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its holder may remove it in between
            file = path.open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
