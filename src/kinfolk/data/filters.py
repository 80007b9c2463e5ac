"""Documents left out on their way into a corpus: those seen before, and those of a test.

Each filter takes a stream of documents and is one: it keeps their order and decides by what came
before alone, so that the same files give the same stream, and it counts what it dropped.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kinfolk.data.contamination import ContaminationIndex
from kinfolk.data.duplicates import ExactDeduplicator, MinHashDeduplicator
from kinfolk.data.sources import Document
from kinfolk.errors import UserError

DEDUP_MODES = ("exact", "near")
SHOWN = 80  # characters of a dropped document


def deduplicated(documents: Iterable[Document], how: str) -> "DedupFilter":
    """Keep the first of equal documents ("exact"), and of those nearly equal too ("near")."""
    return DedupFilter(documents, how)


def decontaminated(
    documents: Iterable[Document], evaluation: Sequence[Path], dropped: Path
) -> "DecontaminationFilter":
    """Keep documents that share no 13 words in a row with test files, and list the others.

    A line of `dropped` is {"source", "gram", "evaluation", "line", "text"}; an earlier list is
    written over.
    """
    return DecontaminationFilter(documents, evaluation, dropped)


class DedupFilter(Iterator[Document]):
    """A stream without its duplicates."""

    def __init__(self, documents: Iterable[Document], how: str) -> None:
        if how not in DEDUP_MODES:
            raise UserError(f"--dedup {how}: choose exact or near")
        self.num_kept = self.exact = self.near = 0
        self._documents = iter(documents)
        self._exact, self._near = (
            ExactDeduplicator(),
            MinHashDeduplicator() if how == "near" else None,
        )

    @property
    def num_dropped(self) -> int:
        return self.exact + self.near

    def __next__(self) -> Document:
        for document in self._documents:
            if self._exact.seen(document.text):
                self.exact += 1
            elif self._near is not None and self._near.seen(document.text):
                self.near += 1
            else:
                self.num_kept += 1
                return document
        raise StopIteration


class DecontaminationFilter(Iterator[Document]):
    """A stream without what test files hold."""

    def __init__(
        self, documents: Iterable[Document], evaluation: Sequence[Path], dropped: Path
    ) -> None:
        self.num_kept = self.num_dropped = 0
        self._documents = iter(documents)
        self._evaluation = ContaminationIndex(evaluation)
        self._list = dropped
        self._list.write_text("")

    def __next__(self) -> Document:
        for document in self._documents:
            shared = self._evaluation.first_match(document.text)
            if shared is None:
                self.num_kept += 1
                return document
            self.num_dropped += 1
            record = {
                "source": str(document.source),
                "gram": shared.ngram,
                "evaluation": str(shared.file),
                "line": shared.line,
                "text": document.text[:SHOWN],
            }
            with self._list.open("a", encoding="utf-8", errors="replace") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        raise StopIteration
