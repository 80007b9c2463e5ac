"""The top of the race page: the verdict in words, and what each table says at a glance."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from kinfolk.reports.page import format_duration, plural
from kinfolk.reports.race_tables import byte_count, three_digits
from kinfolk.reports.race_view import Json, Lead, PageEntrant, finite

SHARE_ROUNDING = 1e-9  # of a share


@dataclass(frozen=True)
class Card:
    """One result in a few words; in an entrant's color where that entrant alone leads."""

    title: str
    figure: str
    unit: str
    asides: Sequence[str] = ()
    color: int | None = None


def race_summary(race: Json) -> str:
    """Say in one line who raced, on what, for how long."""
    running = [one for one in race.get("entrants") or () if not one.get("left_out")]
    budget, corpus = race.get("budget") or {}, race.get("corpus") or {}
    size = finite(corpus.get("bytes"))
    parts = [
        plural(sum(not one.get("baseline") for one in running), "entrant"),
        f"{corpus['name']}{'' if size is None else f' ({byte_count(size)})'}"
        if corpus.get("name")
        else "",
        budget.get("words") or "",
        plural(race["seeds"], "seed") if race.get("seeds") else "",
        plural(len(race["tasks"]), "task") if race.get("tasks") else "",
    ]
    return ", ".join(part for part in parts if part)


def emphasized(sentence: str, entrants: Mapping[str, PageEntrant]) -> Markup:
    """Return a sentence with the names of entrants in their colors."""
    names = sorted(entrants, key=len, reverse=True)
    text = sentence if sentence.endswith(".") else f"{sentence}."
    if not sentence.startswith(tuple(names)):
        text = text[:1].upper() + text[1:]
    if not names:
        return escape(text)
    # A name is a whole word: "gpt" is not a part of "gpt2".
    found = re.split(rf"(?<![\w/.-])({'|'.join(map(re.escape, names))})(?![\w/-]|\.\w)", text)
    parts = [
        Markup('<b class="{}">{}</b>').format(entrants[part].style, part) if odd else escape(part)
        for odd, part in zip([False, True] * len(found), found, strict=False)
    ]
    return Markup().join(parts)


def cards(race: Json, leads: Sequence[Lead], entrants: Mapping[str, PageEntrant]) -> list[Card]:
    """Return a card for every table with two scores or more, then those of the costs."""
    running = [one for one in race.get("entrants") or () if not one.get("left_out")]
    made = [lead_card(lead, entrants) for lead in leads]
    return [*made, *budget_card(race), *speed_card(running, entrants)]


def lead_card(lead: Lead, entrants: Mapping[str, PageEntrant]) -> Card:
    """Say who leads a table; a single name only where it was shown to be ahead of all others."""
    best, scale = lead.best, lead.scale
    score = f"{scale.score(best.mean)} {scale.unit}"
    if best.low is not None and best.high is not None:
        score += f", 95 % interval {scale.score(best.low)} to {scale.score(best.high)}"
    name = titled(best.name, entrants)
    asides = [f"{'Lowest' if scale.lower_is_better else 'Highest'} mean: {name}, {score}."]
    behind, equals = (
        [titled(name, entrants) for name in names] for names in (lead.behind, lead.equals)
    )
    if not lead.equals and not lead.behind:
        return Card(lead.title, "Not compared yet", scale.metric, asides)
    if not lead.equals:
        ahead = f"Shown to be ahead of {joined(behind)}."
        kind = ["A baseline."] if entrants[best.name].color is None else []
        return Card(lead.title, best.name, score, [*kind, ahead], entrants[best.name].color)
    if not lead.behind:
        return Card(lead.title, "No difference shown", scale.metric, asides)
    asides.append(f"Not shown to be ahead of {joined(equals)}.")
    asides.append(f"Shown to be ahead of {joined(behind)}.")
    return Card(lead.title, "Undecided", scale.metric, asides)


def titled(name: str, entrants: Mapping[str, PageEntrant]) -> str:
    """Return the name of an entrant, and that it is a baseline."""
    return f"the baseline {name}" if entrants[name].color is None else name


def joined(names: Sequence[str], most: int = 3) -> str:
    """Write a, b and c; the rest of a long list as a number."""
    shown = (
        list(names) if len(names) <= most + 1 else [*names[:most], f"{len(names) - most} others"]
    )
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def budget_card(race: Json) -> list[Card]:
    """Say how much each entrant was given, and how equal that was."""
    budget = race.get("budget") or {}
    if not budget.get("words"):
        return []
    spread = finite(budget.get("spread"))
    asides = (
        [] if spread is None else [f"Planned budgets are equal within {100 * spread:.1f}\u00a0%."]
    )
    if measured := budget.get("measured"):
        asides.append(measured_words(measured))
        if measured["spread"] > (budget.get("tolerance") or math.inf) + SHARE_ROUNDING:
            allowed = f"{100 * budget['tolerance']:.0f}\u00a0%"
            asides.append(f"That is more than the {allowed} that equal budgets allow.")
    words = str(budget["words"])
    return [Card("Budget", words.removesuffix(" each"), "for each entrant", asides)]


