"""A whole decoding step as one captured CUDA graph: model, choice and append without the host.

On a GPU a small model is limited by kernel launches. A graph launches them at once, over a static
KV cache and counters that it advances itself. Tokens are copied to the host every few steps, while
the next ones are computed. On a CPU the step is compiled instead.
"""

from collections import deque
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.generation.decode import Decoder, PromptOutput, TokenStep, token_logprobs
from kinfolk.generation.logits_process import suppress
from kinfolk.generation.sampling import sample_next_ids

MIN_NEW_TOKENS = 16  # fewer tokens are faster without a graph
TOKENS_IN_FLIGHT = 16  # tokens generated between two copies to the host


def can_use_graph(decoder: Decoder) -> bool:
    """Return whether a decoding step can be captured, and whether that pays."""
    config, cache = decoder.config, decoder.inputs.cache
    return (
        (decoder.device.type == "cuda" or config.compile)
        and not (decoder.logits_processor.needs_history or config.min_new_tokens)
        and decoder.request.should_stop is None
        and decoder.model.static_cache
        and cache is not None
        and bool(cache.layers)
        and max(decoder.max_new_tokens) > MIN_NEW_TOKENS
    )


class GraphedDecodeStep:
    """One decoding step over static buffers, and its graph."""

    def __init__(self, decoder: Decoder) -> None:
        inputs, cache = decoder.inputs, decoder.inputs.cache
        assert cache is not None
        cache.make_static()
        self.model, self.config, self.cache = decoder.model, decoder.config, cache
        self.suppressed = decoder.logits_processor.suppressed
        self.normalize = decoder.request.return_logprobs
        self.source = inputs.encoder_inputs
        context = decoder.model.config.max_length
        self.last_position = (cache.max_length if context is None else context) - 1
        # Advanced in place with every token.
        self.token_index = torch.ones(1, dtype=torch.long, device=decoder.device)
        self.input_ids = torch.zeros_like(inputs.input_ids)
        self.order = torch.zeros_like(inputs.input_ids)
        self.position_ids = torch.zeros_like(inputs.input_ids)
        self.block_position_ids = (
            None if inputs.block_position_ids is None else torch.zeros_like(inputs.input_ids)
        )
        self.document_ids = torch.zeros_like(inputs.input_ids)
        # Random numbers, and the chosen tokens: one column per token.
        size = len(inputs.input_ids), cache.max_length
        self.uniforms = torch.zeros(size, dtype=torch.float64, device=decoder.device)
        self.ids = torch.zeros(size, dtype=torch.long, device=decoder.device)
        self.logprobs = torch.zeros(size, device=decoder.device)
        compiled = decoder.config.compile
        self.run = torch.compile(self.step, dynamic=False) if compiled else self.step
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, decoder: Decoder, uniforms: Tensor) -> None:
        """Copy the state of a decoder that has generated its first token."""
        inputs, cache = decoder.inputs, decoder.inputs.cache
        assert cache is not None
        if cache is self.cache:
            cache.reset()
        else:
            self.cache.copy_from(cache)
        if self.source is not None and inputs.encoder_inputs is not None:
            self.source.attention_mask.document_ids.copy_(
                inputs.encoder_inputs.attention_mask.document_ids
            )
        self.token_index.fill_(1)
        self.input_ids.copy_(inputs.input_ids)
        self.order.copy_(inputs.attention_mask.key_order)
        self.position_ids.copy_(inputs.position_ids)
        if self.block_position_ids is not None and inputs.block_position_ids is not None:
            self.block_position_ids.copy_(inputs.block_position_ids)
        self.uniforms[:, : uniforms.shape[1]] = uniforms

    def step(self) -> None:
        """Run the model, choose a token and append it, in every row."""
        attention_mask = AttentionMask(self.document_ids, self.order, self.order)
        inputs = Inputs(
            input_ids=self.input_ids,
            attention_mask=attention_mask,
            position_ids=self.position_ids,
            block_position_ids=self.block_position_ids,
            encoder_inputs=self.source,
            cache=self.cache,
            key_mask=self.cache.append_mask(attention_mask),
        )
        logits = self.model.lm_logits(self.model(inputs).hidden[:, -1]).logits().float()
        uniform = self.uniforms.index_select(1, self.token_index)[:, 0]
        processed = suppress(logits, self.suppressed) if len(self.suppressed) else logits
        ids = sample_next_ids(processed, self.config, uniform)[:, None]
        logprobs = token_logprobs(logits, ids, self.normalize)
        self.ids.index_copy_(1, self.token_index, ids)
        self.logprobs.index_copy_(1, self.token_index, logprobs)
        self.input_ids.copy_(ids)
        assert self.cache.write_index is not None
        for counter in (self.cache.write_index, self.token_index, self.order):
            counter.add_(1)
        # A row beyond its limit stays at the last position; its tokens are not read any more.
        positions = (
            self.position_ids if self.block_position_ids is None else self.block_position_ids
        )
        positions.add_(1).clamp_(max=self.last_position)

    def capture(self) -> None:
        """Capture a step, after two runs that `load` undoes."""
        if self.input_ids.device.type != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        # Only the calls of this thread are checked: another one may pin memory meanwhile.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.run()

    def __call__(self) -> None:
        """Run a step, by the graph where there is one."""
        if self.graph is None:
            self.run()
        else:
            self.graph.replay()


