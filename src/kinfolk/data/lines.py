"""How often each line of a text is there."""

from collections import Counter

import numpy as np

from kinfolk.data.duplicates import hash64

NUM_TOP_LINES = 10  # of the most repeated lines are kept as text
BATCH = 1 << 16  # different lines held as text before they become numbers
LONGEST = 200  # characters of a line that are kept


class LineCounter:
    """Counts by mark: 16 bytes for each different line, and the text of the top ten only."""

    def __init__(self) -> None:
        self.total = 0
        self._hashes = np.empty(0, dtype=np.uint64)  # sorted
        self._counts = np.empty(0, dtype=np.int64)
        self._top: dict[int, str] = {}
        self._waiting: Counter[int] = Counter()
        self._texts: dict[int, str] = {}

    def add(self, text: str) -> None:
        """Count the lines of a text; white space at their ends is none, and blank ones are none."""
        for line in map(str.strip, text.split("\n")):
            if line:
                number = hash64(line)
                self._waiting[number] += 1
                self._texts.setdefault(number, line[:LONGEST])
                self.total += 1
        if len(self._waiting) >= BATCH:
            self._flush()

    @property
    def distinct(self) -> int:
        self._flush()
        return len(self._hashes)

    def top(self) -> list[tuple[str, int]]:
        """Return the lines that are there most often, and more than once."""
        self._flush()
        counts = self._count(list(self._top))
        return [(line, n) for line, n in zip(self._top.values(), counts, strict=True) if n > 1]

    def _count(self, marks: list[int]) -> list[int]:
        at = np.searchsorted(self._hashes, np.array(marks, dtype=np.uint64))
        found: list[int] = self._counts[at].tolist()
        return found

    def _flush(self) -> None:
        if not self._waiting:
            return
        marks = np.array(sorted(self._waiting), dtype=np.uint64)
        counts = np.array([self._waiting[number] for number in marks.tolist()])
        at = np.searchsorted(self._hashes, marks)
        old = np.isin(marks, self._hashes[at[at < len(self._hashes)]])
        self._counts[at[old]] += counts[old]
        self._hashes = np.insert(self._hashes, at[~old], marks[~old])
        self._counts = np.insert(self._counts, at[~old], counts[~old])
        # Counts only grow: a line of the top ten is in this batch, or was in the top ten before.
        texts = self._texts | self._top
        numbers = zip(self._count(list(texts)), texts, strict=True)
        best = sorted(numbers, key=lambda one: (-one[0], one[1]))[:NUM_TOP_LINES]
        self._top = {number: texts[number] for _, number in best}
        self._waiting, self._texts = Counter(), {}
