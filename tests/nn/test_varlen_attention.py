"""Varlen attention computes what the dense mask does, and is chosen only where it can."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import varlen

from kinfolk.attention_mask import AttentionMask, SequenceOffsets
from kinfolk.batch import Batch, with_sequence_offsets
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.nn.attention import MaskedSdpa, UnmaskedSdpa, VarlenAttention, select_backend
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig
from kinfolk.training.loader import WithSequenceOffsets, data_loader
from kinfolk.training.step import Learner
from kinfolk.workflows.pretrain import pretrain
from support.runs import Home

STATIC = [m for m in families().values() if m.model.static_shapes and m.name != "ngram"]  # counted
PAIRS = [(m.name, way) for m in STATIC if m.model.varlen_attention for way in m.objectives]
OTHER_MASKS = ("prefix", "unilm", "blanks")  # neither causal nor bidirectional in each document
VOCAB = 300
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5, sentinels=tuple(range(6, 106))
)
# Two documents and padding; one document; documents of one token, and padding.
IDS = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, 0, 0], [0, 1, 2, 2, -1, -1]])
STARTS = [0, 3, 5, 6, 12, 13, 14, 16]


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
) -> Tensor:
    """Compute what the kernel documents, a sequence at a time: (tokens, heads, head_dim)."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert cu_seq_q[0] == 0 and cu_seq_q[-1] == len(query)
    assert int(cu_seq_q.diff().max()) <= max_q == max_k
    assert window_size in ((-1, 0), (-1, -1))
    parts = []
    for start, stop in zip(cu_seq_q.tolist(), cu_seq_k.tolist()[1:], strict=False):
        q, k, v = (x[start:stop].transpose(0, 1)[None] for x in (query, key, value))
        causal = window_size == (-1, 0)
        if stop > start:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
            parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("causal", [True, False])
def test_the_documents_of_all_rows_are_sequences_of_one_stream(causal: bool) -> None:
    make = AttentionMask.causal if causal else AttentionMask.bidirectional
    found = SequenceOffsets.of(make(IDS))
    assert found is not None
    assert found.cu_seqlens.tolist() == [*STARTS, 18]
    assert (found.max_seqlen, found.causal) == (6, causal)
    # The next power of two, so that batches of about as many documents have one shape.
    more = SequenceOffsets.of(make(torch.cat([IDS, IDS[:1]])))
    assert more is not None
    assert more.cu_seqlens.tolist() == [*STARTS, 18, 21, 23, *[24] * 6]


@pytest.mark.parametrize(
    "mask",
    [
        AttentionMask(IDS, order := torch.tensor([[0, 0, 1, 0, 1, 0]] * 3), order),  # a prefix
        AttentionMask(IDS, order, order - 1),  # targets of a query stream
        AttentionMask(IDS, order := torch.tensor([[0, 2, 1, 0, 2, 1]] * 3), order),  # permuted
    ],
    ids=["prefix", "targets", "permuted"],
)
def test_other_masks_have_no_sequences(mask: AttentionMask) -> None:
    assert SequenceOffsets.of(mask) is None


def test_it_is_chosen_where_it_computes_the_mask_and_nothing_else() -> None:
    mask = AttentionMask.causal(IDS).with_sequence_offsets()
    assert isinstance(select_backend(mask), VarlenAttention)
    other = AttentionMask.causal(torch.zeros_like(IDS))
    for choice in (
        select_backend(mask, other),  # other keys, such as a cache or a memory
        select_backend(mask, bias=torch.zeros(2, 11)),
        select_backend(mask, window=2),
        select_backend(mask, dropout=True),
        select_backend(mask, layer_bias=True),
        select_backend(AttentionMask.causal(IDS)),
    ):
        assert isinstance(choice, MaskedSdpa)
    whole = AttentionMask.causal(torch.zeros_like(IDS), unpacked=True).with_sequence_offsets()
    assert isinstance(select_backend(whole), UnmaskedSdpa)
    assert mask.with_block_masks([2]).block_mask is None
    assert mask.with_block_masks([2]).window_block_masks.keys() == {2}


