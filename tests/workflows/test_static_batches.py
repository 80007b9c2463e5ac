"""Runs on batches of static shapes: the losses of packed ones, the same batches after a resume."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.tasks.dataset import task_dataset
from kinfolk.tasks.instances import TOKENS_PER_BATCH, length_buckets
from kinfolk.tasks.static_shapes import MAX_SHAPES
from kinfolk.tensor_tree import tensor_leaves
from kinfolk.training.capture import batch_key
from kinfolk.training.workload import optimizer_step
from kinfolk.workflows.finetuning.finetune import FineTuneWorkload
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from support.contracts import equal
from support.learnable import choose, classify, objects, pair, squad, table, tag, tune, write

CPU = torch.device("cpu")
RUNS = {
    "bert-classify": ("bert/nano", table, classify, {}),
    "bert-pair-mean": ("bert/nano", table, pair, {"pooling": "mean"}),
    "bert-choose": ("bert/nano", objects, choose, {}),
    "bert-tag": ("bert/nano", objects, tag, {}),
    "bert-span": ("bert/nano", None, None, {"length": 32}),
    "gpt2-transformed": ("gpt2/nano", table, classify, {"formulation": "transformed"}),
    "t5-text": ("t5/nano", objects, write, {}),
}


def made_run(folder: Path, name: str) -> Path:
    """Fine-tune for two epochs of six steps, which leaves a recipe."""
    network, writer, row, more = RUNS[name]
    file = squad(folder / "train.json", 48) if writer is None else writer(folder / "t", row, 48)
    settings = ("train.batch_size=8", "train.cuda_graph=yes", "train.eval_every=9999")
    return tune(
        network, task_dataset(file), folder / "run", *settings, epochs=2, dropout=0.0, **more
    )


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that fine-tunes, each run once."""
    return cache(lambda name: made_run(tmp_path_factory.mktemp("made"), name))


def workload(run: Path, *, static: bool) -> Any:
    """Open the workload of a run from its first step, as on CUDA or as on the CPU."""
    work = FineTuneWorkload.reopen(FineTuneRecipe.read(run / "recipe.json"), run, None, ())
    assert work.static_batches is None
    if static:
        work.use_static_batches(work.model)
        assert work.static_batches is not None
    return work


@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_static_batches_has_the_losses_of_packed_ones(
    name: str, run_of: Callable[[str], Path]
) -> None:
    run, logs = run_of(name), []
    for static in (False, True):
        work = workload(run, static=static)
        step = optimizer_step(work, CPU, bfloat16=False)
        logs.append(
            [
                step(number, parts).to_numbers()
                for number, parts in enumerate(work.micro_batches(0, pinned=False))
            ]
        )
    assert len(logs[0]) > 8
    for packed, padded in zip(*logs, strict=True):
        assert padded["counts"] == packed["counts"]
        assert padded["loss"] == pytest.approx(packed["loss"], rel=1e-3)
        assert padded["grad_norm"] == pytest.approx(packed["grad_norm"], rel=5e-3)


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_on_dev_rows_is_that_of_few_large_batches(
    name: str, run_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of CUDA, where small batches are limited by the host."""
    work, sizes = workload(run_of(name), static=False), []
    work.model.eval()

    def loss(batch: Any) -> Any:
        sizes.append(batch.inputs.input_ids.numel())
        return work.objective.loss(work.model, batch)

    with torch.no_grad():
        plain = work.dev_loss(loss)["eval_loss"]
        small = len(sizes)

        def large(instances: Any) -> Any:
            return length_buckets([one.tokens for one in instances], TOKENS_PER_BATCH)

        monkeypatch.setattr(work, "loss_groups", large)
        assert work.dev_loss(loss)["eval_loss"] == pytest.approx(plain, rel=1e-5)
    assert len(sizes) - small == 1


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_has_the_same_static_batches(
    name: str, run_of: Callable[[str], Path]
) -> None:
    run = run_of(name)
    first, again = (workload(run, static=True) for _ in range(2))
    assert first.static_batches == again.static_batches
    steps = first.train.steps
    before = [first.batches[number] for number in range(steps)]
    after = [again.batches[number] for number in reversed(range(steps))][::-1]
    keys = {batch_key(batch) for batch in before if batch in first.static_batches}
    assert 1 <= len(keys) <= MAX_SHAPES
    assert sum(batch in first.static_batches for batch in before) > 0.8 * steps
    for one, other in zip(before, after, strict=True):
        assert batch_key(one) == batch_key(other) and one.counts == other.counts
        leaves = zip(tensor_leaves(one), tensor_leaves(other), strict=True)
        assert all(torch.equal(a, b) for a, b in leaves)


@pytest.mark.parametrize("name", ["bert-pair-mean", "t5-text"])
def test_batches_of_a_data_worker_share_the_graphs_of_their_shapes(
    name: str, tmp_path: Path
) -> None:
    work = workload(made_run(tmp_path, name), static=True)
    work.train = replace(work.train, workers=1)
    loaded = [batch for (batch,) in work.micro_batches(0, pinned=False)]
    made = [work.batches[number] for number in range(work.train.steps)]
    assert len(loaded) == len(made)
    shapes: dict[Any, Any] = {}
    for one, other in zip(made, loaded, strict=True):
        assert equal(one.inputs, other.inputs) and equal(one.targets, other.targets)
        assert (one in work.static_batches) == (other in work.static_batches)
        assert shapes.setdefault(batch_key(one), batch_key(other)) == batch_key(other)
