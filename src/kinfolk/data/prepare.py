"""How much room a corpus will take, guessed from the first documents, and whether it is there."""

import errno
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import numpy as np

from kinfolk.data.corpus import (
    DTYPES,
    FORMAT_VERSION,
    Corpus,
    CorpusWriter,
    EncodedDocuments,
    WriteProgress,
    dtype_code,
)
from kinfolk.data.dedup import decontaminated, deduplicated
from kinfolk.data.documents import Document, DocumentUnit, file_sizes, read_documents
from kinfolk.data.encode import Chunk, DocumentEncoder, default_num_workers, encode_in_parallel
from kinfolk.errors import UserError
from kinfolk.files import lock_file, new_file
from kinfolk.rng import text_uniform
from kinfolk.text import Tokenizer
from kinfolk.text.segment import word_segmenter

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


Say = Callable[[str], None]


@dataclass
class PartialCorpus:
    """A corpus that will get its name when it is whole."""

    work_dir: Path
    fingerprint: str | None  # of all that decides its bytes; None where text cannot be read again
    progress: tuple[WriteProgress, ...] = ()
    whole: bool = False

    @property
    def folder(self) -> Path:
        """Where it lies until then."""
        return self.work_dir / "corpus"

    @property
    def journal(self) -> Path:
        """Where it is written down what is done."""
        return self.work_dir / "journal.json"

    def save_progress(self, done: tuple[WriteProgress, ...], *, whole: bool = False) -> None:
        """Write down what is safe on the disk."""
        self.progress, self.whole = done, whole
        if self.fingerprint is None:
            return
        states = [asdict(written) for written in done]
        entry = {"fingerprint": self.fingerprint, "whole": whole, "done": states}
        with new_file(self.journal, durable=True) as file:
            json.dump(entry, file)

    def load_progress(self, say: Say) -> None:
        """Go on from what an earlier run of the same work wrote down, or begin with nothing."""
        entry = {}
        with suppress(OSError, ValueError):
            entry = json.loads(self.journal.read_text(encoding="utf-8"))
        if entry and entry["fingerprint"] == self.fingerprint:
            states = (
                {**state, "pending_bits": tuple(state["pending_bits"])} for state in entry["done"]
            )
            self.progress, self.whole = (
                tuple(WriteProgress(**state) for state in states),
                entry["whole"],
            )
            documents = sum(written.documents for written in self.progress)
            say(f"going on after the {documents:,} documents that an earlier run has written")
            return
        if entry:
            say("starting over: text, tokenizer or options are not those of the run before")
        self.clear()
        self.folder.mkdir()

    def clear(self) -> None:
        """Forget all that is done."""
        self.journal.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self, out: Path) -> None:
        """Give it its name; whoever is killed in here goes on in here."""
        self.save_progress(self.progress, whole=True)
        for left in self.folder.rglob("*.part"):
            left.unlink()
        self.folder.rename(out)
        self.journal.unlink(missing_ok=True)


@contextmanager
def resumable_output(
    out: Path, fingerprint: str | None, *, vacant: Callable[[], None], say: Say
) -> Iterator[PartialCorpus]:
    """Lend a corpus beside `out`, and give it that name at the end; `vacant` checks it is free.

    Whatever goes wrong, nothing is left of a corpus that has no entry in its journal yet; one that
    has is kept for the next run of the same work.
    """
    out = out.absolute()
    part = PartialCorpus(out.with_name(f".{out.name}.part"), fingerprint)
    fresh = [parent for parent in part.work_dir.parents if not parent.exists()]
    try:
        with _alone(part.work_dir, out):
            vacant()
            part.load_progress(say)
            try:
                yield part
                part.finish(out)
            except BaseException:
                if part.journal.exists():
                    say(
                        f"what is done is kept in {part.work_dir}: "
                        "the same command goes on from there"
                    )
                else:
                    part.clear()
                raise
    except BaseException:
        with suppress(OSError):  # something is kept there, or somebody else uses it by now
            for parent in fresh:
                parent.rmdir()
        raise


