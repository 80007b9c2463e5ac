"""What may be said next, whatever the scores: bans, repetitions, prefixes, and closed lists.

Rules look at what was said so far, (rows, slots), in which empty slots hold NOTHING. Prompts have
their padding to the left, so what was written begins at the same slot in every row.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinfolk.errors import UserError

NEG_INF = float("-inf")
EMPTY = -1
WAY_OUT = "forbid less, or allow for more"
TokenLists = Sequence[Sequence[int]]


class Trie:
    """Texts by their beginnings: what may come next after what was written."""

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.children: dict[int, Trie] = {}
        self.is_end = False  # a text ends here
        for text in texts:
            node = self
            for id in text:
                node = node.children.setdefault(id, Trie(()))
            node.is_end = True

    def walk(self, written: Sequence[int]) -> "Trie":
        """Follow what was written; nothing follows where it left the texts."""
        node = self
        for id in written:
            node = node.children.get(id) or Trie(())
        return node


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What may be said; all of it, unless told otherwise."""

    suppress_ids: Collection[int] = ()  # tokens that are never said
    bad_words_ids: TokenLists = ()  # runs of tokens that are never said
    repetition_penalty: float = (
        1.0  # scores of what was said are weakened by it (Keskar et al. 2019)
    )
    no_repeat_ngram_size: int | None = (
        None  # no run of so many tokens is said twice (Paulus et al. 2017)
    )
    min_new_tokens: int = 0  # tokens before a text may end
    forced_prefix: Sequence[int] = ()  # what every text starts with
    allowed_ids: TokenLists | None = None  # after that, one of these and nothing else
    trie: Trie | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise UserError(
                f"a repetition penalty of {self.repetition_penalty} means nothing: "
                "1 changes nothing, "
                "and more makes what was said less likely"
            )
        if self.no_repeat_ngram_size is not None and self.no_repeat_ngram_size < 1:
            raise UserError(
                f"runs of {self.no_repeat_ngram_size} tokens are nothing to forbid: use 1 or more"
            )
        if self.min_new_tokens < 0:
            raise UserError(
                f"at least {self.min_new_tokens} tokens is no number of tokens: use 0 or more"
            )
        if not all(self.bad_words_ids):
            raise UserError("a word to ban is empty: give it at least one token")
        if self.allowed_ids is not None:
            if not all(self.allowed_ids) or not self.allowed_ids:
                raise UserError("an allowed text is empty: give at least one, of a token or more")
            object.__setattr__(self, "trie", Trie(self.allowed_ids))

    def check(self, ends: Collection[int], room: int) -> None:
        """Complain about texts that could not be said whole."""
        if any(id in ends for id in self.forced_prefix):
            raise UserError("the text to start with holds a token that ends texts: leave it out")
        for text in self.allowed_ids or ():
            if any(id in ends for id in text[:-1]):
                raise UserError("an allowed text holds a token that ends texts: leave it out")
            if len(self.forced_prefix) + len(text) - (text[-1] in ends) > room:
                raise UserError(
                    f"an allowed text of {len(text)} tokens after {len(self.forced_prefix)} others "
                    "does "
                    f"not fit the {room} that may be written: write more"
                )
            if not ends and self.trie is not None and self.trie.walk(text).children:
                raise UserError(
                    "an allowed text is the beginning of another, and no token ends a text: "
                    "name one that does, or leave one of them out"
                )

    @property
    def needs_history(self) -> bool:
        """Say whether what was said matters."""
        lists = bool(self.bad_words_ids or self.forced_prefix) or self.trie is not None
        return lists or self.repetition_penalty != 1 or self.no_repeat_ngram_size is not None

    def is_complete(self, written: Sequence[int]) -> bool:
        """Say whether a text is one of a closed list that no longer one begins with."""
        if self.trie is None or len(written) < len(self.forced_prefix):
            return False
        node = self.trie.walk(written[len(self.forced_prefix) :])
        return node.is_end and not node.children


