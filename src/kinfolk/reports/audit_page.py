"""One page that says what is in text files: no file beside it, no network, no script needed."""

import re
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kinfolk.data.audit import Audit, FileAudit
from kinfolk.files import new_file
from kinfolk.reports.charts import WIDTH, Bar, Scale, bars, compact_number, svg, text, ticks

BARS = 8  # scripts or languages drawn; the rest is one bar
MIN_BAR_SHARE = 0.001  # the share from which one can be seen
FILES = 200  # in the table; those with something wrong come first


def render(audit: Audit) -> str:
    """Return the page as HTML."""
    pages = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {"short": compact_number, "share": percent, "counted": counted}
    folder = files(__package__)
    report = folder.joinpath("run_page.html").read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", report, re.DOTALL)  # all pages look alike
    assert style is not None
    ordered = sorted(audit.files, key=lambda one: not wrong(one))
    source = folder.joinpath("audit_page.html").read_text(encoding="utf-8")
    return pages.from_string(source).render(
        audit=audit,
        style=Markup(style[1]),
        findings=findings(audit),
        unread=sum(bool(one.error) for one in audit.files),
        lengths=Markup(histogram(audit)),
        scripts=Markup(shares(audit.scripts, "% of letters")),
        languages=Markup(shares(audit.languages, "% of documents")),
        files=[(one, wrong(one)) for one in ordered[:FILES]],
    )


def write(audit: Audit, path: Path) -> Path:
    """Write the page; a reader finds the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, errors="replace", newline="\n") as file:
        file.write(render(audit))
    return path


def findings(audit: Audit) -> list[str]:
    """Say what a reader should know before training, the worst first."""
    said = [
        fault if fault == one.error else f"{one.path}: {fault}"
        for one in audit.files
        for fault in wrong(one)
    ]
    odd = [
        (audit.control_characters, "control character"),
        (audit.replacement_characters, "replacement character"),
        (audit.empty, "empty document"),
    ]
    said += [counted(count, what) for count, what in odd if count]
    alike = audit.exact_duplicates + (audit.near_duplicates or 0)
    if alike:
        way = "near" if audit.near_duplicates else "exact"
        said.append(
            f"{counted(alike, 'duplicate document')} ({percent(alike, audit.documents)}): "
            f"kinfolk prepare --dedup {way} leaves them out"
        )
    return said


def wrong(one: FileAudit) -> list[str]:
    """Say what is wrong with a file: ["2 errors of UTF-8, the first at a.txt:5, a.txt:9"]."""
    said = [one.error] if one.error else []
    if not one.documents and not one.error:
        said.append("no text")
    if one.problems.errors:
        indices = ", ".join(f"{one.path.name}:{line}" for line in one.problems.line_numbers)
        said.append(f"{one.problems.errors:,} errors of UTF-8, the first at {indices}")
    if one.problems.invalid_json_lines:
        said.append(f"{counted(one.problems.invalid_json_lines, 'line')} not JSON")
    return said


def counted(number: int, noun: str) -> str:
    """Write 1 line, 2 lines."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(part: int, whole: int) -> str:
    """Write a share as a percentage that is 0 only where there is nothing."""
    percent = 100 * part / max(1, whole)
    if 0 < percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%" if percent < 10 or 99 < percent < 100 else f"{percent:.0f}%"


def shares(counts: dict[str, int], x: str) -> str:
    """Draw a bar for each of the most frequent names."""
    whole = sum(counts.values())
    seen = [name for name in list(counts)[:BARS] if counts[name] >= MIN_BAR_SHARE * whole]
    drawn = {name: counts[name] for name in seen}
    if len(seen) < len(counts):
        drawn[f"{len(counts) - len(seen)} others"] = whole - sum(drawn.values())
    values = [
        Bar(name, 100 * count / whole, compact_number(count), place)
        for place, (name, count) in enumerate(drawn.items())
    ]
    return bars(values, [], x=x) if values else ""


def binary_size(number: int) -> str:
    """Write 2048 as 2k."""
    for bits, letter in ((30, "G"), (20, "M"), (10, "k")):
        if number >> bits:
            return f"{number >> bits}{letter}"
    return str(number)


def histogram(audit: Audit) -> str:
    """Draw how many documents have how many characters, each bar twice as long as that before."""
    if not audit.lengths:
        return ""
    left, right, top, floor = 62, WIDTH - 8, 26, 300
    highest = max(count for _, count in audit.lengths)
    to_y = Scale(0, 1.05 * highest, floor, top)
    wide = (right - left) / len(audit.lengths)
    parts = []
    for tick in ticks(0, 1.05 * highest):
        if tick == int(tick):
            parts.append(f'<path class="grid" d="M{left} {to_y.at(tick):.1f}H{right}"/>')
            parts.append(text("tick", left - 8, to_y.at(tick) + 4, compact_number(tick), "end"))
    for place, (low, count) in enumerate(audit.lengths):
        x, y = left + wide * place, to_y.at(count)
        parts.append(
            f'<rect class="bar c0" x="{x + 2:.1f}" y="{y:.1f}" width="{wide - 4:.1f}" '
            f'height="{floor - y:.1f}"><title>{low:,} to {max(0, 2 * low - 1):,} characters: '
            f"{count:,} documents</title></rect>"
        )
        parts.append(text("tick", x, floor + 19, binary_size(low), "middle"))
    parts.append(f'<path class="floor" d="M{left} {floor}H{right}"/>')
    parts.append(
        text(
            "axis",
            (left + right) / 2,
            floor + 40,
            "characters (k is 1,024)",
            "middle",
        )
    )
    rotated = text("axis", 0, 0, "documents", "middle")
    parts.append(f'<g transform="translate(12 {(top + floor) / 2}) rotate(-90)">{rotated}</g>')
    return svg("How many documents have how many characters", floor + 50, parts)
