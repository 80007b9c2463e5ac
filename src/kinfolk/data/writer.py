"""Write a corpus as it comes, in bounded memory."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kinfolk.data.shards import CHUNK, HEADER, MAGIC, TYPES, VERSION, Ids
from kinfolk.text import Tokenizer


@dataclass(frozen=True)
class Encoded:
    """Some documents as ids, end to end, with the lengths that part them."""

    ids: npt.NDArray[Any]
    sentences: npt.NDArray[np.int32]  # tokens in each sentence
    documents: Ids  # sentences in each document
    bytes: Ids  # of text (UTF-8) in each document


@dataclass
class Source:
    """What one file gave."""

    path: str
    documents: int = 0
    bytes: int = 0


class Writer:
    """Write a corpus as it comes, holding none of it; leave the `with` block to finish it."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self._folder, self._tokenizer = folder, tokenizer
        self._code = 8 if tokenizer.vocab <= 1 << 16 else 4
        self._sources: dict[str, Source] = {}
        self.documents = self.tokens = self.sentences = self.bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        names = ("tokens.bin", "bytes.bin", "lengths.part", "documents.part")
        self._files: list[IO[bytes]] = [(folder / name).open("w+b") for name in names]

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for file in self._files:
                file.close()
        for part in self._folder.glob("*.part"):
            part.unlink()

    def add(self, encoded: Encoded, sources: Sequence[str]) -> None:
        """Append documents, each with the file it came from."""
        columns: tuple[npt.NDArray[Any], ...] = (
            encoded.ids.astype(TYPES[self._code]),
            encoded.bytes.astype(np.int64),
            encoded.sentences.astype(np.int32),
            encoded.documents.astype(np.int64),
        )
        for file, column in zip(self._files, columns, strict=True):
            file.write(column.tobytes())
        self.tokens += len(encoded.ids)
        self.sentences += len(encoded.sentences)
        self.documents += len(encoded.documents)
        self.bytes += int(encoded.bytes.sum())
        for path, size in zip(sources, encoded.bytes.tolist(), strict=True):
            source = self._sources.setdefault(path, Source(path))
            source.documents += 1
            source.bytes += size

    def _finish(self) -> None:
        *_, lengths, documents = self._files
        head = HEADER.pack(MAGIC, VERSION, self._code, self.sentences, self.documents + 1)
        size = np.dtype(TYPES[self._code]).itemsize
        with (self._folder / "tokens.idx").open("wb") as index:
            index.write(head)
            for chunk in _chunks(lengths, np.int32):
                index.write(chunk.tobytes())
            _sums(index, lengths, np.int32, scale=size)
            _sums(index, documents, np.int64)
            index.write(np.int64(self.sentences).tobytes())
        facts = {
            "version": VERSION,
            "documents": self.documents,
            "sentences": self.sentences,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "vocab": self._tokenizer.vocab,
            "tokenizer_hash": self._tokenizer.hash,
            "sources": [asdict(source) for source in self._sources.values()],
        }
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (self._folder / "corpus.json").write_text(text, encoding="utf-8")
        self._tokenizer.save(self._folder / "tokenizer")


def _chunks(file: IO[bytes], type: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
    file.seek(0)
    while part := file.read(CHUNK * np.dtype(type).itemsize):
        yield np.frombuffer(part, type)


def _sums(index: IO[bytes], file: IO[bytes], type: npt.DTypeLike, *, scale: int = 1) -> None:
    """Write the sum of all numbers before each."""
    total = 0
    for chunk in _chunks(file, type):
        sums = total + scale * np.cumsum(chunk, dtype=np.int64)
        index.write((sums - scale * chunk.astype(np.int64)).tobytes())
        total = int(sums[-1])
