"""Rows are frozen values, and a ReadReport counts skipped and repaired rows."""

from dataclasses import FrozenInstanceError, fields

import pytest

from kinfolk.tasks import rows
from kinfolk.tasks.formats.base import ReadReport
from kinfolk.tasks.rows import CorefDocument, LabelledText, SourceTarget

KINDS = rows.Row.__subclasses__()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_row_knows_its_number(kind: type[LabelledText]) -> None:
    assert "number" in {field.name for field in fields(kind)}


def test_rows_are_frozen_and_equal_by_value() -> None:
    row = LabelledText(("a fine film",), "1", 2)
    assert row == LabelledText(("a fine film",), "1", 2)
    with pytest.raises(FrozenInstanceError):
        row.number = 3  # type: ignore[misc]


def test_all_targets_are_references() -> None:
    assert SourceTarget("q", "a", 1, ("b",)).references == ("a", "b")
    assert SourceTarget("q", None, 1).references == ()


def test_words_run_through_the_sentences() -> None:
    assert CorefDocument("d", (("She", "ran"), ("He", "did")), (), 1).words == (
        *("She", "ran"),
        *("He", "did"),
    )


def test_notes_count_and_name_the_first_places() -> None:
    notes = ReadReport()
    for line in (7, 1200):
        notes.count("rows with an empty text, on lines", line)
    for line in range(1, 8):
        notes.count("pairs left out", line)
    assert notes.messages() == [
        "2 rows with an empty text, on lines: 7, 1,200",
        "7 pairs left out: 1, 2, 3, 4, 5, …",
    ]
