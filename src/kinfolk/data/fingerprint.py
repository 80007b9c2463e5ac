"""The fingerprint of a corpus: whether the text is still the one a run began with."""

from hashlib import blake2b
from pathlib import Path

STRETCHES = 16  # read of each file, from its first byte to its last
LENGTH = 1 << 16  # bytes of each


def corpus_fingerprint(folder: Path) -> str:
    """Return 128 bits of the tokens in a corpus folder and in what it holds out.

    The index counts documents and sentences, so another text shows in it, or in some stretch of the
    tokens. Reading takes no longer for a large corpus than for a small one.
    """
    found = blake2b(digest_size=16)
    for name in ("tokens.idx", "tokens.bin", "holdout/tokens.idx", "holdout/tokens.bin"):
        if (folder / name).is_file():
            _add(found, folder / name)
    return found.hexdigest()


def file_fingerprint(file: Path) -> str:
    """Return 128 bits of one file, by its size and stretches of it."""
    found = blake2b(digest_size=16)
    _add(found, file)
    return found.hexdigest()


def _add(found: blake2b, file: Path) -> None:
    size = file.stat().st_size
    found.update(f"{file.name} {size}\n".encode())
    last = max(0, size - LENGTH)
    with file.open("rb") as opened:
        for start in sorted({last * i // (STRETCHES - 1) for i in range(STRETCHES)}):
            opened.seek(start)
            found.update(opened.read(LENGTH))
