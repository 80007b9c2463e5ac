"""The page of claims: effect, interval and verdict of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.charts import IntervalRow, interval_chart

VERDICTS = {"holds": 2, "reversed": 1, "undecided": 0}  # and their colors
DIGITS = {"bits per byte": 3, "points": 1}
UNIT_TITLES = {
    "bits per byte": "Claims about held-out text",
    "points": "Claims about tasks",
    "layers": "Claims about layers",
}


def render(values: Mapping[str, Any]) -> str:
    """Return the page as HTML; `values` are the contents of claims.json."""
    tested = [claim for claim in values["claims"] if claim["effects"]]
    units = dict.fromkeys(e["unit"] for claim in tested for e in claim["effects"])
    counts = {verdict: sum(claim["verdict"] == verdict for claim in tested) for verdict in VERDICTS}
    return page.render(
        "claims_page.html",
        values=values,
        lead=verdict_counts(counts),
        charts=[
            (UNIT_TITLES.get(unit, unit), Markup(effects_chart(tested, unit))) for unit in units
        ],
    )


def verdict_counts(counts: Mapping[str, int]) -> str:
    """Count the claims of each verdict that was given."""
    verbs = {
        "holds": ("holds", "hold"),
        "reversed": ("is reversed", "are reversed"),
        "undecided": ("is undecided", "are undecided"),
    }
    found = [f"{n} {verbs[name][n != 1]}" for name, n in counts.items() if n]
    if not found:
        return "No claim was tested."
    listed = " and ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
    return f"Of {page.plural(sum(counts.values()), 'claim')}, {listed} at this scale."


def effects_chart(claims: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Draw the effects in one unit; to the right of 0 is what the claims say."""
    rows = [
        IntervalRow(
            claim_effect_name(claim, effect),
            effect["value"],
            effect["low"],
            effect["high"],
            note=effect["verdict"],
            muted=effect["secondary"],
            color=VERDICTS[effect["verdict"]],
        )
        for claim in claims
        for effect in claim["effects"]
        if effect["unit"] == unit and None not in (effect["value"], effect["low"], effect["high"])
    ]
    ends = [end for row in rows for end in (row.value, row.low, row.high)]
    digits = page.digits_from_0(ends, DIGITS.get(unit, 2))
    return interval_chart(rows, x=f"gain in {unit}", digits=digits, zero=True) if rows else ""


def claim_effect_name(claim: Mapping[str, Any], effect: Mapping[str, Any]) -> str:
    """Name an effect among those of other claims."""
    if effect["secondary"]:
        return f"{claim['name']}: {effect['first']} or {effect['second']}"
    return f"{claim['name']} ({effect['stage']})" if effect["stage"] else str(claim["name"])
