"""Who may see whom: every attention pattern of the family as a document number and two clocks.

Token i sees token j when both are in the same document and `birth[j] <= clock[i]`.

    full      birth 0 0 0 0    clock 0 0 0 0    everyone sees everyone
    causal    birth 0 1 2 3    clock 0 1 2 3    only the past, and oneself
    prefix    birth 0 0 1 2    clock 0 0 1 2    two tokens read both ways, the rest written

Texts packed into one row differ in their document number and in nothing else. Padding is document
-1: it sees only other padding, so that no row of the softmax is empty, and no text sees it.
"""

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

QUICK = importlib.util.find_spec("triton") is not None
if QUICK:
    from kinfolk import kernels

PADDING = -1  # the document number of empty slots
BLOCK = 128  # tokens on a side of a block of the block-sparse mask
UNWRITTEN = -2  # the document number of a cache slot that holds nothing yet


@dataclass(frozen=True, eq=False)
class Sight:
    """What each token may look at: three integers a token, each (batch, length)."""

    document: Tensor
    birth: Tensor
    clock: Tensor
    # Set where each row is one text without padding: then the plain fast kernels say the same.
    plain: Literal["full", "causal"] | None = None
    # Set by `resolved`: the same, as the block-sparse kernel wants it.
    blocks: BlockMask | None = None
    bands: Mapping[int, BlockMask] = field(default_factory=dict)  # the blocks of each window

    @classmethod
    def full(cls, document: Tensor, *, plain: bool = False) -> "Sight":
        """Let every token see its whole document."""
        still = torch.zeros_like(document)
        return cls(document, still, still, "full" if plain else None)

    @classmethod
    def causal(cls, document: Tensor, *, start: int = 0, plain: bool = False) -> "Sight":
        """Let every token see itself and what stands before it in its document."""
        length = document.shape[1]
        time = torch.arange(start, start + length, device=document.device, dtype=document.dtype)
        time = time.expand_as(document)
        return cls(document, time, time, "causal" if plain else None)

    def resolved(self, windows: Collection[int] = ()) -> "Sight":
        """Find the blocks of the mask, and of its bands. It must happen outside of what is
        compiled: inside, torch 2.11 computes them wrongly."""
        bands = {window: blocks(self, self, window) for window in windows}
        return replace(self, blocks=None if self.plain else blocks(self, self), bands=bands)

    def before(self, slots: Tensor) -> "Sight":
        """Return the sight of guesses at some slots, (batch, query): what was born before each."""
        document, birth = (x.gather(1, slots) for x in (self.document, self.birth))
        return Sight(document, birth, birth - 1)

    def table(self, keys: "Sight | None" = None, window: int | None = None) -> Tensor:
        """Spell out who sees whom: (batch, query, key), true where the query sees the key."""
        keys = keys or self
        same = self.document[:, :, None] == keys.document[:, None, :]
        born = keys.birth[:, None, :] <= self.clock[:, :, None]
        seen = same & born
        if window is not None:
            seen = seen & (self.clock[:, :, None] - keys.birth[:, None, :] < window)
        return seen


class Visible(Protocol):
    """A sight made ready for attention: resolved once a forward pass, used by every layer."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend: (batch, heads, query, head width) in and out.

        `bias` is a layer's own, (batch, heads, query, key), added to the scaled scores.
        """
        ...


@dataclass(frozen=True, eq=False)
class Plain:
    """Rows that are one text each: the kernel needs no mask."""

    causal: bool

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend without a mask."""
        if bias is not None:
            seen = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device)
            if self.causal:
                seen = seen.tril(bias.shape[-1] - bias.shape[-2])
            return Dense(seen)(query, key, value, scale=scale, dropout=dropout, bias=bias)
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.causal, scale=scale
        )


@dataclass(frozen=True, eq=False)
class Dense:
    """A mask written out: boolean, or with a bias on the scores already in it."""

    mask: Tensor  # (batch, 1 or heads, query, key)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend under the mask."""
        mask = self.mask
        if QUICK and bias is None and kernels.single(query, key):
            scale = query.shape[3] ** -0.5 if scale is None else scale
            found: Tensor = kernels.attend(query, key, value, mask, scale)
            return found
        if bias is not None:
            written = mask.dtype != torch.bool
            mask = mask + bias if written else bias.masked_fill(~mask, float("-inf"))
        if mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale
        )


@dataclass(frozen=True, eq=False)
class Blocks:
    """A block-sparse mask for the compiled kernel: blocks that nobody sees cost nothing."""

    mask: BlockMask
    bias: Tensor | None  # (heads, distances)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend through the block mask."""
        assert bias is None or self.bias is None, "a layer's bias stands alone"
        assert dropout == 0, "see() takes the dense mask where weights are dropped"
        score = _score(self.bias, query.shape[2]) if bias is None else _own(bias)
        out = flex_attention(query, key, value, score, self.mask, scale=scale)
        assert isinstance(out, Tensor)
        return out


