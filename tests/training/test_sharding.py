"""Sharded training (fsdp) is plain training in which each process holds a share of the weights."""

import copy
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.testing._internal.distributed.fake_pg import FakeStore

from kinfolk.batch import IGNORE_INDEX
from kinfolk.errors import UserError
from kinfolk.files import checksum_fault
from kinfolk.training import checkpoint
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import LostProcessError, Processes, local, model_connection
from kinfolk.training.log import read
from kinfolk.training.loop import Progress
from kinfolk.training.run import Run
from kinfolk.training.sharding import Shards, clip_gradients
from kinfolk.training.step import Learner
from kinfolk.training.workload import optimizer_step
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import Recipe
from kinfolk.workflows.recipe import recipe as make_recipe
from support.processes import Interrupt, torchrun, train_together
from support.runs import LENGTH, Home, Kinfolk, OnStep, command, one_sentence

slow = pytest.mark.slow
# With two processes, sums are rounded in another order.
TRAIN = ("steps=8", "save_every=4", "batch_size=8", "warmup=3", "lr=3e-3", "device=cpu", "seed=1")
EVALUATION = ("eval_every=3", "eval_batches=2")
FAMILIES = ("gpt2", "bert", "t5", "electra", "albert", "transformer_xl", "xlnet", "glm")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


@pytest.fixture
def kinfolk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kinfolk:
    return command(monkeypatch, capsys)


def recipe(home: Home, member: str, *settings: str) -> Recipe:
    """Put a run of eight steps together; networks of the size nano have no dropout."""
    chosen = [*(f"train.{setting}" for setting in (*TRAIN, *EVALUATION)), *settings]
    return make_recipe(f"{member}/nano", home.corpus, length=LENGTH, settings=chosen)


def sharded(recipe: Recipe) -> Recipe:
    """Return the recipe with its weights divided among the processes."""
    return replace(recipe, train=replace(recipe.train, parallel="fsdp"))


def set_parallel(run: Path, parallel: str) -> None:
    """Change how the processes of a run share the work, as a user would before a resume."""
    values = json.loads((run / "recipe.json").read_text())
    values["train"]["parallel"] = parallel
    (run / "recipe.json").write_text(json.dumps(values))


def assert_same_losses(run: Path, other: Path) -> None:
    """Compare the logs of two runs: losses to 1e-6 of their value."""
    lines, others = read(run), read(other)
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    for line, same in zip(lines, others, strict=True):
        assert line.keys() == same.keys()
        assert (line["counts"], line["lr"]) == (same["counts"], same["lr"])
        assert line["loss"] == pytest.approx(same["loss"], rel=1e-6)
        assert line.get("losses", {}) == pytest.approx(same.get("losses", {}), rel=1e-6)
        assert line.get("eval_loss", 0) == pytest.approx(same.get("eval_loss", 0), rel=1e-6)
        assert line["grad_norm"] == pytest.approx(same["grad_norm"], rel=1e-5)


def saved_names(run: Path) -> set[str]:
    """Return the names of the files of the last checkpoint, which must be whole."""
    folder = run / "checkpoints" / "last"
    assert checksum_fault(folder) is None
    return {path.name for path in folder.iterdir()}