def measured_words(measured: Json) -> str:
    """Say how far apart all runs are in what the budget limits."""
    unit = measured.get("unit", "seconds")
    ends = [measured["low"], measured["high"]]
    did, low, high = {
        "seconds": ("took", *(format_duration(end) for end in ends)),
        "tokens": ("read", f"{ends[0]:,.0f}", f"{ends[1]:,.0f} tokens"),
        "flops": ("did", f"{ends[0]:.4g}", f"{ends[1]:.4g} FLOPs"),
    }[unit]
    apart = f"{100 * measured['spread']:.1f}\u00a0%"
    if low == high:  # both are rounded
        return f"The runs {did} {high} each: {apart} of the budget apart."
    return f"The runs {did} {low} to {high}: {apart} of the budget apart."


def speed_card(running: Sequence[Json], entrants: Mapping[str, PageEntrant]) -> list[Card]:
    """Say which entrant read the most tokens in a second, where all have the same tokens.

    Its slowest seed must be faster than the fastest of all others: a machine may be busy.
    """
    if len({one.get("corpus") for one in running if not one.get("baseline")}) > 1:
        return []
    speeds = {
        one["name"]: speed
        for one in running
        if (speed := finite((one.get("cost") or {}).get("tokens_per_second")))
    }
    if len(speeds) < 2:
        return []
    fastest, slowest = max(speeds, key=speeds.__getitem__), min(speeds, key=speeds.__getitem__)
    ranges = {
        one["name"]: (one.get("cost") or {}).get("tokens_per_second_range") or (0, math.inf)
        for one in running
    }
    if any(ranges[fastest][0] <= ranges[name][1] for name in speeds if name != fastest):
        return []
    ratio = speeds[fastest] / speeds[slowest]
    asides = [f"{ratio:.1f} times the speed of {slowest}, the slowest."] if ratio >= 1.05 else []
    unit = f"{three_digits(speeds[fastest])} tokens per second in training"
    return [Card("Fastest", fastest, unit, asides, entrants[fastest].color)]


def rules(race: Json) -> list[tuple[str, str]]:
    """Say in words how budgets and learning rates were set and what intervals cover."""
    budget, rates = race.get("budget") or {}, race.get("learning_rates") or {}
    found = [("Budget", " ".join(filter(None, (sentence(budget.get("words")), budget.get("how")))))]
    found.append(("Learning rates", rates.get("words") or ""))
    found.append(("Intervals", INTERVALS if race.get("seeds") != 1 else ONE_SEED))
    found.append(("Ahead", AHEAD))
    return [(title, words) for title, words in found if words]


def sentence(words: str | None) -> str:
    """End words with a full stop."""
    return "" if not words else words if words.endswith(".") else f"{words}."


INTERVALS = (
    "95 % intervals of the mean, which cover both the choice of test rows (or documents) and the "
    "chance in training, as far as the seeds show it."
)
ONE_SEED = (
    "One seed: the 95 % intervals cover the test rows (or documents) only, not the chance in "
    "training. More seeds (--seeds) show that too."
)
AHEAD = (
    "An entrant is called ahead of another only if the 95 % interval of their difference on the "
    "same rows, corrected for the number of pairs in the table, excludes 0. Both are scored on the "
    "same rows, so that this can be shown where the intervals of their own scores overlap. Test "
    "rows are used for scores alone, never for a choice."
)


def facts(race: Json) -> list[tuple[str, str]]:
    """Return the facts about the data and the machine."""
    corpus, machine = race.get("corpus") or {}, race.get("machine") or {}
    threads = finite(machine.get("threads"))
    found = [
        ("corpus", corpus.get("name")),
        ("training text", amount(corpus, "bytes", "documents")),
        ("held-out text", amount(corpus, "held_out_bytes", "held_out_documents")),
        ("tokens", None if not corpus.get("tokens") else f"{corpus['tokens']:,}"),
        ("tokenizer", corpus.get("tokenizer")),
        ("seeds", race.get("seeds")),
        ("machine", machine.get("device")),
        ("threads", None if threads is None else f"{threads:.0f}"),
        ("made with", f"kinfolk {race['kinfolk']}" if race.get("kinfolk") else None),
        ("made on", made_on(str(race.get("created") or ""))),
        ("pretraining of all, one seed", total_time(race)),
    ]
    return [(name, str(value)) for name, value in found if value]


def made_on(created: str) -> str:
    """Write 2026-11-19T20:11:52+00:00 as 2026-11-19 20:11 UTC."""
    is_utc = created.endswith(("Z", "+00:00"))
    return f"{created[:10]} {created[11:16]} UTC" if is_utc else created


def amount(corpus: Json, size: str, documents: str) -> str:
    """Write 12.4 MB, 8,211 documents."""
    found = [byte_count(corpus[size])] if corpus.get(size) else []
    return ", ".join(
        [*found, *([plural(corpus[documents], "document")] if corpus.get(documents) else [])]
    )


def total_time(race: Json) -> str:
    """Write how long all entrants of one seed trained."""
    costs = [finite((one.get("cost") or {}).get("seconds")) for one in race.get("entrants") or ()]
    known = [seconds for seconds in costs if seconds]
    return format_duration(sum(known)) if len(known) > 1 else ""
