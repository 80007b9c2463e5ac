"""A model in bfloat16 with float32 master weights learns what autocast learns, and resumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import read
from kinfolk.training.master_weights import MasterWeights
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import recipe
from support.killed_runs import at, death
from support.runs import Home, tree

STATIC = [m for m in families().values() if m.model.static_shapes and m.name != "ngram"]  # counted
VOCAB = 300
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5, sentinels=tuple(range(6, 106))
)
LOW = ("train.precision=bfloat16", "train.master_weights=yes")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


def dataset(objective: Any) -> PackedDataset:
    """Make batches of ragged texts."""
    numbers = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 60, (40,), generator=numbers).tolist()
    texts = [torch.randint(110, VOCAB, (n,), generator=numbers).tolist() for n in sizes]
    documents = InMemoryDocuments.from_lists([[t[: len(t) // 2], t[len(t) // 2 :]] for t in texts])
    return PackedDataset(objective, documents, batch_size=4, seed=0)


class Setting:
    """A step in bfloat16, by autocast or with master weights, that keeps its first gradient."""

    def __init__(self, name: str, *, masters: bool, optimizer: Any = "adamw") -> None:
        who = families()[name]
        kind = who.objective(next(iter(who.objectives)))
        objective = kind(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=128)
        config: Any = who.config("nano")
        rates = {field: 0.0 for field in vars(config) if field.endswith("dropout")}
        torch.manual_seed(0)
        self.model = replace(config, vocab_size=VOCAB, **rates).build().train()
        self.data = dataset(objective)
        train = TrainConfig(optimizer=optimizer)
        self.optimizer = build_optimizer(self.model, train)
        self.masters = MasterWeights(self.model, self.optimizer) if masters else None
        self.step = TrainStep(
            Learner(self.model, objective),
            self.optimizer,
            lambda number: 1e-3,
            clip=1.0,
            seed=0,
            device=torch.device("cpu"),
            bfloat16=True,
            master_weights=self.masters,
        )

    def losses(self, steps: int) -> list[float]:
        return [
            self.step(n, [self.data[2 * n], self.data[2 * n + 1]]).loss.item() for n in range(steps)
        ]

    def gradient(self) -> Tensor:
        """Return the gradient of one batch, all parameters in one vector."""
        batch = self.data[0]
        self.step._compute_gradients(0, [batch], batch.counts)
        return torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten()
                for p in self.step.updated
            ]
        )


@pytest.mark.parametrize("name", [m.name for m in STATIC])
def test_gradients_and_first_losses_are_those_of_autocast(name: str) -> None:
    plain, low = (Setting(name, masters=masters).gradient() for masters in (False, True))
    assert low.dtype == torch.float32
    assert torch.cosine_similarity(plain, low, dim=0) > 0.99
    assert low.norm().item() == pytest.approx(plain.norm().item(), rel=0.03)
    plain_losses, losses = (Setting(name, masters=m).losses(5) for m in (False, True))
    assert losses == pytest.approx(plain_losses, rel=0.01)
    assert losses != plain_losses, "the weights were not rounded"


def test_layer_norms_are_float32_and_all_others_bfloat16() -> None:
    setting = Setting("bert", masters=True)
    for name, part in setting.model.named_modules():
        for weight in part.parameters(recurse=False):
            norm = isinstance(part, nn.LayerNorm)
            assert weight.dtype == (torch.float32 if norm else torch.bfloat16), name
    moments = [v for s in setting.optimizer.state.values() for v in s.values()]
    assert all(value.dtype == torch.float32 for value in moments)


def test_small_updates_add_up_in_the_master_weights() -> None:
    """An update of a thousandth of a weight is lost in bfloat16, ten of them are not."""
    setting = Setting("gpt2", masters=True)
    weight, master = setting.masters.weights[0], setting.masters.masters[0]
    with torch.no_grad():
        master.fill_(1.0)
    setting.masters.round()
    for _ in range(10):
        with torch.no_grad():
            master.add_(1e-3)
        setting.masters.round()
    assert weight.flatten()[0].item() == pytest.approx(1.01, abs=2**-8)
    assert weight.flatten()[0].item() != 1.0


def test_micro_batches_add_up_in_float32() -> None:
    setting = Setting("gpt2", masters=True)
    weight, master = setting.masters.weights[0], setting.masters.masters[0]
    for part in (256.0, 1.0, 1.0):  # 257 is not a number of bfloat16
        weight.grad = torch.full_like(weight, part)
        setting.masters.take_gradients()
        assert weight.grad is None
    assert master.grad is not None
    assert torch.equal(master.grad, torch.full_like(master, 258.0))


@pytest.mark.parametrize("optimizer", ["adamw_rms", "adafactor", "muon"])
def test_every_optimizer_updates_the_master_weights(optimizer: str) -> None:
    setting = Setting("bert", masters=True, optimizer=optimizer)
    before = [master.detach().clone() for master in setting.masters.masters]
    setting.losses(2)
    for old, master, weight in zip(
        before, setting.masters.masters, setting.masters.weights, strict=True
    ):
        assert weight.grad is None and master.grad is None
        assert torch.equal(weight, master.to(torch.bfloat16))
        if master in setting.optimizer.state:
            assert not torch.equal(old, master)


@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("t5", "transformer_xl"))]
)
def test_a_killed_run_resumes_to_the_bit_and_saves_float32(
    name: str, home: Home, tmp_path: Path
) -> None:
    chosen = home.recipe(name, *LOW)
    whole = pretrain(chosen, tmp_path / "whole")
    death(chosen, tmp_path / "killed", at, 6)
    killed = resume(tmp_path / "killed")
    last, expected = (tree(run / "checkpoints" / "last", None) for run in (killed, whole))
    assert [file for file in expected if last.get(file) != expected[file]] == []
    assert (killed / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()
    weights = load_file(whole / "checkpoints" / "last" / "model.safetensors")
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    # And they are not numbers of bfloat16 that were written as float32.
    assert any(not torch.equal(w, w.bfloat16().float()) for w in weights.values())


def test_a_run_has_about_the_losses_of_autocast(home: Home, tmp_path: Path) -> None:
    found = {}
    for name, settings in {"autocast": LOW[:1], "masters": LOW}.items():
        run = pretrain(home.recipe("bert", *settings), tmp_path / name)
        found[name] = [(line["loss"], line.get("eval_loss")) for line in read(run)]
    for (loss, held_out), (low, low_held_out) in zip(*found.values(), strict=True):
        assert low == pytest.approx(loss, rel=0.02)
        assert (held_out is None) == (low_held_out is None)
        if held_out is not None:
            assert low_held_out == pytest.approx(held_out, rel=0.02)


@pytest.mark.parametrize(
    ("member", "settings", "said"),
    [
        ("gpt2", ["train.master_weights=yes"], "use train.precision=bfloat16"),
        ("gpt2", [*LOW, "train.parallel=fsdp"], "train.parallel=ddp"),
        ("ulmfit", LOW, "recurrent layers"),
    ],
)
def test_runs_whose_weights_cannot_be_rounded_are_refused(
    member: str, settings: list[str], said: str, home: Home, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        pretrain(recipe(f"{member}/nano", home.corpus, settings=settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_norms_return_the_type_of_their_input_until_the_weights_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As autocast does on CUDA.
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: x.float())
    setting = Setting("gpt2", masters=True)
    norm = next(part for part in setting.model.modules() if isinstance(part, nn.LayerNorm))
    x = torch.randn(2, 64, dtype=torch.bfloat16)
    assert norm(x).dtype == torch.bfloat16
    assert setting.masters is not None
    with setting.masters.in_model():
        assert norm(x).dtype == torch.bfloat16
    setting.masters.restore()
    assert norm(x).dtype == torch.float32
