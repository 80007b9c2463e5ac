"""A tokenised corpus on disk: Megatron's `.bin` and `.idx` files, their reader and their writer."""

import json
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import NoneType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kinfolk.errors import UserError
from kinfolk.files import cached_sha256
from kinfolk.text import Tokenizer
from kinfolk.types import IntArray

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
FORMAT_VERSION = 2  # of corpus.json and what is ours beside Megatron's pair
HEADER = struct.Struct("<9sQBQQ")  # magic, version, type of id, sentences, documents + 1
DTYPES: dict[int, npt.DTypeLike] = {4: np.int32, 8: np.uint16}  # Megatron's codes
BATCH_NUMBERS = 1 << 20  # read at once
MAX_VOCAB_SIZE = 2**26
BATCH_DOCUMENTS = 1 << 16  # whose bounds are read at once
BATCH_SENTENCES = 1 << 17  # of documents that are copied together
SHARD_FILE = "shard.json"  # in the folder of one of several parts of a corpus
# The fields of corpus.json that are read, and their types.
METADATA: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("version", "documents", "sentences", "tokens", "bytes", "vocab"), (int,)),
    "tokenizer_hash": (str,),
    "words": (str, NoneType),
}
COUNTS = ("left_out", "skipped_files")  # by reason; corpora of earlier versions lack them

DATA_FILES = ("tokens.idx", "tokens.bin", "words.bin")


