"""The decoder: a model, its KV cache and the state of every sequence in a batch.

Every method repeats the same step: logits of the next token, a choice, append. Between steps rows
are dropped, repeated or reordered.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kinfolk.batch import KVCache
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.logits_process import (
    Constraints,
    LogitsProcessor,
    TokenHistory,
    TokenLists,
)
from kinfolk.generation.prompts import (
    Blanks,
    EncodedPrompt,
    check_ids,
    check_prompts,
    device_of,
    next_inputs,
    prefill_inputs,
    select_rows,
    source_inputs,
    stop_on_strings,
    tokens_left,
)
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.prefixes import KeyValuePrefix
from kinfolk.text.tokenizer import Tokenizer

# The prompt that a row of the batch continues, and which of its outputs.
PromptOutput = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A batch of prompts in token ids, and the config of their outputs."""

    prompts: TokenLists
    config: GenerationConfig = field(default_factory=GenerationConfig)
    eos_ids: Collection[int] = ()
    constraints: Constraints = field(default_factory=Constraints)
    encoder_ids: TokenLists | None = None  # what an encoder reads, for each prompt
    blanks: Sequence[Blanks] | None = None  # the blanks at the end of each prompt (GLM)
    # The index of each prompt, on which its random numbers depend; else its index in the batch.
    prompt_indices: Sequence[int] | None = None
    max_new_tokens: Sequence[int] | None = None  # for each prompt, instead of the config's
    prefix: KeyValuePrefix | None = None  # that every layer attends to before each prompt
    should_stop: Callable[[Sequence[int]], bool] | None = None  # called with the generated ids
    return_logprobs: bool = True  # log-probabilities; else logits, which are faster

    @classmethod
    def from_prompts(
        cls,
        prompts: Sequence[EncodedPrompt],
        config: GenerationConfig,
        tokenizer: Tokenizer,
        *,
        prompt_indices: Sequence[int] | None = None,
        max_new_tokens: Sequence[int] | None = None,
        prefix: KeyValuePrefix | None = None,
        return_logprobs: bool = True,
    ) -> "GenerationRequest":
        """Put encoded prompts to one model together, with the constraints of a config."""
        first = prompts[0]
        return cls(
            prompts=[p.prompt for p in prompts],
            config=config,
            eos_ids=first.eos_ids,
            constraints=Constraints.from_config(config, tokenizer, first.suppress_ids),
            encoder_ids=None if first.source is None else [p.source or [] for p in prompts],
            blanks=None if first.blanks is None else [p.blanks or [] for p in prompts],
            should_stop=stop_on_strings(tokenizer, config.stop_strings),
            prompt_indices=prompt_indices,
            max_new_tokens=max_new_tokens,
            prefix=prefix,
            return_logprobs=return_logprobs,
        )

    def check(self, model: LanguageModel) -> None:
        """Refuse prompts, blanks and constraints that the model does not support."""
        check_prompts(model, self.prompts, "prompt")
        check_sources(model, self.prompts, self.encoder_ids)
        check_blanks(model, self.prompts, self.blanks)
        for text in (self.constraints.forced_prefix, *(self.constraints.allowed_ids or ())):
            check_ids(model, text, "prefix or allowed text")
        check_ids(model, sorted(self.eos_ids), "list of end-of-text tokens")
        check_prefix(model, self.prefix)

    @property
    def indices(self) -> Sequence[int]:
        """The index of each prompt."""
        return range(len(self.prompts)) if self.prompt_indices is None else self.prompt_indices

    @property
    def limits(self) -> Sequence[int]:
        """The maximum number of tokens after each prompt."""
        if self.max_new_tokens is None:
            return [self.config.max_new_tokens] * len(self.prompts)
        if len(self.max_new_tokens) != len(self.prompts):
            raise UserError(
                f"got {len(self.prompts)} prompts and {len(self.max_new_tokens)} values of "
                "max_new_tokens: pass one for each, or one for all"
            )
        return self.max_new_tokens

    @property
    def has_stop_rule(self) -> bool:
        """Whether an output may be complete without an end-of-text token."""
        return self.should_stop is not None or (
            self.constraints.trie is not None and not self.eos_ids
        )

    def is_stopped(self, generated: Sequence[int]) -> bool:
        """Return whether an output is complete."""
        complete = not self.eos_ids and self.constraints.is_complete(generated)
        return complete or (self.should_stop is not None and self.should_stop(generated))


