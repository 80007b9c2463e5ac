"""A whole turn of the decoder as one captured graph: read, choose and write, without the host.

On an accelerator a small model spends its time being told what to do. A graph is told once and
replayed, over a state whose slots are all handed out and a row of counters that it moves by itself.
What it wrote is fetched every few tokens, when the next few are already on their way. A CPU has no
graphs; there a turn is worth its trouble where it is compiled.
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
from kinfolk.generation.decode import Decoder, GenerationRequest, TokenStep, token_logprobs
from kinfolk.generation.logits_process import suppress
from kinfolk.generation.sampling import Sampling, sample_ids

MIN_NEW_TOKENS = 16  # tokens for which capturing would not pay
TOKENS_IN_FLIGHT = 16  # tokens written between two looks at what was written


def can_use_graph(writer: Decoder, request: GenerationRequest) -> bool:
    """Say whether a turn can be captured, and is worth it."""
    model, rules = writer.model, request.constraints
    free = not (rules.needs_history or rules.min_new_tokens or request.should_stop is not None)
    caches = writer.inputs.cache is not None and bool(writer.inputs.cache.layers)
    quick = writer.device.type == "cuda" or request.compile
    return (
        quick
        and free
        and model.static_cache
        and caches
        and max(writer.max_new_tokens) > MIN_NEW_TOKENS
    )


class GraphedDecodeStep:
    """One turn over buffers that stay where they are, and its graph."""

    def __init__(
        self, writer: Decoder, sampling: Sampling, *, compiled: bool, weighed: bool = True
    ) -> None:
        inputs, state = writer.inputs, writer.inputs.cache
        assert state is not None
        state.make_static()
        self.model, self.banned, self.sampling = (
            writer.model,
            writer.logits_processor.banned,
            sampling,
        )
        self.state, self.source, self.weighed = state, inputs.encoder_inputs, weighed
        context = writer.model.config.max_length
        self.last_position = (state.max_length if context is None else context) - 1
        # What moves with every token, and is written in place.
        self.token_index = torch.ones(1, dtype=torch.long, device=writer.device)
        self.newest = torch.zeros_like(inputs.input_ids)
        self.time = torch.zeros_like(inputs.input_ids)
        self.position_ids = torch.zeros_like(inputs.input_ids)
        self.within = (
            None if inputs.block_position_ids is None else torch.zeros_like(inputs.input_ids)
        )
        self.document = torch.zeros_like(inputs.input_ids)
        # What comes in and what goes out, a column a token.
        size = len(inputs.input_ids), state.max_length
        self.chances = torch.zeros(size, dtype=torch.float64, device=writer.device)
        self.ids = torch.zeros(size, dtype=torch.long, device=writer.device)
        self.logprobs = torch.zeros(size, device=writer.device)
        self.run = torch.compile(self.step, dynamic=False) if compiled else self.step
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, writer: Decoder, chances: Tensor) -> None:
        """Stand where a writer stands that has written its first token."""
        inputs, state = writer.inputs, writer.inputs.cache
        assert state is not None
        if state is self.state:
            state.reset()
        else:
            self.state.copy_from(state)
        if self.source is not None and inputs.encoder_inputs is not None:
            self.source.attention_mask.document_ids.copy_(
                inputs.encoder_inputs.attention_mask.document_ids
            )
        self.token_index.fill_(1)
        self.newest.copy_(inputs.input_ids)
        self.time.copy_(inputs.attention_mask.key_order)
        self.position_ids.copy_(inputs.position_ids)
        if self.within is not None and inputs.block_position_ids is not None:
            self.within.copy_(inputs.block_position_ids)
        self.chances[:, : chances.shape[1]] = chances

    def step(self) -> None:
        """Read, choose and write, for every row."""
        attention_mask = AttentionMask(self.document, self.time, self.time)
        inputs = Inputs(
            input_ids=self.newest,
            attention_mask=attention_mask,
            position_ids=self.position_ids,
            block_position_ids=self.within,
            encoder_inputs=self.source,
            cache=self.state,
            key_mask=self.state.append_mask(attention_mask),
        )
        logits = self.model.lm_logits(self.model(inputs).hidden[:, -1]).logits().float()
        chance = self.chances.index_select(1, self.token_index)[:, 0]
        left = suppress(logits, self.banned) if len(self.banned) else logits
        ids = sample_ids(left, self.sampling, chance)[:, None]
        logprobs = token_logprobs(logits, ids, self.weighed)
        self.ids.index_copy_(1, self.token_index, ids)
        self.logprobs.index_copy_(1, self.token_index, logprobs)
        self.newest.copy_(ids)
        assert self.state.write_index is not None
        for counter in (self.state.write_index, self.token_index, self.time):
            counter.add_(1)
        # A text without room stays at the last place there is, and is not looked at any more.
        (self.position_ids if self.within is None else self.within).add_(1).clamp_(
            max=self.last_position
        )

    def capture(self) -> None:
        """Record a turn, after it was tried out; `load` undoes what it did."""
        if self.newest.device.type != "cuda":
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.run()

    def __call__(self) -> None:
        """Take a turn: by the graph, where there is one."""
        if self.graph is None:
            self.run()
        else:
            self.graph.replay()


# The newest turn of each model: batches of one shape are written by one graph.
_GRAPHS: "WeakKeyDictionary[Any, tuple[Hashable, GraphedDecodeStep]]" = WeakKeyDictionary()


def get_graph(
    writer: Decoder, sampling: Sampling, *, compiled: bool, weighed: bool = True
) -> GraphedDecodeStep:
    """Return a captured turn for a writer, which may have served another."""
    inputs, state = writer.inputs, writer.inputs.cache
    assert state is not None
    source = None if inputs.encoder_inputs is None else inputs.encoder_inputs.input_ids.shape
    weights = tuple(weight.data_ptr() for weight in writer.model.parameters())
    banned = tuple(writer.logits_processor.banned.tolist())
    finetune_config = (sampling, banned, compiled, weighed)
    key = (inputs.input_ids.shape, state.max_length, source, finetune_config, weights)
    known = _GRAPHS.get(writer.model)
    if known is not None and known[0] == key:
        return known[1]
    _GRAPHS.pop(writer.model, None)
    turn = GraphedDecodeStep(writer, sampling, compiled=compiled, weighed=weighed)
    turn.capture()
    _GRAPHS[writer.model] = (key, turn)
    return turn


def decode_with_graph(
    writer: Decoder,
    request: GenerationRequest,
    sampling: Sampling,
    chances: Tensor,
    live: Sequence[tuple[int, int]],
) -> Iterator[list[TokenStep]]:
    """Go on from the first token of every text, by replaying one captured turn."""
    tokens = max(writer.max_new_tokens[prompt] for prompt, _ in live)
    turn = get_graph(writer, sampling, compiled=request.compile, weighed=request.return_logprobs)
    turn.load(writer, chances)
    rows = list(range(len(live)))
    sent: deque[TokenChunk] = deque()
    ahead, waiting = (TOKENS_IN_FLIGHT, 1) if writer.device.type == "cuda" else (1, 0)
    for start in range(1, tokens, ahead):
        stop = min(start + ahead, tokens)
        for _ in range(start, stop):
            turn()
        sent.append(TokenChunk.of(turn, start, stop))
        if len(sent) <= waiting:
            continue
        rows = yield from _yield_chunk(sent.popleft(), writer, request, live, rows)
        if not rows:
            return
    while sent and rows:
        rows = yield from _yield_chunk(sent.popleft(), writer, request, live, rows)


def _yield_chunk(
    sent: "TokenChunk",
    writer: Decoder,
    request: GenerationRequest,
    live: Sequence[tuple[int, int]],
    rows: list[int],
) -> Generator[list[TokenStep], None, list[int]]:
    """Hand on what was written, token by token, and return the rows that go on."""
    for token, (ids, logprobs) in enumerate(sent.columns(), start=sent.start):
        if not rows:
            return []
        picked = [live[row] for row in rows]
        steps = writer.spelled(
            picked, [ids[row] for row in rows], [logprobs[row] for row in rows], request
        )
        yield steps
        rows = [rows[i] for i in writer.active_rows(picked, steps, token + 1)]
    return rows


@dataclass(frozen=True)
class TokenChunk:
    """Some tokens on their way to the host."""

    start: int
    ids: Tensor  # (rows, tokens)
    logprobs: Tensor
    event: torch.cuda.Event | None

    @classmethod
    def of(cls, turn: GraphedDecodeStep, start: int, stop: int) -> "TokenChunk":
        """Send what was written on its way, without waiting for it."""
        ids, logprobs = (x[:, start:stop] for x in (turn.ids, turn.logprobs))
        if ids.device.type != "cuda":
            return cls(start, ids, logprobs, None)
        ids, logprobs = _copy_to_host(ids), _copy_to_host(logprobs)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return cls(start, ids, logprobs, ready)

    def columns(self) -> Iterator[tuple[list[int], list[float]]]:
        """Wait for the tokens, and return those of all rows, one after the other."""
        if self.event is not None:
            self.event.synchronize()
        return zip(self.ids.T.tolist(), self.logprobs.T.tolist(), strict=True)


def _copy_to_host(x: Tensor) -> Tensor:
    """Copy to the host without waiting; what is there before an event says so is not to be read."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
