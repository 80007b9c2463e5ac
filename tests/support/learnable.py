"""Labelled files that can be learned to the last row, and short runs that do."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kinfolk.tasks.dataset import TaskDataset, task_dataset
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights

GOOD, BAD = ("fine", "great", "lovely", "warm"), ("dull", "awful", "grey", "cold")
THINGS = ("film", "play", "song", "book", "story", "scene", "actor", "plot")
NAMES, HOMES = ("anna", "otto", "mary"), ("smith", "brown", "jones")
PLACES, YEARS = ("berlin", "paris", "rome"), ("1843", "1901", "1977", "2004")
SAYS = {"cat": "miaow", "dog": "woof", "cow": "moo", "duck": "quack", "owl": "hoot"}

Chance = random.Random


def filler(chance: Chance, most: int, least: int = 1) -> list[str]:
    return chance.choices(THINGS, k=chance.randint(least, most))


def put(chance: Chance, words: list[str], *more: str) -> list[str]:
    """Put words, together, somewhere into others."""
    at = chance.randrange(len(words) + 1)
    return [*words[:at], *more, *words[at:]]


def opinion(chance: Chance, good: bool, most: int = 6) -> str:
    return " ".join(put(chance, filler(chance, most), chance.choice(GOOD if good else BAD)))


def classify(chance: Chance) -> dict[str, Any]:
    good = chance.random() < 0.5
    return {"sentence": opinion(chance, good), "label": "good" if good else "bad"}


def pair(chance: Chance) -> dict[str, Any]:
    """Both must be good."""
    one, other = chance.random() < 0.7, chance.random() < 0.7
    texts = {"sentence1": opinion(chance, one, 3), "sentence2": opinion(chance, other, 3)}
    return {**texts, "label": "yes" if one and other else "no"}


def regress(chance: Chance) -> dict[str, Any]:
    """Count what is good in both."""
    one, other = chance.random() < 0.5, chance.random() < 0.5
    texts = {"sentence1": opinion(chance, one, 3), "sentence2": opinion(chance, other, 3)}
    return {**texts, "label": float(one + other) + 0.5}


def choose(chance: Chance) -> dict[str, Any]:
    options = [opinion(chance, False, 2) for _ in range(chance.randint(2, 4))]
    right = chance.randrange(len(options))
    options[right] = opinion(chance, True, 2)
    return {"context": " ".join(filler(chance, 5)), "options": options, "label": right}


def tag(chance: Chance) -> dict[str, Any]:
    words = [(word, "O") for word in filler(chance, 6)]
    at = chance.randrange(len(words) + 1)
    words[at:at] = [(chance.choice(NAMES), "B-PER"), (chance.choice(HOMES), "I-PER")]
    words.append((chance.choice(PLACES), "B-LOC"))
    return {"tokens": [word for word, _ in words], "ner_tags": [tag for _, tag in words]}


def asked(chance: Chance) -> dict[str, Any]:
    """Ask for a name or a year; one of four contexts has none."""
    known = chance.random() < 0.75
    who = chance.random() < 0.5
    answer = f"{chance.choice(NAMES)} {chance.choice(HOMES)}" if who else chance.choice(YEARS)
    words = filler(chance, 45, 5)
    context = " ".join(put(chance, words, *answer.split()) if known else words)
    answers = [{"text": answer, "answer_start": context.index(answer)}] if known else []
    return {
        "context": context,
        "qas": [
            {
                "id": str(chance.random()),
                "question": "who" if who else "when",
                "answers": answers,
                "is_impossible": not known,
            }
        ],
    }


def write(chance: Chance) -> dict[str, Any]:
    """Tell a story of the beast and the place that a text names."""
    beast, place = chance.choice(list(SAYS)), chance.choice(PLACES)
    source = put(chance, put(chance, filler(chance, 3), beast), place)
    return {"source": " ".join(source), "target": f"the {beast} of {place} says {SAYS[beast]}"}


def complete(chance: Chance) -> dict[str, Any]:
    beast = chance.choice(list(SAYS))
    context = " ".join(put(chance, filler(chance, 4), beast))
    return {"prompt": f"{context} says", "label": SAYS[beast]}


def chosen(chance: Chance) -> dict[str, Any]:
    """Complete, with words to choose from."""
    row = complete(chance)
    others = chance.sample([said for said in SAYS.values() if said != row["label"]], 2)
    return {**row, "options": chance.sample([row["label"], *others], 3)}


def count(chance: Chance) -> dict[str, Any]:
    """Go through the beasts in their order, over and over."""
    beasts = [*SAYS] * 12
    return {"text": " ".join(beasts[chance.randrange(5) :][:50])}


def table(path: Path, row: Callable[[Chance], dict[str, Any]], count: int, seed: int = 0) -> Path:
    """Write rows with a line of their names above them."""
    chance = random.Random(seed)
    rows = [row(chance) for _ in range(count)]
    lines = ["\t".join(rows[0]), *("\t".join(map(str, one.values())) for one in rows)]
    path = path.with_suffix(".tsv")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def objects(path: Path, row: Callable[[Chance], dict[str, Any]], count: int, seed: int = 0) -> Path:
    """Write rows as JSON, one a line."""
    chance = random.Random(seed)
    lines = [json.dumps(row(chance)) for _ in range(count)]
    path = path.with_suffix(".jsonl")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def lines(path: Path, row: Callable[[Chance], dict[str, Any]], count: int, seed: int = 0) -> Path:
    """Write rows as plain text, a line apart."""
    chance = random.Random(seed)
    texts = [" ".join(map(str, row(chance).values())) for _ in range(count)]
    path = path.with_suffix(".txt")
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def squad(path: Path, count: int, seed: int = 0) -> Path:
    """Write questions in SQuAD's form."""
    chance = random.Random(seed)
    data = [{"title": "", "paragraphs": [asked(chance) for _ in range(count)]}]
    path.write_text(json.dumps({"version": "v2.0", "data": data}), encoding="utf-8")
    return path


def tune(
    name: str,
    files: TaskDataset | Sequence[TaskDataset],
    out: Path,
    *settings: str,
    epochs: float | None = 8,
    **more: Any,
) -> Path:
    """Fine-tune on the CPU, from fresh weights where a member is named."""
    sheets = [files] if isinstance(files, TaskDataset) else files
    chosen = ["train.device=cpu", *settings]
    return finetune(
        parse_initial_weights(name),
        sheets,
        out,
        epochs=epochs,
        settings=chosen,
        **more,
    )


def kept(found: TaskDataset) -> list[Any]:
    """Return the rows that a run is scored on."""
    return found.splits[1]


def dev(run: Path) -> dict[str, float]:
    """Return what the best model of a run scored."""
    return dict(json.loads((run / "scores.json").read_text("utf-8"))["dev"])


def opinions(folder: Path, count: int = 160, held: int = 48) -> TaskDataset:
    """Write a file of opinions and one to choose by."""
    folder.mkdir(parents=True, exist_ok=True)
    return task_dataset(
        table(folder / "train", classify, count), table(folder / "dev", classify, held, 1)
    )
