"""The cache of a model: keys and values of each layer, and the mask of the cached tokens.

A cache is filled slot by slot. A growing cache returns the filled slots. Where shapes must not
change (a captured CUDA graph) it is *static*: it returns all slots, and no token attends to those
whose document id is EMPTY_SLOT_ID.
"""

from typing import Literal

import torch
from torch import Tensor

from kinfolk.attention_mask import EMPTY_SLOT_ID, AttentionMask
from kinfolk.errors import UserError


class LayerKVCache:
    """The keys and values of one attention layer, in slots that are filled in order."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.keys: Tensor | None = None  # (batch, heads, max_length, head_dim)
        self.values: Tensor | None = None
        self.write_index: Tensor | None = None  # (1,): the next slot, once static

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values and return all of them."""
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
        """Return all slots of the keys and of the values."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def reorder(self, beam_idx: Tensor) -> None:
        """Select rows of the batch, in this order (beam search)."""
        if self.keys is None or self.values is None:
            return
        if len(beam_idx) != len(self.keys):
            self.keys, self.values = self.keys[beam_idx], self.values[beam_idx]
            return
        for kept in (self.keys, self.values):
            kept[:, :, : self.length] = kept[:, :, : self.length][beam_idx]

    def keep_last(self, num_tokens: int) -> None:
        """Drop all but the last tokens."""
        start = max(self.length - num_tokens, 0)
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.roll(-start, 2), self.values.roll(-start, 2)
        self.length -= start


class KVCache:
    """The state that a model carries to its next call.

    It is empty at first and filled by the model. `encoder_output` is kept, so that a decoder runs
    its encoder only once.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.layers: dict[int, LayerKVCache] = {}
        self.cross_kv: dict[int, tuple[Tensor, Tensor]] = {}  # cross-attention's keys and values
        self.extra: dict[int, Tensor] = {}  # (batch, ...): state of a fixed size
        self.encoder_output: Tensor | None = None
        self.write_index: Tensor | None = None  # (1,): the next slot, once static
        self._mask: tuple[Tensor, Tensor] | None = None  # document ids and key order of all slots
        self._unpacked = True  # while every row is one causal text

    def layer(self, layer_idx: int) -> LayerKVCache:
        """Return the cache of one layer."""
        return self.layers.setdefault(layer_idx, LayerKVCache(self.max_length))

    def last_index(self) -> int | Tensor:
        """Return the index of the newest token among the returned slots."""
        return self.length - 1 if self.write_index is None else self.write_index

    def append_mask(self, attention_mask: AttentionMask) -> AttentionMask:
        """Append the mask of new tokens and return the mask of all."""
        new_ids, new_order = attention_mask.document_ids, attention_mask.key_order
        stop = self.length + new_ids.shape[1]
        if self.write_index is None and stop > self.max_length:
            raise UserError(
                f"{stop} tokens exceed the cache's max_length={self.max_length}: "
                "use a larger max_length or generate fewer tokens"
            )
        if self._mask is None:
            shape = len(new_ids), self.max_length
            self._mask = new_ids.new_full(shape, EMPTY_SLOT_ID), new_order.new_zeros(shape)
        document_ids, key_order = self._mask
        if self.write_index is not None:
            document_ids.index_copy_(1, self.write_index, new_ids)
            key_order.index_copy_(1, self.write_index, new_order)
            return AttentionMask(document_ids, key_order, key_order)
        document_ids[:, self.length : stop] = new_ids
        key_order[:, self.length : stop] = new_order
        self.length = stop
        self._unpacked &= attention_mask.unpacked == "causal"
        document_ids, key_order = document_ids[:, :stop], key_order[:, :stop]
        unpacked: Literal["causal"] | None = "causal" if self._unpacked else None
        return AttentionMask(document_ids, key_order, key_order, unpacked)

    def fill(self, keys: Tensor, values: Tensor, attention_mask: AttentionMask) -> None:
        """Append slots that no token fills: a prefix, under the mask of these slots.

        Keys and values are (layers, batch, heads, length, head_dim).
        """
        self.append_mask(attention_mask)
        for layer_idx, (key, value) in enumerate(zip(keys, values, strict=True)):
            self.layer(layer_idx).update(key, value)

    def reorder(self, beam_idx: Tensor) -> None:
        """Select rows of the batch, in this order (beam search)."""
        for cache in self.layers.values():
            cache.reorder(beam_idx)
        self.cross_kv = {i: (k[beam_idx], v[beam_idx]) for i, (k, v) in self.cross_kv.items()}
        self.extra = {i: kept[beam_idx] for i, kept in self.extra.items()}
        if self.encoder_output is not None:
            self.encoder_output = self.encoder_output[beam_idx]
        if self._mask is not None:
            document_ids, key_order = self._mask
            self._mask = document_ids[beam_idx], key_order[beam_idx]

    def keep_last(self, num_tokens: int) -> None:
        """Drop all but the last tokens: a memory of fixed length (Transformer-XL)."""
        start = max(self.length - num_tokens, 0)
        for cache in self.layers.values():
            cache.keep_last(num_tokens)
        if self._mask is not None:
            document_ids, key_order = self._mask
            self._mask = document_ids.roll(-start, 1), key_order.roll(-start, 1)
        self.length -= start

    def drop_last(self, num_tokens: int) -> None:
        """Drop the newest tokens: targets that were only predicted (XLNet)."""
        self.length -= num_tokens
        for cache in self.layers.values():
            cache.length -= num_tokens

    def copy_from(self, other: "KVCache") -> None:
        """Copy the contents of another cache of the same shapes; this one is static."""
        assert self._mask is not None and other._mask is not None
        for layer, cache in other.layers.items():
            for own, new in zip(self.layers[layer].buffers(), cache.buffers(), strict=True):
                own[:, :, : other.length].copy_(new[:, :, : other.length])
        for layer, cross_kv in other.cross_kv.items():
            for own, new in zip(self.cross_kv[layer], cross_kv, strict=True):
                own.copy_(new)
        for own, new in zip(self._mask, other._mask, strict=True):
            own.copy_(new)
        self.length = other.length
        self.reset()

    def make_static(self) -> None:
        """Return all slots from now on; the caller adds 1 to `write_index` after each token."""
        assert self._mask is not None
        self.write_index = torch.zeros(1, dtype=torch.long, device=self._mask[0].device)
        self.reset()
        for cache in self.layers.values():
            cache.write_index = self.write_index

    def reset(self) -> None:
        """Drop the tokens that were appended since the cache became static."""
        assert self.write_index is not None and self._mask is not None
        self._mask[0][:, self.length :] = EMPTY_SLOT_ID
        self.write_index.fill_(self.length)
