"""The tables of the race page: scores, differences of pairs, costs, generated text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports.charts import compact_number
from kinfolk.reports.page import format_duration, format_number
from kinfolk.reports.race_view import ALL, Json, Pair, ScoreRow, ScoreScale, finite, pair_table


@dataclass(frozen=True)
class Cell:
    """A number as it is written, the value that sorts it, and its share of the largest."""

    text: str
    value: float | str = ""
    share: str = ""
    seeds: str = ""  # the least and the most of the seeds


@dataclass(frozen=True)
class TableRow:
    """An entrant's row."""

    name: str
    cells: Sequence[Cell]
    baseline: bool = False


@dataclass(frozen=True)
class MatrixCell:
    """The difference between an entrant and that of a column."""

    name: str
    text: str
    state: str  # a class of the style sheet: ahead, behind, open (nothing shown), none
    title: str = ""


@dataclass(frozen=True)
class MatrixRow:
    """The differences between one entrant and all others."""

    name: str
    cells: Sequence[MatrixCell]


@dataclass(frozen=True)
class PairRow:
    """One difference in the list of all pairs."""

    first: str
    second: str
    cells: Sequence[Cell]
    words: str
    state: str
    shown: bool


@dataclass(frozen=True)
class SwitchChoice:
    """What one choice of a switch shows: a chart, and the tables of one set of scores."""

    key: str
    label: str
    shown: bool = True
    title: str = ""
    hint: str = ""
    chart: Markup = Markup()
    scale: ScoreScale | None = None
    columns: Sequence[str] = ()
    rows: Sequence[TableRow] = ()
    matrix: Sequence[MatrixRow] = ()
    pairs: Sequence[PairRow] = ()


def score_part(
    rows: Sequence[ScoreRow],
    found: Sequence[Pair],
    scale: ScoreScale,
    *,
    key: str = ALL,
    label: str = ALL,
    shown: bool = True,
    title: str = "",
    hint: str = "",
    chart: Markup = Markup(),
) -> SwitchChoice:
    """Return the tables of one set of scores; the order of all of them is that of the rows."""
    columns, cells = score_columns(rows, scale)
    ranked = [row.name for row in rows]
    known = [pair for pair in found if pair.first in ranked and pair.second in ranked]
    compared = {name for pair in known for name in (pair.first, pair.second)}
    names = [name for name in ranked if name in compared]
    return SwitchChoice(
        key,
        label,
        shown,
        title,
        hint,
        chart,
        scale,
        columns,
        [TableRow(row.name, line, row.baseline) for row, line in zip(rows, cells, strict=True)],
        matrix(names, known, scale),
        pair_rows(known, names, scale),
    )


def score_columns(
    rows: Sequence[ScoreRow], scale: ScoreScale
) -> tuple[list[str], list[list[Cell]]]:
    """Return the columns of a table of scores, without those that would be empty."""
    many = any(len(row.seeds) > 1 for row in rows)
    columns = {
        scale.metric: [Cell(scale.score(row.mean), row.mean) for row in rows],
        "95 % interval": [
            Cell(interval_text(row.low, row.high, scale), width(row)) for row in rows
        ],
        "spread over seeds": [
            Cell("fixed" if row.fixed else scale.score(row.spread), sort_value(row.spread))
            for row in rows
        ],
        "each seed": [Cell(each_seed(row, scale), sort_value(row.mean)) for row in rows],
        "fine-tuning": [
            Cell(
                "–" if row.seconds is None else format_duration(row.seconds),
                sort_value(row.seconds),
            )
            for row in rows
        ],
        "learning rate": [
            Cell("–" if row.lr is None else f"{row.lr:.2g}", sort_value(row.lr)) for row in rows
        ],
        "steps": [
            Cell("–" if row.steps is None else f"{row.steps:,.0f}", sort_value(row.steps))
            for row in rows
        ],
        "pooling": [Cell(row.pooling or "–", row.pooling) for row in rows],
        "scored by": [Cell(row.words, row.words) for row in rows],
    }
    if not many:
        del columns["spread over seeds"], columns["each seed"]
    for title in ("fine-tuning", "learning rate", "steps", "pooling", "scored by"):
        if all(cell.value == "" for cell in columns[title]):
            del columns[title]
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]


