"""What readers mended or left out: how often, and on which lines first."""

from collections import Counter

MAX_LINES_SHOWN = 5  # lines that are named


class ReadReport:
    """Count what is worth saying about a file, by its words.

    `add("rows with an empty text", 7)` is said as "rows with an empty text: 1 (7)".
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._places: dict[str, list[str]] = {}

    def count(self, what: str, place: int | str) -> None:
        """Count one case of something, and remember its line or what was found there."""
        self.counts[what] += 1
        indices = self._places.setdefault(what, [])
        if len(indices) < MAX_LINES_SHOWN:
            indices.append(f"{place:,}" if isinstance(place, int) else place)

    def messages(self) -> list[str]:
        """Say all that was counted, with the first places of each."""
        return [
            f"{what}: {count:,} ({', '.join(self._places[what])}"
            f"{', …' if count > MAX_LINES_SHOWN else ''})"
            for what, count in self.counts.items()
        ]
