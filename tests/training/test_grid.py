"""Processes that hold one model together, by width and by depth, train as one process does."""

import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.training import checkpoint
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes, is_sharded, local
from kinfolk.training.log import read
from kinfolk.training.run import Run
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, process_grid
from kinfolk.workflows.recipe import Recipe
from support.crash import server
from support.processes import Interrupt, torchrun, train_together
from support.runs import LENGTH, Home, Kinfolk, command, one_sentence
from training.test_distributed import assert_same_losses, recipe, steps_saved

slow = pytest.mark.slow

TENSOR, PIPELINE = "train.tensor=2", "train.pipeline=2"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


@pytest.fixture
def kinfolk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kinfolk:
    return command(monkeypatch, capsys)


def set_grid(run: Path, *, tensor: int = 1, pipeline: int = 1) -> None:
    """Change the grid of a run that is resumed."""
    data = json.loads((run / "recipe.json").read_text())
    data["train"] |= {"tensor": tensor, "pipeline": pipeline}
    (run / "recipe.json").write_text(json.dumps(data))


def files(run: Path) -> set[str]:
    return {path.name for path in run.iterdir()}


def shapes(file: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of every tensor in a file."""
    with safe_open(file, framework="pt") as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


def test_the_processes_of_a_grid_read_each_row_once() -> None:
    grid = [Processes(rank, 12).as_grid(tensor=2, pipeline=3) for rank in range(12)]
    places = [(p.stage, p.data_rank, p.tensor_rank) for p in grid]
    assert places == [(s, d, t) for s in range(3) for d in range(2) for t in range(2)]
    assert {p.rows(8, 2) for p in grid} == {2}  # of 4 rows, by two copies of the model
    assert [p.rank for p in grid if p.is_first] == [0]
    assert Processes(5, 12).data_rank == 5


@pytest.mark.parametrize("member", ["gpt", "gpt2", "gpt3", "glm", "bert", "roberta"])
def test_stages_one_after_the_other_are_the_network(home: Home, member: str) -> None:
    from kinfolk.training.pipeline_stages import cut_depth

    chosen = recipe(home, member, "model.num_layers=5")

    def build() -> LanguageModel:
        torch.manual_seed(0)
        model: LanguageModel = chosen.model.build()
        return model.eval()

    whole, stages = build(), [build() for _ in range(3)]
    inputs = Inputs.from_ids(torch.arange(12).view(2, 6), causal=whole.architecture == "decoder")
    expected = whole(inputs).hidden
    for number, stage in enumerate(stages):
        cut_depth(stage, number, 3)
    hidden = stages[0](inputs).hidden
    for stage in stages[1:]:
        hidden = stage(replace(inputs, hidden=hidden)).hidden
    assert torch.equal(hidden, expected)
    assert torch.equal(stages[2].lm_logits(hidden).logits(), whole.lm_logits(expected).logits())
    # Every parameter is in one stage, the tied embeddings in the first and the last.
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted([*dict(whole.named_parameters()), "token_embeddings.weight"])


@slow
@pytest.mark.parametrize(
    ("member", "count", "settings"),
    [
        ("gpt2", 2, [TENSOR]),
        ("gpt2", 2, [PIPELINE]),
        ("gpt2", 4, [TENSOR]),
        ("gpt2", 4, [PIPELINE]),
        ("gpt2", 4, [PIPELINE, "train.gradient_accumulation=2"]),
        ("gpt2", 4, ["train.pipeline=4", "model.num_layers=6", "train.gradient_accumulation=4"]),
        ("bert", 2, [TENSOR]),
        ("bert", 2, [PIPELINE]),
        ("bert", 4, [TENSOR]),
        ("bert", 4, [PIPELINE, "train.gradient_accumulation=4"]),
        ("t5", 2, [TENSOR]),
        ("t5", 4, [TENSOR, "train.gradient_accumulation=2"]),
        ("gpt3", 4, [TENSOR, PIPELINE]),
        ("glm", 2, [PIPELINE, "train.gradient_accumulation=4"]),
        ("albert", 2, [TENSOR]),
        ("electra", 2, [TENSOR, "model.generator_size=1", "train.seed=1"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_a_grid_trains_as_one_process_does(
    home: Home, tmp_path: Path, member: str, count: int, settings: list[str]
) -> None:
    grid = [setting for setting in settings if setting.startswith(("train.tensor", "train.pipe"))]
    alone = [setting for setting in settings if setting not in grid]
    one = pretrain(recipe(home, member, *alone), tmp_path / "one")
    out = tmp_path / "grid"
    assert train_together(count, out, recipe(home, member, *settings)) == [0] * count
    assert_same_losses(out, one)
    assert files(out) == files(one) - {"samples.jsonl"}  # no process has a whole model
    assert_same_checkpoint(out / "checkpoints" / "last", one / "checkpoints" / "last")


def assert_same_checkpoint(folder: Path, other: Path) -> None:
    """Compare two checkpoints: the same files, tensors, shapes and step, weights to 1e-3."""
    files = {path.relative_to(folder) for path in folder.rglob("*")}
    assert files == {path.relative_to(other) for path in other.rglob("*")}
    for path in files:
        if path.suffix == ".safetensors":
            assert shapes(folder / path) == shapes(other / path)
    state, expected = (checkpoint.load_training_state(path) for path in (folder, other))
    assert state["step"] == expected["step"]
    assert state["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    assert [*state["optimizer"]["state"]] == [*expected["optimizer"]["state"]]
    for number, moments in expected["optimizer"]["state"].items():
        for name, value in moments.items():
            torch.testing.assert_close(
                state["optimizer"]["state"][number][name], value, rtol=1e-3, atol=1e-5
            )


@slow
def test_a_run_is_resumed_on_any_grid(home: Home, tmp_path: Path) -> None:
    chosen = recipe(home, "bert", "train.gradient_accumulation=2", "train.save_every=1")
    one = pretrain(chosen, tmp_path / "one")
    out = tmp_path / "grid" / "run"
    stopped = 128 + signal.SIGTERM
    assert train_together(1, out, chosen, Interrupt(step=2, rank=0)) == [stopped]
    set_grid(out, tensor=2)
    assert train_together(2, out, chosen, Interrupt(step=4, rank=1)) == [stopped] * 2
    set_grid(out, pipeline=2)
    assert train_together(4, out, chosen, Interrupt(step=6, rank=3)) == [stopped] * 4
    assert steps_saved(out)[-1] in (6, 7)  # the signal comes before step 7, or during it
    assert len(read(out)) == steps_saved(out)[-1]
    set_grid(out)
    assert train_together(1, out, chosen) == [0]
    assert_same_losses(out, one)


@slow
@pytest.mark.parametrize("setting", [TENSOR, PIPELINE])
def test_transformers_opens_the_checkpoint_of_a_grid(
    home: Home, tmp_path: Path, setting: str
) -> None:
    transformers = pytest.importorskip("transformers")
    from kinfolk import hub

    chosen = recipe(home, "gpt2", setting, "train.steps=1", "train.warmup=0")
    assert train_together(2, tmp_path / "run", chosen) == [0, 0]
    folder = tmp_path / "run" / "checkpoints" / "last"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ours = hub.load_model(folder).eval()
    ids = torch.arange(10)[None]
    logits = ours.lm_logits(ours(Inputs.from_ids(ids, causal=True)).hidden).logits()
    torch.testing.assert_close(theirs(ids).logits, logits, rtol=1e-4, atol=1e-4)


@slow
@pytest.mark.parametrize("setting", [TENSOR, PIPELINE])
def test_a_killed_process_ends_a_grid_and_leaves_the_newest_checkpoint(
    home: Home, tmp_path: Path, setting: str
) -> None:
    chosen = recipe(home, "gpt2", setting)
    one = pretrain(recipe(home, "gpt2"), tmp_path / "one")
    out = tmp_path / "grid" / "run"
    kill = Interrupt(step=6, rank=1, signal=signal.SIGKILL)
    assert train_together(2, out, chosen, kill) == [1, -signal.SIGKILL]
    assert steps_saved(out) == [4]  # process 1 had a part of step 6
    assert train_together(2, out, chosen) == [0, 0]
    assert_same_losses(out, one)


@slow
def test_a_killed_process_ends_the_other_copies_of_the_model_too(
    home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "grid" / "run"
    kill = Interrupt(step=6, rank=3, signal=signal.SIGKILL)
    codes = train_together(4, out, recipe(home, "gpt2", TENSOR), kill)
    assert codes == [1, 1, 1, -signal.SIGKILL]
    assert steps_saved(out) == [4]


def compare_copies(rank: int, count: int, port: int, folder: Path, chosen: Recipe) -> None:
    """Train with dropout; then all processes must have the same of what several have whole."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    work = PretrainWorkload(chosen, processes=process_grid(chosen))
    Run.start(work, folder).fit()
    named = work.model.named_parameters()
    whole = {name: local(p.detach()) for name, p in named if not is_sharded(p)}
    compared = 0
    for other in work.processes.gather(whole):
        for name in whole.keys() & other.keys():
            assert torch.equal(whole[name], other[name]), name
            compared += 1
    assert compared > len(whole)  # with another process, too
    divided = [p for p in work.model.parameters() if is_sharded(p) and p.ndim == 2]
    assert bool(divided) == (work.processes.tensor > 1)
    assert all(local(p.detach()).numel() * count == p.numel() for p in divided)


@slow
@pytest.mark.parametrize("setting", [TENSOR, PIPELINE])
def test_with_dropout_processes_agree_on_what_several_of_them_hold(
    home: Home, tmp_path: Path, setting: str
) -> None:
    dropout = ("model.dropout=0.2", "model.attention_dropout=0.2")
    chosen = recipe(home, "bert", setting, *dropout, "train.gradient_accumulation=2")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    arguments = (port, tmp_path / "run", chosen)
    members = [server.Process(target=compare_copies, args=(r, 2, *arguments)) for r in range(2)]
    for member in members:
        member.start()
    for member in members:
        member.join(60)
    assert [member.exitcode for member in members] == [0, 0]


@slow
def test_torchrun_trains_on_a_grid_and_says_how_to_resume(home: Home, tmp_path: Path) -> None:
    out, rows = tmp_path / "run", ("--length", LENGTH, "--batch", 8, "--device", "cpu")
    steps = ("--steps", 4, "--warmup", 1, "--save-every", 4, "--eval-every", 2)
    chosen = ("pretrain", "gpt2/nano", "--corpus", home.corpus, *rows, *steps)
    said = torchrun(4, *chosen, "--tensor", 2, "--pipeline", 2, "-o", out)
    assert said.code == 0, said
    assert said.out.count("done: 4 steps") == 1
    assert [line["step"] for line in read(out)] == [1, 2, 3, 4]
    said = torchrun(2, *chosen, "--tensor", 4, "-o", tmp_path / "other")
    assert said.err.count("error: train.tensor=4 and train.pipeline=1 need a multiple of 4") == 1


def test_what_a_grid_cannot_do_is_one_sentence(
    home: Home, kinfolk: Kinfolk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, rows = tmp_path / "new", tmp_path / "rows.tsv"
    small = ("--corpus", home.corpus, "--length", LENGTH, "--device", "cpu", "-o", new)

    def refused(*arguments: object) -> str:
        sentence = one_sentence(kinfolk(*arguments))
        assert not new.exists()
        return sentence

    gpt2 = ("pretrain", "gpt2/nano", *small, "--batch", 8)
    assert refused(*gpt2, "--tensor", 2) == (
        "train.tensor=2 and train.pipeline=1 need a multiple of 2 processes, not 1: start them "
        "with torchrun --nproc-per-node 2, or set both to 1, in recipe.json of a run that is "
        "resumed"
    )
    pretrain(recipe(home, "bert", "train.steps=1", "train.warmup=0"), tmp_path / "bert")
    rows.write_text("text\tlabel\n" + "a good thing\tyes\na bad thing\tno\n" * 8)
    files = ("--train", rows, "--dev", rows, "-o", new, "--device", "cpu", "--steps", 2)
    whole = (
        "apply to pretraining alone: kinfolk finetune scores predictions of the whole model, which "
        "each process holds. Leave both at 1; --parallel fsdp divides the weights"
    )
    tuned = refused("finetune", tmp_path / "bert", *files, "--pipeline", 2)
    assert tuned == f"train.tensor=1 and train.pipeline=2 {whole}"
    tuned = refused("finetune", tmp_path / "bert", *files, "--tensor", 2)
    assert tuned == f"train.tensor=2 and train.pipeline=1 {whole}"
    ngram = refused("pretrain", "ngram", *small, "--tensor", 2)
    assert "need a multiple of 2 processes" in ngram
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert "need a multiple of 4 processes, not 6" in refused(*gpt2, "--tensor", 2, "--pipeline", 2)
    assert "of 8 rows, which 3 copies of the model cannot share equally" in refused(
        *gpt2, "--tensor", 2
    )
    assert refused(*gpt2, "--tensor", 3) == (
        "train.tensor=3 does not divide the 2 attention heads of gpt2: choose a divisor"
    )
    assert refused(*gpt2, "--pipeline", 3) == (
        "train.pipeline=3 is more than the 2 layers of gpt2: choose at most one stage for each "
        "layer"
    )
    odd = "model.intermediate_size=255"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refused(*gpt2, "--tensor", 2, odd) == (
        "train.tensor=2 does not divide the 255 hidden units of a feed-forward layer of gpt2: "
        "choose a divisor"
    )
    adafactor = ("--optimizer", "adafactor", "--tensor", 2)
    assert "use adamw_rms or adamw, or leave train.tensor at 1" in refused(*gpt2, *adafactor)


@pytest.mark.parametrize(
    ("member", "setting", "reason"),
    [
        ("transformer_xl", TENSOR, "its attention to relative distances is not divided"),
        ("xlnet", TENSOR, "its attention to relative distances is not divided"),
        ("ulmfit", TENSOR, "it has no attention heads that processes could share"),
        ("elmo", TENSOR, "it has no attention heads that processes could share"),
        ("t5", PIPELINE, "only networks of one stack of layers that hand on nothing but hidden"),
        ("electra", PIPELINE, "only networks of one stack of layers"),
        ("albert", PIPELINE, "only networks of one stack of layers"),
        ("xlnet", PIPELINE, "only networks of one stack of layers"),
        ("ulmfit", PIPELINE, "only networks of one stack of layers"),
    ],
)
def test_a_family_that_cannot_be_divided_is_one_sentence(
    member: str, setting: str, reason: str
) -> None:
    from kinfolk.families import family
    from kinfolk.training.model_shard import check_shards

    name, _, count = setting.partition("=")
    train = replace(TrainConfig(), **{name.removeprefix("train."): int(count)})
    model = family(member).config("nano").build()
    with pytest.raises(UserError) as error:
        check_shards(model, train, layer_lr_decay=1.0)
    sentence = str(error.value)
    assert sentence.startswith(f"{setting} does not apply to {member}")
    assert reason in sentence
    assert sentence.endswith(f"leave {name} at 1")