@dataclass(frozen=True)
class TokenStep:
    """One token of one output."""

    sequence: int  # index of the output: those of the first prompt come first
    id: int
    logprob: float  # of the model, before constraints, temperature and filters
    is_eos: bool  # the id ends the output and is not part of it
    stopped: bool = False  # the output is complete with this token


@dataclass(frozen=True)
class GeneratedSequence:
    """The output for a prompt, without the end-of-text token."""

    ids: list[int]
    logprobs: list[float]
    finished: bool  # complete, not cut at the maximum number of tokens or the context
    score: float = 0.0  # of beam search


class Decoder:
    """A model in the middle of a request: inputs, cache and history of every row."""

    def __init__(self, model: LanguageModel, request: GenerationRequest) -> None:
        if model.decoding is None:
            raise UserError("encoder models cannot generate text: use fill with [MASK]")
        self.model, self.request, self.config = model, request, request.config
        lengths = list(map(len, request.prompts))
        self.max_new_tokens = [
            tokens_left(model, length, limit)
            for length, limit in zip(lengths, request.limits, strict=True)
        ]
        request.check(model)
        request.constraints.check(request.eos_ids, min(self.max_new_tokens))
        self.device = device_of(model)
        source = None if request.encoder_ids is None else source_inputs(request.encoder_ids)
        two_stream = model.decoding == "two-stream"
        slots = max(lengths) + max(self.max_new_tokens) + two_stream
        slots += 0 if request.prefix is None else request.prefix.length
        if self.device.type == "cuda":  # few sizes, so that captured graphs can be used again
            slots = -(-slots // 64) * 64
        inputs = prefill_inputs(
            request.prompts, source, KVCache(slots), request.blanks, two_stream=two_stream
        )
        self.inputs = inputs.to(self.device)
        if request.prefix is not None and self.inputs.cache is not None:
            request.prefix.fill(self.inputs.cache, self.inputs.attention_mask, cache_dtype(model))
        self.history = TokenHistory(request.prompts, max(self.max_new_tokens), self.device)
        self.hidden: Tensor | None = None  # (rows, tokens just read, hidden size)
        self.logits_processor = LogitsProcessor(
            request.config,
            request.constraints,
            request.eos_ids,
            model.config.vocab_size,
            self.device,
        )

    def next_logits(self) -> Tensor:
        """Run the model on the newest tokens and return the logits of the next: (rows, vocab)."""
        output = self.model(self.inputs.append_to_cache())
        self.hidden = output.hidden
        return self.model.lm_logits(output.hidden[:, -1]).logits().float()

    def append(self, ids: Tensor) -> None:
        """Append a token to every row."""
        self.history.append(ids)
        self.inputs = next_inputs(self.inputs, ids)

    def repeat_rows(self, logits: Tensor, copies: int) -> Tensor:
        """Repeat every row, copies side by side; return the logits repeated likewise."""
        if copies == 1:
            return logits
        self.select_rows([row for row in range(len(logits)) for _ in range(copies)])
        return logits.repeat_interleave(copies, dim=0)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may occur more than once."""
        if list(rows) == list(range(len(self.inputs.input_ids))):
            return
        index = torch.tensor(rows, device=self.device)
        self.inputs = select_rows(self.inputs, index)
        self.history.select_rows(index)

    def to_steps(
        self, rows: Sequence[PromptOutput], ids: Sequence[int], logprobs: Sequence[float]
    ) -> list[TokenStep]:
        """Return the newest token of each row as a step."""
        check_finite(logprobs)
        request = self.request
        stops = request.has_stop_rule
        generated = self.history.generated.tolist() if stops else [()] * len(rows)
        return [
            TokenStep(
                prompt * self.config.num_return_sequences + copy,
                id,
                logprob,
                id in request.eos_ids,
                stops and request.is_stopped(own),
            )
            for (prompt, copy), id, logprob, own in zip(rows, ids, logprobs, generated, strict=True)
        ]

    def active_rows(
        self, rows: Sequence[PromptOutput], steps: Sequence[TokenStep], tokens: int
    ) -> list[int]:
        """Return the indices of the rows that continue after this many tokens."""
        return [
            index
            for index, ((prompt, _), step) in enumerate(zip(rows, steps, strict=True))
            if not (step.is_eos or step.stopped) and tokens < self.max_new_tokens[prompt]
        ]


def token_logprobs(logits: Tensor, ids: Tensor, normalize: bool) -> Tensor:
    """Return the log-probabilities of ids, or their logits where those are enough: (rows, 1)."""
    chosen = logits.gather(1, ids)
    return chosen - logits.logsumexp(-1, keepdim=True) if normalize else chosen


def collect_sequences(steps: Iterable[list[TokenStep]], count: int) -> list[GeneratedSequence]:
    """Put the steps of each output together."""
    sequences: list[list[TokenStep]] = [[] for _ in range(count)]
    for batch in steps:
        for step in batch:
            sequences[step.sequence].append(step)
    return [
        GeneratedSequence(
            [step.id for step in own if not step.is_eos],
            [step.logprob for step in own if not step.is_eos],
            bool(own) and (own[-1].is_eos or own[-1].stopped),
        )
        for own in sequences
    ]


def steps_of(index: int, output: GeneratedSequence, request: GenerationRequest) -> list[TokenStep]:
    """Return a complete output (of beam search) as the steps that generate it."""
    steps = [
        TokenStep(index, id, logprob, is_eos=False)
        for id, logprob in zip(output.ids, output.logprobs, strict=True)
    ]
    if steps and request.has_stop_rule and request.is_stopped(output.ids):
        steps[-1] = replace(steps[-1], stopped=True)
    elif output.finished:
        steps.append(TokenStep(index, next(iter(request.eos_ids)), 0.0, is_eos=True))
    return steps


def check_finite(values: Sequence[float]) -> None:
    """Refuse scores that are NaN."""
    if any(value != value for value in values):
        raise UserError(
            "the logits are NaN: the weights contain NaN or infinity; use an earlier checkpoint"
        )


def check_sources(model: LanguageModel, prompts: TokenLists, sources: TokenLists | None) -> None:
    """Require one source for each prompt of an encoder-decoder, and none for other models."""
    if model.decoding != "encoder-decoder":
        if sources is not None:
            raise UserError("sources are only for encoder-decoder models: use the prompts alone")
        return
    if sources is None or len(sources) != len(prompts):
        raise UserError(
            f"got {len(prompts)} prompts and {len(sources or ())} sources: an encoder-decoder "
            "needs one source for each prompt"
        )
    check_prompts(model, sources, "source")


def check_prefix(model: LanguageModel, prefix: KeyValuePrefix | None) -> None:
    """Refuse a prefix for a model that takes none, or for one of another size."""
    if prefix is None:
        return
    if not model.takes_prefix:
        raise UserError(f"{model.family_name} models take no prefix: generate without it")
    if not prefix.fits(model.config):
        raise UserError(
            "the prefix has other layers or heads than the model: use the model that it was "
            "learned for"
        )


def cache_dtype(model: LanguageModel) -> torch.dtype:
    """Return the type of the keys and values that a model computes."""
    device = device_of(model).type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return next((weight.dtype for weight in model.parameters()), torch.float32)


def check_blanks(
    model: LanguageModel, prompts: TokenLists, blanks: Sequence[Blanks] | None
) -> None:
    """Require blanks in each prompt of an infilling model, and none for other models."""
    if model.decoding != "infilling":
        if blanks is not None:
            raise UserError("blank infilling is not supported by this model: use the prompts alone")
        return
    if blanks is None or len(blanks) != len(prompts) or not all(blanks):
        raise UserError(
            f"got {len(prompts)} prompts and blanks for {len(list(filter(None, blanks or ())))}: "
            "an infilling model generates into the last blank of each prompt"
        )
