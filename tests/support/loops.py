"""One rule for many things in one test, whose message lists all that break it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Case = Callable[[object], AbstractContextManager[None]]


@contextmanager
def every_case() -> Iterator[Case]:
    """Give a context for each case, and fail at the end if any of them did.

    with every_case() as case:
        for size in sizes:
            with case(size):
                assert ...
    """
    failures = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")

    yield case
    assert not failures, "\n" + "\n".join(failures)