def interval_text(low: float | None, high: float | None, scale: ScoreScale) -> str:
    """Write an interval; a dash where there is none."""
    if low is None or high is None:
        return "–"
    return f"{scale.score(low)} to {scale.score(high)}"


def width(row: ScoreRow) -> float | str:
    """Return what sorts an interval: its width."""
    return "" if row.low is None or row.high is None else row.high - row.low


def sort_value(value: float | None) -> float | str:
    """Return what sorts a cell; nothing where it is empty."""
    return "" if value is None else value


def each_seed(row: ScoreRow, scale: ScoreScale) -> str:
    """Write the score of every seed."""
    return " · ".join(scale.score(finite(value)) for value in row.seeds)


def matrix(names: Sequence[str], found: Sequence[Pair], scale: ScoreScale) -> list[MatrixRow]:
    """Return the difference of every entrant from every other."""
    table = pair_table(found)
    return [
        MatrixRow(
            name, [matrix_cell(name, other, table.get((name, other)), scale) for other in names]
        )
        for name in names
    ]


def matrix_cell(name: str, other: str, pair: Pair | None, scale: ScoreScale) -> MatrixCell:
    """Return one cell, colored only where a difference was shown."""
    if pair is None:
        return MatrixCell(other, "", "none")
    state = pair_state(pair, scale)
    mark = {"ahead": "▲ ", "behind": "▼ "}.get(state, "")
    title = f"{name} less {other}: {difference_text(pair, scale)}"
    return MatrixCell(other, mark + scale.difference(pair.value), state, title)


def pair_state(pair: Pair, scale: ScoreScale) -> str:
    """Return the class of a difference."""
    if not pair.shown:
        return "open"
    return "ahead" if scale.better(pair.value) else "behind"


def difference_text(pair: Pair, scale: ScoreScale) -> str:
    """Write a difference with its interval."""
    value, low, high = scale.differences(pair.value, pair.low, pair.high)
    text = f"{value} {scale.unit} (95 % interval {low} to {high})"
    return text if pair.shown else f"{text}, no difference shown"


def pair_rows(found: Sequence[Pair], names: Sequence[str], scale: ScoreScale) -> list[PairRow]:
    """Return all pairs, the better ranked entrant first, in the order of the ranks."""
    rank = {name: index for index, name in enumerate(names)}
    ranked = [pair if rank[pair.first] < rank[pair.second] else pair.reverse for pair in found]
    ranked.sort(key=lambda pair: (rank[pair.first], rank[pair.second]))
    return [
        PairRow(
            pair.first,
            pair.second,
            [
                Cell(value, abs(pair.value)),
                Cell(f"{low} to {high}", pair.high - pair.low),
                Cell(probability(pair.p), sort_value(pair.p)),
            ],
            {"ahead": "ahead", "behind": "behind"}.get(state, "no difference shown"),
            state,
            pair.shown,
        )
        for pair in ranked
        for state in [pair_state(pair, scale)]
        for value, low, high in [scale.differences(pair.value, pair.low, pair.high)]
    ]


