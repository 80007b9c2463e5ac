"""Merge the shards of a corpus to the bytes that one `prepare` of all the text writes."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from kinfolk.data.corpus import (
    DATA_FILES,
    Corpus,
    CorpusWriter,
    EncodedDocuments,
    corpus_fingerprint,
)
from kinfolk.data.dedup import (
    CONTAMINATED,
    EMPTY,
    Dropped,
    DuplicateIndex,
    OnDrop,
    dropped_record,
    left_out_summary,
)
from kinfolk.data.disk_space import check_disk_space, disk_full_as_user_error
from kinfolk.data.documents import Document
from kinfolk.data.files import SkippedFile
from kinfolk.data.partial_corpus import check_vacant
from kinfolk.data.prepare import DROPPED_FILE, Files, as_paths, check_not_empty, dropped_file
from kinfolk.data.shards import Candidate, FilePart, ShardRecord
from kinfolk.errors import UserError
from kinfolk.files import cached_sha256, new_folder
from kinfolk.types import OnMessage

# Receives bytes of tokens so far, and those of all shards.
MergeProgress = Callable[[int, int], None]


def merge_shards(
    shards: Files,
    out: Path | str,
    *,
    progress: MergeProgress = lambda done, total: None,
    on_message: OnMessage = lambda sentence: None,
) -> Corpus:
    """Join the shards of a corpus, in any order, to a corpus at `out`, and return it.

    `merge_shards(["c.1", "c.2"], "corpus")` writes the bytes that one `prepare` of all the text
    would write. All shards must be there, of the same input, tokenizer and options. Duplicates are
    searched here, over all shards. After an error or a kill there is no corpus, and the same call
    starts again. `progress` receives the bytes of tokens so far and those of all shards.
    """
    out = Path(out)
    check_vacant(out)
    parts = open_shards(as_paths(shards))
    try:
        with disk_full_as_user_error(out), new_folder(out) as folder:
            on_message(check_disk_space(folder, sum(part.size() for part in parts)))
            _Merge(parts, folder, progress, on_message).write()
    except (BlockingIOError, FileExistsError, PermissionError, NotADirectoryError) as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose another -o") from error
    return Corpus.open(out)


@dataclass(frozen=True)
class OpenShard:
    """A complete shard: its folder, its record, its documents and those held out."""

    folder: Path
    record: ShardRecord
    corpora: tuple[Corpus, ...]
    words: str | None

    def size(self) -> int:
        """Return the bytes that its documents take while they are merged."""
        files = [corpus.folder / name for corpus in self.corpora for name in DATA_FILES]
        # The numbers in the index are also in temporary files.
        return sum((1 + (f.suffix == ".idx")) * f.stat().st_size for f in files if f.is_file())


def open_shards(folders: Sequence[Path]) -> list[OpenShard]:
    """Return the shards in their order; missing, repeated, other and damaged ones are refused."""
    if not folders:
        raise UserError("no shards: pass the folders that kinfolk prepare --shard wrote")
    records = {folder: ShardRecord.load(folder) for folder in dict.fromkeys(folders)}
    _check_same(records)
    _check_complete(folders, records)
    _check_parts([record for _, record in _in_order(records)])
    return [_open(folder, record) for folder, record in _in_order(records)]


def _in_order(records: Mapping[Path, ShardRecord]) -> list[tuple[Path, ShardRecord]]:
    return sorted(records.items(), key=lambda item: item[1].shard)


def _check_same(records: Mapping[Path, ShardRecord]) -> None:
    """Refuse shards of different corpora."""
    (first, expected), *others = records.items()
    for folder, record in others:
        pair = f"{first} and {folder}"
        if record.of != expected.of:
            raise UserError(
                f"{first} is one of {expected.of} shards and {folder} one of {record.of}: pass the "
                "shards of one corpus"
            )
        if record.tokenizer != expected.tokenizer:
            raise UserError(f"{pair} have different tokenizers: prepare all shards with one")
        names = ("files", "named", "skipped")
        if any(getattr(record, name) != getattr(expected, name) for name in names):
            raise UserError(
                f"{pair} have different input files: prepare all shards with the same files, "
                "unchanged, named in the same way"
            )
        if record.options != expected.options:
            options = expected.options.items()
            name = next((key for key, v in options if record.options.get(key) != v), "options")
            raise UserError(f"{pair} have a different --{name}: prepare all shards with the same")


def _check_complete(folders: Sequence[Path], records: Mapping[Path, ShardRecord]) -> None:
    """Refuse missing and repeated shards."""
    seen: dict[int, Path] = {}
    for folder in folders:
        record = records[folder]
        if record.shard in seen:
            raise UserError(
                f"{seen[record.shard]} and {folder} are both shard {record.shard} of {record.of}: "
                "pass each shard once"
            )
        seen[record.shard] = folder
    count = records[folders[0]].of
    missing = [str(number) for number in range(1, count + 1) if number not in seen]
    if missing:
        listed = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        raise UserError(
            f"{len(missing)} of {count} shards {'is' if len(missing) == 1 else 'are'} missing "
            f"({listed}): prepare them, and pass all shards"
        )


def _check_parts(records: Sequence[ShardRecord]) -> None:
    """Refuse shards that do not read every byte of every file once, and files without text."""
    parts: dict[str, list[FilePart]] = {}
    for record in records:
        for part in record.parts:
            parts.setdefault(part.path, []).append(part)
    for path, size in records[0].files:
        found = parts.get(path, [])
        bounds = [(0, 0), *((part.start, part.stop) for part in found), (size, size)]
        if any(stop != start for (_, stop), (start, _) in pairwise(bounds)):
            raise UserError(
                f"{path} was cut at different places in the shards, it has changed meanwhile: "
                "prepare all shards again"
            )
        if path in records[0].named and not any(part.documents for part in found):
            raise UserError(f"{path} is empty: pass a file with text")


def _open(folder: Path, record: ShardRecord) -> OpenShard:
    """Open a shard, and check its files."""
    folders = [folder, *([folder / "holdout"] if record.options["holdout"] else [])]
    corpora = tuple(Corpus.open(part, shard=True) for part in folders)
    corpus_fingerprint(folder)
    dropped = folder / DROPPED_FILE
    if not dropped.is_file() or cached_sha256(dropped) != record.dropped_sha256:
        raise UserError(f"{dropped} differs from its checksum: prepare this shard again")
    return OpenShard(folder, record, corpora, record.options["word-boundaries"])


class _Merge:
    """The writing of a corpus from its shards."""

    def __init__(
        self,
        shards: Sequence[OpenShard],
        folder: Path,
        progress: MergeProgress,
        on_message: OnMessage,
    ) -> None:
        self._shards, self._folder = shards, folder
        self._progress, self._on_message = progress, on_message
        self._first = shards[0].record
        corpora = [corpus for shard in shards for corpus in shard.corpora]
        self._total = sum((corpus.folder / "tokens.bin").stat().st_size for corpus in corpora)
        self._done = 0
        dedup = self._first.options["dedup"]
        self._duplicates = None if dedup is None else DuplicateIndex(dedup)
        reasons = [EMPTY, *(self._duplicates.reasons if self._duplicates else [])]
        reasons += [CONTAMINATED] if self._first.options["decontaminate"] else []
        self._left_out = dict.fromkeys(reasons, 0)
        self._lines: Counter[str] = Counter()  # of each file, in the shards so far

    def write(self) -> None:
        """Write the corpus and its held-out split."""
        tokenizer = self._shards[0].corpora[0].tokenizer()
        skipped = [SkippedFile(Path(path), reason) for path, reason in self._first.skipped]
        with ExitStack() as stack:
            folders = [self._folder, self._folder / "holdout"][: len(self._shards[0].corpora)]
            writers = [
                stack.enter_context(CorpusWriter(folder, tokenizer, words=self._shards[0].words))
                for folder in folders
            ]
            on_drop = stack.enter_context(dropped_file(self._folder / DROPPED_FILE, skipped))
            for shard in self._shards:
                self._add(shard, writers, on_drop)
            shown = {reason: n for reason, n in self._left_out.items() if n or reason != EMPTY}
            holdout = self._first.options["holdout"]
            check_not_empty(writers, holdout, left_out_summary(shown))
            writers[0].left_out = self._left_out
            writers[0].skipped_files = Counter(file.reason for file in skipped)
            if shown:
                self._on_message(f"left out: {left_out_summary(shown)}")
        for temporary in self._folder.rglob("*.part"):
            temporary.unlink()

    def _add(self, shard: OpenShard, writers: Sequence[CorpusWriter], on_drop: OnDrop) -> None:
        """Append the documents of a shard that stay, and list the others."""
        kept = self._filter(shard, writers, on_drop)
        for corpus, writer, keep in zip(shard.corpora, writers, kept, strict=False):
            if self._duplicates is None:
                for source in corpus.sources:
                    writer.merge_source(source["path"], source["bytes"], source["documents"])
            first = 0
            for encoded in corpus.encoded():
                last = first + len(encoded.documents)
                writer.append(_select(encoded, keep[first:last]) if keep else encoded)
                first = last
                self._done += encoded.ids.nbytes
                self._progress(self._done, self._total)
        for part in shard.record.parts:
            self._lines[part.path] += part.newlines

    def _filter(
        self, shard: OpenShard, writers: Sequence[CorpusWriter], on_drop: OnDrop
    ) -> tuple[bytearray, bytearray]:
        """List what is left out, and return which documents stay, those held out apart."""
        kept = (bytearray(), bytearray())
        for candidate, dropped in _read_records(shard.folder / DROPPED_FILE, self._lines):
            duplicate = None if candidate is None else self._find_duplicate(candidate)
            left_out = duplicate or dropped
            if left_out is not None:
                self._left_out[left_out["reason"]] += 1
                on_drop(left_out)
            if candidate is not None and dropped is None:  # its tokens are in the shard
                kept[candidate.held_out].append(left_out is None)
            if candidate is not None and left_out is None:
                writers[candidate.held_out].merge_source(candidate.source, candidate.bytes)
        return kept

    def _find_duplicate(self, candidate: Candidate) -> Dropped | None:
        assert self._duplicates is not None
        document = Document("", Path(candidate.source), 0, candidate.source_line)
        found = self._duplicates.find_or_add(document, candidate.hash, candidate.signature)
        return found and {**dropped_record(found, document), "excerpt": candidate.excerpt}


def _read_records(
    file: Path, lines: Mapping[str, int]
) -> Iterator[tuple[Candidate | None, Dropped | None]]:
    """Yield the documents that may be duplicates, and the records of those that are left out.

    `lines` are those of each file before the shard, whose own lines begin with 1.
    """
    waiting: Candidate | None = None  # the next record says whether it is contaminated
    with file.open(encoding="utf-8", newline="\n") as stream:
        for line in stream:
            fields = json.loads(line)
            fields["source_line"] += lines.get(fields["source"], 0)
            if fields.get("reason") == CONTAMINATED:
                yield waiting, fields
                waiting = None
                continue
            if waiting is not None:
                yield waiting, None
                waiting = None
            if "reason" in fields:
                yield None, fields
            else:
                waiting = Candidate(**fields)
    if waiting is not None:
        yield waiting, None


def _select(encoded: EncodedDocuments, keep: bytearray) -> EncodedDocuments:
    """Return some of the documents."""
    documents = np.frombuffer(keep, np.bool_)
    sentences = np.repeat(documents, encoded.documents)
    tokens = np.repeat(sentences, encoded.sentences)
    return EncodedDocuments(
        encoded.ids[tokens],
        encoded.sentences[sentences],
        encoded.documents[documents],
        encoded.bytes[documents],
        None if encoded.words is None else encoded.words[tokens],
    )
