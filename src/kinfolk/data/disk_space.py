"""The bytes that text and a corpus take, and whether a disk has them."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kinfolk.data.corpus import DTYPES, EncodedDocuments
from kinfolk.errors import UserError
from kinfolk.files import DISK_FULL_ERRNOS, error_number

# Bytes of text per byte of file, for prose.
COMPRESSION_RATIO = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.0, ".zst": 3.5}


def estimate_text_bytes(sizes: Mapping[Path, int | None]) -> float | None:
    """Estimate the bytes of text in files; None where some size is not known."""
    known = [(path, size) for path, size in sizes.items() if size is not None]
    if len(known) < len(sizes):
        return None
    return sum(size * COMPRESSION_RATIO.get(path.suffix, 1.0) for path, size in known)


def estimate_corpus_bytes(text: float, sample: EncodedDocuments, code: int) -> int:
    """Estimate the bytes a corpus takes while it is written, from some of its documents."""
    word_bytes = 0 if sample.words is None else len(sample.words) / 8
    # Of a sentence 12 bytes stay and 4 are temporary; of a document 8 and 8.
    size = np.dtype(DTYPES[code]).itemsize * len(sample.ids) + word_bytes
    size += 16 * len(sample.sentences) + 16 * len(sample.documents)
    return int(text * size / max(1, int(sample.bytes.sum())))


def check_disk_space(folder: Path, need: int) -> str:
    """Return the message about the space that a corpus needs; raise if there is less."""
    free = shutil.disk_usage(folder).free
    if need > free:
        raise UserError(
            f"the corpus needs about {format_bytes(need)}, and the disk of "
            f"{folder.parent.parent} has {format_bytes(free)} left: "
            "free some space, or choose an -o on another disk"
        )
    return (
        f"the corpus needs about {format_bytes(need)} on the disk, "
        f"which has {format_bytes(free)} left"
    )


def format_bytes(size: float) -> str:
    """Return a size with its unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


@contextmanager
def disk_full_as_user_error(out: Path) -> Iterator[None]:
    """Raise a user error when the disk is full."""
    try:
        yield
    except Exception as error:
        if error_number(error) not in DISK_FULL_ERRNOS:
            raise
        raise UserError(
            f"the disk is full ({error}) before {out} is complete: free some space, or choose an "
            "-o on another disk"
        ) from error
