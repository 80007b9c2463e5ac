"""The page that compares tokenizers on one text."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.charts import NUM_COLORS, Bar, bars


@dataclass(frozen=True)
class SampleToken:
    """A token of the sample text, as it is shown."""

    id: int
    text: str
    unknown: bool = False
    special: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenizerRow:
    """The measures of one tokenizer."""

    name: str
    kind: str
    vocab_size: int
    tokens: int
    tokens_per_word: float
    tokens_per_word_by_script: Sequence[float]  # in the order of the page's scripts
    bytes_per_token: float
    unknown_rate: float
    sample: Sequence[SampleToken] = ()


@dataclass(frozen=True, kw_only=True)
class TokenizersPage:
    """The values that the page shows."""

    text: str  # description of the text
    scripts: Sequence[str]
    rows: Sequence[TokenizerRow]


def render(values: TokenizersPage) -> str:
    """Return the page as HTML."""
    rows = values.rows
    charts = [
        measure_chart(rows, "tokens per word", [row.tokens_per_word for row in rows]),
        measure_chart(rows, "bytes per token", [row.bytes_per_token for row in rows]),
    ]
    if any(row.unknown_rate for row in rows):
        title = "unknown tokens, percent of all"
        charts.append(measure_chart(rows, title, [100 * row.unknown_rate for row in rows]))
    return page.render(
        "tokenizers_page.html",
        page=values,
        charts=charts,
        colors=NUM_COLORS,
    )


def measure_chart(rows: Sequence[TokenizerRow], title: str, values: Sequence[float]) -> Markup:
    """Draw one measure of all tokenizers."""
    pairs = enumerate(zip(rows, values, strict=True))
    return bars(
        [Bar(row.name, value, f"{row.vocab_size:,} tokens", n) for n, (row, value) in pairs],
        x=title,
    )
