"""Texts about texts: a file line by line through a model that reads one and writes another."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.generation.decoding import Method
from kinfolk.generation.sampling import GREEDY
from kinfolk.generation.texts import Question, question
from kinfolk.generation.wishes import Wishes
from kinfolk.objectives.pairs import Pairs
from kinfolk.recipes.catalogue import member_of, members
from kinfolk.recipes.opening import load, model_folder, pretrained
from kinfolk.recipes.writing import answers, ready
from kinfolk.text import Tokenizer

LINES = 64  # written at a time
ROOM = 50  # tokens a line may have more than its source (Vaswani et al. 2017, 6.1)
PREFIX = "prefix.txt"  # in a run that learned from pairs: what stood before every source


def open_rewriter(
    path: Path | str, verb: str, *, device: str = "auto", precision: str = "auto"
) -> tuple[Any, Tokenizer]:
    """Open a model that reads one text and writes another, ready to."""
    model, tokenizer = load(path)
    if model.decoding != "encoder-decoder":
        others = [m.name for m in members().values() if m.kind == "encoder-decoder"]
        raise UserError(f"{member_of(model).name} cannot {verb}: {', '.join(others)} can")
    return ready(model, device=device, precision=precision), tokenizer


def task(path: Path | str, prefix: str | None, usual: str | None = None) -> str:
    """Return what stands before every text: as told, as the run remembers, or as is usual."""
    if prefix is not None:
        return prefix
    folder = model_folder(path).resolve()
    kept, before = folder.parent.parent / PREFIX, pretrained(folder)
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    if before is not None and isinstance(before.objective, Pairs):
        return ""
    if usual is None:
        raise UserError(
            f"{path} remembers no pairs of texts that it learned from: say with --prefix what "
            "stands before every text, as in 'translate English to German: ', or '' for nothing"
        )
    return usual


def rewrite(
    model: Any,
    tokenizer: Tokenizer,
    lines: Iterable[str],
    *,
    prefix: str = "",
    method: Method = GREEDY,
    tokens: int | None = None,
    batch: int = LINES,
    watch: Callable[[int], None] = lambda lines: None,
) -> Iterator[str]:
    """Write a line about each line, in their order; an empty one stays empty.

    A line has so many tokens at most or, untold, some more than its source.
    """
    wishes = Wishes() if tokens is None else Wishes(tokens=tokens)

    def questions() -> Iterator[Question | None]:
        for line in lines:
            yield question(model, tokenizer, prefix + line.strip()) if line.strip() else None

    def room(asked: Question) -> int:
        assert asked.source is not None
        return len(asked.source) + ROOM if tokens is None else tokens

    found = answers(
        model, tokenizer, questions(), wishes, method, batch=batch, room=room, watch=watch
    )
    return (" ".join(texts[0].text.split()) if texts else "" for texts in found)
