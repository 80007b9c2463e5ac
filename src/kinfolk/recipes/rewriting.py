"""Texts about texts: a file line by line through a model that reads one and writes another."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.families import family_of, index
from kinfolk.generation.decoding import DecodingMethod
from kinfolk.generation.sampling import GREEDY
from kinfolk.generation.texts import EncodedPrompt, encode_prompt
from kinfolk.generation.wishes import GenerationConfig
from kinfolk.objectives.pairs import Seq2Seq
from kinfolk.recipes.opening import find_model_folder, load, recipe_of
from kinfolk.recipes.writing import generate_batched, to_inference
from kinfolk.text import Tokenizer

BATCH_SIZE = 64  # written at a time
EXTRA_LENGTH = 50  # tokens a line may have more than its source (Vaswani et al. 2017, 6.1)
PREFIX_FILE = "prefix.txt"  # in a run that learned from pairs: what stood before every source


def load_seq2seq(
    path: Path | str, verb: str, *, device: str = "auto", precision: str = "auto"
) -> tuple[Any, Tokenizer]:
    """Open a model that reads one text and writes another, ready to."""
    model, tokenizer = load(path)
    if model.decoding != "encoder-decoder":
        others = [name for name, m in index().items() if m.architecture == "encoder-decoder"]
        raise UserError(f"{family_of(model).name} cannot {verb}: {', '.join(others)} can")
    return to_inference(model, device=device, precision=precision), tokenizer


def task_prefix(path: Path | str, prefix: str | None, usual: str | None = None) -> str:
    """Return what stands before every text: as told, as the run remembers, or as is usual."""
    if prefix is not None:
        return prefix
    folder = find_model_folder(path).resolve()
    kept, before = folder.parent.parent / PREFIX_FILE, recipe_of(folder)
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    if before is not None and isinstance(before.objective, Seq2Seq):
        return ""
    if usual is None:
        raise UserError(
            f"{path} remembers no pairs of texts that it learned from: say with --prefix what "
            "stands before every text, as in 'translate English to German: ', or '' for nothing"
        )
    return usual


def generate_lines(
    model: Any,
    tokenizer: Tokenizer,
    lines: Iterable[str],
    *,
    prefix: str = "",
    method: DecodingMethod = GREEDY,
    tokens: int | None = None,
    batch: int = BATCH_SIZE,
    watch: Callable[[int], None] = lambda lines: None,
) -> Iterator[str]:
    """Write a line about each line, in their order; an empty one stays empty.

    A line has so many tokens at most or, untold, some more than its source.
    """
    wishes = GenerationConfig() if tokens is None else GenerationConfig(max_new_tokens=tokens)

    def questions() -> Iterator[EncodedPrompt | None]:
        for line in lines:
            yield encode_prompt(model, tokenizer, prefix + line.strip()) if line.strip() else None

    def room(asked: EncodedPrompt) -> int:
        assert asked.source is not None
        return len(asked.source) + EXTRA_LENGTH if tokens is None else tokens

    found = generate_batched(
        model, tokenizer, questions(), wishes, method, batch=batch, room=room, watch=watch
    )
    return (" ".join(texts[0].text.split()) if texts else "" for texts in found)
