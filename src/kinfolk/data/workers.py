"""Several processes that encode documents, in the order in which they came."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process

from kinfolk.data.encoding import DocumentEncoder
from kinfolk.data.sources import Document
from kinfolk.data.writer import EncodedDocuments
from kinfolk.errors import UserError

MOST = 8  # processes, unless more are asked for
WORTH = 1 << 23  # bytes of text that make up for starting a process

Chunk = tuple[bool, list[Document]]  # whether these documents are held out


def default_num_workers(text: float | None) -> int:
    """Choose how many processes are worth starting for so many bytes of text."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST) if text is None or text > WORTH else 1


def encode_in_parallel(
    chunks: Iterable[Chunk], encoder: Callable[[], DocumentEncoder], workers: int
) -> Generator[tuple[Chunk, EncodedDocuments], None, None]:
    """Encode chunks in their order, with a few on their way to each worker and no more."""
    if workers == 1:
        encode = encoder()
        yield from ((chunk, encode(_texts(chunk))) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_init_worker, initargs=(encoder,)
    )
    sent: deque[tuple[Chunk, Future[EncodedDocuments]]] = deque()
    try:
        for chunk in chunks:
            sent.append((chunk, pool.submit(_encode_task, _texts(chunk))))
            if len(sent) > 2 * workers:
                first, future = sent.popleft()
                yield first, future.result()
        while sent:
            first, future = sent.popleft()
            yield first, future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker ended before its time, most likely for lack of memory: use fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _texts(chunk: Chunk) -> list[str]:
    return [document.text for document in chunk[1]]


_encode: DocumentEncoder  # in each worker


def _init_worker(encoder: Callable[[], DocumentEncoder]) -> None:
    global _encode
    # A parent that is killed closes no queue, and a worker would wait for ever.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker, one core
    _encode = encoder()


def _exit_with_parent() -> None:
    """Wait for the parent's end, and end too."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_task(texts: list[str]) -> EncodedDocuments:
    return _encode(texts)
