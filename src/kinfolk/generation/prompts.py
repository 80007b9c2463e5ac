"""Text in, text out: prompts as a decoder wants them, and what it writes, as it reads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kinfolk.errors import UserError
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.inputs import Blanks
from kinfolk.generation.logits_process import Constraints
from kinfolk.generation.methods import DecodingMethod, collect_sequences, generate_steps
from kinfolk.generation.sampling import Sampling
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import Tokenizer, glm_tokens

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the decoder wants it: what is written after, and what an encoder reads before."""

    prompt: list[int]
    source: list[int] | None
    eos_ids: set[int]
    suppress_ids: set[int]
    blanks: Blanks | None = None  # what the prompt ends with, where the model fills them


def encode_prompt(model: LanguageModel, tokenizer: Tokenizer, prompt: str) -> EncodedPrompt:
    """Frame a prompt: a decoder goes on with it, an encoder-decoder reads it and answers.

    Who fills blanks reads it both ways, and writes all the rest.
    """
    return build_prompt(model, tokenizer, tokenizer.encode(prompt, add_special_tokens=False))


def build_prompt(model: LanguageModel, tokenizer: Tokenizer, ids: Sequence[int]) -> EncodedPrompt:
    """Frame the ids of a prompt."""
    special_tokens = tokenizer.special_tokens
    if model.decoding == "infilling":
        known = glm_tokens(special_tokens)
        banned = non_text_ids(model, tokenizer) - {known.end}
        opened = [*ids, known.gmask, known.start]
        return EncodedPrompt(opened, None, {known.end}, banned, [(len(ids), 1)])
    if model.decoding == "two-stream":  # a text ends with its separator, and nothing opens it
        ends = {special_tokens.sep} if special_tokens.sep is not None else set()
        return EncodedPrompt(list(ids), None, ends, non_text_ids(model, tokenizer) - ends)
    ends = set() if special_tokens.eos is None else {special_tokens.eos}
    banned = non_text_ids(model, tokenizer) - ends
    if model.decoding == "encoder-decoder":
        return EncodedPrompt([special_tokens.pad], [*ids, *ends], ends, banned)
    opening = special_tokens.eos if special_tokens.bos is None else special_tokens.bos
    return EncodedPrompt([*ids] if opening is None else [opening, *ids], None, ends, banned)


def truncate_prompt(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, *, tokens: int
) -> tuple[EncodedPrompt, int]:
    """Frame the end of a prompt that leaves room for so many tokens; say how many are cut off."""
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    whole = build_prompt(model, tokenizer, ids)
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
    return build_prompt(model, tokenizer, ids[over:]), over


def build_request(
    questions: Sequence[EncodedPrompt],
    *,
    max_new_tokens: int | Sequence[int],
    num_return_sequences: int = 1,
    seed: int = 0,
    first: int = 0,
    sample_ids: Sequence[int] | None = None,
    constraints: Constraints = Constraints(),
    should_stop: Callable[[Sequence[int]], bool] | None = None,
    compile: bool = False,
) -> GenerationRequest:
    """Put questions to one model together; what they ban is banned besides the rules."""
    asked = questions[0]
    return GenerationRequest(
        prompts=[q.prompt for q in questions],
        max_new_tokens=max_new_tokens,
        eos_ids=asked.eos_ids,
        num_return_sequences=num_return_sequences,
        constraints=replace(
            constraints, suppress_ids={*constraints.suppress_ids, *asked.suppress_ids}
        ),
        seed=seed,
        first=first,
        sample_ids=sample_ids,
        encoder_ids=None if asked.source is None else [q.source or [] for q in questions],
        blanks=None if asked.blanks is None else [q.blanks or [] for q in questions],
        should_stop=should_stop,
        compile=compile,
    )


def stop_on_strings(
    tokenizer: Tokenizer, stops: Sequence[str]
) -> Callable[[Sequence[int]], bool] | None:
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


def truncate_at_stops(chunks: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """End a text before the first of the stops; what may yet become one is held back."""
    held = ""
    for chunk in chunks:
        held += chunk
        found = [at for at in (held.find(stop) for stop in stops) if at >= 0]
        if found:
            yield held[: min(found)]
            return
        safe = len(held) - max((overlap(held, stop) for stop in stops), default=0)
        if held[:safe]:
            yield held[:safe]
        held = held[safe:]
    if held:
        yield held


def overlap(text: str, stop: str) -> int:
    """Say how many characters at the end of a text a stop begins with."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


def stream_decode(tokenizer: Tokenizer, before: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
    """Turn ids into text as they come; half a character waits for its other half.

    Only the newest tokens are decoded each time: those since the last whole piece, and the piece
    before them, which says how they are joined.
    """
    written = list(before)
    joint, said = 0, len(written)
    for id in ids:
        written.append(id)
        if chunk := _new_text(tokenizer, written, joint, said):
            yield chunk
            joint, said = said, len(written)
    rest = tokenizer.decode(written[joint:])[len(tokenizer.decode(written[joint:said])) :]
    if rest:
        yield rest


def _new_text(tokenizer: Tokenizer, written: Sequence[int], joint: int, said: int) -> str:
    text = tokenizer.decode(written[joint:])
    return "" if text.endswith(REPLACEMENT) else text[len(tokenizer.decode(written[joint:said])) :]


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int = 100,
    method: DecodingMethod = Sampling(),
    seed: int = 0,
) -> str:
    """Return what the model writes after a prompt: "Once upon" may give " a time"."""
    if model.decoding == "encoder-decoder":
        raise UserError(
            "this model fills holes and does not go on with a text: put [MASK] where it may write"
        )
    asked = encode_prompt(model, tokenizer, prompt)
    steps = generate_steps(model, build_request([asked], max_new_tokens=tokens, seed=seed), method)
    (written,) = collect_sequences(steps, 1)
    return decode_after(tokenizer, asked.prompt, written.ids)


def decode_after(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of ids as it reads after others: "##ing" after "play" is "ing"."""
    return tokenizer.decode([*before, *ids]).removeprefix(tokenizer.decode(before))


def non_text_ids(model: LanguageModel, tokenizer: Tokenizer) -> set[int]:
    """Return the ids that are no text: special ones, and those the tokenizer does not know."""
    return {*tokenizer.special_tokens.ids, *range(tokenizer.vocab_size, model.config.vocab_size)}
