"""From text files to a corpus on disk: every document once, the same bytes for any workers."""

import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import blake2b
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

from kinfolk.data.encoding import Encoder
from kinfolk.data.shards import Corpus
from kinfolk.data.sources import Document, Per, documents, files
from kinfolk.data.writer import Encoded, Writer
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer

CHUNK = 1 << 19  # characters that travel to a worker at once

Chunk = tuple[bool, list[Document]]  # whether these documents are held out


def prepare(
    paths: Sequence[Path],
    *,
    tokenizer: Tokenizer,
    out: Path,
    workers: int = 1,
    per: Per = "block",
    holdout: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Tokenise files and folders of text into a corpus at `out`, and return it.

    A share `holdout` of the documents, chosen by their text, goes to a second corpus at
    `out/holdout`. `progress` is told the bytes of files read so far, and those of all files.
    """
    if not 0 <= holdout < 1:
        raise UserError(f"--holdout {holdout} is no share: give 0 (none) or more, and less than 1")
    if workers < 1:
        raise UserError(f"--workers {workers} cannot work: give 1 or more")
    paths, out = [Path(path) for path in paths], Path(out)
    _vacant(out)
    sizes = {path: path.stat().st_size for path in files(paths)}
    before = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    read, whole = 0, sum(sizes.values())
    with _aside(out) as folder:
        with ExitStack() as stack:
            writers = [stack.enter_context(Writer(folder, tokenizer))]
            if holdout:
                writers.append(stack.enter_context(Writer(folder / "holdout", tokenizer)))
            chunks = _chunks(documents(paths, per=per), holdout)
            encodings = stack.enter_context(closing(_encodings(chunks, tokenizer, workers)))
            for (held, chunk), encoded in encodings:
                writers[held].add(encoded, [str(document.source) for document in chunk])
                read = max(read, before[chunk[-1].source] + chunk[-1].place)
                if progress is not None:
                    progress(read, whole)
            _check(writers, holdout)
        folder.rename(out)
    return Corpus.open(out)


def _chunks(documents: Iterable[Document], holdout: float) -> Iterator[Chunk]:
    """Gather documents to be encoded together, those held out apart from the others."""
    waiting: tuple[list[Document], list[Document]] = ([], [])
    sizes = [0, 0]
    for document in documents:
        held = _share(document.text) < holdout
        waiting[held].append(document)
        sizes[held] += len(document.text)
        if sizes[held] >= CHUNK:
            yield held, waiting[held].copy()
            waiting[held].clear()
            sizes[held] = 0
    yield from ((held, waiting[held]) for held in (False, True) if waiting[held])


def _share(text: str) -> float:
    """Give a text a place between 0 and 1 that no other text can move."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64


def _encodings(
    chunks: Iterable[Chunk], tokenizer: Tokenizer, workers: int
) -> Generator[tuple[Chunk, Encoded], None, None]:
    """Encode chunks in their order, with a few on their way to each worker and no more."""
    if workers == 1:
        encode = Encoder(tokenizer)
        yield from ((chunk, encode(_texts(chunk))) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start, initargs=(tokenizer,)
    )
    sent: deque[tuple[Chunk, Future[Encoded]]] = deque()
    try:
        for chunk in chunks:
            sent.append((chunk, pool.submit(_work, _texts(chunk))))
            if len(sent) > 2 * workers:
                first, future = sent.popleft()
                yield first, future.result()
        for first, future in sent:
            yield first, future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker ended before its time, most likely for lack of memory: use fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _texts(chunk: Chunk) -> list[str]:
    return [document.text for document in chunk[1]]


_encoder: Encoder  # in each worker


def _start(tokenizer: Tokenizer) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker, one core
    _encoder = Encoder(tokenizer)


def _work(texts: list[str]) -> Encoded:
    return _encoder(texts)


def _vacant(out: Path) -> None:
    if (out / "corpus.json").exists():
        raise UserError(f"{out} is already a corpus: choose another -o or remove it")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} already exists and is not empty: choose another -o")


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """Lend a folder beside `out`, and take it away again whatever goes wrong."""
    out = out.absolute()
    folder = out.with_name(f".{out.name}.{os.getpid()}.part")
    fresh = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose another -o") from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # somebody else may use the parents by now
            for parent in fresh:
                parent.rmdir()
        raise


def _check(writers: Sequence[Writer], holdout: float) -> None:
    if not all(writer.documents for writer in writers):
        kept, held = (writer.documents for writer in writers)
        raise UserError(
            f"--holdout {holdout} of this text leaves {kept} documents and holds out {held}: "
            "choose another share or give more text"
        )
    if not all(writer.tokens for writer in writers):
        raise UserError("the text holds nothing that this tokenizer can read: give other text")
