"""The charts of the race page: intervals, label efficiency, learning, cost and score, probes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from kinfolk.reports.charts import (
    IntervalRow,
    Point,
    ReferenceLine,
    Series,
    interval_chart,
    line_chart,
    scatter,
)
from kinfolk.reports.race_tables import COSTS, SwitchChoice, cost_value
from kinfolk.reports.race_view import (
    Json,
    PageEntrant,
    ScoreRow,
    ScoreScale,
    finite,
    label_counts,
    label_number,
    score_rows,
    task_scale,
    text_scale,
)

Entrants = Mapping[str, PageEntrant]
LEARNING_AXES = {"tokens": "tokens", "flops": "FLOPs", "seconds": "seconds"}
OUTLIER_RANGES = 2  # a baseline is this many ranges of all entrants away from them
HELD_OUT_TITLE = "held-out text"
TRADEOFF_COSTS = ("flops", "seconds", "tokens", "parameters", "peak_bytes", "joules")


def interval_panel(
    rows: Sequence[ScoreRow], lines: Sequence[ScoreRow], scale: ScoreScale, entrants: Entrants
) -> Markup:
    """Draw the mean and interval of every row, best first, over the baselines."""
    if not rows:
        return Markup()
    outliers = outlying_baselines([*rows, *lines], scale)
    one_method = len({row.words for row in rows}) == 1
    drawn = [
        IntervalRow(
            row.name,
            scale.factor * row.mean,
            scale.factor * (row.mean if row.low is None else row.low),
            scale.factor * (row.mean if row.high is None else row.high),
            note="" if one_method else row.words,
            muted=row.baseline,
            color=entrants[row.name].color or 0,
        )
        for row in rows
        if row not in outliers
    ]
    references = [ReferenceLine(r.name, scale.factor * r.mean) for r in lines if r not in outliers]
    panel = interval_chart(drawn, references, x=scale.axis, digits=scale.digits)
    return panel + outlier_note(outliers, scale)


def outlying_baselines(rows: Sequence[ScoreRow], scale: ScoreScale) -> list[ScoreRow]:
    """Return baselines so far behind all entrants that drawing them would hide the differences.

    One that is ahead of all is what a reader must see.
    """
    entrants = [row for row in rows if not row.baseline]
    if len(entrants) < 2:
        return []
    low = min(row.mean if row.low is None else row.low for row in entrants)
    high = max(row.mean if row.high is None else row.high for row in entrants)
    reach = OUTLIER_RANGES * (high - low)
    ahead = low if scale.lower_is_better else high
    return [
        row
        for row in rows
        if row.baseline
        and not low - reach <= row.mean <= high + reach
        and not scale.better(row.mean - ahead)
    ]


def outlier_note(outliers: Sequence[ScoreRow], scale: ScoreScale) -> Markup:
    """Say which baselines are not drawn."""
    if not outliers:
        return Markup()
    names = ", ".join(f"{row.name} ({scale.score(row.mean)})" for row in outliers)
    kind = "baseline" if len(outliers) == 1 else "baselines"
    return Markup('<p class="hint far">Off the axis: the {} {}.</p>\n').format(kind, names)


def label_curve(task: Json, counts: Sequence[str], scale: ScoreScale, entrants: Entrants) -> Markup:
    """Draw the score of every entrant by the number of labelled rows."""
    rows = score_rows(task["rows"], scale)
    outliers = outlying_baselines(rows, scale)
    names = dict.fromkeys(row.name for row in rows if row not in outliers)
    series = []
    for name in names:
        own = {row.labels: row for row in rows if row.name == name}
        points = [(label_number(count, task), own[count]) for count in counts if count in own]
        series.append(
            Series(
                name,
                [x for x, _ in points],
                [scale.factor * row.mean for _, row in points],
                low=[
                    scale.factor * (row.mean if row.low is None else row.low) for _, row in points
                ],
                high=[
                    scale.factor * (row.mean if row.high is None else row.high) for _, row in points
                ],
                color=entrants[name].color or 0,
                muted=entrants[name].color is None,
            )
        )
    x = "labelled rows for training"
    return line_chart(series, [], x=x, y=scale.axis, log_x=True, markers=True, digits=scale.digits)


# What the losses of an objective are about.
OBJECTIVE_TITLES = {
    **dict.fromkeys(("clm", "bptt", "stream"), "each token from those before it"),
    "bilm": "each token from those before it, and from those after it",
    "prefix": "each token after the prefix",
    **dict.fromkeys(("mlm", "full_sentences"), "masked tokens"),
    "nsp": "masked tokens, and whether a sentence follows",
    "sop": "masked tokens, and the order of two segments",
    "rtd": "masked tokens of the generator, and which tokens are replaced",
    "permutation": "tokens in a random order",
    **dict.fromkeys(("spans", "blanks"), "masked spans"),
    "pairs": "each token of the target",
    "unilm": "masked tokens, under one of four attention patterns",
}


@dataclass(frozen=True)
class LossKind:
    """What a loss is one of: losses of different kinds share no axis."""

    objective: str
    corpus: str  # of the tokenizer
    settings: tuple[tuple[str, str], ...]  # of the objective

    @classmethod
    def of(cls, entrant: Json) -> "LossKind":
        """Return the kind of an entrant's loss."""
        settings = entrant.get("objective_settings") or {}
        return cls(
            entrant["curve"].get("objective") or "loss",
            entrant.get("corpus") or "",
            tuple(sorted((name, str(value)) for name, value in settings.items())),
        )

    def title(self, others: Sequence["LossKind"]) -> str:
        """Return the objective, and what sets it apart from others with the same objective."""
        same = [kind for kind in others if kind.objective == self.objective]
        about = OBJECTIVE_TITLES.get(self.objective)
        parts = [f"{self.objective} ({about})" if about else self.objective]
        if any(kind.corpus != self.corpus for kind in same):
            parts.append(f"tokens of {self.corpus}")
        parts += [
            f"{name} {value}"
            for name, value in self.settings
            if any((name, value) not in kind.settings for kind in same)
        ]
        return ", ".join(parts)


