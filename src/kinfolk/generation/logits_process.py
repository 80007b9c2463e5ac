"""Constraints on the next token: suppressed ids, bad words, repetitions, prefixes, allowed texts.

Histories are (rows, slots), where empty slots hold EMPTY. Prompts are padded to the left, so that
generated tokens begin at the same slot in every row.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.text.tokenizer import Tokenizer

NEG_INF = float("-inf")
EMPTY = -1
NO_TOKEN_LEFT = "the constraints exclude every token: relax them, or raise max_new_tokens"
MAX_SPELLINGS = 32  # token sequences that spell a bad word, the shortest first
# Kinds of tokenizers whose tokens, joined, are the word itself.
CONCATENATIVE_KINDS = ("bpe", "byte", "word-bpe", "unigram", "char")
TokenLists = Sequence[Sequence[int]]


class Trie:
    """Token sequences by their prefixes: which tokens may follow what was generated."""

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.children: dict[int, Trie] = {}
        self.is_end = False  # a sequence ends here
        for text in texts:
            node = self
            for id in text:
                node = node.children.setdefault(id, Trie(()))
            node.is_end = True

    def walk(self, generated: Sequence[int]) -> "Trie":
        """Follow generated tokens; the node is empty where no sequence begins with them."""
        node = self
        for id in generated:
            node = node.children.get(id) or Trie(())
        return node


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """The constraints of a `GenerationConfig` in token ids."""

    suppress_ids: Collection[int] = ()  # tokens that are never generated
    bad_words_ids: TokenLists = ()  # token sequences that are never generated
    forced_prefix: Sequence[int] = ()  # what every output starts with
    allowed_ids: TokenLists | None = None  # after the prefix, one of these and nothing else
    trie: Trie | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not all(self.bad_words_ids):
            raise UserError("a bad word is empty: it must have at least one token")
        if self.allowed_ids is not None:
            if not all(self.allowed_ids) or not self.allowed_ids:
                raise UserError("an allowed text is empty: it must have at least one token")
            object.__setattr__(self, "trie", Trie(self.allowed_ids))

    @classmethod
    def from_config(
        cls, config: GenerationConfig, tokenizer: Tokenizer, suppress_ids: Collection[int] = ()
    ) -> "Constraints":
        """Encode the constraints of a config."""
        tokenizer = tokenizer.target
        prefix = tokenizer.encode(config.forced_prefix, add_special_tokens=False)
        allowed = [
            tokenizer.encode(text, add_special_tokens=False) for text in config.allowed_texts
        ]
        needed = len(prefix) + max(map(len, allowed), default=0)
        if needed > config.max_new_tokens:
            raise UserError(
                f"forced_prefix and allowed_texts need {needed} tokens, and max_new_tokens is "
                f"{config.max_new_tokens}: raise it"
            )
        return cls(
            suppress_ids=suppress_ids,
            bad_words_ids=[
                ids for word in config.bad_words for ids in token_spellings(tokenizer, word)
            ],
            forced_prefix=prefix,
            allowed_ids=allowed or None,
        )

    def check(self, eos_ids: Collection[int], max_new_tokens: int) -> None:
        """Refuse constraints that no complete output satisfies."""
        if any(id in eos_ids for id in self.forced_prefix):
            raise UserError("the forced prefix contains an end-of-text token: remove it")
        for text in self.allowed_ids or ():
            if any(id in eos_ids for id in text[:-1]):
                raise UserError("an allowed text contains an end-of-text token: remove it")
            needed = len(self.forced_prefix) + len(text) - (text[-1] in eos_ids)
            if needed > max_new_tokens:
                raise UserError(
                    f"a forced prefix of {len(self.forced_prefix)} tokens and an allowed text of "
                    f"{len(text)} do not fit max_new_tokens={max_new_tokens}: raise it"
                )
            if not eos_ids and self.trie is not None and self.trie.walk(text).children:
                raise UserError(
                    "an allowed text is the beginning of another, and there is no end-of-text "
                    "token: remove one of them"
                )

    def is_complete(self, generated: Sequence[int]) -> bool:
        """Return whether the output is an allowed text and not the beginning of another."""
        if self.trie is None or len(generated) < len(self.forced_prefix):
            return False
        node = self.trie.walk(generated[len(self.forced_prefix) :])
        return node.is_end and not node.children


class TokenHistory:
    """The token ids of each row: those of the prompt, and the generated ones."""

    def __init__(self, prompts: TokenLists, max_new_tokens: int, device: torch.device) -> None:
        self.prompt_length = self.length = max(map(len, prompts))
        rows = [[EMPTY] * (self.prompt_length - len(prompt)) + list(prompt) for prompt in prompts]
        ids = torch.full((len(rows), self.prompt_length + max_new_tokens), EMPTY)
        ids[:, : self.prompt_length] = torch.tensor(rows)
        self._ids = ids.to(device)

    @property
    def ids(self) -> Tensor:
        """All ids so far: (rows, slots)."""
        return self._ids[:, : self.length]

    @property
    def generated(self) -> Tensor:
        """The ids after the prompt: (rows, tokens)."""
        return self._ids[:, self.prompt_length : self.length]

    def append(self, ids: Tensor) -> None:
        """Add the newest token of each row."""
        self._ids[:, self.length] = ids
        self.length += 1

    def select_rows(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self._ids = self._ids[rows]


class LogitsProcessor:
    """Apply the repetition penalty and the constraints to logits."""

    def __init__(
        self,
        config: GenerationConfig,
        constraints: Constraints,
        eos_ids: Collection[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.config, self.constraints = config, constraints
        suppressed = valid_ids(constraints.suppress_ids, vocab_size)
        excluded = valid_ids({*suppressed, *eos_ids}, vocab_size)
        if len(suppressed) == vocab_size:
            raise UserError(f"all {vocab_size} tokens of the model are suppressed")
        if config.min_new_tokens and len(excluded) == vocab_size:
            raise UserError(
                f"all {vocab_size} tokens of the model are suppressed or end a text, and "
                f"min_new_tokens is {config.min_new_tokens}"
            )
        self.suppressed = torch.tensor(suppressed, dtype=torch.long, device=device)
        self.eos_ids = torch.tensor(valid_ids(eos_ids, vocab_size), dtype=torch.long, device=device)
        # Whether the next token is constrained by the tokens before it.
        self.needs_history = (
            bool(constraints.bad_words_ids or constraints.forced_prefix)
            or constraints.trie is not None
            or config.repetition_penalty != 1
            or config.no_repeat_ngram_size is not None
        )

    def __call__(self, logits: Tensor, history: TokenHistory) -> Tensor:
        """Return the processed logits; refuse a row in which no token is left."""
        processed = self.process(logits, history)
        if self.needs_history and bool((processed == NEG_INF).all(1).any()):
            raise UserError(NO_TOKEN_LEFT)
        return processed

    def process(self, logits: Tensor, history: TokenHistory) -> Tensor:
        """Return the processed logits: (rows, vocabulary)."""
        config, constraints = self.config, self.constraints
        if config.repetition_penalty != 1:
            logits = apply_repetition_penalty(logits, history.ids, config.repetition_penalty)
        if len(self.suppressed):
            logits = suppress(logits, self.suppressed)
        if history.length - history.prompt_length < config.min_new_tokens:
            logits = suppress(logits, self.eos_ids)
        if not self.needs_history:
            return logits
        if config.no_repeat_ngram_size is not None:
            logits = apply_no_repeat_ngram(logits, history.ids, config.no_repeat_ngram_size)
        if constraints.bad_words_ids:
            logits = logits.clone()
            for word in constraints.bad_words_ids:
                apply_bad_word(logits, history.ids, word)
        if constraints.forced_prefix or constraints.trie is not None:
            logits = apply_allowed(logits, constraints, history, self.eos_ids)
        return logits


def valid_ids(ids: Collection[int], vocab_size: int) -> list[int]:
    """Return the ids that a vocabulary has, in order."""
    return sorted(id for id in set(ids) if 0 <= id < vocab_size)


def suppress(logits: Tensor, ids: Tensor) -> Tensor:
    """Exclude these ids."""
    return logits.index_fill(1, ids, NEG_INF)


def apply_repetition_penalty(logits: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of tokens so far, multiply negative ones (Keskar et al. 2019)."""
    own = logits.gather(1, history.clamp(min=0))
    penalized = torch.where(own < 0, own * penalty, own / penalty)
    # An empty slot writes the logit of the first token of its row, which changes nothing.
    first = (history >= 0).int().argmax(1, keepdim=True)
    empty = history == EMPTY
    index = torch.where(empty, history.gather(1, first), history)
    return logits.scatter(1, index, torch.where(empty, penalized.gather(1, first), penalized))


