"""Regular expressions of a foreign tokenizer.json: those that run away are found on short texts."""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenizers import Regex, pre_tokenizers

PROBE_CHARACTERS = "a", "A", "0", " ", "\n", "_", "-", ".", "'", "中", "é"
PROBE_LENGTHS = 16, 64, 256  # in this order, so that a slow pattern is noticed while it is bearable
REPEATED = re.compile(r"[*+]|\{\d*,")
# The words of our own tokenizers of words.
WORD_PATTERN = r"<(?!extra_id_)\w+>|@[-.,]@|\w+(?:['’]\w+)*|[^\w\s]"
MAX_LITERALS = 16  # characters of a pattern that probes repeat
MAX_PROBE_SECONDS = 0.2  # of CPU; an ordinary pattern takes a thousandth of it


def regexes(step: Any) -> Iterator[str]:
    """Yield the regular expressions in a part of a tokenizer.json."""
    if isinstance(step, dict):
        if isinstance(pattern := step.get("Regex"), str):
            yield pattern
        step = list(step.values())
    for value in step if isinstance(step, list) else ():
        yield from regexes(value)


def may_run_away(pattern: str) -> bool:
    """Return whether a pattern might take too many steps, though the probes did not find out.

    One repetition cannot: there is nothing to try again.
    """
    return pattern != WORD_PATTERN and len(REPEATED.findall(pattern)) > 1


def slow_text(pattern: str) -> str | None:
    """Return a short text on which a pattern takes too many steps; None where none was found.

    The texts repeat a character, or the characters of the pattern, and end in a way that most
    patterns do not match, so that those with a choice between matches try all of them.
    """
    if not REPEATED.search(pattern):
        return None
    literals = "".join(dict.fromkeys(re.findall(r"[^\W\d_]", pattern)))[:MAX_LITERALS]
    units = [*dict.fromkeys((*PROBE_CHARACTERS, *literals, literals))]
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    for length in PROBE_LENGTHS:
        for unit in filter(None, units):
            text = f"{(unit * length)[:length]}\x01{literals}\x01"
            began = time.thread_time()
            with silent_stderr():
                try:
                    split.pre_tokenize_str(text)
                except BaseException as error:
                    if not is_library_error(error):
                        raise
                    return text
            if time.thread_time() - began > MAX_PROBE_SECONDS:
                return text
    return None


def is_library_error(error: BaseException) -> bool:
    """Return whether an exception is an error or a panic of the `tokenizers` library.

    A panic derives from BaseException alone, which would end the process or one of its workers.
    """
    return type(error) is Exception or type(error).__module__ == "pyo3_runtime"


_silent = threading.Lock()
_depth, _stderr = 0, -1  # of nested or parallel calls; the terminal meanwhile


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Close the terminal to a library that prints to file descriptor 2 before it raises."""
    global _depth, _stderr
    with _silent:
        if _depth == 0:
            _stderr = os.dup(2)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            os.close(null)
        _depth += 1
    try:
        yield
    finally:
        with _silent:
            _depth -= 1
            if _depth == 0:
                os.dup2(_stderr, 2)
                os.close(_stderr)