class TokenHistory:
    """The ids of some rows so far: those of the prompt, and those written after it."""

    def __init__(self, prompts: TokenLists, room: int, device: torch.device) -> None:
        self.prompt_length = self.length = max(map(len, prompts))
        rows = [[EMPTY] * (self.prompt_length - len(prompt)) + list(prompt) for prompt in prompts]
        ids = torch.full((len(rows), self.prompt_length + room), EMPTY)
        ids[:, : self.prompt_length] = torch.tensor(rows)
        self._ids = ids.to(device)

    @property
    def ids(self) -> Tensor:
        """All ids so far: (rows, slots)."""
        return self._ids[:, : self.length]

    @property
    def written(self) -> Tensor:
        """Those after the prompt: (rows, tokens)."""
        return self._ids[:, self.prompt_length : self.length]

    def add(self, ids: Tensor) -> None:
        """Remember the token that each row said."""
        self._ids[:, self.length] = ids
        self.length += 1

    def keep(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self._ids = self._ids[rows]


class LogitsProcessor:
    """Rules made ready for one model: they leave out what is forbidden and weaken what was said."""

    def __init__(
        self, rules: Constraints, ends: Collection[int], vocab: int, device: torch.device
    ) -> None:
        self.rules = rules
        banned, ending = (
            torch.tensor(valid_ids(ids, vocab), dtype=torch.long)
            for ids in (rules.suppress_ids, ends)
        )
        if len(banned) == vocab:
            raise UserError(f"all {vocab} tokens of the model are banned: leave it one to say")
        if rules.min_new_tokens and len(valid_ids({*rules.suppress_ids, *ends}, vocab)) == vocab:
            raise UserError(f"all {vocab} tokens of the model are banned or end a text: {WAY_OUT}")
        self.banned, self.ends = banned.to(device), ending.to(device)

    def __call__(self, scores: Tensor, said: TokenHistory) -> Tensor:
        """Return what is left of the scores, or complain where that is nothing."""
        left = self.process(scores, said)
        if self.rules.needs_history and bool((left == NEG_INF).all(1).any()):
            raise UserError(f"the rules leave nothing to say: {WAY_OUT}")
        return left

    def process(self, scores: Tensor, said: TokenHistory) -> Tensor:
        """Return what is left of the scores: (rows, vocabulary)."""
        rules = self.rules
        if rules.repetition_penalty != 1:
            scores = apply_repetition_penalty(scores, said.ids, rules.repetition_penalty)
        if len(self.banned):
            scores = suppress(scores, self.banned)
        if said.length - said.prompt_length < rules.min_new_tokens:
            scores = suppress(scores, self.ends)
        if not rules.needs_history:
            return scores
        if rules.no_repeat_ngram_size is not None:
            scores = apply_no_repeat_ngram(scores, said.ids, rules.no_repeat_ngram_size)
        if rules.bad_words_ids:
            scores = scores.clone()
            for word in rules.bad_words_ids:
                apply_bad_word(scores, said.ids, word)
        if rules.forced_prefix or rules.trie is not None:
            scores = apply_allowed(scores, rules, said, self.ends)
        return scores


def valid_ids(ids: Collection[int], vocab: int) -> list[int]:
    """Return the ids that a vocabulary has, in order."""
    return sorted(id for id in set(ids) if 0 <= id < vocab)


def suppress(scores: Tensor, ids: Tensor) -> Tensor:
    """Leave out these ids."""
    return scores.index_fill(1, ids, NEG_INF)


def apply_repetition_penalty(scores: Tensor, said: Tensor, penalty: float) -> Tensor:
    """Divide the scores of what was said, or multiply those below zero (Keskar et al. 2019)."""
    own = scores.gather(1, said.clamp(min=0))
    weak = torch.where(own < 0, own * penalty, own / penalty)
    # An empty slot writes the score of whatever else its row said: nothing changes by it.
    first = (said >= 0).int().argmax(1, keepdim=True)
    empty = said == EMPTY
    at = torch.where(empty, said.gather(1, first), said)
    return scores.scatter(1, at, torch.where(empty, weak.gather(1, first), weak))


def apply_no_repeat_ngram(scores: Tensor, said: Tensor, size: int) -> Tensor:
    """Leave out what would say a run of `size` tokens for the second time."""
    if said.shape[1] < size:
        return scores
    runs = said.unfold(1, size, 1)  # (rows, places, size)
    newest = said[:, said.shape[1] - size + 1 :]
    again = (runs[:, :, :-1] == newest[:, None]).all(2) & (runs[:, :, -1] >= 0)
    hits = torch.zeros_like(scores, dtype=torch.int32)
    hits.scatter_add_(1, runs[:, :, -1].clamp(min=0), again.int())
    return scores.masked_fill(hits > 0, NEG_INF)


def apply_bad_word(scores: Tensor, said: Tensor, word: Sequence[int]) -> None:
    """Leave out, in place, the last token of a word where all others of it were just said."""
    *others, last = word
    if not 0 <= last < scores.shape[1] or said.shape[1] < len(others):
        return
    begun = said[:, said.shape[1] - len(others) :]
    hit = (begun == torch.tensor(others, device=said.device)).all(1)
    scores[:, last] = scores[:, last].masked_fill(hit, NEG_INF)


def apply_allowed(scores: Tensor, rules: Constraints, said: TokenHistory, ends: Tensor) -> Tensor:
    """Leave out all that does not go on with the prefix, or with one of the allowed texts."""
    open = torch.zeros_like(scores, dtype=torch.bool)
    for row, written in enumerate(said.written.tolist()):
        if len(written) < len(rules.forced_prefix):
            open[row, rules.forced_prefix[len(written)]] = True
        elif rules.trie is None:
            open[row] = True
        else:
            node = rules.trie.walk(written[len(rules.forced_prefix) :])
            open[row, list(node.children)] = True
            if node.is_end or not node.children:
                open[row, ends] = True
    return scores.masked_fill(~open, NEG_INF)
