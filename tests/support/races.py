"""A race as race.json holds it: made-up scores that look like those of a real one."""

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

FAMILIES = ("gpt2", "bert", "electra", "t5", "glm", "xlnet", "transformer_xl", "albert")
OBJECTIVES = {
    "gpt2": "clm",
    "bert": "mlm",
    "electra": "electra",
    "t5": "spans",
    "glm": "blanks",
    "xlnet": "plm",
    "transformer_xl": "recurrent",
    "albert": "mlm",
}
LEFT_TO_RIGHT = {"gpt2", "glm", "transformer_xl", "xlnet"}
GENERATES = {"gpt2", "glm", "t5", "transformer_xl"}
ABILITY = dict(zip(FAMILIES, (0.0, 1.4, 2.6, 0.4, 0.2, 0.9, -0.7, -1.2), strict=True))
EVIL = "</script><img src=x onerror=alert(1)>\"'&amp;"
LABELS = ("16", "64", "256", "all")
TEXT = (
    "The committee agreed on the report after the second reading and asked for the figures "
    "of the last three years, which were not at hand."
)


def race(
    entrants: Sequence[str] = tuple(f"{family}/tiny" for family in FAMILIES),
    *,
    tasks: Sequence[str] = ("triage.tsv", "reviews.jsonl"),
    seeds: int = 3,
    complete: bool = True,
    likelihood: bool = True,
) -> dict[str, Any]:
    """Return race.json of these entrants (NAME or NAME=FAMILY/SIZE)."""
    rng = random.Random(0)
    parsed = [parse(text) for text in entrants]
    scored = [score_task(name, index, parsed, seeds, rng) for index, name in enumerate(tasks)]
    text = score_text(parsed, seeds, rng) if likelihood else None
    found = [*(sentence for task in scored for sentence in task["verdicts"])]
    return {
        "schema": 1,
        "complete": complete,
        "kinfolk": "0.1.0",
        "created": "2026-11-16T21:40:00Z",
        "command": f"kinfolk compare {' '.join(entrants)} --corpus wiki.txt --minutes 3 -o RACE",
        "machine": {"device": "CPU, AMD EPYC 9654", "threads": 2},
        "corpus": {
            "name": "wiki.txt",
            "bytes": 12_400_512,
            "documents": 8_211,
            "tokens": 3_310_220,
            "held_out_bytes": 620_000,
            "held_out_documents": 411,
            "tokenizer": "bpe, 4,096 tokens, shared",
        },
        "budget": {
            "kind": "minutes",
            "amount": 3,
            "words": "3 minutes each",
            "how": "Seconds per step were measured on this machine, all entrants in turn.",
            "spread": 0.008,
            "measured": {"low": 171.0, "high": 189.0, "spread": 0.1},
        },
        "learning_rates": {
            "method": "ladder",
            "words": "Each entrant trains at the learning rate that its family has for its size.",
        },
        "seeds": seeds,
        "entrants": [
            *(describe(name, model, rng) for name, model in parsed),
            left_out("cove/tiny", "cove is trained on sentence pairs: --corpus has none."),
        ],
        "likelihood": text,
        "tasks": scored,
        "probes": [probe(name, parsed, rng) for name in tasks],
        "samples": [sample(name, rng) for name, model in parsed if family(model) in GENERATES]
        + [{**sample("held-out text", rng), "reference": True}],
        "verdicts": found + (text["verdicts"] if text else []),
        "notes": ["Two documents of the corpus were longer than 64,000 tokens and were cut."],
    }


def hostile_race() -> dict[str, Any]:
    """Return a race in which every text that a user chose is markup."""
    names = [f"{EVIL}{i}=gpt2/tiny" for i in range(2)]
    found = race(names, tasks=[EVIL])
    found["command"] = found["corpus"]["name"] = found["corpus"]["tokenizer"] = EVIL
    found["verdicts"] += [EVIL]
    found["notes"] = [EVIL]
    found["budget"] |= {"words": EVIL, "how": EVIL}
    found["learning_rates"]["words"] = EVIL
    found["machine"]["device"] = EVIL
    found["tasks"][0] |= {"labels": {EVIL: 3}, "metric": EVIL, "kind": EVIL}
    found["tasks"][0]["left_out"] = [{"entrant": EVIL, "reason": EVIL}]
    found["likelihood"]["unit"] = EVIL
    for row in found["likelihood"]["rows"]:
        row["words"] = EVIL
    found["entrants"][-1] |= {"name": EVIL, "left_out": EVIL}
    found["entrants"][0]["objective"] = found["entrants"][0]["curve"]["objective"] = EVIL
    for sample in found["samples"]:
        sample["texts"] = sample["prompts"] = [EVIL, EVIL]
    return found


