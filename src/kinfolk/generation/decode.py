"""Some texts in the middle of being written: a model, what it carries, and where each text stands.

Whatever the method, a turn is the same: read the scores of the next token, choose, write. Between
turns rows may be left out, doubled or put in another order.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.batch import KVCache
from kinfolk.errors import UserError
from kinfolk.generation.inputs import (
    Blanks,
    TokenLists,
    check_ids,
    check_prompts,
    device_of,
    next_inputs,
    prefill_inputs,
    select_rows,
    source_inputs,
    tokens_left,
)
from kinfolk.generation.logits_process import Constraints, LogitsProcessor, TokenHistory
from kinfolk.nn.language_model import LanguageModel

NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What is to be written: texts that go on from prompts."""

    prompts: TokenLists
    max_new_tokens: int | Sequence[int]  # at most, for each text; or for those of each prompt
    eos_ids: Collection[int] = ()
    num_return_sequences: int = 1  # texts for each prompt
    constraints: Constraints = NO_CONSTRAINTS
    compile: bool = False  # half a minute at first, and quicker from then on
    seed: int = 0
    first: int = 0  # the number of the first prompt: chance depends on a text's number
    sample_ids: Sequence[int] | None = None  # those of all, where one does not follow on the other
    encoder_ids: TokenLists | None = None  # what an encoder reads, one for each prompt
    blanks: Sequence[Blanks] | None = None  # what each prompt ends with, where one fills them
    context: int | None = None  # where it is to be less than the model's own
    should_stop: Callable[[Sequence[int]], bool] | None = (
        None  # says of what was written: it is enough
    )
    return_logprobs: bool = (
        True  # each token's log p is wanted; else it may be a score, which is quicker
    )

    def check(self, model: LanguageModel) -> None:
        """Complain about what cannot be written."""
        if self.num_return_sequences < 1:
            raise UserError(
                f"{self.num_return_sequences} texts are nothing to write: ask for 1 or more"
            )
        check_prompts(model, self.prompts, "prompt")
        check_sources(model, self.prompts, self.encoder_ids)
        check_blanks(model, self.prompts, self.blanks)
        for text in (self.constraints.forced_prefix, *(self.constraints.allowed_ids or ())):
            check_ids(model, text, "text that is to be said")
        check_ids(model, sorted(self.eos_ids), "list of ends")

    def number(self, prompt: int) -> int:
        """Return the number of a prompt."""
        return self.first + prompt if self.sample_ids is None else self.sample_ids[prompt]

    def limits(self) -> Sequence[int]:
        """Return how many tokens the texts of each prompt may have."""
        if isinstance(self.max_new_tokens, int):
            return [self.max_new_tokens] * len(self.prompts)
        if len(self.max_new_tokens) != len(self.prompts):
            raise UserError(
                f"{len(self.prompts)} prompts came with {len(self.max_new_tokens)} numbers of "
                "tokens: "
                "give one for each, or one for all"
            )
        return self.max_new_tokens

    @property
    def has_stop_rule(self) -> bool:
        """Say whether a text may be finished without a token that ends it."""
        return self.should_stop is not None or (
            self.constraints.trie is not None and not self.eos_ids
        )

    def is_stopped(self, written: Sequence[int]) -> bool:
        """Say whether a text is finished as it is."""
        closed = not self.eos_ids and self.constraints.is_complete(written)
        return closed or (self.should_stop is not None and self.should_stop(written))


@dataclass(frozen=True)
class TokenStep:
    """One token of one text."""

    sequence: int  # which of the texts goes on: those of the first prompt come first
    id: int
    logprob: float  # as the model says, before anything is left out or tempered
    is_eos: bool  # the id ends the text and is no part of it
    stopped: bool = False  # it is the text's last for another reason than a lack of room


@dataclass(frozen=True)
class GeneratedSequence:
    """What was written after a prompt, without the token that ended it."""

    ids: list[int]
    logprobs: list[float]
    finished: bool  # by itself: not because the tokens or the context ran out
    score: float = 0.0  # what the method thinks of it, where it compares texts (beams)


