"""Small labelled files for each task kind, written as a user would write them."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from support import learnable, tables


def continuations(path: Path, count: int, seed: int) -> Path:
    """Write lines of plain text whose last word is to be completed."""
    return learnable.lines(path, learnable.complete, count, seed)


def running_text(path: Path, count: int, seed: int) -> Path:
    """Write documents of plain text."""
    return learnable.lines(path, learnable.count, count, seed)


def choices(path: Path, count: int, seed: int) -> Path:
    """Write contexts with two options each."""
    return tables.choices(path.with_suffix(".jsonl"), count, seed)


def source_and_target(path: Path, count: int, seed: int) -> Path:
    """Write a table with a text and its target in each line."""
    return learnable.table(path, learnable.write, count, seed)


def clusters(path: Path, count: int, seed: int) -> Path:
    """Write documents in which a woman or a man is mentioned twice, as JSON lines."""
    rng, lines = random.Random(seed), []
    for _ in range(count):
        name, pronoun = rng.choice((("ann", "she"), ("bob", "he"), ("mary", "she")))
        verb = rng.choice(("smiled", "slept", "sang"))
        sentences = [[name, "met", "the", "king", "."], [pronoun, verb, "again", "."]]
        lines.append(json.dumps({"sentences": sentences, "clusters": [[[0, 0], [5, 5]]]}))
    return tables.write(path.with_suffix(".jsonl"), lines)


def classes(path: Path, count: int, seed: int) -> Path:
    """Write a table of texts with a class each."""
    return tables.table(path.with_suffix(".tsv"), count, seed)


def numbers(path: Path, count: int, seed: int) -> Path:
    """Write a table of pairs of texts with a number each."""
    return tables.scale(path.with_suffix(".tsv"), count, seed)


def tags(path: Path, count: int, seed: int) -> Path:
    """Write sentences in CoNLL columns."""
    return tables.entities(path.with_suffix(".txt"), count, seed)


def questions(path: Path, count: int, seed: int) -> Path:
    """Write questions in SQuAD's format."""
    return tables.questions(path.with_suffix(".json"), count, seed)


def articles(path: Path, count: int, seed: int) -> Path:
    """Write a table of articles of four sentences, one of which is the summary."""
    rng, lines = random.Random(seed), ["article\tsummary"]
    animals, places = ("cat", "dog", "bird", "horse"), ("barn", "garden", "kitchen", "field")
    for _ in range(count):
        sentences = [f"The {rng.choice(animals)} slept in the {rng.choice(places)}." for _ in "abc"]
        summary = f"A {rng.choice(animals)} was found in the {rng.choice(places)}."
        sentences.insert(rng.randrange(4), summary)
        lines.append(f"{' '.join(sentences)}\t{summary}")
    return tables.write(path.with_suffix(".tsv"), lines)


# By the task kind as it is typed after --task.
FILES: dict[str, Callable[[Path, int, int], Path]] = {
    "classify": classes,
    "regress": numbers,
    "choose": choices,
    "tag": tags,
    "span": questions,
    "write": source_and_target,
    "complete": continuations,
    "lm": running_text,
    "coref": clusters,
    "extract": articles,
}
