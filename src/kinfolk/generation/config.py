"""What is wanted of a text, in words: how long it is, what it must and what it must not say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kinfolk.errors import UserError
from kinfolk.generation.contrastive_search import ContrastiveSearch
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.logits_process import Constraints
from kinfolk.generation.methods import DecodingMethod
from kinfolk.generation.prompts import (
    EncodedPrompt,
    build_request,
    encode_prompt,
    stop_on_strings,
    truncate_prompt,
)
from kinfolk.generation.sampling import Sampling
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import Tokenizer

MAX_SPELLINGS = 32  # in which a banned word is spelled, those of the fewest tokens first
CONCATENATIVE_KINDS = (
    "bpe",
    "byte",
    "word-bpe",
    "unigram",
    "char",
)  # a word is its tokens, side by side


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """What every text should be like; as the model likes, unless told otherwise."""

    max_new_tokens: int = 100  # at most
    min_new_tokens: int = 0  # tokens before it may end
    num_return_sequences: int = 1  # texts for each prompt
    seed: int = 0
    stop_strings: Sequence[str] = ()  # a text ends before the first of these
    forced_prefix: str = ""  # what it starts with
    bad_words: Sequence[str] = ()  # words that it never says
    allowed_texts: Sequence[str] = ()  # after the prefix, one of these and nothing else
    repetition_penalty: float = 1.0  # see Rules, as of the next
    no_repeat_ngram_size: int | None = None
    truncate_left: bool = (
        False  # cut the beginning of a prompt that is too long; else it is refused
    )
    compile: bool = False  # see Request

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"{self.max_new_tokens} tokens are nothing to write: ask for 1 or more")
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"a text cannot have at least {self.min_new_tokens} tokens and "
                f"at most {self.max_new_tokens}: "
                "raise the second, or lower the first"
            )

    def check(self, method: DecodingMethod) -> None:
        """Complain about several texts where a method only ever finds one."""
        best = isinstance(method, Sampling) and method.temperature == 0
        if self.num_return_sequences > 1 and (best or isinstance(method, ContrastiveSearch)):
            name = "always taking the likeliest token" if best else "contrastive search"
            raise UserError(
                f"{name} finds one text, not {self.num_return_sequences}: sample, or use beams"
            )

    def encode(
        self, model: LanguageModel, tokenizer: Tokenizer, prompt: str
    ) -> tuple[EncodedPrompt, int]:
        """Frame a prompt, and say how many of its tokens are cut off."""
        if self.truncate_left:
            return truncate_prompt(model, tokenizer, prompt, tokens=self.max_new_tokens)
        asked = encode_prompt(model, tokenizer, prompt)
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
        questions: Sequence[EncodedPrompt],
        *,
        tokens: int | Sequence[int] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> GenerationRequest:
        """Put questions together, the wishes in ids."""
        return build_request(
            questions,
            max_new_tokens=self.max_new_tokens if tokens is None else tokens,
            num_return_sequences=self.num_return_sequences,
            seed=self.seed,
            sample_ids=numbers,
            constraints=self.rules(tokenizer),
            should_stop=stop_on_strings(tokenizer, self.stop_strings),
            compile=self.compile,
        )

    def rules(self, tokenizer: Tokenizer) -> Constraints:
        """Say in ids what may be said."""
        if not all(word.strip() for word in self.bad_words):
            raise UserError("a word to ban is empty: give it at least one character")
        prefix = tokenizer.encode(self.forced_prefix, add_special_tokens=False)
        allowed = [tokenizer.encode(text, add_special_tokens=False) for text in self.allowed_texts]
        needed = len(prefix) + max(map(len, allowed), default=0)
        if needed > self.max_new_tokens:
            raise UserError(
                f"what is to be said takes {needed} tokens, and a text has {self.max_new_tokens} "
                "at most: "
                "allow for more"
            )
        return Constraints(
            bad_words_ids=[
                way for word in self.bad_words for way in token_spellings(tokenizer, word)
            ],
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            min_new_tokens=self.min_new_tokens,
            forced_prefix=prefix,
            allowed_ids=allowed or None,
        )


def token_spellings(tokenizer: Tokenizer, word: str) -> list[tuple[int, ...]]:
    """Return the ways to say a word, at the beginning of a text and after a space.

    First come those of the tokenizer. A model that may not use them would say " c" and "at"; so
    the other ways follow, where tokens side by side are a word.
    """
    own = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (word, f" {word}")]
    found = dict.fromkeys(own)
    if tokenizer.kind in CONCATENATIVE_KINDS:
        for ids in own:
            spelled = "".join(map(tokenizer.id_to_token, ids))
            found.update(dict.fromkeys(islice(segmentations(tokenizer, spelled), MAX_SPELLINGS)))
    return list(filter(None, found))


def segmentations(tokenizer: Tokenizer, spelled: str) -> Iterator[tuple[int, ...]]:
    """Yield ways to put a string together from tokens, the shortest first."""
    begun: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while begun:
        longer = []
        for start, ids in begun:
            if start == len(spelled):
                yield ids
                continue
            ends = range(start + 1, len(spelled) + 1)
            found = ((end, tokenizer.token_to_id(spelled[start:end])) for end in ends)
            longer += [(end, (*ids, id)) for end, id in found if id is not None]
        # Those that reach furthest will be whole first.
        begun = sorted(longer, reverse=True)[:MAX_SPELLINGS]
