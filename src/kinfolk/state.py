"""What a model carries to its next call: a cache a layer, and the sight of what is in them.

A cache is filled slot by slot. While texts grow by one token at a time, all there is is handed out:
the filled slots. Where shapes must not change (a captured graph), the state is *pinned*: all slots
are handed out, and the sight of empty ones says that nobody sees them.
"""

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.sight import UNWRITTEN, Sight


class Cache:
    """The keys and values one attention layer has seen, in slots that are filled in order."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.filled = 0
        self.keys: Tensor | None = None  # (batch, heads, capacity, head width)
        self.values: Tensor | None = None
        self.at: Tensor | None = None  # (1,): the slot that is filled next, once pinned

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add what was just computed and return all there is."""
        batch, heads, length, width = keys.shape
        if self.keys is None or self.values is None:
            self.keys = keys.new_zeros(batch, heads, self.capacity, width)
            self.values = values.new_zeros(batch, heads, self.capacity, width)
        if self.at is not None:
            self.keys.index_copy_(2, self.at, keys)
            self.values.index_copy_(2, self.at, values)
            return self.keys, self.values
        stop = self.filled + length
        self.keys[:, :, self.filled : stop] = keys
        self.values[:, :, self.filled : stop] = values
        self.filled = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def both(self) -> tuple[Tensor, Tensor]:
        """Return the slots of the keys and of the values, filled or not."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order (beams cross)."""
        if self.keys is None or self.values is None:
            return
        if len(rows) != len(self.keys):
            self.keys, self.values = self.keys[rows], self.values[rows]
            return
        for kept in (self.keys, self.values):
            kept[:, :, : self.filled] = kept[:, :, : self.filled][rows]

    def keep(self, last: int) -> None:
        """Forget all but the last slots, and make room for as many others."""
        start = max(self.filled - last, 0)
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.roll(-start, 2), self.values.roll(-start, 2)
        self.filled -= start


class State:
    """What a model carries to its next call.

    Empty at first, and filled by the model as it goes. `source` keeps what an encoder said, so
    that a decoder asks it only once.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.filled = 0
        self.caches: dict[int, Cache] = {}
        self.crossed: dict[int, tuple[Tensor, Tensor]] = {}  # cross-attention's keys and values
        self.carried: dict[int, Tensor] = {}  # (rows, ...): what keeps one size, such as a history
        self.source: Tensor | None = None
        self.at: Tensor | None = None  # (1,): the slot that is filled next, once pinned
        self._document: Tensor | None = None
        self._birth: Tensor | None = None
        self._plain = True  # as long as every row is one text, read from left to right

    def cache(self, layer: int) -> Cache:
        """Return the cache of one layer."""
        return self.caches.setdefault(layer, Cache(self.capacity))

    def last(self) -> int | Tensor:
        """Say at which of the slots handed out the newest token stands."""
        return self.filled - 1 if self.at is None else self.at

    def extend(self, sight: Sight) -> Sight:
        """Add the sight of new tokens and return that of all there are."""
        batch, length = sight.document.shape
        if self.at is None and self.filled + length > self.capacity:
            raise UserError(
                f"{self.filled + length} tokens do not fit a state of {self.capacity}: "
                "give the state more room or write fewer tokens"
            )
        if self._document is None or self._birth is None:
            self._document = sight.document.new_full((batch, self.capacity), UNWRITTEN)
            self._birth = sight.birth.new_zeros(batch, self.capacity)
        if self.at is not None:
            self._document.index_copy_(1, self.at, sight.document)
            self._birth.index_copy_(1, self.at, sight.birth)
            return Sight(self._document, self._birth, self._birth)
        stop = self.filled + length
        self._document[:, self.filled : stop] = sight.document
        self._birth[:, self.filled : stop] = sight.birth
        self.filled = stop
        self._plain &= sight.plain == "causal"
        birth = self._birth[:, :stop]
        return Sight(self._document[:, :stop], birth, birth, "causal" if self._plain else None)

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order (beams cross)."""
        for cache in self.caches.values():
            cache.reorder(rows)
        self.crossed = {i: (k[rows], v[rows]) for i, (k, v) in self.crossed.items()}
        self.carried = {i: kept[rows] for i, kept in self.carried.items()}
        if self.source is not None:
            self.source = self.source[rows]
        if self._document is not None and self._birth is not None:
            self._document, self._birth = self._document[rows], self._birth[rows]

    def keep(self, last: int) -> None:
        """Forget all but the last tokens: a memory of fixed length (Transformer-XL)."""
        start = max(self.filled - last, 0)
        for cache in self.caches.values():
            cache.keep(last)
        if self._document is not None and self._birth is not None:
            self._document, self._birth = (x.roll(-start, 1) for x in (self._document, self._birth))
        self.filled -= start

    def rewind(self, tokens: int) -> None:
        """Forget the newest tokens: they only asked (XLNet)."""
        self.filled -= tokens
        for cache in self.caches.values():
            cache.filled -= tokens

    def adopt(self, other: "State") -> None:
        """Take over what another state of the same shapes holds; this one is pinned."""
        assert self.at is not None
        assert self._document is not None and other._document is not None
        assert self._birth is not None and other._birth is not None
        for layer, cache in other.caches.items():
            for own, new in zip(self.caches[layer].both(), cache.both(), strict=True):
                own[:, :, : other.filled].copy_(new[:, :, : other.filled])
        for layer, crossed in other.crossed.items():
            for own, new in zip(self.crossed[layer], crossed, strict=True):
                own.copy_(new)
        self._document.copy_(other._document)
        self._birth.copy_(other._birth)
        self.filled = other.filled
        self.renew()

    def pin(self) -> None:
        """Hand out all slots from now on; who goes on adds 1 to `at` after each token."""
        assert self._document is not None
        self.at = torch.zeros(1, dtype=torch.long, device=self._document.device)
        self.renew()
        for cache in self.caches.values():
            cache.at = self.at

    def renew(self) -> None:
        """Go back to where a pinned state was pinned: what was written since is forgotten."""
        assert self.at is not None and self._document is not None
        self._document[:, self.filled :] = UNWRITTEN
        self.at.fill_(self.filled)
