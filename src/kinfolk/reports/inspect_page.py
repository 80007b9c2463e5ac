"""The page of an inspection: one text through objectives side by side, and inside of models.

The masks and attention probabilities are drawn on canvases by `inspect_page.js`, from bytes in
base64: a bit for each pair of tokens of a mask, a byte for each probability.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.charts import Bar, Series, bars, line_chart
from kinfolk.reports.inspect_view import (
    AttentionView,
    CostView,
    CurvesView,
    InspectPage,
    MaskView,
    ModelView,
    ObjectiveView,
    StreamView,
)

LEAST_SPAN = 0.01  # of the highest value, on the axis of a curve
TEXT_GRID = 64  # tokens of a mask that is also printed as text
CHANGES = {
    "masked": "predicted, and the mask token stands for it",
    "replaced": "predicted, and another token stands for it",
    "kept": "predicted, and it stands for itself",
    "cut": "a span was cut out here",
    "special": "a token that is not of the text",
}

ROW_WORDS = {
    "input_ids": "the ids that the network reads",
    "predicts": "the token that is predicted here",
    "labels": "its id, or -100 where nothing is predicted",
    "position_ids": "the positions that the network embeds; of a span of GLM, that of its mask",
    "block_position_ids": "the position within a span of GLM, 0 in the text",
    "token_type_ids": "which of two texts a token is part of; in XLNet, 2 is [CLS]",
    "document": "a token attends to tokens of its own document alone",
    "order": "a token attends to those of its document whose order is the same or lower: all have "
    "0 where attention is bidirectional; a query of XLNet attends to lower ones",
}


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a stream as a table: a column for each, a row for each kind of value."""

    name: str
    cells: Sequence[tuple[str, str, str, str]]  # token, class, title, characters "a b"
    rows: Sequence[tuple[str, Sequence[str]]]
    starts: frozenset[int]


@dataclass(frozen=True)
class MaskCard:
    """A mask as the data of a canvas, and as text where it is small."""

    name: str
    label: str
    axes: tuple[str, str]
    data: Markup
    lines: Sequence[str]


@dataclass(frozen=True)
class ObjectiveCard:
    """An objective beside the others."""

    view: ObjectiveView
    tables: Sequence[TokenTable]
    masks: Sequence[MaskCard]
    hints: Sequence[str]  # about its masks, beside what holds for all
    anchor: str = ""  # of the first card of a family


@dataclass(frozen=True)
class ModelSection:
    """A trained model."""

    view: ModelView
    attention: Sequence[tuple[AttentionView, Markup]]
    charts: Sequence[tuple[CurvesView, Markup]]


@dataclass(frozen=True)
class CostRow:
    """The costs of a network, and the chart of its memory."""

    view: CostView
    parameters: int
    flops: int
    charts: Sequence[tuple[str, str, Markup]]  # title, formula, chart


def render(values: InspectPage) -> str:
    """Return the page as HTML."""
    families = list(dict.fromkeys(view.family for view in values.objectives))
    cards = [objective_card(view) for view in values.objectives]
    for number, name in enumerate(families, start=1):
        first = next(n for n, card in enumerate(cards) if card.view.family == name)
        cards[first] = replace(cards[first], anchor=f"family-{number}")
    known = {name for card in cards for table in card.tables for name, _ in table.rows}
    return page.render(
        "inspect_page.html",
        page=values,
        families=families,
        cards=cards,
        row_names={name: words for name, words in ROW_WORDS.items() if name in known},
        models=[model_section(view) for view in values.models],
        costs=[cost_row(view) for view in values.costs],
        parameter_chart=parameter_chart(values.costs),
        changes=CHANGES,
    )


def objective_card(view: ObjectiveView) -> ObjectiveCard:
    """Return the tables and masks of an objective."""
    tables = [token_table(stream, view) for stream in view.streams]
    hints = dict.fromkeys(mask.hint for mask in view.masks if mask.hint)
    return ObjectiveCard(view, tables, [mask_card(mask, view) for mask in view.masks], [*hints])


def token_table(stream: StreamView, view: ObjectiveView) -> TokenTable:
    """Return the table of a stream; rows of a single value are left out."""
    cells = []
    for token, source, change, label in zip(
        stream.tokens, shown_sources(stream), stream.changes, stream.labels, strict=True
    ):
        classes = " ".join(filter(None, [change, "predicts" if label is not None else ""]))
        span = span_of(source, view.spans)
        title = f"{change}: {CHANGES[change]}" if change else ""
        cells.append((token, classes, title, span))
    rows = [("input_ids", [str(i) for i in stream.input_ids])]
    if any(label is not None for label in stream.labels):
        rows.append(("predicts", [label or "·" for label in stream.labels]))
        rows.append(("labels", ["-100" if i is None else str(i) for i in stream.label_ids]))
    for name, integers in stream.integers.items():
        if len(set(integers)) > 1 or name == "token_type_ids":
            rows.append((name, [str(i) for i in integers]))
    return TokenTable(stream.name, cells, rows, frozenset(stream.starts))


