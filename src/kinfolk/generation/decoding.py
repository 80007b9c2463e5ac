"""One decoder for every model that can write: a token for each text at a time, over one state."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kinfolk.errors import UserError
from kinfolk.generation.layout import (
    Blanks,
    Texts,
    advance,
    check,
    device,
    pick,
    read,
    resting,
    room,
    start,
)
from kinfolk.generation.sampling import Sampling, ban, choose, uniforms
from kinfolk.types import Model, PredictsTokens, State


@dataclass(frozen=True)
class Step:
    """One token of one text."""

    text: int  # which of the prompts goes on
    id: int
    logprob: float  # as the model says, before anything is left out or tempered
    ends: bool  # the id ends the text and is no part of it


@dataclass(frozen=True)
class Generated:
    """What was written after a prompt, without the token that ended it."""

    ids: list[int]
    logprobs: list[float]
    ended: bool  # by itself: not because the tokens or the context ran out


@torch.inference_mode()
def decode(
    model: PredictsTokens,
    prompts: Texts,
    *,
    tokens: int,  # at most, for each text
    ends: Collection[int],
    sampling: Sampling = Sampling(),
    seed: int = 0,
    sources: Texts | None = None,  # what an encoder reads, one for each prompt
    banned: Collection[int] = (),
    context: int | None = None,  # where it is to be less than the model's own
    first: int = 0,  # the number of the first text: chance depends on a text's number
    blanks: Sequence[Blanks] | None = None,  # what each prompt ends with, where one fills them
) -> Iterator[list[Step]]:
    """Go on with every prompt, a token for each live text at a time."""
    if not prompts:
        return
    rooms = [room(model, len(prompt), tokens, context) for prompt in prompts]
    check(model, prompts, "prompt")
    check_sources(model, prompts, sources)
    check_blanks(model, prompts, blanks)
    where = device(model)
    source = None if sources is None else read(sources)
    state = State(max(map(len, prompts)) + max(rooms))
    inputs = start(prompts, source, state, blanks).to(where)
    unsaid = torch.tensor(inside(model, banned), dtype=torch.long, device=where)
    chances = uniforms(seed, range(first, first + len(prompts)), max(rooms)).to(where)
    live = list(range(len(prompts)))
    with resting(model):
        for token in range(max(rooms)):
            output = model(inputs)
            if output.state is None:
                raise UserError(
                    "this model only reads: it cannot go on with a text, but it can fill [MASK]"
                )
            logits = model.predict(output.hidden[:, -1]).logits().float()
            ids = choose(ban(logits, unsaid), sampling, chances[:, token])
            logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
            said = zip(live, ids.tolist(), logprobs.tolist(), strict=True)
            steps = [Step(text, id, logprob, id in ends) for text, id, logprob in said]
            if any(math.isnan(step.logprob) for step in steps):
                raise UserError(
                    "the model's scores are not numbers: its weights hold NaN or infinity, "
                    "so take an earlier checkpoint"
                )
            yield steps
            kept = [
                row
                for row, step in enumerate(steps)
                if not step.ends and token + 1 < rooms[step.text]
            ]
            if not kept:
                return
            inputs = advance(inputs, ids)
            if len(kept) < len(live):
                rows = torch.tensor(kept, device=where)
                inputs, chances, live = pick(inputs, rows), chances[rows], [live[r] for r in kept]


def generate(
    model: PredictsTokens,
    prompts: Texts,
    *,
    tokens: int,
    ends: Collection[int],
    sampling: Sampling = Sampling(),
    seed: int = 0,
    sources: Texts | None = None,
    banned: Collection[int] = (),
    context: int | None = None,
    first: int = 0,
    blanks: Sequence[Blanks] | None = None,
) -> list[Generated]:
    """Go on with every prompt to its end; the arguments are those of `decode`."""
    steps = decode(
        model,
        prompts,
        tokens=tokens,
        ends=ends,
        sampling=sampling,
        seed=seed,
        sources=sources,
        banned=banned,
        context=context,
        first=first,
        blanks=blanks,
    )
    return collect(steps, len(prompts))


def collect(steps: Iterable[list[Step]], texts: int) -> list[Generated]:
    """Put the steps of each text together."""
    written: list[list[Step]] = [[] for _ in range(texts)]
    for turn in steps:
        for step in turn:
            written[step.text].append(step)
    return [
        Generated(
            [step.id for step in text if not step.ends],
            [step.logprob for step in text if not step.ends],
            bool(text) and text[-1].ends,
        )
        for text in written
    ]


def check_sources(model: Model, prompts: Texts, sources: Texts | None) -> None:
    """Complain unless a model with an encoder has a source a prompt, and any other has none."""
    if not hasattr(model, "encode"):
        if sources is not None:
            raise UserError("this model has no encoder to read sources: put them in the prompts")
        return
    if sources is None or len(sources) != len(prompts):
        raise UserError(
            f"{len(prompts)} prompts came with {len(sources or ())} sources: a model with an "
            "encoder writes about one source for each prompt"
        )
    check(model, sources, "source")


def check_blanks(model: Model, prompts: Texts, blanks: Sequence[Blanks] | None) -> None:
    """Complain unless a model that fills blanks has some in each prompt, and any other has none."""
    if not hasattr(model, "within"):
        if blanks is not None:
            raise UserError("this model knows no blanks: give it the prompts alone")
        return
    if blanks is None or len(blanks) != len(prompts) or not all(blanks):
        raise UserError(
            f"{len(prompts)} prompts came with blanks for {len(list(filter(None, blanks or ())))}: "
            "a model that fills blanks writes into the last of each prompt"
        )


def inside(model: Model, banned: Collection[int]) -> list[int]:
    """Return the banned ids that the model knows, and complain if it has nothing left to say."""
    vocab = model.config.vocab
    ids = sorted(id for id in set(banned) if 0 <= id < vocab)
    if len(ids) == vocab:
        raise UserError(f"all {vocab} tokens of the model are banned: leave it one to say")
    return ids