def learning(running: Sequence[Json], entrants: Entrants) -> dict[str, Any]:
    """Return the choices of the axis, and a panel of curves for every kind of loss."""
    kinds: dict[LossKind, list[Json]] = {}
    for one in running:
        if (one.get("curve") or {}).get("steps"):
            kinds.setdefault(LossKind.of(one), []).append(one)
    axes = [
        axis
        for axis in LEARNING_AXES
        if all(axis_values(one, axis) for found in kinds.values() for one in found)
    ]
    panels = []
    for kind_of_loss, found in kinds.items():
        held_out = all(len(loss_points(one, "eval_loss")) > 1 for one in found)
        key = "eval_loss" if held_out else "train_loss"
        kind = "held-out loss" if held_out else "training loss"
        parts = [
            replace(part, chart=learning_chart(found, key, part.key, kind, entrants))
            for part in choices(axes, LEARNING_AXES)
        ]
        panels.append({"title": kind_of_loss.title([*kinds]), "parts": parts})
    return {"axes": choices(axes, LEARNING_AXES), "panels": panels}


def choices(keys: Sequence[str], labels: Mapping[str, str]) -> list[SwitchChoice]:
    """Return the choices of a switch, the first one shown."""
    return [SwitchChoice(key, labels[key], shown=key == keys[0]) for key in keys]


def learning_chart(
    found: Sequence[Json], key: str, axis: str, y: str, entrants: Entrants
) -> Markup:
    """Draw the losses of one kind against tokens, FLOPs or seconds."""
    series = []
    for one in found:
        points = loss_points(one, key)
        xs = axis_values(one, axis)
        series.append(
            Series(
                one["name"],
                [xs[index] for index, _ in points],
                [loss for _, loss in points],
                color=entrants[one["name"]].color or 0,
            )
        )
    return line_chart(series, [], x=LEARNING_AXES[axis], y=y, smooth=False)


def loss_points(one: Json, key: str) -> list[tuple[int, float]]:
    """Return the points of a curve that have a loss: their index and the loss."""
    losses = [finite(loss) for loss in one["curve"].get(key) or ()][: len(one["curve"]["steps"])]
    return [(index, loss) for index, loss in enumerate(losses) if loss is not None]


def axis_values(one: Json, axis: str) -> list[float]:
    """Return where the points of a curve are on an axis; every step costs the same."""
    curve, steps = one["curve"], finite(one.get("steps"))
    if axis == "seconds" and curve.get("seconds"):
        return [finite(value) or 0.0 for value in curve["seconds"]]
    total = finite((one.get("cost") or {}).get(axis))
    if not total or not steps:
        return []
    return [total * step / steps for step in curve["steps"]]


