"""Layers that run again in the backward pass change the memory of a step, and nothing else."""

import copy
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from kinfolk.batch import Batch
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.activation_checkpoint import checkpoint_activations
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import read
from kinfolk.training.step import Learner
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.pretrain import pretrain
from support.runs import Home

VOCAB = 300
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5, sentinels=tuple(range(6, 106))
)
TRANSFORMERS = [
    (family.name, next(iter(family.objectives)))
    for family in families().values()
    if family.model.static_shapes and family.name != "ngram"  # which is counted
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


def setting(member: str, way: str, **fields: Any) -> tuple[Any, Any, Batch[Any]]:
    """Return a nano network with dropout, its objective, and a batch of ragged texts."""
    family = families()[member]
    objective = family.objective(way)(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=64)
    numbers = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 50, (20,), generator=numbers).tolist()
    texts = [torch.randint(110, VOCAB, (n,), generator=numbers).tolist() for n in sizes]
    documents = InMemoryDocuments.from_lists([[t[: len(t) // 2], t[len(t) // 2 :]] for t in texts])
    config = replace(family.config("nano"), vocab_size=VOCAB)
    torch.manual_seed(0)
    model = config.with_fields(dropout=0.1, attention_dropout=0.1, **fields).build().train()
    return model, objective, PackedDataset(objective, documents, batch_size=4, seed=0)[0]


def learned(learner: Learner, batch: Batch[Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and every gradient, with the same dropout in every call."""
    torch.manual_seed(7)
    mean = learner(batch.inputs, batch.targets).mean(batch.counts)
    torch.autograd.backward(mean)
    found = {n: p.grad for n, p in learner.named_parameters() if p.grad is not None}
    return mean.detach(), found


def peak_bytes(learner: Learner, batch: Batch[Any]) -> int:
    """Return the most memory that forward and backward allocate at a time."""
    learned(learner, batch)
    learner.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        learned(learner, batch)
    learner.zero_grad()
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def count_runs(model: nn.Module) -> list[nn.Module]:
    """Return a list that gets every norm when it runs."""
    runs: list[nn.Module] = []
    for part in model.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            part.register_forward_pre_hook(lambda norm, arguments: runs.append(norm))
    return runs


def assert_same(one: tuple[Tensor, dict[str, Tensor]], other: Any) -> None:
    """Compare the losses and all gradients, to the bit."""
    assert torch.equal(one[0], other[0])
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        assert torch.equal(gradient, other[1][name]), name


@pytest.mark.parametrize(("member", "way"), TRANSFORMERS)
def test_losses_and_gradients_are_those_without(member: str, way: str) -> None:
    model, objective, batch = setting(member, way)
    twin = copy.deepcopy(model)
    checkpoint_activations(model)
    results, calls = [], []
    for network in (twin, model):
        runs = count_runs(network)
        results.append(learned(Learner(network, objective), batch))
        calls.append(len(runs))
    assert_same(*results)
    assert calls[1] > 1.5 * calls[0]


@pytest.mark.parametrize(("member", "layers"), [("gpt2", 8), ("albert", 8), ("t5", 4)])
def test_a_layer_keeps_its_input_alone(member: str, layers: int) -> None:
    way = next(iter(families()[member].objectives))
    shallow: list[int] = []
    deep: list[int] = []
    for count, found in ((1, shallow), (layers, deep)):
        model, objective, batch = setting(member, way, num_layers=count)
        learner = Learner(model, objective)
        found.append(peak_bytes(learner, batch))
        checkpoint_activations(model)
        found.append(peak_bytes(learner, batch))
    whole, again = (deep[i] - shallow[i] for i in (0, 1))  # of the further layers
    assert again < whole / 5


def test_layers_run_once_in_evaluation_and_without_gradients() -> None:
    model, objective, batch = setting("gpt2", "clm")
    checkpoint_activations(model)
    checkpoint_activations(model)  # a second call changes nothing
    learner, runs = Learner(model, objective), count_runs(model.layers)
    learned(learner, batch)
    once = len(runs) // 2
    assert len(runs) == 2 * once == 2 * 2 * len(model.layers)
    with torch.no_grad():
        learner(batch.inputs, batch.targets)
    assert len(runs) == 3 * once
    model.eval()
    learned(learner, batch)
    assert len(runs) == 4 * once


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("member", "way"),
    [pytest.param(*pair, marks=pytest.mark.slow) for pair in TRANSFORMERS],
)
def test_a_traced_learner_runs_its_layers_again(member: str, way: str) -> None:
    torch._dynamo.reset()
    model, objective, batch = setting(member, way)
    loss, gradients = learned(Learner(copy.deepcopy(model), objective), batch)
    checkpoint_activations(model)
    traced = Learner(model, objective)
    traced.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    again, others = learned(traced, batch)
    assert again.item() == pytest.approx(loss.item(), rel=1e-5)
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_has_the_same_losses_and_weights(home: Home, tmp_path: Path, parallel: str) -> None:
    settings = ("train.steps=3", "train.warmup=0", f"train.parallel={parallel}")
    one = pretrain(home.recipe("gpt2", *settings), tmp_path / "one")
    again = home.recipe("gpt2", *settings, "train.checkpoint_activations=yes")
    other = pretrain(again, tmp_path / "other")
    assert read(other) == read(one)
    first, second = (run / "checkpoints/last/model.safetensors" for run in (one, other))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_fine_tuning_has_the_same_losses(home: Home, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good thing\tyes\na bad thing\tno\n" * 8)
    settings: dict[str, Any] = {"steps": 4, "device": "cpu", "dropout": 0.1, "dev": rows}
    model = pretrain(home.recipe("bert", "train.steps=2", "train.warmup=0"), tmp_path / "bert")
    one = finetune(model, rows, tmp_path / "one", **settings)
    other = finetune(model, rows, tmp_path / "other", checkpoint_activations="yes", **settings)
    assert read(other) == read(one)


def test_what_cannot_run_again_is_one_sentence() -> None:
    model = replace(families()["ulmfit"].config("nano"), vocab_size=VOCAB).build()
    with pytest.raises(UserError, match="the layers of recurrent networks are not run again"):
        checkpoint_activations(model)
    with pytest.raises(UserError, match="sets random numbers inside of the step, which cannot be"):
        TrainConfig(checkpoint_activations="yes", cuda_graph="yes")