def parse(text: str) -> tuple[str, str]:
    """Return the name and the model of an entrant."""
    name, _, model = text.rpartition("=")
    return name or model, model


def family(model: str) -> str:
    """Return the family of FAMILY/SIZE."""
    return model.split("/")[0]


def ability(model: str) -> float:
    """Return how good a model is, in points."""
    return ABILITY.get(family(model), 0.0)


def describe(name: str, model: str, rng: random.Random) -> dict[str, Any]:
    """Return an entrant with its cost and learning curve."""
    kind, size = model.split("/")
    steps, seconds = rng.randrange(800, 2_400), rng.uniform(174, 184)
    marks = [max(1, round(steps * i / 60)) for i in range(1, 61)]
    floor, start = (0.35, 1.1) if kind == "electra" else (3.2 + rng.uniform(0, 1), 8.3)
    losses = [floor + (start - floor) * math.exp(-4.5 * m / steps) for m in marks]
    tokens = steps * 2_040
    return {
        "name": name,
        "family": kind,
        "size": size,
        "settings": [],
        "objective": OBJECTIVES.get(kind, "clm"),
        "parameters": 1_620_000 + rng.randrange(900_000),
        "non_embedding_parameters": 800_000,
        "steps": steps,
        "lr": 0.001,
        "cost": {
            "tokens": tokens,
            "flops": tokens * rng.uniform(9e6, 1.6e7),
            "seconds": seconds,
            "peak_bytes": rng.randrange(400_000_000, 900_000_000),
            "joules": None,
            "tokens_per_second": tokens / seconds,
            "tokens_per_second_range": [0.999 * tokens / seconds, 1.001 * tokens / seconds],
        },
        "baseline": False,
        "left_out": None,
        "curve": {
            "steps": marks,
            "seconds": [seconds * m / steps for m in marks],
            "train_loss": [loss + rng.gauss(0, 0.06) for loss in losses],
            "eval_loss": [loss if i % 6 == 5 else None for i, loss in enumerate(losses)],
            "objective": OBJECTIVES.get(kind, "clm"),
        },
    }


def left_out(name: str, reason: str) -> dict[str, Any]:
    """Return an entrant that does not take part."""
    kind, size = name.split("/")
    return {
        "name": name,
        "family": kind,
        "size": size,
        "settings": [],
        "objective": None,
        "parameters": None,
        "non_embedding_parameters": None,
        "steps": None,
        "lr": None,
        "cost": None,
        "baseline": False,
        "left_out": reason,
        "curve": None,
    }


def score(mean: float, spread: float, seeds: int, rng: random.Random) -> dict[str, Any]:
    """Return the mean, spread and interval of seeds around a score."""
    values = [rng.gauss(mean, spread) for _ in range(seeds)]
    middle = sum(values) / seeds
    variance = sum((v - middle) ** 2 for v in values) / (seeds - 1) if seeds > 1 else None
    return {
        "mean": middle,
        "low": middle - 2.6 * spread,
        "high": middle + 2.6 * spread,
        "spread": None if variance is None else math.sqrt(variance),
        "seeds": values,
    }


def score_text(parsed: Sequence[tuple[str, str]], seeds: int, rng: random.Random) -> dict[str, Any]:
    """Return the bits per byte of every entrant and baseline."""
    rows = []
    for name, model in parsed:
        exact = family(model) in LEFT_TO_RIGHT
        rows.append(
            {
                "entrant": name,
                "kind": "likelihood" if exact else "pseudo-likelihood",
                "words": "likelihood, left to right" if exact else "each token from all others",
                **score((1.9 if exact else 1.5) - 0.03 * ability(model), 0.008, seeds, rng),
            }
        )
    for name, bits in (("unigram", 3.02), ("5-gram (Kneser-Ney)", 2.11)):
        row = {"entrant": name, "kind": "baseline", "words": "counting"}
        rows.append(row | score(bits, 0.004, 1, rng))
    found = [
        difference(first, second)
        for kind in ("likelihood", "pseudo-likelihood")
        for first, second in itertools.combinations([r for r in rows if r["kind"] == kind], 2)
    ]
    verdicts = [sentence(d, "held-out text", "bits per byte", 1, seeds, -1) for d in found]
    return {"unit": "bits per byte", "rows": rows, "differences": found, "verdicts": verdicts}