@contextmanager
def _alone(home: Path, out: Path) -> Iterator[None]:
    """Hold the lock in a folder, or complain that somebody else does; remove it if it is empty."""
    lock = home / "lock"
    try:
        file = lock_file(lock)
    except BlockingIOError as error:
        raise UserError(
            f"another kinfolk prepare is writing {out}: wait for it, or choose another -o"
        ) from error
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose another -o") from error
    with file:
        try:
            yield
        finally:
            lock.unlink()
            with suppress(OSError):
                home.rmdir()


CHUNK = 1 << 18  # characters that travel to a worker at once
CHUNKS_PER_CHECKPOINT = 64  # chunks between two entries in the journal: a few seconds of work
DROPPED_FILE = "dropped.jsonl"  # in the corpus: what was left out because a test holds it

Progress = Callable[[int, int | None], None]


def prepare(
    paths: Sequence[Path],
    *,
    tokenizer: Tokenizer,
    out: Path,
    workers: int | None = 1,
    per: DocumentUnit = "block",
    field: str | None = None,
    column: str | int | None = None,
    holdout: float = 0.0,
    words: str | None = None,
    dedup: str | None = None,
    decontaminate: Sequence[Path] = (),
    progress: Progress = lambda read, whole: None,
    say: Say = lambda sentence: None,
) -> Corpus:
    """Tokenise text into a corpus at `out`, and return it.

    A share `holdout` of the documents, chosen by their text, goes to a second corpus at
    `out/holdout`. `words` names the segmenter that says where words begin. Documents seen before
    (`dedup`) and those that test files hold (`decontaminate`) are left out. `workers` of None are
    as many as the text is worth. `progress` is told the bytes of files read so far, and those of
    all files; `say` gets sentences for the user.

    A run that was killed goes on when it is called again with the same text and options.
    """
    paths, tests, out = [Path(p) for p in paths], [Path(p) for p in decontaminate], Path(out)
    work = PrepareConfig(paths, tokenizer, per, field, column, holdout, words, dedup, tests)
    work.check()
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers} cannot work: give 1 or more")
    _vacant(out)
    found = file_sizes(paths)
    workers = workers or default_num_workers(estimate_text_bytes(found))
    fingerprint = work.fingerprint()
    if fingerprint is None:
        say("this text can be read only once: a run that is killed will begin again")
    with (
        resumable_output(out, fingerprint, vacant=lambda: _vacant(out), say=say) as part,
        disk_full_as_user_error(out),
    ):
        if not part.whole:
            _write(work, part, workers, _progress_reporter(found, progress), say)
    return Corpus.open(out)


@dataclass(frozen=True)
class PrepareConfig:
    """All that decides the bytes of a corpus."""

    paths: list[Path]
    tokenizer: Tokenizer
    per: DocumentUnit
    field: str | None
    column: str | int | None
    holdout: float
    words: str | None
    dedup: str | None
    evaluation_files: list[Path]

    def check(self) -> None:
        """Refuse what cannot be done, before anything is."""
        if not 0 <= self.holdout < 1:
            raise UserError(
                f"--holdout {self.holdout} is no share: give 0 (none) or more, and less than 1"
            )
        if self.words is not None:
            word_segmenter(self.words)

    def fingerprint(self) -> str | None:
        """Return what tells this work from any other; None where text cannot be read again."""
        read = {
            **file_sizes(self.paths),
            **(file_sizes(self.evaluation_files) if self.evaluation_files else {}),
        }
        if None in read.values():
            return None
        files = [(str(path), size, path.stat().st_mtime_ns) for path, size in read.items()]
        options = (self.per, self.field, self.column, self.holdout, self.words, self.dedup)
        facts = json.dumps(
            [FORMAT_VERSION, self.tokenizer.fingerprint, files, options, len(self.evaluation_files)]
        )
        return blake2b(facts.encode(), digest_size=16).hexdigest()

    def documents(self, dropped: Path) -> Iterator[Document]:
        """Stream what is to be written."""
        found = read_documents(self.paths, per=self.per, field=self.field, column=self.column)
        if self.dedup is not None:
            found = deduplicated(found, self.dedup)
        return (
            decontaminated(found, self.evaluation_files, dropped)
            if self.evaluation_files
            else found
        )

    def is_held_out(self, text: str) -> bool:
        """Tell whether a document is held out, by a place that no other text can move."""
        if not self.holdout:
            return False
        return text_uniform(text) < self.holdout

    def encoder(self) -> Callable[[], DocumentEncoder]:
        """Return what makes an encoder, in any process."""
        type = DTYPES[dtype_code(self.tokenizer)]
        return partial(DocumentEncoder, self.tokenizer, words=self.words, type=type)


