"""Small labelled files for tests of fine-tuning: what is learned from them is plain to see."""

import json
import random
from pathlib import Path

from support.runs import DOES, WHAT, WHERE, WHO

GOOD, BAD = ("fine", "lovely", "bright"), ("dull", "awful", "grey")


def reviews(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Make up texts with a class that one word decides."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        words, label = ((GOOD, "good"), (BAD, "bad"))[number % 2]
        said = [chance.choice(part) for part in (WHO, DOES, WHAT, words, WHERE)]
        rows.append((" ".join(said), label))
    return rows


def table(path: Path, count: int = 40, seed: int = 0, labelled: bool = True) -> Path:
    """Write texts and classes as a table."""
    lines = ["sentence\tlabel" if labelled else "sentence"]
    lines += ["\t".join(row if labelled else row[:1]) for row in reviews(count, seed)]
    return write(path, lines)


def records(path: Path, count: int = 40, seed: int = 0) -> Path:
    """Write the same as JSON lines."""
    rows = [{"text": text, "label": label} for text, label in reviews(count, seed)]
    return write(path, [json.dumps({"id": number, **row}) for number, row in enumerate(rows)])


def entities(path: Path, count: int = 20, seed: int = 0) -> Path:
    """Write sentences in columns, whose first words are people."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        who, rest = chance.choice(WHO).split(), f"{chance.choice(DOES)} {chance.choice(WHAT)}"
        tags = ["B-PER", *["I-PER"] * (len(who) - 1), *["O"] * len(rest.split())]
        lines += [f"{word} {tag}" for word, tag in zip([*who, *rest.split()], tags, strict=True)]
        lines.append("")
    return write(path, lines)


def questions(path: Path, count: int = 12, seed: int = 0) -> Path:
    """Write questions about who did something, in SQuAD's form."""
    chance = random.Random(seed)
    paragraphs = []
    for number in range(count):
        who, does = chance.choice(WHO), chance.choice(DOES)
        context = f"{who} {does} {chance.choice(WHAT)}"
        answers = [{"text": who, "answer_start": 0}]
        asked = {"id": f"q{number}", "question": f"who {does} it", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked]})
    whole = {"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}]}
    return write(path, [json.dumps(whole)])


def pairs(source: Path, target: Path, count: int = 24, seed: int = 0) -> tuple[Path, Path]:
    """Write lines, and what is to be written about each."""
    chance = random.Random(seed)
    said = [f"{chance.choice(WHO)} {chance.choice(DOES)}" for _ in range(count)]
    return write(source, said), write(target, [line.split()[-1] for line in said])


def write(path: Path, lines: list[str]) -> Path:
    """Write lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def choices(path: Path, count: int = 16, seed: int = 0) -> Path:
    """Write beginnings, each with two ends; the right one is about what was seen."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        right, wrong = chance.sample(WHAT, 2)
        place = chance.randrange(2)
        options = [right, wrong] if place == 0 else [wrong, right]
        context = f"{chance.choice(WHO)} saw {right} and so forgot"
        lines.append(json.dumps({"context": context, "options": options, "label": place}))
    return write(path, lines)


def scale(path: Path, count: int = 20, seed: int = 0) -> Path:
    """Write pairs of texts with how many words they share."""
    chance = random.Random(seed)
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(count):
        words = [chance.choice(part) for part in (WHO, DOES, WHAT, WHERE)]
        other = [word if chance.random() < 0.5 else "else" for word in words]
        same = sum(one == two for one, two in zip(words, other, strict=True))
        lines.append(f"{' '.join(words)}\t{' '.join(other)}\t{same + chance.random() / 2:.2f}")
    return write(path, lines)
