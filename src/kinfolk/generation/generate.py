"""Generate: token by token, as a stream of text, for many prompts, line by line, in a chat."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch

from kinfolk.errors import UserError
from kinfolk.generation.beam_search import beam_search
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.contrastive_search import contrastive_search
from kinfolk.generation.cuda_graph import can_use_graph, decode_with_graph
from kinfolk.generation.decode import (
    Decoder,
    GeneratedSequence,
    GenerationRequest,
    TokenStep,
    collect_sequences,
    steps_of,
    token_logprobs,
)
from kinfolk.generation.prompts import (
    EncodedPrompt,
    attention_scores,
    decode_after,
    encode_prompt,
    eval_mode,
    stream_decode,
    truncate_at_stops,
)
from kinfolk.generation.sampling import sample_next_ids
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.prefixes import KeyValuePrefix
from kinfolk.rng import uniforms
from kinfolk.text.tokenizer import Tokenizer

SORT_WINDOW = 16  # batches that are sorted by length together
MAX_BATCH_SCORES = 2**30  # attention scores of a layer for a batch of prompts; 4 GiB
EXTRA_LENGTH = 50  # tokens a line may have more than its source (Vaswani et al. 2017, 6.1)


@torch.inference_mode()
def generate_steps(model: LanguageModel, request: GenerationRequest) -> Iterator[list[TokenStep]]:
    """Yield the next token of every unfinished output; outputs of beam search come whole."""
    if not request.prompts:
        return
    decoder = Decoder(model, request)
    with eval_mode(model):
        if request.config.num_beams > 1:
            for index, output in enumerate(beam_search(decoder)):
                yield steps_of(index, output, request)
        elif request.config.method == "contrastive":
            yield from contrastive_search(decoder)
        else:
            yield from sample(decoder)


def generate_sequences(model: LanguageModel, request: GenerationRequest) -> list[GeneratedSequence]:
    """Return all outputs in token ids, those of the first prompt first."""
    if request.config.num_beams > 1 and request.prompts:  # steps have no scores
        with torch.inference_mode(), eval_mode(model):
            return beam_search(Decoder(model, request))
    count = len(request.prompts) * request.config.num_return_sequences
    return collect_sequences(generate_steps(model, request), count)


def sample(decoder: Decoder) -> Iterator[list[TokenStep]]:
    """Draw the next token of every row, or take the most likely one, step by step."""
    config, request = decoder.config, decoder.request
    copies, tokens = config.num_return_sequences, max(decoder.max_new_tokens)
    rows = [(prompt, copy) for prompt in range(len(request.prompts)) for copy in range(copies)]
    # The key of an output is its prompt's index and, in higher bits, the number of the copy.
    keys = [request.indices[prompt] + (copy << 32) for prompt, copy in rows]
    numbers = torch.from_numpy(uniforms(config.seed, keys, tokens)).to(decoder.device)
    for token in range(tokens):
        logits = decoder.next_logits()
        if token == 0:
            logits = decoder.repeat_rows(logits, copies)
        processed = decoder.logits_processor(logits, decoder.history)
        ids = sample_next_ids(processed, config, numbers[:, token])
        logprobs = token_logprobs(logits, ids[:, None], request.return_logprobs)[:, 0]
        decoder.append(ids)
        steps = decoder.to_steps(rows, ids.tolist(), logprobs.tolist())
        yield steps
        active = decoder.active_rows(rows, steps, token + 1)
        if not active:
            return
        if len(active) < len(rows):
            decoder.select_rows(active)
            numbers, rows = numbers[active], [rows[row] for row in active]
        if token == 0 and can_use_graph(decoder):
            yield from decode_with_graph(decoder, numbers, rows)
            return


@dataclass(frozen=True)
class GeneratedText:
    """A generated text and its tokens; the stop string it was cut at is still among the tokens."""

    text: str
    ids: list[int]
    logprobs: list[float]
    finished: bool  # not cut at the maximum number of tokens or the context
    prompt_ids: list[int]

    def tokens(self, tokenizer: Tokenizer) -> list[tuple[str, float]]:
        """Return what each token adds to the text, with its log-probability."""
        chunks: list[str] = []

        def ids() -> Iterator[int]:
            for id in self.ids:
                chunks.append("")
                yield id

        for chunk in stream_decode(tokenizer, self.prompt_ids, ids()):
            chunks[-1] += chunk
        return list(zip(chunks, self.logprobs, strict=True))


def stream_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str | EncodedPrompt,
    config: GenerationConfig = GenerationConfig(),
    *,
    index: int = 0,
    prefix: KeyValuePrefix | None = None,
) -> Iterator[str]:
    """Return one output as it is generated, chunk by chunk; a wrong prompt is refused at once.

    Random numbers depend on the index of the prompt. Every layer attends to `prefix` before it.
    """
    encoded = _encode(model, tokenizer, prompt, config) if isinstance(prompt, str) else prompt
    request = GenerationRequest.from_prompts(
        [encoded],
        config,
        tokenizer,
        prompt_indices=[index],
        prefix=prefix,
        return_logprobs=False,
    )
    steps = generate_steps(model, request)
    ids = (step.id for batch in steps for step in batch if not step.is_eos)
    return truncate_at_stops(stream_decode(tokenizer, encoded.prompt, ids), config.stop_strings)


def generate_many(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Iterable[str] | str,
    config: GenerationConfig = GenerationConfig(),
    *,
    batch_size: int = 16,
    prefix: KeyValuePrefix | None = None,
) -> Iterator[list[GeneratedText]]:
    """Yield the outputs of each prompt, in the order of the prompts.

    Prompts of similar length share a batch. That changes outputs only by rounding: random numbers
    depend on the index of the prompt. A string is one prompt. Every layer attends to `prefix`
    before each prompt.
    """

    def encoded() -> Iterator[EncodedPrompt]:
        if isinstance(prompts, str):
            yield _encode(model, tokenizer, prompts, config)
            return
        for number, prompt in enumerate(prompts, 1):
            try:
                yield _encode(model, tokenizer, prompt, config, name=f"prompt {number:,}")
            except UserError as error:
                raise UserError(f"prompt {number:,}: {error}") from error

    return generate_batches(
        model, tokenizer, encoded(), config, batch_size=batch_size, prefix=prefix
    )


def transform_lines(
    model: LanguageModel,
    tokenizer: Tokenizer,
    lines: Iterable[str],
    config: GenerationConfig = GREEDY,
    *,
    prefix: str = "",
    tags: Sequence[int] = (),
    fixed_limit: bool = False,
    batch_size: int = 64,
    on_progress: Callable[[int], None] = lambda lines: None,
) -> Iterator[str]:
    """Yield the output of an encoder-decoder for each line, in order; an empty line stays empty.

    An output has at most 50 tokens more than its source or, with `fixed_limit`, the config's
    `max_new_tokens`. `tags` are ids before every source.
    """

    def encoded() -> Iterator[EncodedPrompt | None]:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            try:
                yield (
                    encode_prompt(model, tokenizer, prefix + text, config, tags=tags)[0]
                    if text
                    else None
                )
            except UserError as error:
                raise UserError(f"line {number:,}: {error}") from error

    outputs = generate_batches(
        model,
        tokenizer,
        encoded(),
        config,
        batch_size=batch_size,
        limit=None if fixed_limit else limit_by_source,
        on_progress=on_progress,
    )
    return (" ".join(texts[0].text.split()) if texts else "" for texts in outputs)


def limit_by_source(prompt: EncodedPrompt) -> int:
    """Return the maximum number of tokens for a source: 50 more than it has."""
    return len(prompt.source or ()) + EXTRA_LENGTH


def generate_batches(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Iterable[EncodedPrompt | None],
    config: GenerationConfig,
    *,
    batch_size: int,
    limit: Callable[[EncodedPrompt], int] | None = None,
    prefix: KeyValuePrefix | None = None,
    on_progress: Callable[[int], None] = lambda prompts: None,
) -> Iterator[list[GeneratedText]]:
    """Yield the outputs of each prompt in order; prompts of similar length share a batch."""
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1 (got {batch_size})")
    waiting, before = iter(prompts), 0
    while window := list(islice(waiting, batch_size * SORT_WINDOW)):
        present = [(index, p) for index, p in enumerate(window, before) if p is not None]
        present.sort(key=lambda item: len(item[1].source or item[1].prompt))
        on_progress(len(window) - len(present))
        outputs: dict[int, list[GeneratedText]] = {}
        for pairs in _split(model, present, batch_size):
            indices, batch = zip(*pairs, strict=True)
            limits = None if limit is None else list(map(limit, batch))
            request = GenerationRequest.from_prompts(
                batch,
                config,
                tokenizer,
                prompt_indices=indices,
                max_new_tokens=limits,
                prefix=prefix,
            )
            sequences = iter(generate_sequences(model, request))
            for index, prompt in zip(indices, batch, strict=True):
                group = islice(sequences, config.num_return_sequences)
                outputs[index] = [_to_text(tokenizer, prompt, s, config) for s in group]
            on_progress(len(batch))
        yield from (outputs.get(before + offset, []) for offset in range(len(window)))
        before += len(window)


def _split(
    model: LanguageModel, prompts: Sequence[tuple[int, EncodedPrompt]], batch_size: int
) -> Iterator[Sequence[tuple[int, EncodedPrompt]]]:
    """Split prompts, the shortest first, into batches; long ones share a batch with fewer."""
    batch: list[tuple[int, EncodedPrompt]] = []
    for item in prompts:
        scores = attention_scores(model, len(item[1].source or item[1].prompt))
        if batch and (len(batch) == batch_size or (len(batch) + 1) * scores > MAX_BATCH_SCORES):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _encode(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    config: GenerationConfig,
    *,
    name: str = "the prompt",
) -> EncodedPrompt:
    """Encode a prompt and warn where its beginning is dropped."""
    encoded, dropped = encode_prompt(model, tokenizer, prompt, config)
    if dropped:
        warnings.warn(f"{name} is too long: dropped its first {dropped:,} tokens", stacklevel=3)
    return encoded


def _to_text(
    tokenizer: Tokenizer,
    prompt: EncodedPrompt,
    sequence: GeneratedSequence,
    config: GenerationConfig,
) -> GeneratedText:
    """Decode an output up to its first stop string."""
    text = decode_after(tokenizer, prompt.prompt, sequence.ids)
    text = "".join(truncate_at_stops([text], config.stop_strings))
    return GeneratedText(text, sequence.ids, sequence.logprobs, sequence.finished, prompt.prompt)


class ChatSession:
    """A conversation: the whole of it is the prompt, without its beginning when it is too long."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        config: GenerationConfig = GenerationConfig(),
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config = replace(config, truncate_left=True)
        self.context: int | None = model.config.max_length
        self.reset()

    def reset(self) -> None:
        """Clear the conversation."""
        self.transcript, self.num_turns, self.truncated = "", 0, False

    def set(self, **options: Any) -> None:
        """Change settings; a new seed starts its random numbers from the first turn."""
        self.config = replace(self.config, **options)
        if "seed" in options:
            self.num_turns = 0

    def answer(self, line: str) -> Iterator[str]:
        """Return the reply to a line, chunk by chunk; an empty line continues the last reply."""
        prompt = self.transcript + line if line else self.transcript.removesuffix("\n")
        config = self.config
        if self.context is not None:  # half of the context is for the conversation
            limit = max(1, self.context // 2)
            config = replace(config, max_new_tokens=min(config.max_new_tokens, limit))
        encoded, dropped = encode_prompt(self.model, self.tokenizer, prompt, config)
        self.truncated |= dropped > 0
        chunks = stream_text(self.model, self.tokenizer, encoded, config, index=self.num_turns)
        first = next(chunks, "")  # an error is raised here, before the transcript changes
        return self._record(prompt, chain([first], chunks))

    def _record(self, prompt: str, chunks: Iterator[str]) -> Iterator[str]:
        """Add the reply to the transcript, also where it is interrupted."""
        self.transcript = prompt
        try:
            for chunk in chunks:
                self.transcript += chunk
                yield chunk
        finally:
            self.transcript += "\n"
            self.num_turns += 1