def _write(
    work: PrepareConfig,
    part: PartialCorpus,
    workers: int,
    meter: Callable[[Document], None],
    say: Say,
) -> None:
    """Write what an earlier run has not written yet."""
    folders = [part.folder, *([part.folder / "holdout"] if work.holdout else [])]
    states = part.progress or (None,) * len(folders)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                CorpusWriter(folder, work.tokenizer, words=work.words, written=state)
            )
            for folder, state in zip(folders, states, strict=True)
        ]
        chunks = _chunks(work, work.documents(part.folder / DROPPED_FILE), writers)
        encoded = stack.enter_context(closing(encode_in_parallel(chunks, work.encoder(), workers)))
        for number, ((held, chunk), found) in enumerate(encoded):
            if number == 0 and not part.progress:
                _reserve(work, part, found, say)
            writers[held].add(found, [str(document.source) for document in chunk])
            if (number + 1) % CHUNKS_PER_CHECKPOINT == 0:
                part.save_progress(tuple(writer.sync() for writer in writers))
            meter(chunk[-1])
        _check(writers, work.holdout)
    part.progress = tuple(writer.written for writer in writers)


def _chunks(
    work: PrepareConfig, documents: Iterable[Document], writers: Sequence[CorpusWriter]
) -> Iterator[Chunk]:
    """Gather documents to be encoded together, those held out apart; none that is written."""
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
        if sizes[held] >= CHUNK:
            yield held, waiting[held].copy()
            waiting[held].clear()
            sizes[held] = 0
    yield from ((held, waiting[held]) for held in (False, True) if waiting[held])


def _progress_reporter(
    sizes: dict[Path, int | None], progress: Progress
) -> Callable[[Document], None]:
    """Return what tells `progress` how far the files are read, once a document is written."""
    known = [size or 0 for size in sizes.values()]
    before = dict(zip(sizes, accumulate(known, initial=0), strict=False))
    whole = None if None in sizes.values() else sum(known)
    read = 0

    def tell(last: Document) -> None:
        nonlocal read
        read = max(read, before[last.source] + last.bytes_read)
        progress(read, whole)

    return tell


def _reserve(work: PrepareConfig, part: PartialCorpus, sample: EncodedDocuments, say: Say) -> None:
    """Say how much room the corpus will need, and see that it is there."""
    text = estimate_text_bytes(file_sizes(work.paths))
    if text is not None:
        say(
            check_disk_space(
                part.work_dir, estimate_corpus_bytes(text, sample, dtype_code(work.tokenizer))
            )
        )


def _vacant(out: Path) -> None:
    if (out / "corpus.json").exists():
        raise UserError(f"{out} is already a corpus: choose another -o or remove it")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} already exists and is not empty: choose another -o")


def _check(writers: Sequence[CorpusWriter], holdout: float) -> None:
    if not all(writer.written.documents for writer in writers):
        kept, *held = (writer.written.documents for writer in writers)
        if not held:
            raise UserError("every document was left out: give other text, or filter less")
        raise UserError(
            f"--holdout {holdout} of this text leaves {kept} documents and holds out {held[0]}: "
            "choose another share or give more text"
        )
    if not all(writer.written.tokens for writer in writers):
        raise UserError("the text holds nothing that this tokenizer can read: give other text")