def shown_sources(stream: StreamView) -> list[int | None]:
    """Return the token of the text that each place stands for; a masked one by its label."""
    originals = stream.originals or stream.label_sources
    return [
        original if source is None and change in ("masked", "replaced") else source
        for source, original, change in zip(stream.sources, originals, stream.changes, strict=True)
    ]


def span_of(source: int | None, spans: Sequence[tuple[int, int]]) -> str:
    """Write the characters of a token of the text for the script: "4 9"."""
    if source is None or source >= len(spans):
        return ""
    return f"{spans[source][0]} {spans[source][1]}"


def mask_card(mask: MaskView, view: ObjectiveView) -> MaskCard:
    """Return the data of a mask."""
    names = [stream.name for stream in view.streams]
    starts = {stream.name: list(stream.starts) for stream in view.streams}
    every = len(mask.query_positions) == len(view.streams[names.index(mask.queries)].tokens)
    data = {
        "rows": mask.mask.shape[0],
        "columns": mask.mask.shape[1],
        "bits": base64.b64encode(np.packbits(mask.mask.ravel()).tobytes()).decode(),
        "positions": list(mask.query_positions),
        "queries": names.index(mask.queries),
        "keys": names.index(mask.keys),
        "rowStarts": starts[mask.queries] if every else [],
        "columnStarts": starts[mask.keys],
    }
    filled, total = int(mask.mask.sum()), mask.mask.size
    axes = mask.axes
    if mask.queries != mask.keys:
        axes = f"{axes[0]}: {mask.queries}", f"{axes[1]}: {mask.keys}"
    small = max(mask.mask.shape) <= TEXT_GRID
    return MaskCard(
        mask.name,
        f"{mask.name}: {filled:,} of {total:,} pairs; a row is a {mask.axes[0]}, a column is a "
        f"{mask.axes[1]}",
        axes,
        htmlsafe_json_dumps(data),
        ["".join("#" if cell else "." for cell in row) for row in mask.mask] if small else (),
    )


def model_section(view: ModelView) -> ModelSection:
    """Return the attention and the charts of a trained model."""
    return ModelSection(
        view,
        [(one, attention_data(one)) for one in view.attention],
        [(one, curve_chart(one)) for one in view.curves],
    )


def attention_data(view: AttentionView) -> Markup:
    """Return the probabilities as bytes, a byte for each."""
    layers, heads, queries, keys = view.probabilities.shape
    levels = np.rint(np.clip(view.probabilities, 0, 1) * 255).astype(np.uint8)
    data: dict[str, Any] = {
        "layers": layers,
        "heads": heads,
        "queries": list(view.queries),
        "keys": list(view.keys),
        "querySpans": list(view.query_spans),
        "keySpans": list(view.key_spans),
        "shape": [queries, keys],
        "rowStarts": list(view.row_starts),
        "memory": view.memory,
        "bytes": base64.b64encode(levels.tobytes()).decode(),
    }
    return htmlsafe_json_dumps(data)


def curve_chart(view: CurvesView) -> Markup:
    """Draw values over the tokens of the text."""
    xs = range(1, len(view.tokens) + 1)
    series = [Series(name, xs, values) for name, values in view.curves]
    return line_chart(
        series, x="token", y=view.unit, names=view.tokens, smooth=False, least_span=LEAST_SPAN
    )


def parameter_chart(costs: Sequence[CostView]) -> Markup:
    """Draw the parameters of every network."""
    values = [
        Bar(view.name, sum(part.parameters for part in view.parts) / 1e6, color=color)
        for color, view in enumerate(costs)
    ]
    return bars(values, x="million parameters", digits=3)


def cost_row(view: CostView) -> CostRow:
    """Return the totals of a network and the charts of its memory."""
    charts = []
    for title, formula, found in (
        ("Memory in training", view.training_formula, view.training_bytes),
        ("Memory in decoding", view.decoding_formula, view.decoding_bytes),
    ):
        if found:
            series = [
                Series(f"{batch} {'row' if batch == 1 else 'rows'}", view.lengths, megabytes(row))
                for batch, row in zip(view.batches, found, strict=True)
            ]
            charts.append((title, formula, line_chart(series, x="tokens", y="MB", smooth=False)))
    return CostRow(
        view,
        sum(part.parameters for part in view.parts),
        sum(part.flops for part in view.parts),
        charts,
    )


def megabytes(values: Sequence[int]) -> list[float]:
    """Return bytes in millions."""
    return [value / 1e6 for value in values]