# The newest graph of each model: batches of one shape share it.
_GRAPHS: "WeakKeyDictionary[Any, tuple[Hashable, GraphedDecodeStep]]" = WeakKeyDictionary()


def get_graph(decoder: Decoder) -> GraphedDecodeStep:
    """Return a captured step for a decoder; it may have been captured for another."""
    inputs, cache, config = decoder.inputs, decoder.inputs.cache, decoder.config
    assert cache is not None
    source = None if inputs.encoder_inputs is None else inputs.encoder_inputs.input_ids.shape
    key = (
        (inputs.input_ids.shape, cache.max_length, source),
        (config.sampling, config.compile, decoder.request.return_logprobs),
        tuple(decoder.logits_processor.suppressed.tolist()),
        tuple(weight.data_ptr() for weight in decoder.model.parameters()),
    )
    known = _GRAPHS.get(decoder.model)
    if known is not None and known[0] == key:
        return known[1]
    _GRAPHS.pop(decoder.model, None)
    step = GraphedDecodeStep(decoder)
    step.capture()
    _GRAPHS[decoder.model] = (key, step)
    return step


def decode_with_graph(
    decoder: Decoder, uniforms: Tensor, rows: Sequence[PromptOutput]
) -> Iterator[list[TokenStep]]:
    """Continue after the first token of every output by one captured step."""
    tokens = max(decoder.max_new_tokens[prompt] for prompt, _ in rows)
    step = get_graph(decoder)
    step.load(decoder, uniforms)
    active = list(range(len(rows)))
    chunks: deque[TokenChunk] = deque()
    ahead, waiting = (TOKENS_IN_FLIGHT, 1) if decoder.device.type == "cuda" else (1, 0)
    for start in range(1, tokens, ahead):
        stop = min(start + ahead, tokens)
        for _ in range(start, stop):
            step()
        chunks.append(TokenChunk.copy_from(step, start, stop))
        if len(chunks) <= waiting:
            continue
        active = yield from _yield_chunk(chunks.popleft(), decoder, rows, active)
        if not active:
            return
    while chunks and active:
        active = yield from _yield_chunk(chunks.popleft(), decoder, rows, active)


def _yield_chunk(
    chunk: "TokenChunk", decoder: Decoder, rows: Sequence[PromptOutput], active: list[int]
) -> Generator[list[TokenStep], None, list[int]]:
    """Yield the steps of a chunk and return the rows that continue."""
    for token, (ids, logprobs) in enumerate(chunk.columns(), start=chunk.start):
        if not active:
            return []
        own = [rows[row] for row in active]
        steps = decoder.to_steps(
            own, [ids[row] for row in active], [logprobs[row] for row in active]
        )
        yield steps
        active = [active[i] for i in decoder.active_rows(own, steps, token + 1)]
    return active


@dataclass(frozen=True)
class TokenChunk:
    """Tokens that are being copied to the host."""

    start: int
    ids: Tensor  # (rows, tokens)
    logprobs: Tensor
    event: torch.cuda.Event | None

    @classmethod
    def copy_from(cls, step: GraphedDecodeStep, start: int, stop: int) -> "TokenChunk":
        """Start copying tokens to the host, without waiting for them."""
        ids, logprobs = (x[:, start:stop] for x in (step.ids, step.logprobs))
        if ids.device.type != "cuda":
            return cls(start, ids, logprobs, None)
        ids, logprobs = _copy_to_host(ids), _copy_to_host(logprobs)
        event = torch.cuda.Event()
        event.record()
        return cls(start, ids, logprobs, event)

    def columns(self) -> Iterator[tuple[list[int], list[float]]]:
        """Wait for the tokens and return those of all rows, one column after the other."""
        if self.event is not None:
            self.event.synchronize()
        return zip(self.ids.T.tolist(), self.logprobs.T.tolist(), strict=True)


def _copy_to_host(x: Tensor) -> Tensor:
    """Copy to the host without waiting; the copy may be read after an event recorded behind it."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
