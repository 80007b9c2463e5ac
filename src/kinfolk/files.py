"""Atomic files and folders, locks and file hashes.

A file or folder is written under the hidden name `.NAME.partial` in the same folder and renamed
when it is complete. A killed process leaves the old or the new file, and perhaps a hidden one.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def error_number(error: Exception) -> int | None:
    """Return the errno of an error; Rust libraries give it in the text only."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else None


def partial_path(path: Path) -> Path:
    """Return the path of a file or folder until it is complete."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def new_file(
    path: Path, mode: str = "w", *, durable: bool = False, **options: Any
) -> Iterator[Any]:
    """Open a file that replaces `path` when it is complete; after an error `path` is unchanged.

    A durable file is flushed to the disk before it is renamed, so that it survives a power cut.
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
    """Return an empty folder that becomes `path` at the end, or is removed after an error.

    `path` must not exist or be an empty folder; the caller checks this.
    """
    partial = partial_path(path)
    new_parents = [folder for folder in path.parents if not folder.exists()]
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        if path.exists():
            path.rmdir()
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in new_parents:  # the innermost first
            with suppress(OSError):
                folder.rmdir()
        raise


def replace_link(link: Path, target: str) -> None:
    """Create or replace a link to a file in the same folder, atomically."""
    partial = partial_path(link)
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; the system frees it when the process ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # explicitly: a forked child may hold the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def lock_file(path: Path) -> IO[bytes]:
    """Return a lock file that no other process holds, or raise BlockingIOError.

    The holder removes the file at the end; closing it frees the lock.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its holder may have removed it
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
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
