"""Text from saved models: one text as it is written, or those of many prompts in batches."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.generation.contrast import Contrastive
from kinfolk.generation.decoding import Method, decode, generate
from kinfolk.generation.sampling import Sampling
from kinfolk.generation.texts import Question, cut, spell, spoken
from kinfolk.generation.wishes import Wishes
from kinfolk.generation.writer import Generated
from kinfolk.nn.int8 import quantize_int8
from kinfolk.recipes.ngrams import NGram, opened
from kinfolk.recipes.opening import able
from kinfolk.recipes.pretraining import pick
from kinfolk.text import Tokenizer

BATCH = 16  # prompts written for at a time
WINDOW = 16  # batches that are put in the order of length together
PRECISIONS = ("auto", "float32", "bf16", "int8")


@dataclass(frozen=True)
class Written:
    """A text, and the tokens it was written in; the stop it was cut at is still among them."""

    text: str
    ids: list[int]
    logprobs: list[float]
    ended: bool  # by itself: not because the tokens or the context ran out
    before: list[int]  # the prompt

    def tokens(self, tokenizer: Tokenizer) -> list[tuple[str, float]]:
        """Return what each token added to the text, with its log-probability."""
        pieces: list[str] = []

        def spelled() -> Iterator[int]:
            for id in self.ids:
                pieces.append("")
                yield id

        for piece in spell(tokenizer, self.before, spelled()):
            pieces[-1] += piece
        return list(zip(pieces, self.logprobs, strict=True))


def open_writer(
    path: Path | str, *, device: str = "auto", precision: str = "auto"
) -> tuple[Any, Tokenizer]:
    """Open what can write, ready to: a model, or a corpus whose 3-grams do."""
    model, tokenizer = opened(path)
    if not isinstance(model, NGram):
        able(model, "generate")
    return ready(model, device=device, precision=precision), tokenizer


def ready(model: Any, *, device: str = "auto", precision: str = "auto") -> Any:
    """Put a model where it is to write, in the numbers it is to compute with."""
    if precision not in PRECISIONS:
        raise UserError(f"no precision {precision!r}: {did_you_mean(precision, PRECISIONS)}")
    where = pick(device)
    if isinstance(model, NGram):
        if precision not in ("auto", "float32"):
            raise UserError(f"3-grams are counted, not computed in {precision}: leave it out")
        return model
    if precision == "int8":
        if where.type != "cpu":
            raise UserError("int8 is for the CPU: use --device cpu, or bf16 on CUDA")
        return quantize_int8(model)
    half = precision == "bf16" or (precision == "auto" and where.type == "cuda")
    return model.to(where, torch.bfloat16 if half else torch.float32)


def stream(
    model: Path | str | tuple[Any, Tokenizer],
    prompt: str,
    *,
    tokens: int = 100,
    method: Method = Sampling(),
    seed: int = 0,
    stop: Sequence[str] = (),
    prefix: str = "",
    ban: Sequence[str] = (),
    allow: Sequence[str] = (),
    fewest: int = 0,
    repetition: float = 1.0,
    ngram: int | None = None,
    truncate: bool = False,
) -> Iterator[str]:
    """Return what a model writes after a prompt, piece by piece as it comes.

    The model is a folder, or what `kinfolk.load` gives. The options are those of `Wishes`.
    """
    wishes = Wishes(
        tokens=tokens,
        seed=seed,
        stop=stop,
        prefix=prefix,
        ban=ban,
        allow=allow,
        fewest=fewest,
        repetition=repetition,
        ngram=ngram,
        truncate=truncate,
    )
    network, tokenizer = open_writer(model) if isinstance(model, Path | str) else model
    asked = framed(network, tokenizer, prompt, wishes)
    return speak(network, tokenizer, asked, wishes, method)


def framed(
    model: Any, tokenizer: Tokenizer, prompt: str, wishes: Wishes, *, name: str = "the prompt"
) -> Question:
    """Frame a prompt, and say so where its beginning is cut off."""
    asked, over = wishes.frame(model, tokenizer, prompt)
    if over:
        warnings.warn(f"{name} is too long: its first {over:,} tokens are left out", stacklevel=2)
    return asked


def speak(
    model: Any,
    tokenizer: Tokenizer,
    asked: Question,
    wishes: Wishes,
    method: Method,
    *,
    number: int = 0,
) -> Iterator[str]:
    """Write one text, piece by piece; chance goes by its number."""
    check(model, wishes, method)
    request = replace(wishes.request(tokenizer, [asked], numbers=[number]), weighed=False)
    steps = decode(model, request, method)
    ids = (step.id for turn in steps for step in turn if not step.ends)
    return cut(spell(tokenizer, asked.prompt, ids), wishes.stop)


def write(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Iterable[str],
    wishes: Wishes = Wishes(),
    method: Method = Sampling(),
    *,
    batch: int = BATCH,
) -> Iterator[list[Written]]:
    """Write the texts of each prompt, in the order of the prompts.

    Those of like length are written together, which changes none: chance goes by their numbers.
    """
    check(model, wishes, method)

    def questions() -> Iterator[Question]:
        for number, prompt in enumerate(prompts, 1):
            try:
                yield framed(model, tokenizer, prompt, wishes, name=f"prompt {number:,}")
            except UserError as error:
                raise UserError(f"prompt {number:,}: {error}") from error

    return answers(model, tokenizer, questions(), wishes, method, batch=batch)


def answers(
    model: Any,
    tokenizer: Tokenizer,
    questions: Iterable[Question | None],
    wishes: Wishes,
    method: Method,
    *,
    batch: int,
    room: Callable[[Question], int] | None = None,
    watch: Callable[[int], None] = lambda questions: None,
) -> Iterator[list[Written]]:
    """Answer questions in their order, those of like length together; none has no answer."""
    if batch < 1:
        raise UserError(f"--batch {batch} is nothing to write at a time: use 1 or more")
    waiting, before = iter(questions), 0
    while window := list(islice(waiting, batch * WINDOW)):
        asked = [(number, q) for number, q in enumerate(window, before) if q is not None]
        asked.sort(key=lambda one: len(one[1].prompt if one[1].source is None else one[1].source))
        watch(len(window) - len(asked))
        found: dict[int, list[Written]] = {}
        for start in range(0, len(asked), batch):
            numbers, chosen = zip(*asked[start : start + batch], strict=True)
            tokens = None if room is None else list(map(room, chosen))
            request = wishes.request(tokenizer, chosen, tokens=tokens, numbers=numbers)
            texts = iter(generate(model, request, method))
            for number, one in zip(numbers, chosen, strict=True):
                own = islice(texts, wishes.num)
                found[number] = [written(tokenizer, one, text, wishes) for text in own]
            watch(len(chosen))
        yield from (found.get(before + place, []) for place in range(len(window)))
        before += len(window)


def written(tokenizer: Tokenizer, asked: Question, text: Generated, wishes: Wishes) -> Written:
    """Turn what was written into text, up to where it stops."""
    said = "".join(cut([spoken(tokenizer, asked.prompt, text.ids)], wishes.stop))
    return Written(said, text.ids, text.logprobs, text.ended, asked.prompt)


def check(model: Any, wishes: Wishes, method: Method) -> None:
    """Complain about what a method cannot do."""
    wishes.check(method)
    if isinstance(model, NGram) and isinstance(method, Contrastive):
        raise UserError("3-grams have no states that contrastive search could compare: sample")
