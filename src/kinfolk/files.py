"""Atomic files and folders, locks and checksums.

A file or folder is written under the hidden name `.NAME.partial` in the same folder and renamed
when it is complete. A killed process leaves the old or the new file, and perhaps a hidden one.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

CHECKSUMS = "checksums.json"  # the size and the SHA-256 of every file of a checkpoint
TRAINING_STATE = ("training.json", "training.safetensors")  # what a resume reads beside the model
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

    `path` must not exist or be an empty folder: else, or where another process is writing it, an
    OSError is raised.
    """
    partial = partial_path(path)
    new_parents = [folder for folder in path.parents if not folder.exists()]
    with _new_locked_folder(partial):
        try:
            if path.is_dir() and any(path.iterdir()):
                raise _exists_error(path)
            for leftover in partial.iterdir():  # of a killed process
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield partial
            _rename_to_new(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            for folder in new_parents:  # the innermost first
                with suppress(OSError):
                    folder.rmdir()
            raise


@contextmanager
def _new_locked_folder(path: Path) -> Iterator[None]:
    """Create a folder and lock it, again where another process renames or removes it meanwhile."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                handle = stack.enter_context(folder_lock(path, wait=False))
                locked = os.path.samestat(os.fstat(handle), path.stat())
            except FileNotFoundError:
                continue
            if locked:
                yield
                return


def _rename_to_new(partial: Path, path: Path) -> None:
    try:
        partial.rename(path)  # replaces an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise _exists_error(path) from None


def _exists_error(path: Path) -> FileExistsError:
    problem = "this folder exists by now: choose another one"
    return FileExistsError(errno.EEXIST, problem, str(path))


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
def folder_lock(folder: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold an exclusive lock on a folder; the system frees it when the process ends.

    Returns the open folder, which may have been renamed or removed before it was locked.

    Forked children do not hold it, so that it does not outlive the process. Without `wait`,
    BlockingIOError is raised where another process holds it.
    """
    handle = os.open(folder, os.O_RDONLY)
    _held.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            problem = "another process is writing to this folder: wait for it, or choose another"
            raise BlockingIOError(error.errno, problem, str(folder)) from None
        except OSError:
            pass  # some network file systems have no locks
        yield handle
    finally:
        if handle in _held:
            _held.remove(handle)
            os.close(handle)


def _close_in_child() -> None:
    while _held:
        os.close(_held.pop())


_held: set[int] = set()  # handles of locked folders
os.register_at_fork(after_in_child=_close_in_child)


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


def cached_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read once by a process until the file changes."""
    status = path.stat()
    return _sha256(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, *status: int) -> str:
    return sha256(path)


def write_checksums(folder: Path) -> list[Path]:
    """Write the sizes and hashes of all files of a folder; return the files, this one the last."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sums = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": sha256(file)}
        for file in files
    }
    listing = folder / CHECKSUMS
    listing.write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8")
    return [*files, listing]


def checksum_fault(folder: Path, *, unread: Collection[str] = ()) -> str | None:
    """Return which file of a folder differs from its checksums, None if none does.

    Files that are not read need not be hashed.
    """
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        expected = {name: (entry["size"], entry["sha256"]) for name, entry in sums.items()}
    except FileNotFoundError:
        return f"{CHECKSUMS}: missing"
    except OSError as error:
        return f"{CHECKSUMS}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{CHECKSUMS}: unreadable"
    for name, (size, digest) in expected.items():
        if name in unread:
            continue
        try:
            actual = (folder / name).stat().st_size
            if actual != size:
                return f"{name}: {actual} bytes where {size} were written"
            if cached_sha256(folder / name) != digest:
                return f"{name}: checksum differs"
        except FileNotFoundError:
            return f"{name}: missing"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None
