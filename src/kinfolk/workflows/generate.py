"""Open a model for generation; stream texts, generate many, rewrite a file line by line."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.families import family_of, index
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.contrastive_search import ContrastiveSearch
from kinfolk.generation.decode import GeneratedSequence
from kinfolk.generation.methods import DecodingMethod, generate, generate_steps
from kinfolk.generation.prompts import (
    EncodedPrompt,
    decode_after,
    encode_prompt,
    stream_decode,
    truncate_at_stops,
)
from kinfolk.generation.sampling import GREEDY, Sampling
from kinfolk.nn.int8 import quantize_int8
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.text import Tokenizer
from kinfolk.workflows.baselines import NGram, opened
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load, recipe_of, require_ability
from kinfolk.workflows.pretrain import select_device

BATCH = 16  # prompts written for at a time
SORT_WINDOW = 16  # batches that are put in the order of length together
PRECISIONS = ("auto", "float32", "bf16", "int8")


@dataclass(frozen=True)
class GeneratedText:
    """A text, and the tokens it was written in; the stop it was cut at is still among them."""

    text: str
    ids: list[int]
    logprobs: list[float]
    ended: bool  # by itself: not because the tokens or the context ran out
    prompt_ids: list[int]  # the prompt

    def tokens(self, tokenizer: Tokenizer) -> list[tuple[str, float]]:
        """Return what each token added to the text, with its log-probability."""
        chunks: list[str] = []

        def spelled() -> Iterator[int]:
            for id in self.ids:
                chunks.append("")
                yield id

        for chunk in stream_decode(tokenizer, self.prompt_ids, spelled()):
            chunks[-1] += chunk
        return list(zip(chunks, self.logprobs, strict=True))


def load_generator(
    path: Path | str, *, device: str = "auto", precision: str = "auto"
) -> tuple[Any, Tokenizer]:
    """Open what can write, ready to: a model, or a corpus whose 3-grams do."""
    model, tokenizer = opened(path)
    if not isinstance(model, NGram):
        require_ability(model, "generate")
    return to_inference(model, device=device, precision=precision), tokenizer


def to_inference(model: Any, *, device: str = "auto", precision: str = "auto") -> Any:
    """Put a model where it is to write, in the numbers it is to compute with."""
    if precision not in PRECISIONS:
        raise UserError(f"no precision {precision!r}: {did_you_mean(precision, PRECISIONS)}")
    where = select_device(device)
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
    method: DecodingMethod = Sampling(),
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

    The model is a folder, or what `kinfolk.load` gives. The options are those of
    `GenerationConfig`.
    """
    wishes = GenerationConfig(
        max_new_tokens=tokens,
        seed=seed,
        stop_strings=stop,
        forced_prefix=prefix,
        bad_words=ban,
        allowed_texts=allow,
        min_new_tokens=fewest,
        repetition_penalty=repetition,
        no_repeat_ngram_size=ngram,
        truncate_left=truncate,
    )
    network, tokenizer = load_generator(model) if isinstance(model, Path | str) else model
    asked = build_prompt(network, tokenizer, prompt, wishes)
    return stream_text(network, tokenizer, asked, wishes, method)


def build_prompt(
    model: Any,
    tokenizer: Tokenizer,
    prompt: str,
    config: GenerationConfig,
    *,
    name: str = "the prompt",
) -> EncodedPrompt:
    """Frame a prompt, and say so where its beginning is cut off."""
    asked, over = config.encode(model, tokenizer, prompt)
    if over:
        warnings.warn(f"{name} is too long: its first {over:,} tokens are left out", stacklevel=2)
    return asked


def stream_text(
    model: Any,
    tokenizer: Tokenizer,
    asked: EncodedPrompt,
    config: GenerationConfig,
    method: DecodingMethod,
    *,
    number: int = 0,
) -> Iterator[str]:
    """Write one text, piece by piece; chance goes by its number."""
    check(model, config, method)
    request = replace(config.request(tokenizer, [asked], numbers=[number]), return_logprobs=False)
    steps = generate_steps(model, request, method)
    ids = (step.id for turn in steps for step in turn if not step.is_eos)
    return truncate_at_stops(stream_decode(tokenizer, asked.prompt, ids), config.stop_strings)


def generate_many(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Iterable[str],
    config: GenerationConfig = GenerationConfig(),
    method: DecodingMethod = Sampling(),
    *,
    batch: int = BATCH,
) -> Iterator[list[GeneratedText]]:
    """Write the texts of each prompt, in the order of the prompts.

    Those of like length are written together, which changes none: chance goes by their numbers.
    """
    check(model, config, method)

    def questions() -> Iterator[EncodedPrompt]:
        for number, prompt in enumerate(prompts, 1):
            try:
                yield build_prompt(model, tokenizer, prompt, config, name=f"prompt {number:,}")
            except UserError as error:
                raise UserError(f"prompt {number:,}: {error}") from error

    return generate_batched(model, tokenizer, questions(), config, method, batch=batch)


def generate_batched(
    model: Any,
    tokenizer: Tokenizer,
    questions: Iterable[EncodedPrompt | None],
    config: GenerationConfig,
    method: DecodingMethod,
    *,
    batch: int,
    room: Callable[[EncodedPrompt], int] | None = None,
    watch: Callable[[int], None] = lambda questions: None,
) -> Iterator[list[GeneratedText]]:
    """Answer questions in their order, those of like length together; none has no answer."""
    if batch < 1:
        raise UserError(f"--batch {batch} is nothing to write at a time: use 1 or more")
    waiting, before = iter(questions), 0
    while window := list(islice(waiting, batch * SORT_WINDOW)):
        asked = [(number, q) for number, q in enumerate(window, before) if q is not None]
        asked.sort(key=lambda one: len(one[1].prompt if one[1].source is None else one[1].source))
        watch(len(window) - len(asked))
        found: dict[int, list[GeneratedText]] = {}
        for start in range(0, len(asked), batch):
            numbers, chosen = zip(*asked[start : start + batch], strict=True)
            tokens = None if room is None else list(map(room, chosen))
            request = config.request(tokenizer, chosen, tokens=tokens, numbers=numbers)
            texts = iter(generate(model, request, method))
            for number, one in zip(numbers, chosen, strict=True):
                own = islice(texts, config.num_return_sequences)
                found[number] = [generate_one(tokenizer, one, text, config) for text in own]
            watch(len(chosen))
        yield from (found.get(before + place, []) for place in range(len(window)))
        before += len(window)


def generate_one(
    tokenizer: Tokenizer, asked: EncodedPrompt, text: GeneratedSequence, config: GenerationConfig
) -> GeneratedText:
    """Turn what was written into text, up to where it stops."""
    said = "".join(
        truncate_at_stops([decode_after(tokenizer, asked.prompt, text.ids)], config.stop_strings)
    )
    return GeneratedText(said, text.ids, text.logprobs, text.finished, asked.prompt)


def check(model: Any, config: GenerationConfig, method: DecodingMethod) -> None:
    """Complain about what a method cannot do."""
    config.check(method)
    if isinstance(model, NGram) and isinstance(method, ContrastiveSearch):
        raise UserError("3-grams have no states that contrastive search could compare: sample")


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
