"""Preparations that die, each in a process of its own, by the signal that nothing can catch."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinfolk.data import prepare as module
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.text import train_tokenizer
from support.crash import server

CHUNK, SAFE = 400, 2  # characters and chunks: little text has many entries in the journal
OPTIONS: dict[str, Any] = {"holdout": 0.3, "word_boundaries": "spaces", "dedup": "exact"}


def go(text: Path, out: Path, **options: Any) -> None:
    """Prepare in small steps."""
    module.GROUP_CHARS, module.GROUPS_PER_CHECKPOINT = CHUNK, SAFE
    tokenizer = train_tokenizer([], kind="byte", vocab_size=0)
    prepare([text], tokenizer=tokenizer, out=out, **{**OPTIONS, **options})


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(owner: Any, name: str, call: int, *, after: bool = False) -> None:
    """Make a function die at one of its calls, before it does anything or when it has."""
    original, calls = getattr(owner, name), 0

    def last(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            die()
        found = original(*arguments, **named)
        if calls == call:
            die()
        return found

    setattr(owner, name, last)


def doomed(text: Path, out: Path, place: str, call: int, after: bool, workers: int) -> None:
    """Prepare until death."""
    from kinfolk.data.corpus import CorpusWriter
    from kinfolk.data.partial_corpus import PartialCorpus

    owners: dict[str, Any] = {
        "fsync": os,
        "add": CorpusWriter,
        "_finish": CorpusWriter,
        "save_progress": PartialCorpus,
        "replace": Path,
        "rename": Path,
        "unlink": Path,
    }
    dying(owners[place], place, call, after=after)
    go(text, out, workers=workers)


def full(text: Path, out: Path, size: int) -> None:
    """Prepare where no file may grow beyond a size, and end with 2 where that is said."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        go(text, out, workers=1)
    except UserError as error:
        os._exit(2 if "the disk is full" in str(error) else 3)


def run(target: Callable[..., None], *arguments: Any) -> int | None:
    """Run a function in a process of its own, and say how that ended."""
    process = server.Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode
