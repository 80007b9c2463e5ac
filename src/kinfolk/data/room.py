"""How much room a corpus will take, guessed from the first documents, and whether it is there."""

import errno
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kinfolk.data.shards import TYPES
from kinfolk.data.writer import Encoded
from kinfolk.errors import UserError

# Bytes of text to a byte of file; prose has been seen to shrink by 2.5 to 4.
SHRUNK = {".gz": 3.0, ".xz": 4.0, ".zst": 3.5}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def text_bytes(sizes: Mapping[Path, int | None]) -> float | None:
    """Guess the bytes of text in files; None where some size is not known."""
    known = [(path, size) for path, size in sizes.items() if size is not None]
    if len(known) < len(sizes):
        return None
    return sum(size * SHRUNK.get(path.suffix, 1.0) for path, size in known)


def needed(text: float, sample: Encoded, code: int) -> int:
    """Guess the bytes a corpus takes while it is made, from some of its documents."""
    marks = 0 if sample.words is None else len(sample.words) / 8
    # Of a sentence 12 bytes stay and 4 go in the end; of a document 12 and 8.
    size = np.dtype(TYPES[code]).itemsize * len(sample.ids) + marks
    size += 16 * len(sample.sentences) + 20 * len(sample.documents)
    return int(text * size / max(1, int(sample.bytes.sum())))


def reserve(folder: Path, need: int) -> str:
    """Say how much a corpus needs, or complain that there is less."""
    free = shutil.disk_usage(folder).free
    if need > free:
        raise UserError(
            f"the corpus needs about {told(need)}, and the disk of {folder.parent.parent} has "
            f"{told(free)} left: make room, or choose an -o on another disk"
        )
    return f"the corpus needs about {told(need)} on the disk, which has {told(free)} left"


def told(size: float) -> str:
    """Write a size for a reader."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Say in a sentence that the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"the disk is full ({error.strerror}) before {out} is whole: make room, or choose an "
            "-o on another disk"
        ) from error