class Corpus:
    """A folder of tokenised documents, read through memory maps."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any], type: npt.DTypeLike) -> None:
        self.folder = folder
        self.documents: int = metadata["documents"]
        self.tokens: int = metadata["tokens"]
        self.bytes: int = metadata["bytes"]
        self.sources: list[dict[str, Any]] = metadata.get("sources", [])  # path, documents, bytes
        self.vocab_size: int = metadata["vocab"]
        self.tokenizer_hash: str = metadata["tokenizer_hash"]
        self.left_out: dict[str, int] = metadata["left_out"]  # documents, by reason
        self.skipped_files: dict[str, int] = metadata["skipped_files"]  # by reason
        sentences: int = metadata["sentences"]
        index = folder / "tokens.idx"
        begins = HEADER.size + 4 * sentences
        firsts = begins + 8 * sentences
        self._ids = _memmap(folder / "tokens.bin", type, self.tokens)
        self._sequence_pointers = _memmap(index, np.int64, sentences, offset=begins)
        self._document_indices = _memmap(index, np.int64, self.documents + 1, offset=firsts)
        self._words: npt.NDArray[np.uint8] | None = None
        if metadata["words"] is not None:
            self._words = _memmap(folder / "words.bin", np.uint8, -(-self.tokens // 8))

    @classmethod
    def open(cls, folder: Path | str, *, shard: bool = False) -> "Corpus":
        """Open a folder that `prepare` wrote, and check that its files agree.

        One of several shards is no corpus, unless `shard` asks for it.
        """
        folder = Path(folder)
        if not shard and (folder / SHARD_FILE).is_file():
            raise UserError(f"{folder} is a shard of a corpus: join all shards with kinfolk merge")
        for name in ("corpus.json", "tokens.idx", "tokens.bin"):
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder} is not a corpus: {folder / name} does not exist; "
                    "make a corpus with kinfolk prepare"
                )
        metadata = _read_metadata(folder / "corpus.json")
        index = folder / "tokens.idx"
        with index.open("rb") as file:
            header = file.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise _corrupt(index, "it does not begin like a Megatron index")
        _, version, code, sentences, bounds = HEADER.unpack(header)
        if version != VERSION or code not in DTYPES:
            raise _corrupt(index, f"version {version} with ids of type {code} is not supported")
        if (sentences, bounds) != (metadata["sentences"], metadata["documents"] + 1):
            raise _corrupt(index, "it counts other documents than corpus.json")
        type = np.dtype(DTYPES[code])
        _check_size(index, HEADER.size + 12 * sentences + 8 * bounds)
        _check_size(folder / "tokens.bin", type.itemsize * metadata["tokens"])
        if metadata["words"] is not None:
            _check_size(folder / "words.bin", -(-metadata["tokens"] // 8))
        return cls(folder, metadata, type)

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.folder,)

    def __repr__(self) -> str:
        counts = {"documents": self.documents, "tokens": self.tokens, "bytes": self.bytes}
        facts = [f"{count:,} {name}" for name, count in counts.items()]
        left_out = {reason: n for reason, n in self.left_out.items() if n}
        lists = {"left_out": left_out, "skipped_files": self.skipped_files}
        facts += [f"{name} {value}" for name, value in lists.items() if value]
        return f"Corpus({str(self.folder)!r}: {', '.join(facts)})"

    @cached_property
    def starts(self) -> IntArray:
        """Return the start of each document in the stream of tokens, and the end of the last."""
        starts = np.full(self.documents + 1, self.tokens)
        inside = self._document_indices < len(self._sequence_pointers)
        starts[inside] = (
            self._sequence_pointers[self._document_indices[inside]] // self._ids.itemsize
        )
        return starts

    @cached_property
    def _pointer_numbers(self) -> Sequence[int]:
        """The starts of sentences in bytes as numbers of Python, which are compared sooner."""
        if not len(self._sequence_pointers):
            return ()
        return self._sequence_pointers.view(np.uint8).data.cast("q")

    def ids(self, start: int, stop: int) -> IntArray:
        """Return a slice of the stream of tokens."""
        return self._ids[start:stop].astype(np.int64)

    def document(self, i: int) -> IntArray:
        """Return the tokens of one document."""
        return self.ids(self.starts[i], self.starts[i + 1])

    def blocks(self, documents: int | None = None) -> Iterator[tuple[npt.NDArray[Any], IntArray]]:
        """Yield the tokens of the first documents, all by default, and where documents end in them.

        Files are read part by part, not mapped: memory does not grow with the corpus.
        """
        stop = self.documents if documents is None else documents
        for first in range(0, stop, BATCH_DOCUMENTS):
            bounds = self._bounds(first, min(first + BATCH_DOCUMENTS, stop))
            done, ends = 0, bounds[1:]
            for start in range(bounds[0], max(bounds[-1], bounds[0] + 1), BATCH_NUMBERS):
                until = min(start + BATCH_NUMBERS, bounds[-1])
                last = int(np.searchsorted(ends, until, "right"))
                yield (
                    self._read("tokens.bin", self._ids.dtype, start, until),
                    ends[done:last] - start,
                )
                done = last

    def encoded(self) -> Iterator["EncodedDocuments"]:
        """Yield all documents in batches, without their bytes; memory stays small."""
        sentences, token = len(self._sequence_pointers), 0
        offset = HEADER.size + 12 * sentences
        for first in range(0, self.documents, BATCH_DOCUMENTS):
            last = min(first + BATCH_DOCUMENTS, self.documents)
            bounds = self._read("tokens.idx", np.int64, first, last + 1, offset)
            start = 0
            while start < last - first:
                fits = np.searchsorted(bounds, bounds[start] + BATCH_SENTENCES, "right") - 1
                stop = max(int(fits), start + 1)
                span = bounds[start : stop + 1]
                lengths = self._read("tokens.idx", np.int32, span[0], span[-1], HEADER.size)
                end = token + int(lengths.sum(dtype=np.int64))
                yield EncodedDocuments(
                    self._read("tokens.bin", self._ids.dtype, token, end),
                    lengths,
                    np.diff(span),
                    np.zeros(stop - start, np.int64),
                    None if self._words is None else self.words(token, end),
                )
                start, token = stop, end

    def _bounds(self, first: int, last: int) -> IntArray:
        """Return the start of each document from the first, and the end of the last before."""
        sentences = len(self._sequence_pointers)
        begins = HEADER.size + 4 * sentences
        index = self._read("tokens.idx", np.int64, first, last + 1, begins + 8 * sentences)
        pointers = self._read("tokens.idx", np.int64, index[0], index[-1] + 1, begins)
        inside = index < sentences
        bounds = np.full(len(index), self.tokens)
        bounds[inside] = pointers[index[inside] - index[0]] // self._ids.itemsize
        return bounds

    def _read(
        self, name: str, type: npt.DTypeLike, start: int, stop: int, offset: int = 0
    ) -> npt.NDArray[Any]:
        offset += start * np.dtype(type).itemsize
        return np.fromfile(self.folder / name, type, max(stop - start, 0), offset=offset)

    def sentences(self, start: int, stop: int) -> IntArray:
        """Return the lengths of the sentences in a slice, cut to it."""
        if start >= stop:
            return np.zeros(0, np.int64)
        size, pointers = self._ids.itemsize, self._pointer_numbers
        # Not np.searchsorted: the index is not aligned, so that it would copy all of it.
        first = bisect_right(pointers, start * size)
        last = bisect_left(pointers, stop * size, lo=first)
        bounds = np.empty(last - first + 2, np.int64)
        bounds[0], bounds[-1] = start, stop
        bounds[1:-1] = self._sequence_pointers[first:last] // size
        return bounds[1:] - bounds[:-1]

    def words(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return which tokens of a slice begin a word."""
        if self._words is None:
            raise UserError(f"{self.folder} has no word boundaries: prepare it with --words")
        first = start // 8
        bits = np.unpackbits(self._words[first : -(-stop // 8)])
        return bits[start - 8 * first : stop - 8 * first].astype(np.bool_)

    def token_counts(self) -> IntArray:
        """Return how often each id occurs."""
        return self._counts

    @cached_property
    def _counts(self) -> IntArray:
        counts = np.zeros(self.vocab_size, np.int64)
        for start in range(0, self.tokens, BATCH_NUMBERS):
            ids = self._ids[start : start + BATCH_NUMBERS]
            if int(ids.max()) >= self.vocab_size:
                raise _corrupt(self.folder / "tokens.bin", f"it holds the id {ids.max()}")
            counts += np.bincount(ids, minlength=self.vocab_size)
        return counts

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the corpus."""
        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        if tokenizer.fingerprint != self.tokenizer_hash:
            raise _corrupt(self.folder / "tokenizer", "it is not the tokenizer of this corpus")
        return tokenizer


def _memmap(file: Path, type: npt.DTypeLike, size: int, *, offset: int = 0) -> npt.NDArray[Any]:
    # An empty file cannot be mapped.
    if size == 0:
        return np.zeros(0, type)
    # A plain view: slices of a memmap are slow.
    return np.memmap(file, type, mode="r", offset=offset, shape=(size,)).view(np.ndarray)


def _read_metadata(file: Path) -> dict[str, Any]:
    try:
        metadata = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise _corrupt(file, "it is not JSON") from error
    if metadata.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        raise _corrupt(
            file, f"it has format {metadata['version']}, and only {FORMAT_VERSION} is supported"
        )
    if missing := sorted(METADATA.keys() - metadata.keys()):
        raise _corrupt(file, f"it has no {missing[0]}")
    for name, types in METADATA.items():
        value = metadata[name]
        if type(value) not in types or (type(value) is int and value < 0):
            raise _corrupt(file, f"its {name} is {value!r}")
    if not 1 <= metadata["vocab"] <= MAX_VOCAB_SIZE:
        raise _corrupt(file, f"its vocab is {metadata['vocab']}")
    for name in COUNTS:
        if not isinstance(metadata.setdefault(name, {}), dict):
            raise _corrupt(file, f"its {name} is {metadata[name]!r}")
    if not isinstance(metadata.get("sha256", {}), dict):  # corpora of earlier versions have none
        raise _corrupt(file, f"its sha256 is {metadata['sha256']!r}")
    return metadata


def _check_size(file: Path, size: int) -> None:
    if not file.is_file():
        raise _corrupt(file, "it does not exist")
    if file.stat().st_size != size:
        raise _corrupt(file, f"it has {file.stat().st_size:,} bytes instead of {size:,}")


def _corrupt(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is corrupt: {reason}; run kinfolk prepare again")


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents as concatenated ids, with the lengths of sentences and documents."""

    ids: npt.NDArray[Any]
    sentences: npt.NDArray[np.int32]  # tokens in each sentence
    documents: IntArray  # sentences in each document
    bytes: IntArray  # of text (UTF-8) in each document
    words: npt.NDArray[np.bool_] | None = None  # whether each token begins a word


@dataclass
class SourceStats:
    """Documents and bytes of one file."""

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
    pending_bits: tuple[bool, ...] = ()  # word starts of the last tokens, less than a byte

    def sizes(self, itemsize: int) -> dict[str, int]:
        """Return the size of each file in bytes, for ids of `itemsize` bytes."""
        return {
            "tokens.bin": itemsize * self.tokens,
            "lengths.part": 4 * self.sentences,
            "documents.part": 8 * self.documents,
            "words.bin": self.tokens // 8,
        }


def dtype_code(tokenizer: Tokenizer) -> int:
    """Return Megatron's code of the dtype that holds every id of a tokenizer."""
    return 8 if tokenizer.vocab_size <= 1 << 16 else 4


class CorpusWriter:
    """Write a corpus part by part; the end of the `with` block finishes it.

    The progress `written` of an interrupted writer is kept, and anything after it is truncated.
    Files named *.part are not needed once the corpus is finished.
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
        self.left_out: Mapping[str, int] = {}  # documents, by reason
        self.skipped_files: Mapping[str, int] = {}  # of folders, by reason
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
            self.sync()
        for file in self._files.values():
            with suppress(OSError) if kind is not None else nullcontext():
                file.close()

    def add(self, encoded: EncodedDocuments, sources: Sequence[str]) -> None:
        """Append documents, each with its source file."""
        self.append(encoded)
        size = self.written.bytes + int(encoded.bytes.sum())
        self.written = replace(self.written, bytes=size)
        for path, size in zip(sources, encoded.bytes.tolist(), strict=True):
            self.count_source(path, size)

    def append(self, encoded: EncodedDocuments) -> None:
        """Append documents whose bytes and sources are counted apart."""
        columns: dict[str, npt.NDArray[Any]] = {
            "tokens.bin": encoded.ids.astype(DTYPES[self._code]),
            "lengths.part": encoded.sentences.astype(np.int32),
            "documents.part": encoded.documents.astype(np.int64),
        }
        rest = self.written.pending_bits
        if self._words is not None:
            assert encoded.words is not None
            begins = np.concatenate([np.array(rest, np.bool_), encoded.words])
            full = len(begins) // 8 * 8
            columns["words.bin"], rest = np.packbits(begins[:full]), tuple(begins[full:].tolist())
        for name, column in columns.items():
            self._files[name].write(column.tobytes())
        self.written = replace(
            self.written,
            documents=self.written.documents + len(encoded.documents),
            sentences=self.written.sentences + len(encoded.sentences),
            tokens=self.written.tokens + len(encoded.ids),
            pending_bits=rest,
        )

    def count_source(self, path: str, size: int, documents: int = 1) -> None:
        """Count documents of a source file, and their bytes."""
        source = self._sources.setdefault(path, SourceStats(path))
        source.documents += documents
        source.bytes += size

    def merge_source(self, path: str, size: int, documents: int = 1) -> None:
        """Count documents that were appended, and their bytes in the corpus too."""
        self.written = replace(self.written, bytes=self.written.bytes + size)
        self.count_source(path, size, documents)

    def sync(self) -> WriteProgress:
        """Flush everything to the disk, and return the progress."""
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
            for numbers in _read_numbers(lengths, np.int32):
                index.write(numbers.tobytes())
            _write_prefix_sums(
                index, lengths, np.int32, scale=np.dtype(DTYPES[self._code]).itemsize
            )
            _write_prefix_sums(index, documents, np.int64)
            index.write(np.int64(done.sentences).tobytes())
        metadata = {
            "version": FORMAT_VERSION,
            "documents": done.documents,
            "sentences": done.sentences,
            "tokens": done.tokens,
            "bytes": done.bytes,
            "vocab": self._tokenizer.vocab_size,
            "tokenizer_hash": self._tokenizer.fingerprint,
            "words": self._words,
            "left_out": self.left_out,
            "skipped_files": self.skipped_files,
            "sources": [asdict(source) for source in self._sources.values()],
        }
        for file in self._files.values():
            file.flush()
        written = [self._folder / name for name in DATA_FILES if (self._folder / name).is_file()]
        metadata["sha256"] = {file.name: cached_sha256(file) for file in written}
        text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
        (self._folder / "corpus.json").write_text(text, encoding="utf-8")
        self._tokenizer.save(self._folder / "tokenizer")


def _opened(file: Path, size: int) -> IO[bytes]:
    """Open a file, truncated to its first bytes, to append to it."""
    opened = file.open("r+b" if file.exists() else "w+b")
    if opened.seek(0, os.SEEK_END) < size:
        opened.close()
        raise UserError(f"{file} is shorter than it was: remove {file.parent} and prepare again")
    opened.truncate(size)
    opened.seek(size)
    return opened


def _read_numbers(file: IO[bytes], type: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
    file.seek(0)
    while part := file.read(BATCH_NUMBERS * np.dtype(type).itemsize):
        yield np.frombuffer(part, type)


def _write_prefix_sums(
    index: IO[bytes], file: IO[bytes], type: npt.DTypeLike, *, scale: int = 1
) -> None:
    """Write the sum of the numbers before each."""
    total = 0
    for numbers in _read_numbers(file, type):
        sums = total + scale * np.cumsum(numbers, dtype=np.int64)
        index.write((sums - scale * numbers.astype(np.int64)).tobytes())
        total = int(sums[-1])


def corpus_fingerprint(folder: Path) -> str:
    """Return a hash of every file of a corpus folder and of its held-out split.

    A file that differs from its checksum in corpus.json is refused. All bytes are read: one GiB
    takes about a second.
    """
    digest = sha256()
    for part in (folder, folder / "holdout"):
        expected = _read_metadata(part / "corpus.json").get("sha256", {}) if part.is_dir() else {}
        for name in DATA_FILES:
            if (part / name).is_file():
                checksum = cached_sha256(part / name)
                if checksum != expected.get(name, checksum):
                    raise _corrupt(part / name, "it differs from its checksum in corpus.json")
                digest.update(f"{(part / name).relative_to(folder)} {checksum}\n".encode())
    return digest.hexdigest()
