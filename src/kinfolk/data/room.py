"""How much room a corpus will take, guessed from the first documents, and whether it is there."""

import errno
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kinfolk.data.shards import DTYPES
from kinfolk.data.writer import EncodedDocuments
from kinfolk.errors import UserError

# Bytes of text to a byte of file; prose has been seen to shrink by 2.5 to 4.
COMPRESSION_RATIO = {".gz": 3.0, ".xz": 4.0, ".zst": 3.5}
DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def estimate_text_bytes(sizes: Mapping[Path, int | None]) -> float | None:
    """Guess the bytes of text in files; None where some size is not known."""
    known = [(path, size) for path, size in sizes.items() if size is not None]
    if len(known) < len(sizes):
        return None
    return sum(size * COMPRESSION_RATIO.get(path.suffix, 1.0) for path, size in known)


def estimate_corpus_bytes(text: float, sample: EncodedDocuments, code: int) -> int:
    """Guess the bytes a corpus takes while it is made, from some of its documents."""
    marks = 0 if sample.words is None else len(sample.words) / 8
    # Of a sentence 12 bytes stay and 4 go in the end; of a document 12 and 8.
    size = np.dtype(DTYPES[code]).itemsize * len(sample.ids) + marks
    size += 16 * len(sample.sentences) + 20 * len(sample.documents)
    return int(text * size / max(1, int(sample.bytes.sum())))


def check_disk_space(folder: Path, need: int) -> str:
    """Say how much a corpus needs, or complain that there is less."""
    free = shutil.disk_usage(folder).free
    if need > free:
        raise UserError(
            f"the corpus needs about {format_bytes(need)}, and the disk of "
            f"{folder.parent.parent} has {format_bytes(free)} left: "
            "make room, or choose an -o on another disk"
        )
    return (
        f"the corpus needs about {format_bytes(need)} on the disk, "
        f"which has {format_bytes(free)} left"
    )


def format_bytes(size: float) -> str:
    """Write a size for a reader."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


@contextmanager
def disk_full_as_user_error(out: Path) -> Iterator[None]:
    """Say in a sentence that the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise UserError(
            f"the disk is full ({error.strerror}) before {out} is whole: make room, or choose an "
            "-o on another disk"
        ) from error