@contextmanager
def one_of(rank: int, count: int) -> Iterator[Processes]:
    """Be one of several processes, the others of which only seem to be there."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    try:
        yield Processes(rank, count)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "member", [pytest.param(name, marks=[] if name == "gpt2" else slow) for name in FAMILIES]
)
def test_fsdp_of_one_process_trains_as_plain_training_does(
    home: Home, tmp_path: Path, member: str
) -> None:
    chosen = recipe(home, member)
    one = pretrain(chosen, tmp_path / "one")
    work = PretrainWorkload(sharded(chosen))
    run = Run.start(work, tmp_path / "sharded")
    assert run.shards is not None
    kinds = {type(parameter).__name__ for parameter in work.model.parameters()}
    assert kinds == {"DTensor"}
    run.fit()
    assert_same_losses(tmp_path / "sharded", one)
    assert not dist.is_initialized()


def test_one_process_of_torchrun_is_sharded(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    chosen = recipe(home, "gpt2", "train.steps=1", "train.warmup=0")
    assert len(read(pretrain(sharded(chosen), tmp_path / "run"))) == 1


@slow
@pytest.mark.parametrize("member", FAMILIES)
def test_fsdp_of_two_processes_trains_as_plain_training_does(
    home: Home, tmp_path: Path, member: str
) -> None:
    chosen = recipe(home, member)
    one = pretrain(chosen, tmp_path / "one")
    assert train_together(2, tmp_path / "two", sharded(chosen)) == [0, 0]
    assert_same_losses(tmp_path / "two", one)
    assert saved_names(tmp_path / "two") == saved_names(one)


@slow
@pytest.mark.parametrize("settings", [("gradient_accumulation=2",), ("optimizer=adamw_rms",)])
def test_other_steps_are_the_same_on_two_processes(
    home: Home, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    chosen = recipe(home, "gpt2", *(f"train.{setting}" for setting in settings))
    one = pretrain(chosen, tmp_path / "one")
    assert train_together(2, tmp_path / "two", sharded(chosen)) == [0, 0]
    assert_same_losses(tmp_path / "two", one)


def test_each_process_holds_its_share(home: Home) -> None:
    work = PretrainWorkload(recipe(home, "bert"))
    whole = sum(p.numel() for p in work.model.parameters())
    shares = []
    for rank in range(3):
        learner = Learner(copy.deepcopy(work.model), work.objective)
        with one_of(rank, 3) as processes:
            Shards(learner, torch.device("cpu"), processes)
            parts = [local(parameter) for parameter in learner.parameters()]
        shares.append(sum(part.numel() for part in parts))
        assert sum(part.untyped_storage().nbytes() for part in parts) < 0.4 * 4 * whole
    assert sum(shares) == whole
    assert max(shares) < 0.4 * whole


@pytest.mark.parametrize("member", ["gpt2", "electra"])
def test_gathered_weights_are_written_as_those_of_a_plain_model(
    home: Home, tmp_path: Path, member: str
) -> None:
    written = []
    for chosen in (recipe(home, member), sharded(recipe(home, member))):
        work, folder = PretrainWorkload(chosen), tmp_path / str(len(written))
        folder.mkdir()
        run = Run(work, tmp_path / "run")
        with run.whole_model():
            work.save_model(folder)
        if run.shards is not None:
            run.shards.close()
        files = sorted(path for path in folder.rglob("*.safetensors"))
        written.append([(path.name, path.read_bytes()) for path in files])
    assert written[0] == written[1]


def test_the_moments_of_an_optimizer_survive_sharding(home: Home) -> None:
    work = PretrainWorkload(sharded(recipe(home, "t5")))
    step = optimizer_step(work, torch.device("cpu"), bfloat16=False)
    work.model.train()
    step(0, next(work.micro_batches(0, pinned=False)))
    state = step.state_dict()
    plain = optimizer_step(PretrainWorkload(recipe(home, "t5")), step.device, bfloat16=False)
    assert plain.load_state_dict(copy.deepcopy(state))
    again = plain.state_dict()
    assert step.load_state_dict(copy.deepcopy(again))
    for other in (again["state"], step.state_dict()["state"]):
        assert other.keys() == state["state"].keys()
        for number, moments in state["state"].items():
            assert all(torch.equal(value, other[number][name]) for name, value in moments.items())
    assert step.shards is not None
    step.shards.close()


def without_labels(targets: Any) -> Any:
    """Return targets of which none is predicted."""
    if isinstance(targets, torch.Tensor) or not is_dataclass(targets):
        return targets
    changed = {
        field.name: torch.full_like(value, IGNORE_INDEX)
        if field.name == "labels" and isinstance(value, torch.Tensor)
        else without_labels(value)
        for field in fields(targets)
        if (value := vars(targets)[field.name]) is not None
    }
    return replace(cast(Any, targets), **changed)


@pytest.mark.parametrize("member", FAMILIES)
def test_a_share_without_labels_has_the_gradients_of_any_other(home: Home, member: str) -> None:
    # Processes exchange the gradients that each has: other ones would be waited for without end.
    work = PretrainWorkload(recipe(home, member))
    step = optimizer_step(work, torch.device("cpu"), bfloat16=False)
    batch = work.batches[0] if work.memory is None else work.batches[0].with_memory(work.memory[0])
    names = []
    for targets in (batch.targets, without_labels(batch.targets)):
        loss = step.forward(replace(batch, targets=targets))
        torch.autograd.backward(loss.mean(batch.counts))
        names.append([n for n, p in work.model.named_parameters() if p.grad is not None])
        work.model.zero_grad()
    assert names[0] == names[1]


@slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it traces
# The last layer of ALBERT ends where tokens are predicted: other shapes.
@pytest.mark.parametrize(("member", "kinds"), [("gpt2", 1), ("t5", 2), ("albert", 2)])
def test_layers_are_compiled_once_for_all(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str, kinds: int
) -> None:
    settings = ("model.num_layers=12", "train.steps=3", "train.eval_every=9", "train.warmup=0")
    chosen = recipe(home, member, *settings)
    one = pretrain(chosen, tmp_path / "one")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    work = PretrainWorkload(sharded(chosen))
    work.train = replace(work.train, compile="yes", checkpoint_activations="yes")
    Run.start(work, tmp_path / "compiled").fit()
    assert counters["stats"]["unique_graphs"] == 2 * kinds  # for training and for evaluation
    assert_same_losses(tmp_path / "compiled", one)


def test_an_exchange_that_fails_is_a_lost_process() -> None:
    with pytest.raises(LostProcessError), model_connection():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    with pytest.raises(RuntimeError, match="shapes"), model_connection():
        raise RuntimeError("shapes cannot be multiplied")


def test_gradients_are_clipped_by_the_norm_of_the_whole_gradient() -> None:
    class TwoProcesses(Processes):
        def all_reduce(self, values: torch.Tensor, operation: object = None) -> None:
            values += 16.0  # the square of the other share

    share = nn.Parameter(torch.zeros(2))
    share.grad = torch.tensor([0.0, 3.0])
    norm = clip_gradients([share], 1.0, TwoProcesses(0, 2))
    assert norm.item() == pytest.approx(5.0)
    torch.testing.assert_close(share.grad, torch.tensor([0.0, 0.6]))


@slow
def test_the_folder_of_a_sharded_run_opens_in_transformers(home: Home, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "run"
    chosen = recipe(home, "gpt2", "train.steps=2", "train.warmup=1", "train.save_every=2")
    assert train_together(2, out, sharded(chosen)) == [0, 0]
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "checkpoints" / "last")
    assert model.transformer.wte.weight.isfinite().all()
    assert sum(p.numel() for p in model.parameters()) > 1000


def interrupted(recipe: Recipe, out: Path, step: int) -> Path:
    """Train to a step in this process, and stop as by Ctrl-C."""

    def interrupt(progress: Progress) -> None:
        if progress.step == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, out, callbacks=[OnStep(interrupt)])
    return out


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_of_either_kind_is_resumed_as_the_other(
    home: Home, tmp_path: Path, parallel: str
) -> None:
    chosen = recipe(home, "gpt2", "train.eval_every=8")
    one = pretrain(chosen, tmp_path / "one")
    first, then = (chosen, "fsdp") if parallel == "ddp" else (sharded(chosen), "ddp")
    out = interrupted(first, tmp_path / "two", 5)
    set_parallel(out, then)
    resume(out)
    assert_same_losses(out, one)
    assert saved_names(out) == saved_names(one)


@slow
@pytest.mark.parametrize(
    ("member", "before", "after"),
    [
        ("gpt2", ("fsdp", 2), ("ddp", 1)),
        ("gpt2", ("ddp", 1), ("fsdp", 2)),
        ("bert", ("fsdp", 2), ("ddp", 4)),
        ("transformer_xl", ("ddp", 2), ("fsdp", 4)),
    ],
)
def test_a_run_is_resumed_on_another_number_of_processes_of_the_other_kind(
    home: Home, tmp_path: Path, member: str, before: tuple[str, int], after: tuple[str, int]
) -> None:
    chosen = recipe(home, member)
    one = pretrain(chosen, tmp_path / "one")
    out = tmp_path / "several" / "run"
    first = sharded(chosen) if before[0] == "fsdp" else chosen
    codes = train_together(before[1], out, first, Interrupt(step=6, rank=before[1] - 1))
    assert codes == [128 + signal.SIGTERM] * before[1]  # a signal to one stops all
    set_parallel(out, after[0])
    assert train_together(after[1], out, chosen) == [0] * after[1]
    assert_same_losses(out, one)


@slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_a_process_leaves_the_newest_checkpoint(
    home: Home, tmp_path: Path, rank: int
) -> None:
    chosen = sharded(recipe(home, "gpt2"))
    out = tmp_path / "several" / "run"
    codes = train_together(2, out, chosen, Interrupt(step=6, rank=rank, signal=signal.SIGKILL))
    assert codes[rank] == -signal.SIGKILL
    assert codes[1 - rank] == 1  # LostProcessError, which the command prints
    newest = checkpoint.latest_valid(out)
    assert newest is not None
    assert checkpoint.checkpoint_step(newest) == 4
    assert rank == 0 or (out / "report.html").is_file()
    assert train_together(2, out, chosen) == [0, 0]


@slow
def test_torchrun_shards_by_an_option(home: Home, tmp_path: Path) -> None:
    settings = [f"train.{setting}" for setting in (*TRAIN, *EVALUATION)]
    given = ("pretrain", "gpt2/nano", *settings, "--corpus", home.corpus, "--length", LENGTH)
    one = pretrain(recipe(home, "gpt2"), tmp_path / "one")
    said = torchrun(2, *given, "--parallel", "fsdp", "-o", tmp_path / "two")
    assert said.code == 0, said
    assert_same_losses(tmp_path / "two", one)
    assert "destroy_process_group" not in said.err


@slow
def test_fine_tuning_with_shards_of_one_process_is_plain_fine_tuning(
    home: Home, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good thing\tyes\na bad thing\tno\n" * 8)
    model = pretrain(recipe(home, "bert", "train.steps=2", "train.warmup=0"), tmp_path / "bert")
    settings = {"steps": 4, "device": "cpu", "eval_every": 2}
    one = finetune(model, rows, tmp_path / "one", dev=rows, **settings)
    shards = finetune(model, rows, tmp_path / "shards", dev=rows, parallel="fsdp", **settings)
    assert_same_losses(shards, one)
    assert saved_names(shards) == saved_names(one)


def test_what_cannot_be_sharded_is_one_sentence(
    home: Home, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    small = ("--corpus", home.corpus, "--length", LENGTH, "--device", "cpu", "-o", tmp_path / "new")

    def refused(*arguments: object) -> str:
        sentence = one_sentence(kinfolk(*arguments))
        assert not (tmp_path / "new").exists()
        return sentence

    recurrent = refused("pretrain", "ulmfit/nano", *small, "--parallel", "fsdp")
    assert "recurrent layers keep their weights outside" in recurrent
    with pytest.raises(UserError, match="adafactor reads whole matrices"):
        TrainConfig(parallel="fsdp", optimizer="adafactor")
    with pytest.raises(UserError, match="exchanges weights inside of the step, which cannot be"):
        TrainConfig(parallel="fsdp", cuda_graph="yes")


@pytest.mark.parametrize(
    ("field", "value"), [("gradual_unfreezing", True), ("adversarial_epsilon", 1.0)]
)
def test_methods_that_change_whole_parameters_are_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    rows, out = tmp_path / "rows.tsv", tmp_path / "run"
    rows.write_text("text\tlabel\n" + "a good thing\tyes\na bad thing\tno\n" * 8)
    settings = {"device": "cpu", "parallel": "fsdp", field: value}
    with pytest.raises(UserError, match=f"parameters that --{field.replace('_', '-')} changes"):
        finetune("bert/nano", rows, out, dev=rows, **settings)
    assert not out.exists()