def score_task(
    name: str, index: int, parsed: Sequence[tuple[str, str]], seeds: int, rng: random.Random
) -> dict[str, Any]:
    """Return a task with the scores of every entrant at every number of labels."""
    rows = []
    loss = {"16": 0.22, "64": 0.12, "256": 0.05, "all": 0.0}
    noise = {"16": 0.03, "64": 0.018, "256": 0.009, "all": 0.006}
    models = [(entrant, ability(model) / 100, False) for entrant, model in parsed]
    models += [("TF-IDF + logistic regression", -0.01, True), ("bilstm/tiny", -0.03, True)]
    models += [("majority", -0.38, True)]
    for labels in LABELS:
        for entrant, gain, baseline in models:
            drop = 0 if entrant == "majority" else loss[labels]
            found = score(0.84 - 0.04 * index + gain - drop, noise[labels], seeds, rng)
            if entrant == "majority":
                found |= dict.fromkeys(("mean", "low", "high"), 0.42) | {"spread": 0.0}
            row = {"entrant": entrant, "labels": labels, **found, "seconds": rng.uniform(8, 40)}
            settings = {"lr": 9.4e-4, "steps": 320, "pooling": "first, starts as the mean"}
            row |= {"baseline": baseline, "fixed": entrant == "majority"}
            rows.append(row | {"settings": None if baseline else settings})
    differences = [
        {"labels": labels, **difference(first, second)}
        for labels in LABELS
        for first, second in itertools.combinations([r for r in rows if r["labels"] == labels], 2)
    ]
    last = [d for d in differences if d["labels"] == "all"]
    last.sort(key=lambda d: not d["shown"])
    return {
        "name": name,
        "kind": "classification",
        "metric": "accuracy",
        "unit": "points",
        "maximum": 1,
        "lower_is_better": False,
        "train": 4_210,
        "dev": 602,
        "test": 1_203,
        "labels": {"billing": 1_800, "delivery": 1_610, "other": 2_605},
        "rows": rows,
        "differences": differences,
        "left_out": [{"entrant": "cove/tiny", "reason": "cove is not in the race."}],
        "verdicts": [sentence(d, name, "points", 100, seeds, 1) for d in last[:7]],
    }


def difference(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the difference of two rows; it is shown where the interval excludes 0."""
    value = first["mean"] - second["mean"]
    half = 0.8 * math.hypot(first["high"] - first["mean"], second["high"] - second["mean"])
    shown = abs(value) > half > 0
    p = math.erfc(abs(value) / half * 1.4) if half else 1.0
    return {
        "first": first["entrant"],
        "second": second["entrant"],
        "value": value,
        "low": value - half,
        "high": value + half,
        "p": p,
        "shown": shown,
    }


def sentence(
    found: dict[str, Any], where: str, unit: str, scale: float, seeds: int, sign: int
) -> str:
    """Say a difference in words."""
    first, second = found["first"], found["second"]
    if sign * found["value"] < 0:
        first, second = second, first
    low, high = sorted(abs(scale * found[end]) for end in ("low", "high"))
    value = abs(scale * found["value"])
    if not found["shown"]:
        return (
            f"no difference shown between {first} and {second} on {where} "
            f"(difference {value:.2f} {unit}, 95 % interval {-low:.2f} to {high:.2f})"
        )
    return (
        f"{first} is ahead of {second} on {where} by {value:.2f} {unit} "
        f"(95 % interval {low:.2f} to {high:.2f}, {seeds} seeds)"
    )


def probe(task: str, parsed: Sequence[tuple[str, str]], rng: random.Random) -> dict[str, Any]:
    """Return the probe scores of every layer, with trained and with random weights."""
    rows = []
    for name, model in parsed:
        rise = [0.58, 0.66, 0.71, 0.70 + ability(model) / 60]
        rows.append({"entrant": name, "layers": [r + rng.gauss(0, 0.01) for r in rise]})
        rows[-1]["pretrained"] = True
        flat = [0.56 + rng.gauss(0, 0.012) for _ in rise]
        rows.append({"entrant": name, "layers": flat, "pretrained": False})
    return {"task": task, "metric": "accuracy", "rows": rows}


def sample(name: str, rng: random.Random) -> dict[str, Any]:
    """Return the quality of generated text, with two texts."""
    words = TEXT.split()
    return {
        "entrant": name,
        "distinct_1": rng.uniform(0.3, 0.5),
        "distinct_2": rng.uniform(0.7, 0.9),
        "repetition": rng.uniform(0.01, 0.2),
        "loops": rng.uniform(0, 0.1),
        "ngram_perplexity": rng.uniform(80, 300),
        "longest_copy": rng.uniform(2, 9),
        "reference": False,
        "prompts": ["The members of", "In the evening"],
        "texts": [" " + " ".join(rng.sample(words, len(words))), f" {TEXT}"],
    }