def apply_no_repeat_ngram(logits: Tensor, history: Tensor, size: int) -> Tensor:
    """Exclude tokens that would complete an n-gram for the second time (Paulus et al. 2017)."""
    if history.shape[1] < size:
        return logits
    ngrams = history.unfold(1, size, 1)  # (rows, positions, size)
    newest = history[:, history.shape[1] - size + 1 :]
    repeated = (ngrams[:, :, :-1] == newest[:, None]).all(2) & (ngrams[:, :, -1] >= 0)
    hits = torch.zeros_like(logits, dtype=torch.int32)
    hits.scatter_add_(1, ngrams[:, :, -1].clamp(min=0), repeated.int())
    return logits.masked_fill(hits > 0, NEG_INF)


def apply_bad_word(logits: Tensor, history: Tensor, word: Sequence[int]) -> None:
    """Exclude, in place, the last token of a word where the tokens before it are the newest."""
    *others, last = word
    if not 0 <= last < logits.shape[1] or history.shape[1] < len(others):
        return
    newest = history[:, history.shape[1] - len(others) :]
    hit = (newest == torch.tensor(others, device=history.device)).all(1)
    logits[:, last] = logits[:, last].masked_fill(hit, NEG_INF)


def apply_allowed(
    logits: Tensor, constraints: Constraints, history: TokenHistory, eos_ids: Tensor
) -> Tensor:
    """Exclude all tokens that do not continue the prefix or one of the allowed texts."""
    prefix, trie = constraints.forced_prefix, constraints.trie
    allowed = torch.zeros_like(logits, dtype=torch.bool)
    for row, generated in enumerate(history.generated.tolist()):
        if len(generated) < len(prefix):
            allowed[row, prefix[len(generated)]] = True
        elif trie is None:
            allowed[row] = True
        else:
            node = trie.walk(generated[len(prefix) :])
            allowed[row, list(node.children)] = True
            if node.is_end or not node.children:
                allowed[row, eos_ids] = True
    return logits.masked_fill(~allowed, NEG_INF)


