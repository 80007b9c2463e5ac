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
from kinfolk.generation.layout import (
    Blanks,
    Texts,
    advance,
    check,
    check_ids,
    device,
    pick,
    read,
    room,
    start,
)
from kinfolk.generation.rules import Judge, Rules, Said
from kinfolk.nn.language_model import LanguageModel

ANYTHING = Rules()


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be written: texts that go on from prompts."""

    prompts: Texts
    tokens: int | Sequence[int]  # at most, for each text; or for those of each prompt
    ends: Collection[int] = ()
    num: int = 1  # texts for each prompt
    rules: Rules = ANYTHING
    compiled: bool = False  # half a minute at first, and quicker from then on
    seed: int = 0
    first: int = 0  # the number of the first prompt: chance depends on a text's number
    numbers: Sequence[int] | None = None  # those of all, where one does not follow on the other
    sources: Texts | None = None  # what an encoder reads, one for each prompt
    blanks: Sequence[Blanks] | None = None  # what each prompt ends with, where one fills them
    context: int | None = None  # where it is to be less than the model's own
    done: Callable[[Sequence[int]], bool] | None = None  # says of what was written: it is enough
    weighed: bool = True  # each token's log p is wanted; else it may be a score, which is quicker

    def check(self, model: LanguageModel) -> None:
        """Complain about what cannot be written."""
        if self.num < 1:
            raise UserError(f"{self.num} texts are nothing to write: ask for 1 or more")
        check(model, self.prompts, "prompt")
        check_sources(model, self.prompts, self.sources)
        check_blanks(model, self.prompts, self.blanks)
        for text in (self.rules.prefix, *(self.rules.allowed or ())):
            check_ids(model, text, "text that is to be said")
        check_ids(model, sorted(self.ends), "list of ends")

    def number(self, prompt: int) -> int:
        """Return the number of a prompt."""
        return self.first + prompt if self.numbers is None else self.numbers[prompt]

    def most(self) -> Sequence[int]:
        """Return how many tokens the texts of each prompt may have."""
        if isinstance(self.tokens, int):
            return [self.tokens] * len(self.prompts)
        if len(self.tokens) != len(self.prompts):
            raise UserError(
                f"{len(self.prompts)} prompts came with {len(self.tokens)} numbers of tokens: "
                "give one for each, or one for all"
            )
        return self.tokens

    @property
    def watched(self) -> bool:
        """Say whether a text may be finished without a token that ends it."""
        return self.done is not None or (self.rules.trie is not None and not self.ends)

    def enough(self, written: Sequence[int]) -> bool:
        """Say whether a text is finished as it is."""
        closed = not self.ends and self.rules.complete(written)
        return closed or (self.done is not None and self.done(written))


@dataclass(frozen=True)
class Step:
    """One token of one text."""

    text: int  # which of the texts goes on: those of the first prompt come first
    id: int
    logprob: float  # as the model says, before anything is left out or tempered
    ends: bool  # the id ends the text and is no part of it
    enough: bool = False  # it is the text's last for another reason than a lack of room


@dataclass(frozen=True)
class Generated:
    """What was written after a prompt, without the token that ended it."""

    ids: list[int]
    logprobs: list[float]
    ended: bool  # by itself: not because the tokens or the context ran out
    score: float = 0.0  # what the method thinks of it, where it compares texts (beams)


class Writer:
    """A model that writes some texts, a token of each at a time."""

    def __init__(self, model: LanguageModel, request: Request) -> None:
        if model.decoding is None:
            raise UserError(
                "this model only reads: it cannot go on with a text, but it can fill [MASK]"
            )
        self.model = model
        lengths = list(map(len, request.prompts))
        self.rooms = [
            room(model, length, tokens, request.context)
            for length, tokens in zip(lengths, request.most(), strict=True)
        ]
        request.check(model)
        request.rules.check(request.ends, min(self.rooms))
        self.device = device(model)
        source = None if request.sources is None else read(request.sources)
        asks = model.decoding == "two-stream"
        slots = max(lengths) + max(self.rooms) + asks
        if self.device.type == "cuda":  # few sizes, so that captured graphs are met again
            slots = -(-slots // 64) * 64
        state = KVCache(slots)
        opened = start(request.prompts, source, state, request.blanks, asks=asks)
        self.inputs = opened.to(self.device)
        self.said = Said(request.prompts, max(self.rooms), self.device)
        self.hidden: Tensor | None = None  # (rows, tokens just read, width)
        self.judge = Judge(request.rules, request.ends, model.config.vocab_size, self.device)

    def read(self) -> Tensor:
        """Run the model on what it has not read yet, and score what comes next."""
        output = self.model(self.inputs.append_to_cache())
        self.hidden = output.hidden
        return self.model.lm_logits(output.hidden[:, -1]).logits().float()

    def write(self, ids: Tensor) -> None:
        """Go on with a token in every row."""
        self.said.add(ids)
        self.inputs = advance(self.inputs, ids)

    def double(self, scores: Tensor, copies: int) -> Tensor:
        """Make some copies of every row, side by side, and of its scores."""
        if copies == 1:
            return scores
        self.keep([row for row in range(len(scores)) for _ in range(copies)])
        return scores.repeat_interleave(copies, dim=0)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be there more than once."""
        if list(rows) == list(range(len(self.inputs.input_ids))):
            return
        chosen = torch.tensor(rows, device=self.device)
        self.inputs = pick(self.inputs, chosen)
        self.said.keep(chosen)

    def steps(
        self, live: Sequence[tuple[int, int]], ids: Tensor, logprobs: Tensor, request: Request
    ) -> list[Step]:
        """Say what each row, a copy of a text of a prompt, has just written."""
        return self.spelled(live, ids.tolist(), logprobs.tolist(), request)

    def spelled(
        self,
        live: Sequence[tuple[int, int]],
        ids: Sequence[int],
        logprobs: Sequence[float],
        request: Request,
    ) -> list[Step]:
        """Say the same of numbers that are on the host already."""
        sane(logprobs)
        written = self.said.written.tolist() if request.watched else [()] * len(live)
        return [
            Step(
                prompt * request.num + copy,
                id,
                logprob,
                id in request.ends,
                request.watched and request.enough(text),
            )
            for (prompt, copy), id, logprob, text in zip(live, ids, logprobs, written, strict=True)
        ]

    def unfinished(
        self, live: Sequence[tuple[int, int]], steps: Sequence[Step], tokens: int
    ) -> list[int]:
        """Return the rows that go on after so many tokens."""
        return [
            row
            for row, ((prompt, _), step) in enumerate(zip(live, steps, strict=True))
            if not (step.ends or step.enough) and tokens < self.rooms[prompt]
        ]


def weigh(logits: Tensor, ids: Tensor, weighed: bool) -> Tensor:
    """Return log p of the chosen ids, (rows, 1); where nobody asks for it, their scores as such."""
    scores = logits.gather(1, ids)
    return scores - logits.logsumexp(-1, keepdim=True) if weighed else scores


def sane(values: Sequence[float]) -> None:
    """Complain about scores that are not numbers."""
    if any(value != value for value in values):
        raise UserError(
            "the model's scores are not numbers: its weights hold NaN or infinity, "
            "so take an earlier checkpoint"
        )


def check_sources(model: LanguageModel, prompts: Texts, sources: Texts | None) -> None:
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
    check(model, sources, "source")


def check_blanks(model: LanguageModel, prompts: Texts, blanks: Sequence[Blanks] | None) -> None:
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
