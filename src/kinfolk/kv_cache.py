"""What a model carries to its next call: a cache a layer, and the sight of what is in them.

A cache is filled slot by slot. While texts grow by one token at a time, all there is is handed out:
the filled slots. Where shapes must not change (a captured graph), the state is *pinned*: all slots
are handed out, and the sight of empty ones says that nobody sees them.
"""

import torch
from torch import Tensor

from kinfolk.attention_mask import EMPTY_SLOT_ID, AttentionMask
from kinfolk.errors import UserError


class LayerKVCache:
    """The keys and values one attention layer has seen, in slots that are filled in order."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.keys: Tensor | None = None  # (batch, heads, capacity, head width)
        self.values: Tensor | None = None
        self.write_index: Tensor | None = None  # (1,): the slot that is filled next, once pinned

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add what was just computed and return all there is."""
        batch, heads, length, width = keys.shape
        if self.keys is None or self.values is None:
            self.keys = keys.new_zeros(batch, heads, self.max_length, width)
            self.values = values.new_zeros(batch, heads, self.max_length, width)
        if self.write_index is not None:
            self.keys.index_copy_(2, self.write_index, keys)
            self.values.index_copy_(2, self.write_index, values)
            return self.keys, self.values
        stop = self.length + length
        self.keys[:, :, self.length : stop] = keys
        self.values[:, :, self.length : stop] = values
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Return the slots of the keys and of the values, filled or not."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def reorder(self, beam_idx: Tensor) -> None:
        """Keep these rows of the batch, in this order (beams cross)."""
        if self.keys is None or self.values is None:
            return
        if len(beam_idx) != len(self.keys):
            self.keys, self.values = self.keys[beam_idx], self.values[beam_idx]
            return
        for kept in (self.keys, self.values):
            kept[:, :, : self.length] = kept[:, :, : self.length][beam_idx]

    def keep_last(self, num_tokens: int) -> None:
        """Forget all but the last slots, and make room for as many others."""
        start = max(self.length - num_tokens, 0)
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.roll(-start, 2), self.values.roll(-start, 2)
        self.length -= start


class KVCache:
    """What a model carries to its next call.

    Empty at first, and filled by the model as it goes. `source` keeps what an encoder said, so
    that a decoder asks it only once.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.layers: dict[int, LayerKVCache] = {}
        self.cross_kv: dict[int, tuple[Tensor, Tensor]] = {}  # cross-attention's keys and values
        self.extra: dict[int, Tensor] = {}  # (rows, ...): what keeps one size, such as a history
        self.encoder_output: Tensor | None = None
        self.write_index: Tensor | None = None  # (1,): the slot that is filled next, once pinned
        self._document_ids: Tensor | None = None
        self._key_order: Tensor | None = None
        self._unpacked = True  # as long as every row is one text, read from left to right

    def layer(self, layer_idx: int) -> LayerKVCache:
        """Return the cache of one layer."""
        return self.layers.setdefault(layer_idx, LayerKVCache(self.max_length))

    def last_index(self) -> int | Tensor:
        """Say at which of the slots handed out the newest token stands."""
        return self.length - 1 if self.write_index is None else self.write_index

    def append_mask(self, attention_mask: AttentionMask) -> AttentionMask:
        """Add the sight of new tokens and return that of all there are."""
        batch, length = attention_mask.document_ids.shape
        if self.write_index is None and self.length + length > self.max_length:
            raise UserError(
                f"{self.length + length} tokens do not fit a state of {self.max_length}: "
                "give the state more room or write fewer tokens"
            )
        if self._document_ids is None or self._key_order is None:
            self._document_ids = attention_mask.document_ids.new_full(
                (batch, self.max_length), EMPTY_SLOT_ID
            )
            self._key_order = attention_mask.key_order.new_zeros(batch, self.max_length)
        if self.write_index is not None:
            self._document_ids.index_copy_(1, self.write_index, attention_mask.document_ids)
            self._key_order.index_copy_(1, self.write_index, attention_mask.key_order)
            return AttentionMask(self._document_ids, self._key_order, self._key_order)
        stop = self.length + length
        self._document_ids[:, self.length : stop] = attention_mask.document_ids
        self._key_order[:, self.length : stop] = attention_mask.key_order
        self.length = stop
        self._unpacked &= attention_mask.unpacked == "causal"
        key_order = self._key_order[:, :stop]
        return AttentionMask(
            self._document_ids[:, :stop], key_order, key_order, "causal" if self._unpacked else None
        )

    def reorder(self, beam_idx: Tensor) -> None:
        """Keep these rows of the batch, in this order (beams cross)."""
        for cache in self.layers.values():
            cache.reorder(beam_idx)
        self.cross_kv = {i: (k[beam_idx], v[beam_idx]) for i, (k, v) in self.cross_kv.items()}
        self.extra = {i: kept[beam_idx] for i, kept in self.extra.items()}
        if self.encoder_output is not None:
            self.encoder_output = self.encoder_output[beam_idx]
        if self._document_ids is not None and self._key_order is not None:
            self._document_ids, self._key_order = (
                self._document_ids[beam_idx],
                self._key_order[beam_idx],
            )

    def keep_last(self, num_tokens: int) -> None:
        """Forget all but the last tokens: a memory of fixed length (Transformer-XL)."""
        start = max(self.length - num_tokens, 0)
        for cache in self.layers.values():
            cache.keep_last(num_tokens)
        if self._document_ids is not None and self._key_order is not None:
            self._document_ids, self._key_order = (
                x.roll(-start, 1) for x in (self._document_ids, self._key_order)
            )
        self.length -= start

    def drop_last(self, num_tokens: int) -> None:
        """Forget the newest tokens: they only asked (XLNet)."""
        self.length -= num_tokens
        for cache in self.layers.values():
            cache.length -= num_tokens

    def copy_from(self, other: "KVCache") -> None:
        """Take over what another state of the same shapes holds; this one is pinned."""
        assert self.write_index is not None
        assert self._document_ids is not None and other._document_ids is not None
        assert self._key_order is not None and other._key_order is not None
        for layer, cache in other.layers.items():
            for own, new in zip(self.layers[layer].buffers(), cache.buffers(), strict=True):
                own[:, :, : other.length].copy_(new[:, :, : other.length])
        for layer, crossed in other.cross_kv.items():
            for own, new in zip(self.cross_kv[layer], crossed, strict=True):
                own.copy_(new)
        self._document_ids.copy_(other._document_ids)
        self._key_order.copy_(other._key_order)
        self.length = other.length
        self.reset()

    def make_static(self) -> None:
        """Hand out all slots from now on; who goes on adds 1 to `at` after each token."""
        assert self._document_ids is not None
        self.write_index = torch.zeros(1, dtype=torch.long, device=self._document_ids.device)
        self.reset()
        for cache in self.layers.values():
            cache.write_index = self.write_index

    def reset(self) -> None:
        """Go back to where a pinned state was pinned: what was written since is forgotten."""
        assert self.write_index is not None and self._document_ids is not None
        self._document_ids[:, self.length :] = EMPTY_SLOT_ID
        self.write_index.fill_(self.length)
