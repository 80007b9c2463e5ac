"""One error about the faulty rows of a file: how many there are, and the first of them."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from kinfolk.data.files import InputFile
from kinfolk.errors import UserError

T = TypeVar("T")
MAX_LISTED_ROWS = 3  # in one error
MAX_CHECKED_BYTES = 1 << 28  # after a faulty row or file: a few seconds


def texts_of_rows(
    source: InputFile, rows: Iterator[T], text_of: Callable[[T], str]
) -> Iterator[str]:
    """Yield the text of each row; the error about a faulty row also counts those after it."""
    for row in rows:
        try:
            text = text_of(row)
        except UserError as error:
            if not source.path.is_file():  # the standard input may wait for its next line
                raise
            found = _all_faults(error, source, rows, text_of)
            if found is error:
                raise
            raise found from error
        yield text


def _all_faults(
    first: UserError, source: InputFile, rows: Iterator[T], text_of: Callable[[T], str]
) -> UserError:
    """Return one error about a faulty row and those after it, which takes bounded time."""
    listed, count, limit = [str(first)], 1, source.place + MAX_CHECKED_BYTES
    more = ""
    try:
        for row in rows:
            try:
                text_of(row)
            except UserError as error:
                count += 1
                listed += [str(error)] if count <= MAX_LISTED_ROWS else []
            if source.place > limit:
                more = " or more"
                break
    except UserError:  # the rest of the file has no rows
        more = " or more"
    if count == 1:
        return first
    left = "" if count <= MAX_LISTED_ROWS else ", the first of them"
    heading = f"{count:,} rows{more} of {source.name} cannot be read{left}:"
    return UserError("\n".join([heading, *(f"  {fault}" for fault in listed)]))
