"""Where text can be cut so that each stretch has the same ids wherever it stands.

A stretch is a word with the space before it, a run of points, or anything longer that is not known
to fall apart: "The cat's mat, 3.5" gives "The| cat's| mat|,| 3|.|5". That holds for GPT-2's pattern
and for BERT's, and where words begin can be told from each stretch alone.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.data.shards import IntArray

Bytes: TypeAlias = npt.NDArray[np.uint8]

# The sorts of characters; LINE is all white space that joins no word, tabs too.
WORD, POINT, QUOTE, SPACE, LINE, STOP, ODD = range(7)

MAX_MEAN_CHARS = 12  # characters of a stretch, on average, above which few are seen again


def ascii_codes(text: str) -> Bytes:
    """Return each character in a byte; all beyond ASCII are 128."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    found: Bytes = np.minimum(codes, 128).astype(np.uint8)
    return found


def char_classes(characters: Bytes, stops: IntArray) -> Bytes:
    """Return the sort of each character; `stops` are the places between two texts."""
    found = np.frombuffer(bytearray(characters.tobytes().translate(_SORTS)), np.uint8)
    found[stops] = STOP
    return found


def starts(sorts: Bytes, stops: IntArray) -> IntArray:
    """Return where each stretch begins; a stop is one of its own."""
    pairs = 8 * np.concatenate([np.array([STOP], np.uint8), sorts[:-1]]) + sorts
    cuts = np.frombuffer(pairs.tobytes().translate(_CUTS), np.uint8)
    begins = cuts & _HERE
    begins[:-1] |= cuts[1:] >> 1
    found = np.flatnonzero(begins.view(np.bool_))
    # Chinese runs on without a space, and its stretches would not come back: it stays whole.
    last = np.searchsorted(found, stops)
    stretches = np.diff(last, prepend=-1)
    joined = np.repeat(np.diff(stops, prepend=-1) > MAX_MEAN_CHARS * stretches, stretches)
    joined[last] = joined[last - stretches + 1] = False
    return found[~joined]


def plain(sorts: Bytes, starts: IntArray) -> npt.NDArray[np.bool_]:
    """Tell which stretches hold nothing odd."""
    found = np.ones(len(starts), np.bool_)
    found[np.searchsorted(starts, np.flatnonzero(sorts >= STOP), side="right") - 1] = False
    return found


def _sorts() -> bytes:
    """Write down the sort of each byte."""

    def sort(c: str) -> int:
        if not c.isascii():
            return ODD
        # An apostrophe may begin a piece ('s), and join two halves of a word.
        known = {" ": SPACE, "\t": LINE, "\n": LINE, "\r": LINE, "'": QUOTE}
        if c in known:
            return known[c]
        return WORD if c.isalnum() else POINT if c.isprintable() else ODD

    return bytes(sort(chr(i)) for i in range(256))


_HERE, _BEFORE = 1, 2  # cut between two characters; cut in front of both


def _cuts() -> bytes:
    """Write down where to cut, for each pair of sorts."""
    solid, blank = {WORD, POINT, QUOTE}, {SPACE, LINE}
    table = bytearray(256)
    for before in range(7):
        for here in range(7):
            cut = STOP in (before, here)
            cut |= {before, here} == {WORD, POINT}
            cut |= before in solid and here in blank
            # The last of some white space is apart; it joins the word if it is a space.
            cut |= before == LINE and here in solid
            apart = before in blank and here in solid
            table[8 * before + here] = _HERE * cut | _BEFORE * apart
    return bytes(table)


_SORTS, _CUTS = _sorts(), _cuts()
