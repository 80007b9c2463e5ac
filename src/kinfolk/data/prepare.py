"""Tokenize text into a corpus: read, filter, hold out, encode, write; resumable."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from kinfolk.data.corpus import (
    DTYPES,
    FORMAT_VERSION,
    Corpus,
    CorpusWriter,
    EncodedDocuments,
    dtype_code,
)
from kinfolk.data.dedup import (
    EMPTY,
    DecontaminationFilter,
    DedupFilter,
    DocumentFilter,
    Dropped,
    EmptyFilter,
    OnDrop,
    OnRead,
    evaluation_files,
    left_out_summary,
)
from kinfolk.data.disk_space import (
    check_disk_space,
    disk_full_as_user_error,
    estimate_corpus_bytes,
    estimate_text_bytes,
)
from kinfolk.data.documents import (
    Document,
    DocumentUnit,
    ReadOptions,
    ReadProgress,
    progress_reporter,
    read_files,
    read_text_parts,
)
from kinfolk.data.encode import (
    DocumentEncoder,
    DocumentGroup,
    default_num_workers,
    encode_in_parallel,
)
from kinfolk.data.files import SkippedFile, file_sizes, is_blank, skipped_summary
from kinfolk.data.partial_corpus import PartialCorpus, check_vacant, resumable_output
from kinfolk.data.shards import (
    CountedDocuments,
    DuplicateCandidates,
    FilePart,
    FileParts,
    Shard,
    ShardRecord,
    count_newlines,
)
from kinfolk.errors import UserError
from kinfolk.files import sha256
from kinfolk.rng import text_uniform
from kinfolk.text import Tokenizer, train
from kinfolk.text.segment import word_segmenter
from kinfolk.text.tokenizer import language_tag
from kinfolk.types import OnMessage

GROUP_CHARS = 1 << 18  # sent to a worker at once
GROUPS_PER_CHECKPOINT = 64  # between two entries in the journal: a few seconds of work
EMPTY_FILE = "empty file"  # the reason why a file without text is skipped
DROPPED_FILE = "dropped.jsonl"  # in the corpus: the documents and files that are left out

Files: TypeAlias = Path | str | Sequence[Path | str]  # files, folders or names of datasets


def as_paths(files: Files) -> list[Path]:
    """Return what a user gives as a list of paths."""
    paths = [files] if isinstance(files, Path | str) else files
    for path in paths:
        if not isinstance(path, Path | str):
            raise UserError(
                f"files holds a value of type {type(path).__name__}: give paths of files or folders"
            )
    return [Path(path) for path in paths]


def train_tokenizer(
    files: Files,
    *,
    kind: str = "bpe",
    vocab_size: int = 8192,
    lowercase: bool = False,
    segmenter: str = "spaces",
    field: str | None = None,
    column: str | int | None = None,
    languages: Sequence[str] = (),
    progress: train.StageProgress = lambda stage, done, total: None,
    on_message: OnMessage = lambda sentence: None,
) -> Tokenizer:
    """Train a tokenizer on text files, with the special tokens of every family.

    The kinds are bpe (byte-level), word-bpe, wordpiece, unigram, word, char and byte. `field` of
    JSON lines or `column` of tables holds the text. `languages` are those that a translation model
    is to write: each has a token more, <2de>. `progress` receives the name of the stage, the
    bytes done so far and their total; `on_message` receives messages for the user.
    """
    for language in languages:
        language_tag(language)  # refuses a wrong one before the text is read
    skipped: list[SkippedFile] = []
    texts = read_text_parts(
        as_paths(files),
        ReadOptions(field=field, column=column),
        progress=partial(progress, "reading"),
        on_skip=skipped.append,
    )
    report_skipped(skipped, on_message=on_message)
    trained = train.train_tokenizer(
        texts,
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        segmenter=segmenter,
        progress=progress,
    )
    return trained.with_language_tags(languages)


def prepare(
    files: Files,
    tokenizer: Tokenizer | Path | str,
    out: Path | str,
    *,
    workers: int | None = 1,
    document: DocumentUnit = "block",
    field: str | None = None,
    column: str | int | None = None,
    holdout: float | str = 0.0,
    word_boundaries: str | None = None,
    dedup: str | None = None,
    decontaminate: Files = (),
    strict: bool = False,
    shard: str | None = None,
    progress: ReadProgress = lambda read, whole: None,
    on_message: OnMessage = lambda sentence: None,
) -> Corpus:
    """Tokenize text files into a corpus at `out`, and return it.

    `prepare("notes/", tokenizer, "corpus", holdout=0.01)`. A document is a block between blank
    lines or, with `document="file"`, a file. A fraction `holdout` of the documents, chosen by their
    text, goes to a second corpus at `out/holdout`. `word_boundaries` ("spaces" or "jieba") are
    stored for whole-word masking. Duplicates (`dedup`: "exact" or "near") and documents that share
    n-grams with evaluation files (`decontaminate`) are removed. `left_out` of the corpus counts
    them, and its file dropped.jsonl lists every document that is left out and every file of a
    folder that is skipped; with `strict`, a skipped file is an error. `workers=None` chooses a
    number by the size of the text. With `shard="2/8"` only the second of eight parts is prepared,
    which `merge_shards` joins to the same corpus. `progress` receives the bytes read so far and the
    bytes of all files, those of `decontaminate` first; `on_message` receives messages for the user.

    An interrupted call resumes when it is repeated with the same text and options.
    """
    if workers is not None and workers < 1:
        raise UserError(f"workers {workers}: it must be at least 1")
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    out = Path(out)
    check_vacant(out)
    part_of = None if shard is None else Shard.parse(shard)
    work = prepare_config(
        as_paths(files),
        tokenizer,
        document=document,
        field=field,
        column=column,
        holdout=holdout,
        word_boundaries=word_boundaries,
        dedup=dedup,
        decontaminate=as_paths(decontaminate),
        strict=strict,
        shard=part_of,
        on_message=on_message,
    )
    workers = workers or default_num_workers(estimate_text_bytes(work.sizes()))
    fingerprint = work.fingerprint()
    if fingerprint is None:
        on_message("this input can be read only once: a run that is killed cannot be resumed")
    with (
        resumable_output(out, fingerprint, on_message) as part,
        disk_full_as_user_error(out),
    ):
        if not part.complete:
            _write(work, part, workers, progress, on_message)
    return Corpus.open(out, shard=part_of is not None)


def prepare_config(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    document: DocumentUnit,
    field: str | None,
    column: str | int | None,
    holdout: float | str,
    word_boundaries: str | None,
    dedup: str | None,
    decontaminate: Sequence[Path],
    strict: bool,
    shard: Shard | None = None,
    on_message: OnMessage = lambda sentence: None,
) -> "PrepareConfig":
    """Check the options, find the files and their sizes, and report those that are skipped."""
    holdout = parse_fraction(holdout)
    if word_boundaries is not None:
        word_segmenter(word_boundaries)
    options, named = ReadOptions(document, field, column), frozenset(paths)
    evaluation = evaluation_files(decontaminate) if decontaminate else {}
    skipped: list[SkippedFile] = []
    sizes = file_sizes(paths, on_skip=skipped.append)
    for path in [
        path for path, size in sizes.items() if path not in named and is_blank(path, size)
    ]:
        del sizes[path]
        skipped.append(SkippedFile(path, EMPTY_FILE))
    report_skipped(skipped, strict=strict, on_message=on_message)
    return PrepareConfig(
        *(sizes, named, options, tokenizer, holdout, word_boundaries, dedup, evaluation),
        *(tuple(skipped), shard, shard.parts(sizes, options) if shard else None),
    )


def parse_fraction(value: float | str) -> float:
    """Return a fraction that is given as a number, or as text: 0.005 or 0.5%."""
    text = str(value)
    try:
        fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fraction = math.nan
    if not 0 <= fraction < 1:
        raise UserError(
            f"holdout {text}: it must be a fraction from 0 to less than 1, e.g. 0.005 or 0.5%"
        )
    return fraction


def report_skipped(
    skipped: Sequence[SkippedFile], *, strict: bool = False, on_message: OnMessage
) -> None:
    """Report the files of folders that are not read; with `strict`, raise."""
    if not skipped:
        return
    files = f"{len(skipped):,} {'file' if len(skipped) == 1 else 'files'}"
    if strict:
        raise UserError(
            f"{files} would be left out with --strict: {skipped_summary(skipped)}; remove them, or "
            "name those to be read"
        )
    remedy = "; a file that is named, or matched by a pattern, is read"
    if all(file.reason == EMPTY_FILE for file in skipped):
        remedy = ""
    on_message(f"skipped {files}: {skipped_summary(skipped)}{remedy}")


@dataclass(frozen=True)
class PrepareConfig:
    """The inputs and options that decide the bytes of a corpus."""

    files: dict[Path, int | None]  # with their sizes
    named: frozenset[Path]  # those that were not found in a folder
    options: ReadOptions
    tokenizer: Tokenizer
    holdout: float
    words: str | None
    dedup: str | None
    evaluation: dict[Path, int | None]  # files, with their sizes
    skipped: tuple[SkippedFile, ...] = ()  # files of folders that are not read
    shard: Shard | None = None
    parts: FileParts | None = None  # of the files, in this shard

    def sizes(self) -> dict[Path, int | None]:
        """Return the files that are read, with the bytes that are read of each."""
        if self.parts is None:
            return self.files
        return {
            path: self.files[path] if part is None else part.stop - part.start
            for path, part in self.parts.items()
        }

    def fingerprint(self) -> str | None:
        """Return a hash of inputs and options; None where text cannot be read again."""
        read = {**self.files, **self.evaluation}
        if None in read.values():
            return None
        files = [(str(path), size, path.stat().st_mtime_ns) for path, size in read.items()]
        options = (*astuple(self.options), self.holdout, self.words, self.dedup)
        facts = json.dumps(
            [FORMAT_VERSION, self.tokenizer.fingerprint, files, options, len(self.evaluation)]
            + ([] if self.shard is None else [str(self.shard)])
        )
        return blake2b(facts.encode(), digest_size=16).hexdigest()

    def read(self) -> Iterator[Document]:
        """Stream the documents of the files, or of the shard."""
        return read_files(list(self.files), self.options, named=self.named, parts=self.parts)

    def reporters(self, progress: ReadProgress) -> tuple[OnRead, OnRead]:
        """Return functions that report what is read of the evaluation files and of the text.

        Evaluation files are read first, and are part of the bytes of all files.
        """
        sizes = [*self.evaluation.values(), *self.sizes().values()]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        before = sum(size or 0 for size in self.evaluation.values())
        return (
            progress_reporter(self.evaluation, lambda read, _: progress(read, total)),
            progress_reporter(self.sizes(), lambda read, _: progress(before + read, total)),
        )

    def filters(
        self, documents: Iterable[Document], on_drop: OnDrop, on_evaluation_read: OnRead
    ) -> list[DocumentFilter]:
        """Return the filters that documents pass; the last yields those to be written."""
        filters: list[DocumentFilter] = [EmptyFilter(documents, on_drop)]
        if self.dedup is not None and self.shard is not None:
            candidates = DuplicateCandidates(filters[-1], self.dedup, self.is_held_out, on_drop)
            filters.append(candidates)
        elif self.dedup is not None:
            filters.append(DedupFilter(filters[-1], self.dedup, on_drop))
        if self.evaluation:
            evaluation = list(self.evaluation)
            filters.append(
                DecontaminationFilter(filters[-1], evaluation, on_drop, on_evaluation_read)
            )
        return filters

    def is_held_out(self, text: str) -> bool:
        """Return whether a document is held out, which depends on its text alone."""
        return text_uniform(text) < self.holdout if self.holdout else False

    def encoder(self) -> Callable[[], DocumentEncoder]:
        """Return a function that builds an encoder, in any process."""
        type = DTYPES[dtype_code(self.tokenizer)]
        return partial(DocumentEncoder, self.tokenizer, words=self.words, type=type)


def _write(
    work: PrepareConfig,
    part: PartialCorpus,
    workers: int,
    progress: ReadProgress,
    on_message: OnMessage,
) -> None:
    """Write the documents that an earlier run has not written."""
    on_evaluation_read, report = work.reporters(progress)
    folders = [part.folder, *([part.folder / "holdout"] if work.holdout else [])]
    states = part.progress or (None,) * len(folders)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                CorpusWriter(folder, work.tokenizer, words=work.words, written=state)
            )
            for folder, state in zip(folders, states, strict=True)
        ]
        skipped = work.skipped if work.shard is None else ()
        on_drop = stack.enter_context(dropped_file(part.folder / DROPPED_FILE, skipped))
        documents = CountedDocuments(work.read())
        filters = work.filters(documents, on_drop, on_evaluation_read)
        groups = _group_documents(work, filters[-1], writers)
        encoded = stack.enter_context(closing(encode_in_parallel(groups, work.encoder(), workers)))
        for number, ((held, group), ids) in enumerate(encoded):
            if number == 0 and not part.progress:
                _check_space(work, part, ids, on_message)
            writers[held].add(ids, [str(document.source) for document in group])
            if (number + 1) % GROUPS_PER_CHECKPOINT == 0:
                part.save_progress(tuple(writer.sync() for writer in writers))
            report(group[-1].source, group[-1].bytes_read)
        left_out = {reason: n for kept in filters for reason, n in kept.left_out.items()}
        shown = {reason: n for reason, n in left_out.items() if n or reason != EMPTY}
        if work.shard is None:
            check_not_empty(writers, work.holdout, left_out_summary(shown))
        writers[0].left_out = left_out
        writers[0].skipped_files = Counter(file.reason for file in work.skipped)
        if shown:
            on_message(f"left out: {left_out_summary(shown)}")
    if work.shard is not None:
        _shard_record(work, work.shard, documents, part.folder / DROPPED_FILE).save(part.folder)
    part.progress = tuple(writer.written for writer in writers)


def _shard_record(
    work: PrepareConfig, shard: Shard, documents: CountedDocuments, dropped: Path
) -> ShardRecord:
    """Return what the folder of a shard says about the input, the options and its part."""
    parts = [
        FilePart(str(path), 0, work.files[path] or 0, 0, documents.counts.get(path, 0))
        if part is None
        else FilePart(
            *(str(path), part.start, part.stop, count_newlines(path, part)),
            documents.counts.get(path, 0),
        )
        for path, part in (work.parts or {}).items()
    ]
    return ShardRecord(
        *(shard.number, shard.count, work.tokenizer.fingerprint),
        files=[[str(path), size] for path, size in work.files.items()],
        named=[str(path) for path in work.files if path in work.named],
        skipped=[[str(file.path), file.reason] for file in work.skipped],
        options={
            "document": work.options.per,
            "field": work.options.field,
            "column": work.options.column,
            "holdout": work.holdout,
            "word-boundaries": work.words,
            "dedup": work.dedup,
            "decontaminate": [[str(path), size] for path, size in work.evaluation.items()],
        },
        parts=parts,
        dropped_sha256=sha256(dropped),
    )


@contextmanager
def dropped_file(file: Path, skipped: Sequence[SkippedFile]) -> Iterator[OnDrop]:
    """Write the skipped files, and return a function that writes what is left out.

    The filters read every document again when a run is resumed, so that the list is written anew.
    """
    with file.open("w", encoding="utf-8", errors="replace", newline="\n") as stream:

        def write(dropped: Dropped) -> None:
            stream.write(json.dumps(dropped, ensure_ascii=False) + "\n")

        for left in skipped:
            reason = f"file skipped: {left.reason}"
            write({"reason": reason, "source": str(left.path), "source_line": None, "excerpt": ""})
        yield write
        stream.flush()
        os.fsync(stream.fileno())


def _group_documents(
    work: PrepareConfig, documents: Iterable[Document], writers: Sequence[CorpusWriter]
) -> Iterator[DocumentGroup]:
    """Group documents that are not written yet to be encoded together, those held out apart."""
    written = [writer.written.documents for writer in writers]
    waiting: tuple[list[Document], list[Document]] = ([], [])
    sizes = [0, 0]
    for document in documents:
        held = work.is_held_out(document.text)
        if written[held]:
            written[held] -= 1
            writers[held].count_source(str(document.source), len(document.text.encode()))
            continue
        waiting[held].append(document)
        sizes[held] += len(document.text)
        if sizes[held] >= GROUP_CHARS:
            yield held, waiting[held].copy()
            waiting[held].clear()
            sizes[held] = 0
    yield from ((held, waiting[held]) for held in (False, True) if waiting[held])


def _check_space(
    work: PrepareConfig, part: PartialCorpus, sample: EncodedDocuments, on_message: OnMessage
) -> None:
    text = estimate_text_bytes(work.sizes())
    if text is not None:
        need = estimate_corpus_bytes(text, sample, dtype_code(work.tokenizer))
        on_message(check_disk_space(part.work_dir, need))


def check_not_empty(writers: Sequence[CorpusWriter], holdout: float, left_out: str) -> None:
    if not all(writer.written.documents for writer in writers):
        kept, *held = (writer.written.documents for writer in writers)
        if not held:
            raise UserError(f"no document is left after filtering ({left_out}): use other text")
        count = kept + held[0]
        raise UserError(
            f"--holdout {holdout:g} leaves {kept} of {count} document{'s' * (count != 1)} and "
            f"holds out {held[0]}: choose another fraction or use more text (documents of plain "
            "text are blocks between blank lines, or with --document file whole files)"
        )
    if not all(writer.written.tokens for writer in writers):
        raise UserError(
            "the text has no characters that this tokenizer can encode: use another tokenizer"
        )
