"""The page of a race: race.json as one self-contained HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from markupsafe import Markup

from kinfolk.reports import page, race_cards, race_charts
from kinfolk.reports.race_tables import (
    RANGES,
    Cell,
    SwitchChoice,
    cost_range,
    cost_table,
    sample_table,
    score_part,
)
from kinfolk.reports.race_view import (
    Json,
    Lead,
    PageEntrant,
    ScoreRow,
    ScoreScale,
    label_counts,
    lead,
    pairs,
    race_entrants,
    score_rows,
    task_scale,
    text_scale,
)

TITLE = "Which family fits this text?"
PSEUDO = "pseudo-likelihood"
PSEUDO_TITLE = "Pseudo-likelihood"
PSEUDO_HINT = (
    "A pseudo-likelihood predicts each token from the text on both sides of it. That is easier "
    "than predicting it from the left alone, and the product of such predictions is not the "
    "probability of the text: these numbers are not bits that would encode it, and they are not "
    "ranked against likelihoods, nor against those of another method or of other units."
)
UNIGRAM_HINT = (
    "Dashed: a unigram model of the same tokens. It has no context, so that its pseudo-likelihood "
    "is its likelihood; what is not below it has learned no more than how often words occur."
)
LEARNING_HINT = (
    "Only losses of the same objective, with the same settings and the same tokenizer, share a "
    "panel: a loss of another kind says nothing about them. Lines join evaluations on held-out "
    "text where there are any, and training losses elsewhere. Of the first seed."
)
POINTS = "Points: the mean over seeds. Lines: its 95 % interval."
PAIRED = (
    "Who is ahead follows from the differences of pairs, which can be shown where lines overlap."
)
TRADEOFF_HINT = (
    "What an entrant cost in pretraining against what it reached. Lines: the 95 % interval."
)

COST_HINT = (
    "Of pretraining one seed. FLOPs: forward and backward passes, without the optimizer. Time: "
    "that of the steps, from reading a batch to the update of the weights, without evaluations; "
    "tokens/s are tokens by that time. A bar is the share of the largest number in its column."
)
SEEDS_HINT = "Numbers are means over seeds; below them, the least and the most of a seed."


@dataclass(frozen=True)
class TextSection:
    """Bits per byte of held-out text, each kind of likelihood by itself."""

    hint: str
    parts: Sequence[SwitchChoice]
    lead: Lead | None


@dataclass(frozen=True)
class TaskSection:
    """The scores of one task at every number of labels."""

    id: str
    name: str
    hint: str
    parts: Sequence[SwitchChoice]
    curve: Markup
    left_out: Sequence[Json]
    lead: Lead | None


@dataclass(frozen=True)
class SampleRow:
    """Generated texts of an entrant, each after its prompt, and their quality."""

    entrant: str
    cells: Sequence[Cell]
    texts: Sequence[tuple[str, str]]
    reference: bool


def render(race: Mapping[str, Any]) -> str:
    """Return race.json (schema 1, complete or not) as an HTML page."""
    entrants = race_entrants(race)
    running = [one for one in race.get("entrants") or () if not one.get("left_out")]
    text = text_section(race.get("likelihood"), entrants)
    tasks = [
        task_section(f"task-{index}", task, entrants)
        for index, task in enumerate(race.get("tasks") or ())
        if score_rows(task.get("rows") or (), task_scale(task))
    ]
    sampled = any(not sample.get("reference") for sample in race.get("samples") or ())
    leads = [found.lead for found in ([text] if text else []) + tasks if found.lead]
    cost_columns, cost_rows = cost_table(running)
    missing = not_sampled_note(race.get("not_sampled") or ())
    return page.render(
        "race_page.html",
        title=TITLE,
        lead=race_cards.race_summary(race),
        complete=race.get("complete", True),
        verdicts=[race_cards.emphasized(one, entrants) for one in race.get("verdicts") or ()],
        cards=race_cards.cards(race, leads, entrants),
        entrants=entrants,
        text=text,
        tasks=tasks,
        learning={"hint": LEARNING_HINT, **race_charts.learning(running, entrants)},
        tradeoff={"hint": TRADEOFF_HINT, **race_charts.tradeoff(race, entrants)},
        probes=race_charts.probes(race.get("probes") or (), entrants),
        samples=samples_section(race.get("samples") or (), missing),
        costs={"hint": cost_hint(race), "columns": cost_columns, "rows": cost_rows},
        left_out=[one for one in race.get("entrants") or () if one.get("left_out")],
        rules=race_cards.rules(race),
        facts=race_cards.facts(race),
        command=race.get("command"),
        notes=[*(race.get("notes") or ()), *([missing] if missing and not sampled else [])],
    )


def text_section(
    likelihood: Json | None, entrants: Mapping[str, PageEntrant]
) -> TextSection | None:
    """Return the section of held-out text; None where nothing was scored."""
    if not likelihood or not likelihood.get("rows"):
        return None
    scale, rows = text_scale(likelihood), likelihood["rows"]
    ranked = score_rows([row for row in rows if row["kind"] != PSEUDO], scale)
    found = pairs(likelihood.get("differences") or ())
    baselines = [row for row in ranked if row.baseline]
    own = [row for row in ranked if not row.baseline]
    exact = race_charts.interval_panel(own, baselines, scale, entrants)
    compared = {name for pair in found for name in (pair.first, pair.second)}
    contest = [row for row in ranked if row.name in compared or not row.baseline]
    parts = [score_part(ranked, found, scale, chart=exact)]
    # Pseudo-likelihoods of different methods, or of different units, are not comparable either.
    panels: dict[tuple[str, str], list[Json]] = {}
    for row in rows:
        if row["kind"] == PSEUDO:
            panels.setdefault((row.get("words", ""), row.get("units", "")), []).append(row)
    methods = [method for method, _ in panels]
    for (method, units), same in panels.items():
        pseudo = score_rows(same, scale)
        levels = {row.get("unigram") for row in same}
        lines = [row for row in baselines if row.mean in levels]
        apart = race_charts.interval_panel(pseudo, lines, scale, entrants)
        title = f"{PSEUDO_TITLE}, {method.removeprefix(PSEUDO).lstrip(', ')}".rstrip(", ")
        if methods.count(method) > 1:
            title += f", {units}"
        hint = PSEUDO_HINT if len(parts) == 1 else ""
        if lines:
            hint = f"{hint} {UNIGRAM_HINT}".strip()
        listed = sorted([*pseudo, *lines], key=lambda row: row.mean)
        parts.append(score_part(listed, found, scale, title=title, hint=hint, chart=apart))
    return TextSection(
        text_hint(ranked, baselines),
        [part for part in parts if part.rows],
        lead("Held-out text", scale, contest, found),
    )


def text_hint(ranked: Sequence[ScoreRow], baselines: Sequence[ScoreRow]) -> str:
    """Say what the numbers of held-out text are."""
    words = "Text that no entrant was trained on: fewer bits per byte are a better model of it."
    if ranked:
        words += f" {points_hint(ranked)}"
    if baselines:
        names = race_cards.joined([row.name for row in baselines])
        words += f" Dashed: {names}, counted on the same training text."
    return words


def task_section(id: str, task: Json, entrants: Mapping[str, PageEntrant]) -> TaskSection:
    """Return the section of a task."""
    scale = task_scale(task)
    counts = label_counts(task)
    parts, found = [], None
    for count in counts:
        rows = score_rows(task["rows"], scale, count)
        differences = pairs(task.get("differences") or (), count)
        shown = count == counts[-1]
        panel = race_charts.interval_panel(rows, [], scale, entrants)
        parts.append(
            score_part(rows, differences, scale, key=count, label=count, shown=shown, chart=panel)
        )
        if shown:
            found = lead(task["name"], scale, rows, differences)
    curve = race_charts.label_curve(task, counts, scale, entrants) if len(counts) > 1 else Markup()
    return TaskSection(
        id, task["name"], task_hint(task, scale), parts, curve, task.get("left_out") or (), found
    )


def task_hint(task: Json, scale: ScoreScale) -> str:
    """Say what the task is and how many rows it has."""
    sizes = [f"{task[part]:,} {part}" for part in ("train", "dev", "test") if task.get(part)]
    direction = "lower" if scale.lower_is_better else "higher"
    words = f"Scored by {scale.metric}; {direction} is better."
    if sizes:
        words += f" Rows: {', '.join(sizes)}."
    labels = task.get("labels") or {}
    if 0 < len(labels) <= 8:
        words += (
            " Labels: " + ", ".join(f"{name} ({count:,})" for name, count in labels.items()) + "."
        )
    elif labels:
        words += f" {len(labels)} labels."
    rows = score_rows(task["rows"], scale)
    pale = " Pale: baselines." if any(row.baseline for row in rows) else ""
    return f"{words} {points_hint(rows)}{pale}"


def points_hint(rows: Sequence[ScoreRow]) -> str:
    """Say what the points and lines of a chart of intervals are."""
    return f"{POINTS} {PAIRED}" if len(rows) > 1 else POINTS


def cost_hint(race: Json) -> str:
    """Say what the costs are, and how far apart the runs are in what the budget limits."""
    measured = (race.get("budget") or {}).get("measured")
    entrants = race.get("entrants") or ()
    counted = [e["name"] for e in entrants if e.get("counted") and not e.get("baseline")]
    costs = [entrant.get("cost") or {} for entrant in entrants]
    of_seeds = any(cost_range({"cost": cost}, key) for cost in costs for key in RANGES)
    words = [
        COST_HINT,
        SEEDS_HINT if of_seeds else "",
        race_cards.measured_words(measured) if measured else "",
    ]
    if counted:
        verb, are = ("counts", "is") if len(counted) == 1 else ("count", "are")
        words.append(
            f"{race_cards.joined(counted)} {verb} the text once and {are} outside of the budget: "
            "no steps, no learning rate, and no time is measured."
        )
    return " ".join(filter(None, words))


def not_sampled_note(left_out: Sequence[Json]) -> str:
    """Say which entrants generated no text, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        reasons.setdefault(one["reason"], []).append(one["entrant"])
    groups = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return f"Not sampled: {'; '.join(groups)}." if groups else ""


def samples_section(samples: Sequence[Json], missing: str) -> dict[str, Any]:
    """Return generated texts, the table of their quality, and who generated none."""
    if all(sample.get("reference") for sample in samples):
        return {"rows": []}
    columns, cells = sample_table(samples)
    rows = []
    for sample, line in zip(samples, cells, strict=True):
        texts = [str(text) for text in sample.get("texts") or ()]
        prompts = [str(prompt) for prompt in sample.get("prompts") or ()]
        pairs = list(zip_longest(prompts[: len(texts)], texts, fillvalue=""))
        rows.append(SampleRow(sample["entrant"], line, pairs, bool(sample.get("reference"))))
    return {"columns": columns, "rows": rows, "missing": missing}
