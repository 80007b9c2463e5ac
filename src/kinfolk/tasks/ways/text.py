"""Text to text (Raffel et al., 2020): every answer is a text, a number or a tag as any other.

read      stsb sentence1: a plane lands . sentence2: an airplane is landing .
write     4.6

Where the answers are known beforehand, the likeliest of them counts; else one is written.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.tasks.examples import Example
from kinfolk.tasks.rows import Asked, Choice, Completion, Labelled, Tagged, Written
from kinfolk.tasks.speech import around, fields, reading
from kinfolk.tasks.task import Answer
from kinfolk.tasks.ways.likely import Likely
from kinfolk.tasks.ways.way import Key, Reply, blind
from kinfolk.text.tokenizer import Tokenizer

GRAIN = 0.2  # numbers from 0 to 5 are rounded to it, so that few texts stand for all (section 2.4)
GRAINS = 25  # that the range of other numbers has at least: as many as STS-B's


@config("text")
class Text(Likely):
    """Read a task's prefix and the texts of a row, and write the answer."""

    ended: bool = True
    tokens: int = 64  # the most that is written
    beams: int = 1
    grain: float = GRAIN  # numbers are rounded to it
    average: float = 0.0  # of the numbers in training: the answer where none was written

    name: ClassVar[str] = "text"
    solves: ClassVar[tuple[str, ...]] = (
        "classify", "regress", "choose", "tag", "span", "write", "complete", "lm",
    )  # fmt: skip

    def writes(self, row: Any) -> bool:
        """Say whether the answer to a row is written, and not chosen."""
        return self.task.kind != "lm" and self.options(row) is None

    def asked(self, row: Any) -> tuple[str, str]:
        """Return the prefix and the texts of a row, each under its name."""
        known = {name: text for name, text in fields(row).items() if text}
        match row:
            case Labelled(texts=(text,)):
                said = f"sentence: {text}" if self.task.prefix else text
            case Labelled(texts=texts):
                said = " ".join(f"sentence{n}: {text}" for n, text in enumerate(texts, 1))
            case Choice():
                said = " ".join(f"{name}: {text}" for name, text in _named(known))
            case Asked():
                said = f"question: {known.get('question', '')} context: {known.get('text', '')}"
            case Completion(context=context, after=after):
                return context, after
            case _:
                said = known.get("text", "")
        return f"{self.task.prefix}{said}", ""

    def opened(self, before: list[int], tokenizer: Tokenizer) -> list[int]:
        """End what is read: a decoder must see where its answer begins."""
        if self.speaks != "decoder" or self.task.kind in ("complete", "lm"):
            return before
        specials = tokenizer.specials
        return [*before, specials.need("eos") if specials.sep is None else specials.sep]

    def shortened(self, opening: list[int], room: int) -> list[int]:
        """Cut what is read: its end, so that the task stays; its start, where the end is asked."""
        if self.task.kind == "complete" or len(opening) <= room:
            return opening[-room:]
        mark = opening[-1:] if self.speaks == "decoder" else []
        return [*opening[: room - len(mark)], *mark]

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the answers there are to choose from, where they are known."""
        match row:
            case Choice(options=options) | Completion(options=options):
                return options
            case Labelled() if self.task.kind == "classify":
                return self.task.labels
        return None

    def told(self, row: Any) -> str | None:
        """Return the right answer as a text."""
        match row:
            case Labelled(label=None):
                return None
            case Labelled(label=float(label)):
                places = max(0, math.ceil(-math.log10(self.grain)))
                return f"{round(label / self.grain) * self.grain:.{places}f}"
            case Labelled(label=label):
                return self.task.labels[self.task.place(str(label))]
            case Choice(label=place, options=options):
                return None if place is None else options[place]
            case Tagged(tags=tags):
                return None if tags is None else " ".join(tags)
            case Asked(answers=answers, possible=possible):
                return answers[0][0] if answers else None if possible else "unanswerable"
            case Written(target=target) | Completion(target=target):
                return target
        raise AssertionError(f"no answer in {type(row).__name__}")

    def lessons(self, row: Any, tokenizer: Tokenizer, /) -> list[Example]:
        """Say the right answer."""
        answer = self.told(row)
        if answer is None:
            return []
        if self.task.kind == "lm":
            return self.running(answer, tokenizer)
        end = self.task.kind != "complete" or self.speaks != "decoder"
        said, cut = self.spoken(row, answer, tokenizer, end=end)
        return [Example(readings=(said,), cut=cut)]

    def running(self, text: str, tokenizer: Tokenizer) -> list[Example]:
        """Say a text itself, in as many stretches as it takes: every token once, and no end."""
        ids, room = tokenizer.offsets(text)[0], self.length - around(self.speaks)
        parts = [ids[start : start + room] for start in range(0, len(ids), room)]
        laid = [reading(self.speaks, tokenizer.specials, (), part, end=False) for part in parts]
        return [Example(readings=(one,)) for one in laid]

    def questions(self, row: Any, tokenizer: Tokenizer, /) -> list[Example]:
        """Say each answer there is, or, where they are not known, the right one to weigh it."""
        if self.options(row) is not None:
            return [self.weighed(blind(row), tokenizer)]
        return self.lessons(row, tokenizer) if self.task.kind in ("complete", "lm") else []

    def counts(self, examples: Sequence[Example], key: Key) -> dict[str, int]:
        """Count the tokens that are predicted."""
        assert key.tokens is not None
        return {"tokens": len(key.tokens.labels)}

    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Sum -log p(token of the answer)."""
        tokens = batch.targets.tokens
        assert tokens is not None
        hidden = tokens.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(tokens.labels)})

    def heard(self, row: Any, text: str) -> Answer:
        """Turn what was written into an answer."""
        text = text.strip()
        match self.task.kind:
            case "regress":
                return Answer(number(text, self.average))
            case "tag":
                said = text.split()[: len(row.words)]
                other = "O" if "O" in self.task.labels else self.task.labels[0]
                tags = [tag if tag in self.task.labels else other for tag in said]
                return Answer((*tags, *[other] * (len(row.words) - len(tags))))
            case "span":
                return Answer("" if text == "unanswerable" else text)
            case "complete":
                return Answer(text.split()[0] if text.split() else "")
        return Answer(text)

    def answer(self, row: Any, examples: Sequence[Example], replies: Sequence[Reply], /) -> Answer:
        """Name the likeliest answer; where none is known, say how likely the right one is."""
        if self.options(row) is not None:
            return super().answer(row, examples, replies)
        labels = [r.labels for e in examples for r in e.readings if r.labels is not None]
        tokens = sum(int((some != IGNORE_INDEX).sum()) for some in labels)
        return Answer("", nats=-sum(float(reply[0]) for reply in replies), tokens=tokens)


def number(text: str, otherwise: float) -> float:
    """Read a number, if one was written."""
    try:
        found = float(text)
    except ValueError:
        return otherwise
    return found if math.isfinite(found) else otherwise


def _named(known: dict[str, str]) -> list[tuple[str, str]]:
    names = {"text": "context"}
    return [(names.get(name, name), text) for name, text in known.items()]


def grain(numbers: Sequence[float]) -> float:
    """Return what numbers are rounded to: T5's 0.2 from 0 to 5, else 1, 2 or 5 times 10^n."""
    low, high = min(numbers), max(numbers)
    if (low >= 0 and 1 < high <= 5) or low == high:
        return GRAIN
    size = (high - low) / GRAINS
    power = 10.0 ** math.floor(math.log10(size))
    return max(step for step in (power, 2 * power, 5 * power) if step <= size * (1 + 1e-9))
