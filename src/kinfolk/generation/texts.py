"""Text in, text out: prompts as a decoder wants them, and what it writes, as it reads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kinfolk.errors import UserError
from kinfolk.generation.decoding import Method, collect, decode
from kinfolk.generation.layout import Blanks
from kinfolk.generation.rules import Rules
from kinfolk.generation.sampling import Sampling
from kinfolk.generation.writer import Request
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.marks import marks
from kinfolk.text.tokenizer import Tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Question:
    """A prompt as the decoder wants it: what is written after, and what an encoder reads before."""

    prompt: list[int]
    source: list[int] | None
    ends: set[int]
    banned: set[int]
    blanks: Blanks | None = None  # what the prompt ends with, where the model fills them


def question(model: LanguageModel, tokenizer: Tokenizer, prompt: str) -> Question:
    """Frame a prompt: a decoder goes on with it, an encoder-decoder reads it and answers.

    Who fills blanks reads it both ways, and writes all the rest.
    """
    return framed(model, tokenizer, tokenizer.encode(prompt, specials=False))


def framed(model: LanguageModel, tokenizer: Tokenizer, ids: Sequence[int]) -> Question:
    """Frame the ids of a prompt."""
    specials = tokenizer.specials
    if model.decoding == "infilling":
        known = marks(specials)
        banned = unspoken(model, tokenizer) - {known.end}
        opened = [*ids, known.tail, known.start]
        return Question(opened, None, {known.end}, banned, [(len(ids), 1)])
    if model.decoding == "two-stream":  # a text ends with its separator, and nothing opens it
        ends = {specials.sep} if specials.sep is not None else set()
        return Question(list(ids), None, ends, unspoken(model, tokenizer) - ends)
    ends = set() if specials.eos is None else {specials.eos}
    banned = unspoken(model, tokenizer) - ends
    if model.decoding == "encoder-decoder":
        return Question([specials.pad], [*ids, *ends], ends, banned)
    opening = specials.eos if specials.bos is None else specials.bos
    return Question([*ids] if opening is None else [opening, *ids], None, ends, banned)


def shortened(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, *, tokens: int
) -> tuple[Question, int]:
    """Frame the end of a prompt that leaves room for so many tokens; say how many are cut off."""
    ids = tokenizer.encode(prompt, specials=False)
    whole = framed(model, tokenizer, ids)
    context = model.config.max_length
    if context is None:
        return whole, 0
    read = len(whole.prompt if whole.source is None else whole.source)
    room = context - (tokens if whole.source is None else 0)
    over = max(read - room, 0)
    if over > len(ids):
        raise UserError(
            f"{tokens} tokens leave no room for a prompt in a context of {context}: write fewer"
        )
    return framed(model, tokenizer, ids[over:]), over


def request(
    questions: Sequence[Question],
    *,
    tokens: int | Sequence[int],
    num: int = 1,
    seed: int = 0,
    first: int = 0,
    numbers: Sequence[int] | None = None,
    rules: Rules = Rules(),
    done: Callable[[Sequence[int]], bool] | None = None,
    compiled: bool = False,
) -> Request:
    """Put questions to one model together; what they ban is banned besides the rules."""
    asked = questions[0]
    return Request(
        prompts=[q.prompt for q in questions],
        tokens=tokens,
        ends=asked.ends,
        num=num,
        rules=replace(rules, banned={*rules.banned, *asked.banned}),
        seed=seed,
        first=first,
        numbers=numbers,
        sources=None if asked.source is None else [q.source or [] for q in questions],
        blanks=None if asked.blanks is None else [q.blanks or [] for q in questions],
        done=done,
        compiled=compiled,
    )


def stopping(tokenizer: Tokenizer, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """Return what says that a text holds one of these strings; nothing where there are none."""
    if not stops:
        return None
    if not all(stops):
        raise UserError("a text to stop at is empty: give it at least one character")
    # A token spells a byte at least, so that a string just said is within as many of the newest.
    reach = max(len(stop.encode()) for stop in stops) + 1

    def done(written: Sequence[int]) -> bool:
        text = tokenizer.decode(list(written[-reach:]))
        return any(stop in text for stop in stops)

    return done


def cut(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """End a text before the first of the stops; what may yet become one is held back."""
    held = ""
    for piece in pieces:
        held += piece
        found = [at for at in (held.find(stop) for stop in stops) if at >= 0]
        if found:
            yield held[: min(found)]
            return
        safe = len(held) - max((begun(held, stop) for stop in stops), default=0)
        if held[:safe]:
            yield held[:safe]
        held = held[safe:]
    if held:
        yield held


def begun(text: str, stop: str) -> int:
    """Say how many characters at the end of a text a stop begins with."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


def spell(tokenizer: Tokenizer, before: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
    """Turn ids into text as they come; half a character waits for its other half.

    Only the newest tokens are decoded each time: those since the last whole piece, and the piece
    before them, which says how they are joined.
    """
    written = list(before)
    joint, said = 0, len(written)
    for id in ids:
        written.append(id)
        if piece := _new(tokenizer, written, joint, said):
            yield piece
            joint, said = said, len(written)
    rest = tokenizer.decode(written[joint:])[len(tokenizer.decode(written[joint:said])) :]
    if rest:
        yield rest


def _new(tokenizer: Tokenizer, written: Sequence[int], joint: int, said: int) -> str:
    text = tokenizer.decode(written[joint:])
    return "" if text.endswith(BROKEN) else text[len(tokenizer.decode(written[joint:said])) :]


def continue_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int = 100,
    method: Method = Sampling(),
    seed: int = 0,
) -> str:
    """Return what the model writes after a prompt: "Once upon" may give " a time"."""
    if model.decoding == "encoder-decoder":
        raise UserError(
            "this model fills holes and does not go on with a text: put [MASK] where it may write"
        )
    asked = question(model, tokenizer, prompt)
    steps = decode(model, request([asked], tokens=tokens, seed=seed), method)
    (written,) = collect(steps, 1)
    return spoken(tokenizer, asked.prompt, written.ids)


def spoken(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of ids as it reads after others: "##ing" after "play" is "ing"."""
    return tokenizer.decode([*before, *ids]).removeprefix(tokenizer.decode(before))


def unspoken(model: LanguageModel, tokenizer: Tokenizer) -> set[int]:
    """Return the ids that are no text: special ones, and those the tokenizer does not know."""
    return {*tokenizer.specials.all, *range(tokenizer.vocab, model.config.vocab_size)}
