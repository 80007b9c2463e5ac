"""Block-sparse attention reads the blocks that a mask leaves, and computes what the mask says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinfolk.attention_mask import AttentionMask, BlockRanges, compare_bounds
from kinfolk.batch import Batch
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.families import families
from kinfolk.nn import attention
from kinfolk.nn.attention import BlockSparse, FlexBlockSparse, MaskedSdpa, select_backend
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.step import Learner
from support.triton_on_cpu import block_sparse_on_cpu

STATIC = [m for m in families().values() if m.model.static_shapes and m.name != "ngram"]  # counted
PAIRS = [(m.name, way) for m in STATIC if m.model.varlen_attention for way in m.objectives]
VOCAB = 300
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5, sentinels=tuple(range(6, 106))
)
IDS = torch.tensor([[0] * 70 + [1] * 13 + [2] * 57 + [-1] * 60, [0] * 200])
ORDER = torch.stack(
    [torch.randperm(200, generator=torch.Generator().manual_seed(n)) for n in (0, 1)]
)
SOURCE = torch.tensor([[0] * 30 + [1] * 90 + [2] * 10 + [-1] * 20, [0] * 150])
CAUSAL, WHOLE = AttentionMask.causal(IDS), AttentionMask.bidirectional(IDS)
PERMUTED = AttentionMask(IDS, ORDER, ORDER)
CASES: dict[str, tuple[AttentionMask, AttentionMask, int | None]] = {
    "causal": (CAUSAL, CAUSAL, None),
    "bidirectional": (WHOLE, WHOLE, None),
    "band": (CAUSAL, CAUSAL, 20),
    "permuted": (PERMUTED, PERMUTED, None),
    "query stream": (AttentionMask(IDS, ORDER, ORDER - 1), PERMUTED, None),
    "cross-attention": (WHOLE, AttentionMask.bidirectional(SOURCE), None),
}


def written_out(qkv: list[Tensor], mask: Tensor, scale: float) -> Tensor:
    """Compute attention pair by pair; what attends to nothing is 0."""
    q, k, v = qkv
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def reference(
    query: Tensor, key: Tensor | None, value: Tensor | None, ranges: BlockRanges, scale: float
) -> Tensor:
    """Compute what `block_sparse.attend` documents, from the ranges and the four integers."""
    parts = [*query.unbind(2)] if key is None or value is None else [query, key, value]
    seen = ranges.query_ids[:, :, None] == ranges.key_ids[:, None, :]
    seen &= ranges.key_order[:, None, :] <= ranges.query_order[:, :, None]
    if ranges.window is not None:
        seen &= ranges.query_order[:, :, None] - ranges.key_order[:, None, :] < ranges.window
    return written_out(parts, seen & read(ranges, seen.shape), scale)


def read(ranges: BlockRanges, shape: torch.Size) -> Tensor:
    """Return which pairs are in a block that is read by both passes."""
    found = torch.ones(shape, dtype=torch.bool)
    rows = torch.arange(shape[1]) // ranges.block_queries
    columns = torch.arange(shape[2]) // ranges.block_keys
    first, last = ranges.key_ranges[:, rows].unbind(-1)
    found &= (first[:, :, None] <= columns) & (columns < last[:, :, None])
    first, last = ranges.query_ranges[:, columns].unbind(-1)
    return found & (first[:, None] <= rows[:, None]) & (rows[:, None] < last[:, None])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [16, 64])
def test_every_visible_pair_is_read(name: str, size: int) -> None:
    query, key, window = CASES[name]
    ranges = BlockRanges.of(query, key, window, block_queries=size, block_keys=2 * size)
    mask = query.dense(key, window)
    assert not (mask & ~read(ranges, mask.shape)).any()


def test_blocks_that_nothing_in_them_sees_are_not_read() -> None:
    ids = torch.tensor([[0] * 64 + [1] * 64 + [2] * 128])
    ranges = BlockRanges.of(*2 * [AttentionMask.causal(ids)], block_queries=64, block_keys=64)
    assert ranges.key_ranges.tolist() == [[[0, 1], [1, 2], [2, 3], [2, 4]]]
    assert ranges.query_ranges.tolist() == [[[0, 1], [1, 2], [2, 4], [3, 4]]]
    other = AttentionMask.bidirectional(torch.full((1, 64), 5))
    ranges = BlockRanges.of(AttentionMask.causal(ids), other, block_queries=64, block_keys=64)
    assert (ranges.key_ranges[..., 0] == ranges.key_ranges[..., 1]).all()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.sampled_from([50, 128, 130]))
def test_bounds_of_documents_leave_no_visible_pair_out(lengths: list[int], length: int) -> None:
    ids = torch.full((1, length), -1)
    numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[:length]
    ids[0, : len(numbers)] = numbers
    mask = AttentionMask.causal(ids)
    partial, full = compare_bounds(mask, mask, None, 32, 16)
    assert not (full & ~partial).any()
    ranges = BlockRanges.of(mask, mask, block_queries=32, block_keys=16)
    dense = mask.dense()
    assert not (dense & ~read(ranges, dense.shape)).any()


def test_it_is_chosen_where_it_computes_the_mask() -> None:
    sparse = CAUSAL.with_block_masks([20], "triton")
    assert isinstance(select_backend(sparse), BlockSparse)
    banded = select_backend(sparse, window=20)
    assert isinstance(banded, BlockSparse)
    assert banded.mask.window == 20
    for choice in (
        select_backend(sparse, WHOLE),  # other keys, such as a cache
        select_backend(sparse, bias=torch.zeros(2, 399)),
        select_backend(sparse, dropout=True),
        select_backend(sparse, layer_bias=True),
        select_backend(sparse, window=3),
    ):
        assert isinstance(choice, MaskedSdpa)
    assert isinstance(select_backend(CAUSAL.with_block_masks()), FlexBlockSparse)


def dataset(objective: Any) -> PackedDataset:
    """Make batches of ragged texts."""
    numbers = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 60, (30,), generator=numbers).tolist()
    texts = [torch.randint(110, VOCAB, (n,), generator=numbers).tolist() for n in sizes]
    documents = InMemoryDocuments.from_lists([[t[: len(t) // 2], t[len(t) // 2 :]] for t in texts])
    return PackedDataset(objective, documents, batch_size=4, seed=0)


def setting(name: str, way: str, **fields: Any) -> tuple[Learner, Batch[Any], Any]:
    """Return the learner of a nano network, a batch, and its inputs with ranges of blocks."""
    who = families()[name]
    objective = who.objective(way)(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=128)
    config: Any = who.config("nano")
    rates = {field: 0.0 for field in vars(config) if field.endswith("dropout")}
    torch.manual_seed(0)
    model = replace(config, vocab_size=VOCAB, **rates, **fields).build().train()
    batch = dataset(objective)[0]
    inputs = batch.inputs.with_block_masks(model.attention_windows, "triton")
    return Learner(model, objective), batch, inputs


def gradients(learner: Learner, inputs: Any, batch: Batch[Any]) -> tuple[float, dict[str, Tensor]]:
    learner.zero_grad(set_to_none=True)
    mean = learner(inputs, batch.targets).mean(batch.counts)
    mean.backward()
    grads = {n: p.grad.float() for n, p in learner.named_parameters() if p.grad is not None}
    return mean.item(), grads


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_every_family_has_the_loss_and_gradients_of_the_dense_mask(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []

    def counted(*arguments: Any) -> Tensor:
        called.append(arguments[1] is None)
        return reference(*arguments)

    monkeypatch.setattr(attention, "block_sparse", SimpleNamespace(attend=counted), raising=False)
    learner, batch, inputs = setting(name, way)
    loss, grads = gradients(learner, inputs, batch)
    assert called
    expected, wanted = gradients(learner, batch.inputs, batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert grads.keys() == wanted.keys()
    for parameter, gradient in grads.items():
        torch.testing.assert_close(gradient, wanted[parameter], rtol=1e-3, atol=1e-5)


# Queries, keys and values in one tensor, or each in its own; the former for a mask of one text.
TENSORS = [(name, together) for name in CASES for together in (True, False)]
TENSORS.remove(("cross-attention", True))


@pytest.mark.parametrize("blocks", [(64, 64), (16, 32)])
@pytest.mark.parametrize(("name", "together"), TENSORS)
def test_the_code_of_the_kernels_equals_float64(
    name: str, together: bool, blocks: tuple[int, int]
) -> None:
    query, key, window = CASES[name]
    torch.manual_seed(0)
    ranges = BlockRanges.of(query, key, window, block_queries=blocks[0], block_keys=blocks[1])
    length, other = (mask.document_ids.shape[1] for mask in (query, key))
    parts = [  # the heads of a token lie side by side, apart, and in a wider tensor
        torch.randn(2, length, 3, 16),
        torch.randn(2, 3, other, 16).transpose(1, 2),
        torch.randn(2, other, 3, 32)[..., :16],
    ]
    leaves = [torch.stack(parts, 2)] if together else parts
    leaves = [x.requires_grad_() for x in leaves]
    out = block_sparse_on_cpu().attend(*leaves, *[None] * (3 - len(leaves)), ranges, 0.3)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    split = [*exact[0].unbind(2)] if together else exact
    wanted = written_out(split, query.dense(key, window), 0.3)
    seeds = torch.randn(2, 3, length, 16).transpose(1, 2)
    found = torch.autograd.grad(out, leaves, seeds)
    expected = torch.autograd.grad(wanted, exact, seeds.double())
    for one, other in zip((out, *found), (wanted, *expected), strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-5)


def on_cuda(mask: AttentionMask) -> AttentionMask:
    parts = ("document_ids", "key_order", "query_order")
    return replace(mask, **{part: getattr(mask, part).cuda() for part in parts})


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:TensorFloat32", "ignore::DeprecationWarning")
def test_the_kernels_equal_float64(name: str, compiled: bool) -> None:
    from kinfolk.nn.block_sparse import attend

    torch.manual_seed(0)
    query, key, window = CASES[name]
    query, key = on_cuda(query), on_cuda(key)
    ranges, dense = BlockRanges.of(query, key, window), query.dense(key, window)
    together = query.document_ids.shape == key.document_ids.shape
    sizes = [(2, mask.document_ids.shape[1], 3, 64) for mask in (query, key, key)]
    parts = [torch.randn(size, device="cuda").bfloat16() for size in sizes]
    leaves = [torch.stack(parts, 2)] if together else parts
    leaves = [x.requires_grad_() for x in leaves]
    run: Any = torch.compile(attend) if compiled else attend
    out = run(*leaves, *[None] * (3 - len(leaves)), ranges, 0.3)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    wanted = written_out([*exact[0].unbind(2)] if together else exact, dense, 0.3)
    seeds = torch.randn_like(wanted)
    found = torch.autograd.grad(out, leaves, seeds.to(out.dtype))
    expected = torch.autograd.grad(wanted, exact, seeds)
    for one, other in zip((out, *found), (wanted, *expected), strict=True):
        assert (one - other).norm() < 5e-3 * other.norm()


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_families_on_cuda_have_the_loss_and_gradients_of_the_dense_mask(
    name: str, way: str
) -> None:
    learner, batch, _ = setting(name, way)
    learner, batch = learner.cuda(), batch.to("cuda")
    windows = learner.model.attention_windows  # type: ignore[union-attr]
    sparse = batch.inputs.with_block_masks(windows, "triton")
    with torch.autocast("cuda", torch.bfloat16):
        loss, grads = gradients(learner, sparse, batch)
        expected, wanted = gradients(learner, batch.inputs, batch)
    assert loss == pytest.approx(expected, rel=5e-3)
    norm = torch.stack([g.norm() for g in wanted.values()]).norm()
    errors = torch.stack([(grads[n] - wanted[n]).norm() for n in wanted])
    assert errors.norm() < 0.02 * norm


@pytest.mark.gpu
def test_a_layer_that_runs_again_has_the_same_gradients() -> None:
    from kinfolk.nn.block_sparse import attend

    mask = on_cuda(CAUSAL)
    ranges = BlockRanges.of(mask, mask)
    qkv = torch.randn(2, 200, 3, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    seeds = torch.randn(2, 200, 2, 64, device="cuda", dtype=torch.bfloat16)
    (once,) = torch.autograd.grad(attend(qkv, None, None, ranges, 0.3), qkv, seeds)
    again = checkpoint(attend, qkv, None, None, ranges, 0.3, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again, qkv, seeds)[0], once)