def see(
    query: Sight,
    key: Sight | None = None,
    *,
    bias: Tensor | None = None,
    window: int | None = None,
    dropout: bool = False,
    biased: bool = False,
    across: BlockMask | None = None,
) -> Visible:
    """Make a sight ready for attention, by the fastest way that says the same.

    `bias` is added to the scores by distance, (heads, query + key - 1): entry `j - i + query - 1`
    for query i and key j. `dropout` says that weights will be dropped, which the block-sparse
    kernel cannot do; `biased`, that each layer brings a bias of its own, which that kernel is slow
    with where it has room for it at all. `across` holds the blocks where the keys are not the
    queries' own, under the same window.
    """
    keys = key or query
    if query.plain and keys.plain == query.plain and bias is None and window is None:
        queries, length = query.document.shape[1], keys.document.shape[1]
        if queries == 1:  # the newest token: there is nothing that it may not see
            return Plain(causal=False)
        if queries == length or query.plain == "full":
            return Plain(causal=query.plain == "causal")
    own = query.blocks if window is None else query.bands.get(window)
    found = own if keys is query else across
    if found is None or dropout or biased:
        return _dense(query, keys, bias, window)
    return Blocks(found, bias)


def spread(bias: Tensor, queries: int, keys: int) -> Tensor:
    """Lay a bias by distance out over (heads, query, key)."""
    device = bias.device
    rows = torch.arange(queries, device=device)[:, None]
    columns = torch.arange(keys, device=device)[None, :]
    return bias[:, columns - rows + queries - 1]


def _dense(query: Sight, key: Sight, bias: Tensor | None, window: int | None) -> Dense:
    seen = query.table(key, window)[:, None]
    if bias is None and seen.device.type == "cpu":  # where the kernel would add zeros, each time
        return Dense(torch.zeros(seen.shape).masked_fill_(~seen, float("-inf")))
    if bias is None:
        return Dense(seen)
    scores = spread(bias, seen.shape[2], seen.shape[3])
    return Dense(torch.where(seen, scores, float("-inf")))


def blocks(query: Sight, key: Sight, window: int | None = None) -> BlockMask:
    """Find the blocks of the mask that are seen in part or in full, from the bounds of each block.

    torch's own `create_block_mask` asks about every pair of tokens. Bounds ask about every pair of
    blocks: a thousandth of the work, and at worst a block is looked into in which nothing is seen.
    """
    document, clock = _bounds(query.document, numbers=True), _bounds(query.clock)
    texts, birth = _bounds(key.document, numbers=True), _bounds(key.birth)
    (low, high), (first, last) = document, texts
    seen = (low[:, :, None] <= last[:, None]) & (first[:, None] <= high[:, :, None])
    seen &= birth[0][:, None] <= clock[1][:, :, None]
    full = (low == high)[:, :, None] & (first == last)[:, None]
    full = full & (low[:, :, None] == first[:, None])
    full &= birth[1][:, None] <= clock[0][:, :, None]
    if window is not None:
        seen &= clock[0][:, :, None] - birth[1][:, None] < window
        full &= clock[1][:, :, None] - birth[0][:, None] < window
    queries, keys = query.document.shape[1], key.document.shape[1]
    # A block that hangs over the end of its row is never full.
    full[:, queries // BLOCK :] = False
    full[:, :, keys // BLOCK :] = False
    return BlockMask.from_kv_blocks(
        *_listed(seen & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=_rule(query, key, window),
        seq_lengths=(queries, keys),
    )


def _bounds(x: Tensor, *, numbers: bool = False) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest of each block: two (batch, blocks)."""
    if numbers:  # documents are numbered upwards along a row, and padding ends it
        x = torch.where(x < 0, 2**30 - x, x)
    over = -x.shape[1] % BLOCK
    if over:
        x = torch.cat([x, x[:, -1:].expand(-1, over)], dim=1)
    blocks = x.reshape(x.shape[0], -1, BLOCK)
    return blocks.amin(2), blocks.amax(2)


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """List the chosen key blocks of each query block first: how many, and all in their order."""
    counts = chosen.sum(-1, dtype=torch.int32)
    order = torch.argsort((~chosen).to(torch.int32), dim=-1, stable=True).to(torch.int32)
    return counts[:, None], order[:, None].contiguous()  # (batch, 1, query blocks, key blocks)


def _rule(query: Sight, key: Sight, window: int | None):  # type: ignore[no-untyped-def]  # flex's
    def rule(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        same = query.document[batch, i] == key.document[batch, j]
        born, now = key.birth[batch, j], query.clock[batch, i]
        seen = same & (born <= now)
        return seen if window is None else seen & (now - born < window)

    return rule


def _score(bias: Tensor | None, queries: int):  # type: ignore[no-untyped-def]  # flex's own type
    if bias is None:
        return None

    def score(value: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return value + bias[head, j - i + queries - 1]

    return score


def _own(bias: Tensor):  # type: ignore[no-untyped-def]  # flex's own type
    def score(value: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return value + bias[batch, head, i, j]

    return score
