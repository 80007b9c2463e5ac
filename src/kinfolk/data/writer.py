"""Write a corpus as it comes, in bounded memory, so that what is written can be added to."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kinfolk.data.shards import CHUNK, DTYPES, FORMAT_VERSION, HEADER, MAGIC, VERSION, IntArray
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer

MAX_DOCUMENT_BYTES = 1 << 32  # bytes that one document cannot have


@dataclass(frozen=True)
class EncodedDocuments:
    """Some documents as ids, end to end, with the lengths that part them."""

    ids: npt.NDArray[Any]
    sentences: npt.NDArray[np.int32]  # tokens in each sentence
    documents: IntArray  # sentences in each document
    bytes: IntArray  # of text (UTF-8) in each document
    words: npt.NDArray[np.bool_] | None = None  # whether each token begins a word


@dataclass
class SourceStats:
    """What one file gave."""

    path: str
    documents: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class WriteProgress:
    """How much of a corpus is written."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    bytes: int = 0
    pending_bits: tuple[
        bool, ...
    ] = ()  # which of the last tokens begin words: too few to fill a byte

    def sizes(self, width: int) -> dict[str, int]:
        """Return the bytes in each file, for ids of a width."""
        return {
            "tokens.bin": width * self.tokens,
            "bytes.bin": 4 * self.documents,
            "lengths.part": 4 * self.sentences,
            "documents.part": 8 * self.documents,
            "words.bin": self.tokens // 8,
        }


def dtype_code(tokenizer: Tokenizer) -> int:
    """Return Megatron's number for the type that holds every id of a tokenizer."""
    return 8 if tokenizer.vocab_size <= 1 << 16 else 4


class CorpusWriter:
    """Write a corpus as it comes, holding none of it; leave the `with` block to finish it.

    What was `written` before, by a writer that was killed, is kept; anything behind it is not. Its
    files named *.part are of no use once the corpus is finished.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        *,
        words: str | None = None,
        written: WriteProgress | None = None,
    ) -> None:
        self._folder, self._tokenizer, self._words = folder, tokenizer, words
        self._code = dtype_code(tokenizer)
        self._sources: dict[str, SourceStats] = {}
        self.written = written or WriteProgress()
        folder.mkdir(parents=True, exist_ok=True)
        sizes = self.written.sizes(np.dtype(DTYPES[self._code]).itemsize)
        self._files = {
            name: _opened(folder / name, size)
            for name, size in sizes.items()
            if name != "words.bin" or words is not None
        }

    def __enter__(self) -> "CorpusWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
            self.sync()
        for file in self._files.values():
            with suppress(OSError) if kind is not None else nullcontext():
                file.close()

    def add(self, encoded: EncodedDocuments, sources: Sequence[str]) -> None:
        """Append documents, each with the file it came from."""
        if encoded.bytes.max(initial=0) >= MAX_DOCUMENT_BYTES:
            raise UserError("a document has 4 GiB or more, and a corpus holds none so long: cut it")
        columns: dict[str, npt.NDArray[Any]] = {
            "tokens.bin": encoded.ids.astype(DTYPES[self._code]),
            "bytes.bin": encoded.bytes.astype(np.uint32),
            "lengths.part": encoded.sentences.astype(np.int32),
            "documents.part": encoded.documents.astype(np.int64),
        }
        rest = self.written.pending_bits
        if self._words is not None:
            assert encoded.words is not None
            marks = np.concatenate([np.array(rest, np.bool_), encoded.words])
            full = len(marks) // 8 * 8
            columns["words.bin"], rest = np.packbits(marks[:full]), tuple(marks[full:].tolist())
        for name, column in columns.items():
            self._files[name].write(column.tobytes())
        self.written = WriteProgress(
            documents=self.written.documents + len(encoded.documents),
            sentences=self.written.sentences + len(encoded.sentences),
            tokens=self.written.tokens + len(encoded.ids),
            bytes=self.written.bytes + int(encoded.bytes.sum()),
            pending_bits=rest,
        )
        for path, size in zip(sources, encoded.bytes.tolist(), strict=True):
            self.count_source(path, size)

    def count_source(self, path: str, size: int) -> None:
        """Count one document to the file it came from."""
        source = self._sources.setdefault(path, SourceStats(path))
        source.documents += 1
        source.bytes += size

    def sync(self) -> WriteProgress:
        """See that all is on the disk, come what may, and return how much that is."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return self.written

    def _finish(self) -> None:
        done = self.written
        if done.pending_bits:
            self._files["words.bin"].write(np.packbits(np.array(done.pending_bits)).tobytes())
        lengths, documents = self._files["lengths.part"], self._files["documents.part"]
        with (self._folder / "tokens.idx").open("wb") as index:
            bounds = done.documents + 1
            index.write(HEADER.pack(MAGIC, VERSION, self._code, done.sentences, bounds))
            for chunk in _chunks(lengths, np.int32):
                index.write(chunk.tobytes())
            _write_prefix_sums(
                index, lengths, np.int32, scale=np.dtype(DTYPES[self._code]).itemsize
            )
            _write_prefix_sums(index, documents, np.int64)
            index.write(np.int64(done.sentences).tobytes())
        facts = {
            "version": FORMAT_VERSION,
            "documents": done.documents,
            "sentences": done.sentences,
            "tokens": done.tokens,
            "bytes": done.bytes,
            "vocab": self._tokenizer.vocab_size,
            "tokenizer_hash": self._tokenizer.fingerprint,
            "words": self._words,
            "sources": [asdict(source) for source in self._sources.values()],
        }
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (self._folder / "corpus.json").write_text(text, encoding="utf-8")
        self._tokenizer.save(self._folder / "tokenizer")


def _opened(file: Path, size: int) -> IO[bytes]:
    """Open a file to add to its first bytes, and forget those behind them."""
    opened = file.open("r+b" if file.exists() else "w+b")
    if opened.seek(0, os.SEEK_END) < size:
        opened.close()
        raise UserError(f"{file} is shorter than it was: remove {file.parent} and prepare again")
    opened.truncate(size)
    opened.seek(size)
    return opened


def _chunks(file: IO[bytes], type: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
    file.seek(0)
    while part := file.read(CHUNK * np.dtype(type).itemsize):
        yield np.frombuffer(part, type)


def _write_prefix_sums(
    index: IO[bytes], file: IO[bytes], type: npt.DTypeLike, *, scale: int = 1
) -> None:
    """Write the sum of all numbers before each."""
    total = 0
    for chunk in _chunks(file, type):
        sums = total + scale * np.cumsum(chunk, dtype=np.int64)
        index.write((sums - scale * chunk.astype(np.int64)).tobytes())
        total = int(sums[-1])
