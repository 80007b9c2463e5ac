"""One page that sets tokenizers side by side, in the report's dress."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kinfolk.reports.charts import COLOURS, Bar, bars
from kinfolk.text.inspect import TokenizerStats, TokenView

MIN_SCRIPT_SHARE = 0.01  # of the words: scripts below it have no column


@dataclass(frozen=True)
class TokenizerRow:
    """A tokenizer, what it made of the text, and the sample in its pieces."""

    name: str
    kind: str
    vocab: int
    measures: TokenizerStats
    sample: Sequence[TokenView] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Tokenizers that were measured on one text."""

    rows: Sequence[TokenizerRow]
    held_out: bool  # whether the text was kept from those that were learned for this

    @property
    def scripts(self) -> list[str]:
        """The scripts that are written often enough to have a column, most words first."""
        first = self.rows[0].measures
        return [
            s
            for s, words in first.script_words.most_common()
            if words >= MIN_SCRIPT_SHARE * first.words
        ]

    @property
    def text(self) -> str:
        """Say what was measured on."""
        words, size = self.rows[0].measures.words, self.rows[0].measures.bytes
        whose = ", a tenth of the documents, kept from those that were learned here"
        return f"{words:,} words in {size:,} bytes{whose if self.held_out else ''}"


def render(comparison: Comparison) -> str:
    """Return the page as HTML."""
    pages = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    own, report = (
        files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("tokenizers_page.html", "run_page.html")
    )
    style = report[report.index("<style>") : report.index("</style>") + len("</style>")]
    measures = [row.measures for row in comparison.rows]
    charts = [
        chart(comparison, "tokens per word", [m.tokens_per_word for m in measures]),
        chart(comparison, "bytes per token", [m.bytes_per_token for m in measures]),
    ]
    if any(m.unknown for m in measures):
        title = "unknown tokens, percent of all"
        charts.append(chart(comparison, title, [100 * m.unknown_rate for m in measures]))
    return pages.from_string(own).render(
        found=comparison,
        style=Markup(style),
        charts=[Markup(svg) for svg in charts],
        colours=COLOURS,
    )


def write(comparison: Comparison, path: Path) -> Path:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(comparison), encoding="utf-8", newline="\n")
    return path


def chart(comparison: Comparison, title: str, values: Sequence[float]) -> str:
    """Draw one measure of all tokenizers."""
    pairs = zip(comparison.rows, values, strict=True)
    found = [
        Bar(row.name, value, f"{row.vocab:,} ids", number)
        for number, (row, value) in enumerate(pairs)
    ]
    return bars(found, [], x=title)