class Decoder:
    """A model that writes some texts, a token of each at a time."""

    def __init__(self, model: LanguageModel, request: GenerationRequest) -> None:
        if model.decoding is None:
            raise UserError(
                "this model only reads: it cannot go on with a text, but it can fill [MASK]"
            )
        self.model = model
        lengths = list(map(len, request.prompts))
        self.max_new_tokens = [
            tokens_left(model, length, tokens, request.context)
            for length, tokens in zip(lengths, request.limits(), strict=True)
        ]
        request.check(model)
        request.constraints.check(request.eos_ids, min(self.max_new_tokens))
        self.device = device_of(model)
        source = None if request.encoder_ids is None else source_inputs(request.encoder_ids)
        asks = model.decoding == "two-stream"
        slots = max(lengths) + max(self.max_new_tokens) + asks
        if self.device.type == "cuda":  # few sizes, so that captured graphs are met again
            slots = -(-slots // 64) * 64
        state = KVCache(slots)
        opened = prefill_inputs(request.prompts, source, state, request.blanks, asks=asks)
        self.inputs = opened.to(self.device)
        self.said = TokenHistory(request.prompts, max(self.max_new_tokens), self.device)
        self.hidden: Tensor | None = None  # (rows, tokens just read, width)
        self.logits_processor = LogitsProcessor(
            request.constraints, request.eos_ids, model.config.vocab_size, self.device
        )

    def next_logits(self) -> Tensor:
        """Run the model on what it has not read yet, and score what comes next."""
        output = self.model(self.inputs.append_to_cache())
        self.hidden = output.hidden
        return self.model.lm_logits(output.hidden[:, -1]).logits().float()

    def append(self, ids: Tensor) -> None:
        """Go on with a token in every row."""
        self.said.add(ids)
        self.inputs = next_inputs(self.inputs, ids)

    def repeat_rows(self, scores: Tensor, copies: int) -> Tensor:
        """Make some copies of every row, side by side, and of its scores."""
        if copies == 1:
            return scores
        self.select_rows([row for row in range(len(scores)) for _ in range(copies)])
        return scores.repeat_interleave(copies, dim=0)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be there more than once."""
        if list(rows) == list(range(len(self.inputs.input_ids))):
            return
        chosen = torch.tensor(rows, device=self.device)
        self.inputs = select_rows(self.inputs, chosen)
        self.said.keep(chosen)

    def to_steps(
        self,
        live: Sequence[tuple[int, int]],
        ids: Tensor,
        logprobs: Tensor,
        request: GenerationRequest,
    ) -> list[TokenStep]:
        """Say what each row, a copy of a text of a prompt, has just written."""
        return self.spelled(live, ids.tolist(), logprobs.tolist(), request)

    def spelled(
        self,
        live: Sequence[tuple[int, int]],
        ids: Sequence[int],
        logprobs: Sequence[float],
        request: GenerationRequest,
    ) -> list[TokenStep]:
        """Say the same of numbers that are on the host already."""
        check_finite(logprobs)
        written = self.said.written.tolist() if request.has_stop_rule else [()] * len(live)
        return [
            TokenStep(
                prompt * request.num_return_sequences + copy,
                id,
                logprob,
                id in request.eos_ids,
                request.has_stop_rule and request.is_stopped(text),
            )
            for (prompt, copy), id, logprob, text in zip(live, ids, logprobs, written, strict=True)
        ]

    def active_rows(
        self, live: Sequence[tuple[int, int]], steps: Sequence[TokenStep], tokens: int
    ) -> list[int]:
        """Return the rows that go on after so many tokens."""
        return [
            row
            for row, ((prompt, _), step) in enumerate(zip(live, steps, strict=True))
            if not (step.is_eos or step.stopped) and tokens < self.max_new_tokens[prompt]
        ]


def token_logprobs(logits: Tensor, ids: Tensor, weighed: bool) -> Tensor:
    """Return log p of the chosen ids, (rows, 1); where nobody asks for it, their scores as such."""
    scores = logits.gather(1, ids)
    return scores - logits.logsumexp(-1, keepdim=True) if weighed else scores


def check_finite(values: Sequence[float]) -> None:
    """Complain about scores that are not numbers."""
    if any(value != value for value in values):
        raise UserError(
            "the model's scores are not numbers: its weights hold NaN or infinity, "
            "so take an earlier checkpoint"
        )


def check_sources(model: LanguageModel, prompts: TokenLists, sources: TokenLists | None) -> None:
    """Complain unless a model with an encoder has a source a prompt, and any other has none."""
    if model.decoding != "encoder-decoder":
        if sources is not None:
            raise UserError("this model has no encoder to read sources: put them in the prompts")
        return
    if sources is None or len(sources) != len(prompts):
        raise UserError(
            f"{len(prompts)} prompts came with {len(sources or ())} sources: a model with an "
            "encoder writes about one source for each prompt"
        )
    check_prompts(model, sources, "source")


def check_blanks(
    model: LanguageModel, prompts: TokenLists, blanks: Sequence[Blanks] | None
) -> None:
    """Complain unless a model that fills blanks has some in each prompt, and any other has none."""
    if model.decoding != "infilling":
        if blanks is not None:
            raise UserError("this model knows no blanks: give it the prompts alone")
        return
    if blanks is None or len(blanks) != len(prompts) or not all(blanks):
        raise UserError(
            f"{len(prompts)} prompts came with blanks for {len(list(filter(None, blanks or ())))}: "
            "a model that fills blanks writes into the last of each prompt"
        )
