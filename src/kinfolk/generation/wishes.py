"""What is wanted of a text, in words: how long it is, what it must and what it must not say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kinfolk.errors import UserError
from kinfolk.generation.contrast import Contrastive
from kinfolk.generation.decoding import Method
from kinfolk.generation.rules import Rules
from kinfolk.generation.sampling import Sampling
from kinfolk.generation.texts import Question, question, request, shortened, stopping
from kinfolk.generation.writer import Request
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import Tokenizer

WAYS = 32  # in which a banned word is spelled, those of the fewest tokens first
JOINED = ("bpe", "byte", "word-bpe", "unigram", "char")  # a word is its tokens, side by side


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What every text should be like; as the model likes, unless told otherwise."""

    tokens: int = 100  # at most
    fewest: int = 0  # tokens before it may end
    num: int = 1  # texts for each prompt
    seed: int = 0
    stop: Sequence[str] = ()  # a text ends before the first of these
    prefix: str = ""  # what it starts with
    ban: Sequence[str] = ()  # words that it never says
    allow: Sequence[str] = ()  # after the prefix, one of these and nothing else
    repetition: float = 1.0  # see Rules, as of the next
    ngram: int | None = None
    truncate: bool = False  # cut the beginning of a prompt that is too long; else it is refused
    compiled: bool = False  # see Request

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UserError(f"{self.tokens} tokens are nothing to write: ask for 1 or more")
        if self.fewest > self.tokens:
            raise UserError(
                f"a text cannot have at least {self.fewest} tokens and at most {self.tokens}: "
                "raise the second, or lower the first"
            )

    def check(self, method: Method) -> None:
        """Complain about several texts where a method only ever finds one."""
        best = isinstance(method, Sampling) and method.temperature == 0
        if self.num > 1 and (best or isinstance(method, Contrastive)):
            name = "always taking the likeliest token" if best else "contrastive search"
            raise UserError(f"{name} finds one text, not {self.num}: sample, or use beams")

    def frame(
        self, model: LanguageModel, tokenizer: Tokenizer, prompt: str
    ) -> tuple[Question, int]:
        """Frame a prompt, and say how many of its tokens are cut off."""
        if self.truncate:
            return shortened(model, tokenizer, prompt, tokens=self.tokens)
        asked = question(model, tokenizer, prompt)
        context = model.config.max_length
        if context is not None:
            # What an encoder reads may fill the context; a decoder needs room to write.
            size, most = (
                (len(asked.prompt), context - 1)
                if asked.source is None
                else (len(asked.source), context)
            )
            if size > most:
                raise UserError(
                    f"a prompt of {size} tokens leaves no room to write in a context of {context}: "
                    f"shorten it to {most} at most, or cut off its beginning (--truncate left)"
                )
        return asked, 0

    def request(
        self,
        tokenizer: Tokenizer,
        questions: Sequence[Question],
        *,
        tokens: int | Sequence[int] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> Request:
        """Put questions together, the wishes in ids."""
        return request(
            questions,
            tokens=self.tokens if tokens is None else tokens,
            num=self.num,
            seed=self.seed,
            numbers=numbers,
            rules=self.rules(tokenizer),
            done=stopping(tokenizer, self.stop),
            compiled=self.compiled,
        )

    def rules(self, tokenizer: Tokenizer) -> Rules:
        """Say in ids what may be said."""
        if not all(word.strip() for word in self.ban):
            raise UserError("a word to ban is empty: give it at least one character")
        prefix = tokenizer.encode(self.prefix, specials=False)
        allowed = [tokenizer.encode(text, specials=False) for text in self.allow]
        needed = len(prefix) + max(map(len, allowed), default=0)
        if needed > self.tokens:
            raise UserError(
                f"what is to be said takes {needed} tokens, and a text has {self.tokens} at most: "
                "allow for more"
            )
        return Rules(
            words=[way for word in self.ban for way in spellings(tokenizer, word)],
            repetition=self.repetition,
            ngram=self.ngram,
            fewest=self.fewest,
            prefix=prefix,
            allowed=allowed or None,
        )


def spellings(tokenizer: Tokenizer, word: str) -> list[tuple[int, ...]]:
    """Return the ways to say a word, at the beginning of a text and after a space.

    First come those of the tokenizer. A model that may not use them would say " c" and "at"; so
    the other ways follow, where tokens side by side are a word.
    """
    own = [tuple(tokenizer.encode(text, specials=False)) for text in (word, f" {word}")]
    found = dict.fromkeys(own)
    if tokenizer.kind in JOINED:
        for ids in own:
            spelled = "".join(map(tokenizer.token, ids))
            found.update(dict.fromkeys(islice(ways(tokenizer, spelled), WAYS)))
    return list(filter(None, found))


def ways(tokenizer: Tokenizer, spelled: str) -> Iterator[tuple[int, ...]]:
    """Yield ways to put a string together from tokens, the shortest first."""
    begun: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while begun:
        longer = []
        for start, ids in begun:
            if start == len(spelled):
                yield ids
                continue
            ends = range(start + 1, len(spelled) + 1)
            found = ((end, tokenizer.id(spelled[start:end])) for end in ends)
            longer += [(end, (*ids, id)) for end, id in found if id is not None]
        # Those that reach furthest will be whole first.
        begun = sorted(longer, reverse=True)[:WAYS]
