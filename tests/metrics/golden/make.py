"""Write entities.json and rouge.json by seqeval and rouge-score, which the project does not need.

In a virtual environment of its own: pip install seqeval rouge-score; python make.py
"""

import json
import math
import random
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rouge_score.rouge_scorer import RougeScorer
from seqeval import metrics, scheme

FOLDER = Path(__file__).parent
CASES = 100
SCHEMES = {"": None, "IOB1": scheme.IOB1, "IOB2": scheme.IOB2, "BIOES": scheme.IOBES}
WORDS = ["The", "the", "cat", "sat.", "on", "mat-", "3", "U.S.", "é", "a_b", "don't", "Cat's", "中"]


def tagged(rng: random.Random, kinds: str) -> tuple[list[list[str]], list[list[str]]]:
    """Draw sentences of tags and predictions, which differ in every third tag or so."""
    names = ["O", "O", *(f"{kind}-{type}" for kind in kinds for type in "XYZ"[: rng.randint(1, 3)])]
    truth = [rng.choices(names, k=rng.randint(0, 9)) for _ in range(rng.randint(1, 4))]
    said = [[rng.choice(names) if rng.random() < 0.35 else t for t in tags] for tags in truth]
    return truth, said


def entity_case(rng: random.Random, number: int) -> dict[str, Any]:
    """Score one list of sentences by every scheme its tags belong to."""
    kinds = "BIES" if number % 2 == 0 else "BI"
    truth, said = tagged(rng, kinds)
    scores: dict[str, Any] = {}
    for name, strict in SCHEMES.items():
        if kinds == "BIES" and name in ("IOB1", "IOB2"):
            continue
        how = {} if strict is None else {"mode": "strict", "scheme": strict}
        scores[name] = {}
        for average in ("micro", "macro", "weighted"):
            found = [
                score(truth, said, average=average, zero_division=0, **how)
                for score in (metrics.precision_score, metrics.recall_score, metrics.f1_score)
            ]
            if any(map(math.isnan, found)):  # no entity at all, of which seqeval has no mean
                continue
            scores[name][average] = [round(float(value), 9) for value in found]
    accuracy = metrics.accuracy_score(truth, said) if any(truth) else None
    lines = [[" ".join(tags) for tags in some] for some in (truth, said)]
    return {"truth": lines[0], "said": lines[1], "accuracy": accuracy, "scores": scores}


def rouge_case(rng: random.Random) -> dict[str, Any]:
    """Score one text against its reference."""
    reference = rng.choices(WORDS, k=rng.randint(0, 14))
    written = [w for w in reference if rng.random() < 0.7] + rng.choices(WORDS, k=rng.randint(0, 4))
    if rng.random() < 0.4:
        rng.shuffle(written)
    texts = {"reference": " ".join(reference), "written": " ".join(written)}
    kinds = ["rouge1", "rouge2", "rougeL"]
    found = RougeScorer(kinds).score(texts["reference"], texts["written"])
    return {**texts, **{kind: round(found[kind].fmeasure, 9) for kind in kinds}}


def write(name: str, package: str, cases: list[dict[str, Any]]) -> None:
    """Write cases, one a line."""
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    text = f'{{"made by": "{package} {version(package)}", "cases": [\n{rows}\n]}}\n'
    (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rng = random.Random(0)
    write("entities.json", "seqeval", [entity_case(rng, number) for number in range(CASES)])
    write("rouge.json", "rouge-score", [rouge_case(rng) for _ in range(CASES)])
