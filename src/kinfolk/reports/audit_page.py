"""The page of an audit: errors, duplicates, lengths, scripts and languages of text files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.charts import Bar, Bin, bars, compact_number, histogram

BARS = 8  # scripts or languages; the others share one bar
MIN_BAR_FRACTION = 0.001  # smaller ones are among the others


@dataclass(frozen=True)
class FigureCard:
    """A figure at the top of the page."""

    title: str
    figure: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class FileRow:
    """A file in the table."""

    path: str
    problems: Sequence[str]
    documents: int
    characters: int
    lines: int
    blank: int  # lines without text
    bytes: int | None  # on disk; None where it is not a file


@dataclass(frozen=True, kw_only=True)
class AuditPage:
    """The values that the page shows."""

    title: str
    lead: str
    cards: Sequence[FigureCard]
    findings: Sequence[str]
    lengths: Sequence[tuple[int, int]]  # [(64, 12), ...]: 12 documents of 64 to 127 characters
    shortest: int
    longest: int
    scripts: Mapping[str, int]  # letters of each, most first
    languages: Mapping[str, int]  # documents of each, most first
    repeated_lines: Sequence[tuple[str, int]]
    exact_duplicates: Sequence[tuple[str, str, str]]  # location, location of the earlier one, text
    near_duplicates: Sequence[tuple[str, str, str]]
    files: Sequence[FileRow]
    more_files: int = 0


def render(values: AuditPage) -> str:
    """Return the page as HTML."""
    return page.render(
        "audit_page.html",
        page=values,
        lengths=document_length_chart(values.lengths) if values.lengths else "",
        scripts=shares(values.scripts, "% of letters"),
        languages=shares(values.languages, "% of documents"),
    )


def shares(counts: Mapping[str, int], x: str) -> Markup:
    """Draw a bar for each of the most frequent names."""
    total = sum(counts.values())
    frequent = [name for name in list(counts)[:BARS] if counts[name] >= MIN_BAR_FRACTION * total]
    drawn = {name: counts[name] for name in frequent}
    if len(frequent) < len(counts):
        drawn[f"{len(counts) - len(frequent)} others"] = total - sum(drawn.values())
    values = [
        Bar(name, 100 * count / total, compact_number(count)) for name, count in drawn.items()
    ]
    return bars(values, x=x, digits=1) if values else Markup("")


def binary_size(number: int) -> str:
    """Write 2048 as 2k."""
    for bits, letter in ((30, "G"), (20, "M"), (10, "k")):
        if number >> bits:
            return f"{number >> bits}{letter}"
    return str(number)


def document_length_chart(lengths: Sequence[tuple[int, int]]) -> Markup:
    """Draw the number of documents by length, each bar for twice the length of the previous one."""
    bins = [Bin(binary_size(low), binary_size(max(1, 2 * low)), count) for low, count in lengths]
    return histogram(bins, x="characters (k is 1,024)", y="documents", digits=0)