def token_spellings(tokenizer: Tokenizer, word: str) -> list[tuple[int, ...]]:
    """Return the token sequences that spell a word, at the beginning of a text and after a space.

    The tokenizer's own come first. Others follow, for kinds whose tokens can be joined: without
    them a model would generate " c" and "at" for the bad word "cat".
    """
    own = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (word, f" {word}")]
    spellings = dict.fromkeys(own)
    if tokenizer.kind in CONCATENATIVE_KINDS:
        for ids in own:
            spelled = "".join(map(tokenizer.id_to_token, ids))
            others = islice(segmentations(tokenizer, spelled), MAX_SPELLINGS)
            spellings.update(dict.fromkeys(others))
    return list(filter(None, spellings))


def segmentations(tokenizer: Tokenizer, spelled: str) -> Iterator[tuple[int, ...]]:
    """Yield token sequences whose tokens, joined, are a string; the shortest come first."""
    partial: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while partial:
        longer = []
        for start, ids in partial:
            if start == len(spelled):
                yield ids
                continue
            for end in range(start + 1, len(spelled) + 1):
                id = tokenizer.token_to_id(spelled[start:end])
                if id is not None:
                    longer.append((end, (*ids, id)))
        # Those that cover most of the string will be complete first.
        partial = sorted(longer, reverse=True)[:MAX_SPELLINGS]
