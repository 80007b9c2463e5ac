"""Fast paths have the loss and the gradients of the plain path, for every family and objective.

Here are those that a CPU has. Attention kernels are compared in `tests/nn/test_block_sparse.py` and
`test_varlen_attention.py`, traced and compiled networks in `tests/test_compiled.py` and
`tests/training/test_compilation.py`, bfloat16 weights in `tests/training/test_master_weights.py`,
skipped sublayers in `test_models.py`, fine-tuning in static shapes in
`tests/tasks/test_static_shapes.py`, and replayed graphs in `tests/training/test_capture_cuda.py`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, with_texts
from kinfolk.data.datasets import PackedDataset
from kinfolk.families.base import Family
from kinfolk.nn import cpu_products, embeddings, losses
from kinfolk.nn.cpu_products import onednn_multiplies
from kinfolk.nn.language_model import reads_texts
from kinfolk.packed_texts import PackedTexts
from support.contracts import (
    LENGTH,
    NAMES,
    PAIRS,
    SPECIALS,
    VOCAB,
    build,
    documents,
    shaken,
    slow_pairs,
)
from support.pairs import contracted

LEARNING = [pair for pair in PAIRS if pair[0].model.gradient_free is None]
EVERY = pytest.mark.parametrize(
    ("member", "way"),
    LEARNING,
    ids=[name for name, pair in zip(NAMES, PAIRS, strict=True) if pair in LEARNING],
)
SAMPLED = slow_pairs(LEARNING)
Gradients = tuple[float, dict[str, Tensor]]


class Setting:
    """A network in float64, its objective, and rows of several texts."""

    def __init__(self, member: Family, way: str, dtype: torch.dtype = torch.float64) -> None:
        kind = contracted(member.objective(way))
        self.objective: Any = kind(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=LENGTH)
        self.model = shaken(build(member)).to(dtype)
        feed = PackedDataset(self.objective, documents(), batch_size=1)
        self.rows = [feed.sequence(row) for row in range(len(feed))]
        assert max(map(len, self.rows)) > 1
        self.batch: Batch[Any] = self.objective.collate(self.rows)

    def gradients(self, *batches: Batch[Any]) -> Gradients:
        """Return the mean loss of batches, as one, and its gradients."""
        self.model.zero_grad(set_to_none=True)
        loss = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            loss = loss + self.objective.loss(self.model, batch).mean(self.batch.counts)
        loss.backward()
        named = self.model.named_parameters()
        return loss.item(), {name: p.grad for name, p in named if p.grad is not None}


def compare(fast: Gradients, plain: Gradients, within: float) -> None:
    assert fast[0] == pytest.approx(plain[0], rel=within)
    assert fast[1].keys() == plain[1].keys() and plain[1]
    for name, wanted in plain[1].items():
        scale = within * max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(fast[1][name], wanted, rtol=within, atol=scale, msg=name)


@SAMPLED
def test_packed_rows_learn_what_single_texts_do(member: Family, way: str) -> None:
    setting = Setting(member, way)
    alone = [setting.objective.collate([[text]]) for row in setting.rows for text in row]
    compare(setting.gradients(setting.batch), setting.gradients(*alone), 1e-6)


def whole_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, size: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of all logits at once, with label smoothing and without."""
    logits = F.linear(hidden, weight[:size], bias)
    smoothed, plain = (
        F.cross_entropy(logits, labels, None, None, IGNORE_INDEX, None, "sum", label_smoothing)
        for label_smoothing in (smoothing, 0.0)
    )
    return smoothed, plain.detach()


@EVERY
def test_the_loss_in_chunks_is_that_of_all_logits(
    member: Family, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, calls = Setting(member, way), list[bool]()
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 5 * VOCAB)
    chunked = setting.gradients(setting.batch)

    def plain(*arguments: Any) -> tuple[Tensor, Tensor]:
        calls.append(True)
        return whole_loss(*arguments)

    monkeypatch.setattr(embeddings, "smoothed_linear_cross_entropy", plain)
    monkeypatch.setattr(embeddings, "linear_cross_entropy", lambda *some: plain(*some, 0.0)[0])
    compare(chunked, setting.gradients(setting.batch), 1e-6)
    assert calls


@EVERY
@pytest.mark.skipif(not onednn_multiplies(), reason="needs the product of oneDNN")
def test_products_of_onednn_learn_what_those_of_torch_do(
    member: Family, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, products = Setting(member, way, torch.float32), list[bool]()
    monkeypatch.setattr(cpu_products, "ONEDNN_PRODUCTS", math.inf)
    plain = setting.gradients(setting.batch)
    product: Callable[..., Tensor] = cpu_products._onednn

    def counted(*arguments: Any) -> Tensor:
        products.append(True)
        return product(*arguments)

    monkeypatch.setattr(cpu_products, "ONEDNN_PRODUCTS", 0)
    monkeypatch.setattr(cpu_products, "_onednn", counted)
    for module in (cpu_products, losses):
        monkeypatch.setattr(module, "has_wide_vectors", lambda: True)
    compare(setting.gradients(setting.batch), plain, 1e-4)
    assert products


@EVERY
def test_texts_that_the_loader_found_are_those_of_the_network(member: Family, way: str) -> None:
    setting = Setting(member, way)
    found = with_texts(setting.batch)
    assert isinstance(found.inputs.attention_mask.texts, PackedTexts)
    if reads_texts(setting.model):
        compare(setting.gradients(found), setting.gradients(setting.batch), 1e-12)


@SAMPLED
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_has_the_loss_of_the_dense_mask(member: Family, way: str) -> None:
    """Its gradients are compared on CUDA, which alone has them: `tests/test_compiled.py`."""
    setting = Setting(member, way, torch.float32)
    model = setting.model.eval().requires_grad_(False)
    batch, objective = setting.batch, setting.objective
    blocks = replace(batch, inputs=batch.inputs.with_block_masks(model.attention_windows))
    with torch.no_grad():
        fast, plain = (objective.loss(model, some).mean(batch.counts) for some in (blocks, batch))
    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