def probability(p: float | None) -> str:
    """Write a p value; a small one as a bound."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def cost_table(entrants: Sequence[Json]) -> tuple[list[str], list[TableRow]]:
    """Return what every entrant cost, without columns that are empty."""
    columns: dict[str, list[Cell]] = {}
    for title, key, write, has_bar in COSTS:
        values = [cost_value(entrant, key) for entrant in entrants]
        largest = max((value for value in values if value is not None), default=0)
        if any(value is not None for value in values):
            columns[title] = [
                Cell(
                    "–" if value is None else write(value),
                    sort_value(value),
                    f"{value / largest:.3f}" if has_bar and value and largest else "",
                    cost_range(entrant, key),
                )
                for entrant, value in zip(entrants, values, strict=True)
            ]
    words = ["counting" if one.get("counted") else one.get("objective") or "" for one in entrants]
    if any(words):
        columns = {"objective": [Cell(word or "–", word) for word in words], **columns}
    lines = zip(*columns.values(), strict=True) if columns else iter(())
    named = zip(entrants, lines, strict=False)
    rows = [TableRow(one["name"], line, bool(one.get("baseline"))) for one, line in named]
    return list(columns), [row for row in rows if not row.baseline or has_cost(row)]


def cost_range(entrant: Json, key: str) -> str:
    """Write the least and the most of a cost over an entrant's seeds; "" where they are equal."""
    low, high = (entrant.get("cost") or {}).get(f"{key}_range") or (0.0, 0.0)
    return f"{RANGES[key](low)} to {RANGES[key](high)}" if key in RANGES and low != high else ""


def has_cost(row: TableRow) -> bool:
    """Whether anything but the objective is known."""
    return any(isinstance(cell.value, float) for cell in row.cells)


def cost_value(entrant: Json, key: str) -> float | None:
    """Return a cost of an entrant; counting models have no parameters, steps or learning rate."""
    if key in ("lr", "steps") and entrant.get("counted"):
        return None
    return finite(entrant.get(key, (entrant.get("cost") or {}).get(key))) or None


def byte_count(value: float) -> str:
    """Write 612000000 as 612 MB."""
    for power, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= power:
            return f"{value / power:.3g} {unit}"
    return f"{value:.0f} bytes"


def energy(joules: float) -> str:
    """Write joules as J, kJ or MJ."""
    for power, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if joules >= power:
            return f"{joules / power:.3g} {unit}"
    return f"{joules:.3g} J"


def three_digits(value: float) -> str:
    """Write a large number with three digits."""
    return compact_number(float(f"{value:.3g}"))


# Costs that have the least and the most of an entrant's seeds, with their format.
RANGES: dict[str, Callable[[float], str]] = {
    "steps": lambda value: f"{value:,.0f}",
    "tokens": lambda value: f"{value:,.0f}",
    "seconds": format_duration,
}
# The columns of costs: title, key, format, whether a bar shows the share of the largest.
COSTS = (
    ("parameters", "parameters", three_digits, True),
    ("learning rate", "lr", lambda value: f"{value:.3g}", False),
    ("steps", "steps", lambda value: f"{value:,.0f}", False),
    ("tokens", "tokens", three_digits, True),
    ("FLOPs", "flops", three_digits, True),
    ("time", "seconds", format_duration, True),
    ("search before", "search_seconds", format_duration, False),
    ("tokens/s", "tokens_per_second", three_digits, True),
    ("peak memory", "peak_bytes", byte_count, True),
    ("energy", "joules", energy, True),
)


def sample_table(samples: Sequence[Json]) -> tuple[list[str], list[list[Cell]]]:
    """Return the quality of generated texts, without columns that are empty."""
    columns = {
        title: [finite(sample.get(key)) for sample in samples]
        for title, (key, _) in SAMPLE_COLUMNS.items()
    }
    known = {t: values for t, values in columns.items() if any(v is not None for v in values)}
    cells = [
        [Cell(format_number(v, SAMPLE_COLUMNS[title][1]), sort_value(v)) for v in values]
        for title, values in known.items()
    ]
    return list(known), [list(line) for line in zip(*cells, strict=True)] or [[] for _ in samples]


# The columns of generated text: key and digits by title.
SAMPLE_COLUMNS = {
    "distinct-1": ("distinct_1", 3),
    "distinct-2": ("distinct_2", 3),
    "repetition": ("repetition", 3),
    "loops": ("loops", 3),
    "self-BLEU": ("self_bleu", 3),
    "n-gram perplexity": ("ngram_perplexity", 1),
    "longest copy": ("longest_copy", 1),
}