def tradeoff(race: Json, entrants: Entrants) -> dict[str, Any]:
    """Return a chart for every cost and every score, and the choices of both switches."""
    running = [one for one in race.get("entrants") or () if not one.get("left_out")]
    titles = {key: title for title, key, _, _ in COSTS}
    costs = {
        key: found
        for key in TRADEOFF_COSTS
        if len(found := {o["name"]: v for o in running if (v := cost_value(o, key))}) > 1
    }
    tables = {
        f"score-{index}": table
        for index, table in enumerate(score_tables(race))
        if any(sum(row.name in found for row in table[2]) > 1 for found in costs.values())
    }
    cost_parts = choices([*costs], titles)
    shown = next(iter(costs.values()), {})  # what a single dot is drawn against says nothing
    single = {key for key, (_, _, rows) in tables.items() if sum(r.name in shown for r in rows) < 2}
    tables = {key: tables[key] for key in sorted(tables, key=lambda key: key in single)}
    score_parts = choices([*tables], {key: table[0] for key, table in tables.items()})
    own = [one for one in running if not one.get("baseline")]
    parts = [
        {
            "cost": cost,
            "score": score,
            "chart": tradeoff_chart(costs[cost.key], cost.label, *tables[score.key][1:], entrants),
            "missing": missing_words(own, costs[cost.key], cost.label, *tables[score.key][::2]),
        }
        for cost in cost_parts
        for score in score_parts
    ]
    return {"costs": cost_parts, "scores": score_parts, "parts": parts}


def missing_words(
    own: Sequence[Json], costs: Mapping[str, float], cost: str, title: str, rows: Sequence[ScoreRow]
) -> str:
    """Say which entrants have no dot in a chart of cost and score, and why."""
    scored = {row.name for row in rows}
    reasons: dict[str, list[str]] = {}
    for one in own:
        name, reason = one["name"], ""
        if name not in scored:
            reason = (
                f"no likelihood of the {title}"
                if title == HELD_OUT_TITLE
                else f"no score on {title}"
            )
        elif name not in costs and one.get("counted"):
            reason = f"counted, not trained: no {cost} in the table of costs"
        elif name not in costs:
            reason = f"{cost} not known"
        if reason:
            reasons.setdefault(reason, []).append(name)
    words = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return f"Not drawn: {'; '.join(words)}." if words else ""


def score_tables(race: Json) -> list[tuple[str, ScoreScale, list[ScoreRow]]]:
    """Return the title, scale and rows of likelihoods and of every task."""
    tables = []
    likelihood = race.get("likelihood")
    if likelihood and likelihood.get("rows"):
        scale = text_scale(likelihood)
        exact = [row for row in likelihood["rows"] if row["kind"] == "likelihood"]
        tables.append((HELD_OUT_TITLE, scale, score_rows(exact, scale)))
    for task in race.get("tasks") or ():
        if task.get("rows"):
            scale, last = task_scale(task), label_counts(task)[-1]
            tables.append((task["name"], scale, score_rows(task["rows"], scale, last)))
    return tables


def tradeoff_chart(
    costs: Mapping[str, float],
    title: str,
    scale: ScoreScale,
    rows: Sequence[ScoreRow],
    entrants: Entrants,
) -> Markup:
    """Draw the score of every entrant against what it cost."""
    points = [
        Point(
            row.name,
            costs[row.name],
            scale.factor * row.mean,
            low=None if row.low is None else scale.factor * row.low,
            high=None if row.high is None else scale.factor * row.high,
            color=entrants[row.name].color or 0,
            muted=entrants[row.name].color is None,
        )
        for row in rows
        if row.name in costs
    ]
    return scatter(points, x=title, y=scale.axis, digits=scale.digits)


def probes(found: Sequence[Json], entrants: Entrants) -> list[dict[str, Any]]:
    """Return a chart for every probed task: a line for each entrant and its random control."""
    panels = []
    for probe in found:
        scale = task_scale({"maximum": 1, **probe})
        series = [
            Series(
                row["entrant"] + ("" if row["pretrained"] else " (random weights)"),
                list(range(len(row["layers"]))),
                [math.nan if value is None else scale.factor * value for value in row["layers"]],
                color=entrants[row["entrant"]].color or 0,
                dashed=not row["pretrained"],
                of="" if row["pretrained"] else row["entrant"],
            )
            for row in probe.get("rows") or ()
            if row.get("layers")
        ]
        if series:
            drawn = line_chart(
                series, [], x="layer", y=scale.axis, markers=True, digits=scale.digits
            )
            panels.append({"title": probe["task"], "chart": drawn})
    return panels