def dataset(objective: Any) -> PackedDataset:
    """Make batches of ragged texts."""
    numbers = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 60, (30,), generator=numbers).tolist()
    texts = [torch.randint(110, VOCAB, (n,), generator=numbers).tolist() for n in sizes]
    documents = InMemoryDocuments.from_lists([[t[: len(t) // 2], t[len(t) // 2 :]] for t in texts])
    return PackedDataset(objective, documents, batch_size=4, seed=0)


def setting(name: str, way: str) -> tuple[Any, Batch[Any]]:
    """Return the learner of a nano network, and a batch."""
    who = families()[name]
    objective = who.objective(way)(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=128)
    config: Any = who.config("nano")
    rates = {field: 0.0 for field in vars(config) if field.endswith("dropout")}
    torch.manual_seed(0)
    model = replace(config, vocab_size=VOCAB, **rates).build().train()
    return Learner(model, objective), dataset(objective)[0]


def gradients(learner: Learner, data: Batch[Any]) -> tuple[float, dict[str, Tensor]]:
    mean = learner(data.inputs, data.targets).mean(data.counts)
    mean.backward()
    grads = {n: p.grad.float() for n, p in learner.named_parameters() if p.grad is not None}
    return mean.item(), grads


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_every_family_has_the_loss_and_gradients_of_the_dense_mask(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []

    def counted(*arguments: Any, **more: Any) -> Tensor:
        called.append(True)
        return reference(*arguments, **more)

    monkeypatch.setattr(varlen, "varlen_attn", counted)
    learner, data = setting(name, way)
    loss, grads = gradients(copy.deepcopy(learner), data)
    again, others = gradients(learner, with_sequence_offsets(data))
    assert bool(called) == (way not in OTHER_MASKS)
    assert again == pytest.approx(loss, rel=1e-5)
    for parameter, grad in grads.items():
        torch.testing.assert_close(others[parameter], grad, rtol=1e-3, atol=1e-5, msg=parameter)


def test_a_traced_layer_has_the_kernel_as_one_operation() -> None:
    mask = AttentionMask.causal(IDS).with_sequence_offsets()
    operations: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        operations.extend(str(node.target) for node in graph.graph.nodes)
        return lambda *tensors: (torch.zeros(3, 2, 6, 8),)  # the kernel needs CUDA

    @torch.compile(backend=backend, fullgraph=True, dynamic=False)
    def attend(query: Tensor, mask: AttentionMask) -> Tensor:
        return select_backend(mask)(query, query, query, scale=None, dropout=0.0)

    attend(torch.randn(3, 2, 6, 8, dtype=torch.bfloat16), mask)
    assert sum("varlen_attn" in name for name in operations) == 1


def test_the_data_loader_finds_the_documents_of_every_batch() -> None:
    objective = families()["gpt2"].objective("clm")(
        special_tokens=SPECIALS, vocab_size=VOCAB, max_length=128
    )
    batches = WithSequenceOffsets(dataset(objective))
    train = TrainConfig(steps=4, warmup=0, batch_size=4)
    for (batch,) in data_loader(batches, train, 0, pinned=False):
        sequences = batch.inputs.attention_mask.sequences
        assert sequences is not None and sequences.causal
        moved = batch.to("meta").inputs.attention_mask.sequences
        assert moved is not None and moved.cu_seqlens.is_meta


@pytest.mark.parametrize(("value", "said"), [("varlen", "bfloat16 on CUDA"), ("flex", "compile")])
def test_a_kernel_that_the_run_cannot_use_is_refused(value: str, said: str, tmp_path: Path) -> None:
    home = Home.make(tmp_path / "home")
    with pytest.raises(UserError, match=said):
        pretrain(home.recipe("gpt2", f"train.attention={value}"), tmp_path / "run")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_the_kernel_has_the_loss_and_gradients_of_the_dense_mask(name: str, way: str) -> None:
    learner, data = setting(name, way)
    learner = learner.cuda()
    fast = with_sequence_offsets(data).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss, grads = gradients(copy.deepcopy(learner), data.to("cuda"))
        again, others = gradients(learner, fast)
    assert again == pytest.approx(loss, rel=1e-2)
    first, second = (torch.cat([g.flatten() for g in found.values()]) for found in (grads, others))
    assert torch.cosine_similarity(first, second, dim=0) > 0.999
    assert second.norm().item() == pytest.approx(first.norm().item(), rel=2e-2)
