"""A run folder holds all that is promised, and a run learns what it should."""

import dataclasses
import json
import math
import statistics
import time
from pathlib import Path

import pytest
import torch

from kinfolk.data.datasets import MixtureDataset
from kinfolk.errors import UserError
from kinfolk.files import checksum_fault
from kinfolk.training import checkpoint
from kinfolk.training.log import read
from kinfolk.training.loop import Progress
from kinfolk.training.run import Run
from kinfolk.workflows.load import load
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import CorpusShare, Recipe
from support.runs import MEMBERS, Home, OnStep, tree


@pytest.mark.parametrize("member", MEMBERS)
def test_the_recipe_in_the_folder_is_the_recipe(
    member: str, home: Home, runs: dict[str, Path]
) -> None:
    recipe = home.recipe(member)
    assert Recipe.read(runs[member] / "recipe.json") == recipe
    assert Recipe.read(runs[member] / "checkpoints" / "last" / "kinfolk.json") == recipe


@pytest.mark.parametrize("member", MEMBERS)
def test_the_log_has_a_line_a_step(member: str, home: Home, runs: dict[str, Path]) -> None:
    lines = (runs[member] / "log.jsonl").read_text(encoding="utf-8").splitlines()
    log = [json.loads(line) for line in lines]
    assert [entry["step"] for entry in log] == list(range(1, 13))
    assert all(math.isfinite(entry["loss"]) and entry["lr"] > 0 for entry in log)
    # Held-out documents are scored every third step, and at each checkpoint.
    assert [entry["step"] for entry in log if "eval_loss" in entry] == [3, 4, 6, 8, 9, 12]
    assert log[-1]["loss"] < log[0]["loss"]
    if member == "bert":
        assert all(e["loss"] == pytest.approx(e["losses"]["mlm"] + e["losses"]["nsp"]) for e in log)


@pytest.mark.parametrize("member", MEMBERS)
def test_tensorboard_tells_what_the_log_tells(member: str, runs: dict[str, Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(runs[member] / "tensorboard"))
    events.Reload()
    told = {event.step: event.value for event in events.Scalars("loss")}
    log = {entry["step"]: entry["loss"] for entry in read(runs[member])}
    assert told == pytest.approx(log, rel=1e-6)


@pytest.mark.parametrize("member", MEMBERS)
def test_the_last_checkpoint_is_a_whole_model_folder(member: str, runs: dict[str, Path]) -> None:
    last = runs[member] / "checkpoints" / "last"
    assert last.readlink() == Path("step-00000012")
    assert checksum_fault(last) is None
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names < {file.name for file in last.iterdir()}
    model, tokenizer = load(last)
    assert tokenizer.vocab_size == model.config.vocab_size


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_checkpoints_and_the_best_are_kept(
    keep: int, home: Home, tmp_path: Path
) -> None:
    run = pretrain(home.recipe("gpt2", f"train.keep_checkpoints={keep}"), tmp_path / "run")
    folders = {f.name for f in (run / "checkpoints").glob("step-*")}
    newest = {f"step-{step:08d}" for step in (4, 8, 12)[-keep:]}
    assert folders == newest | {(run / "checkpoints" / "best").readlink().name}


def test_best_is_the_lowest_held_out_loss(home: Home, tmp_path: Path) -> None:
    # A rate this high makes the loss rise again, so that the best is not the last.
    wild = (
        "train.lr=3",
        "train.warmup=6",
        "train.grad_clip=0",
        "train.save_every=2",
        "train.keep_checkpoints=1",
    )
    run = pretrain(home.recipe("gpt2", *wild), tmp_path / "run")
    saved = {e["step"]: e["eval_loss"] for e in read(run) if e["step"] % 2 == 0}
    best = min(saved, key=lambda step: saved[step])
    assert best < 12
    link = run / "checkpoints" / "best"
    assert checkpoint.checkpoint_step(link) == best
    assert checksum_fault(link) is None
    assert checkpoint.checkpoint_step(run / "checkpoints" / "last") == 12


def test_the_held_out_loss_is_that_of_the_saved_model(home: Home, runs: dict[str, Path]) -> None:
    recipe = home.recipe("gpt2")
    work = PretrainWorkload(recipe)
    run = Run(work, runs["gpt2"])
    run.restore(runs["gpt2"] / "checkpoints" / "last")
    assert work.held_out is not None
    model, _ = load(runs["gpt2"])
    total, count = 0.0, 0
    for number in range(recipe.train.eval_batches):
        batch = work.held_out[number]
        total += recipe.objective.loss(model, batch).sums[recipe.objective.loss_name].item()
        count += batch.counts[recipe.objective.loss_name]
    assert read(runs["gpt2"])[-1]["eval_loss"] == pytest.approx(total / count, rel=1e-6)
    assert run.evaluate().metrics == {"eval_loss": read(runs["gpt2"])[-1]["eval_loss"]}


def test_a_seed_is_all_of_chance(home: Home, tmp_path: Path) -> None:
    torch.manual_seed(77)  # somebody else's chance must not matter
    run = pretrain(home.recipe("gpt2"), tmp_path / "run")
    assert tree(run / "checkpoints" / "last") == tree(home.run("gpt2") / "checkpoints" / "last")


def test_a_folder_with_something_in_it_is_left_alone(home: Home, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious", encoding="utf-8")
    with pytest.raises(UserError, match="already exists"):
        pretrain(home.recipe("gpt2"), tmp_path)
    assert tree(tmp_path) == {"mine": b"precious"}


def test_a_run_whose_loss_is_not_finite_says_what_to_do(home: Home, tmp_path: Path) -> None:
    recipe = home.recipe("gpt2", "train.lr=1e30", "train.grad_clip=0", "train.warmup=0")
    said = (
        r"^(loss|gradient norm) is (NaN|infinite) at step \d+\. "
        r"Lower train\.lr \(now 1e\+30\) or raise train\.warmup \(now 0\) .*, "
        r"then resume from step 0: kinfolk pretrain --resume "
    )
    with pytest.raises(UserError, match=said):
        pretrain(recipe, tmp_path / "run")


def infinite_gradient(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let one gradient be infinite in the update `at`, which counts from 1; the loss is finite."""
    clip, calls = torch.nn.utils.clip_grad_norm_, 0

    def spoil(parameters: list[torch.Tensor], most: float) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            assert parameters[0].grad is not None
            parameters[0].grad.view(-1)[0] = math.inf
        return clip(parameters, most)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoil)


@pytest.mark.parametrize("step", [7, 8])  # of which the second saves
def test_an_infinite_gradient_is_found_before_weights_change(
    step: int, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = home.recipe("gpt2", "train.keep_checkpoints=1"), tmp_path / "run"
    with monkeypatch.context() as patched:
        infinite_gradient(patched, step)
        said = (
            rf"^gradient norm is infinite at step {step}\. .* resume from step 4: kinfolk pretrain"
        )
        with pytest.raises(UserError, match=said):
            pretrain(recipe, run)
    newest = checkpoint.latest_valid(run)
    assert newest is not None and checkpoint.checkpoint_step(newest) == 4
    assert all(weight.isfinite().all() for weight in load(run)[0].state_dict().values())
    assert [line["step"] for line in read(run)] == list(range(1, step))
    resume(run)  # as if nothing had been wrong
    last = [folder / "checkpoints" / "last" for folder in (run, home.run("gpt2"))]
    assert len({(folder / "model.safetensors").read_bytes() for folder in last}) == 1


def test_weights_that_an_update_made_infinite_are_not_saved(home: Home, tmp_path: Path) -> None:
    settings = ("train.lr=1e39", "train.warmup=0", "train.weight_decay=0", "train.save_every=1")
    with pytest.raises(UserError, match=r"^weights are not finite after step 1\. Lower train\.lr"):
        pretrain(home.recipe("gpt2", *settings), tmp_path / "run")
    assert checkpoint.latest_valid(tmp_path / "run") is None


@pytest.mark.parametrize("member", MEMBERS)
def test_speed_counts_the_tokens_that_are_read(
    member: str, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    seen: list[Progress] = []
    alone = ("train.steps=3", "train.save_every=9", "train.eval_every=9")
    recipe = home.recipe(member, *alone)
    run = pretrain(recipe, tmp_path / "run", callbacks=[OnStep(seen.append)])
    batches = PretrainWorkload(recipe).batches
    for number, progress in enumerate(seen):  # a tick passes between a line and the next
        inputs = batches[number].inputs
        streams = [inputs] if inputs.encoder_inputs is None else [inputs, inputs.encoder_inputs]
        assert progress.tokens_per_second == sum(
            int((s.attention_mask.document_ids >= 0).sum()) for s in streams
        )
        if member == "bert":  # seven times what is predicted
            assert progress.tokens_per_second > 4 * batches[number].counts["mlm"]
    lines = (run / "speed.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["tokens_per_second"] for line in lines] == [
        p.tokens_per_second for p in seen
    ]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert (
        f"{statistics.median(p.tokens_per_second for p in seen):,.0f} input tokens per second"
        in page
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.num_heads=3", "does not divide"),
        ("model.num_layers=0", "at least 1"),
        ("model.dropout=1", "model.dropout=1: it must be from 0 to less than 1"),
        ("model.max_length=16", "exceed model.max_length=16"),
        ("objective.max_length=64", "exceed model.max_length=32"),
        ("train.betas=0.9", "2 values"),
        ("train.eval_batches=0", "at least 1"),
        ("train.gradient_accumulation=3", "does not divide"),
    ],
)
def test_a_recipe_that_cannot_run_is_refused(setting: str, said: str, home: Home) -> None:
    with pytest.raises(UserError, match=said):
        home.recipe("gpt2", setting)


@pytest.mark.parametrize(
    ("member", "setting"),
    [
        ("bert", "objective.mask_rate=0"),
        ("t5", "objective.mask_rate=1"),
        ("t5", "objective.mean_span_length=0"),
    ],
)
def test_an_objective_that_hides_nothing_or_all_is_refused(
    member: str, setting: str, home: Home
) -> None:
    with pytest.raises(UserError, match=f"{setting}: it must be"):
        home.recipe(member, setting)


def test_what_a_mixture_holds_out_is_scored_in_its_shares(
    home: Home, second: Path, tmp_path: Path
) -> None:
    corpora = (CorpusShare(str(home.corpus), 1.0), CorpusShare(str(second), 3.0))
    recipe = dataclasses.replace(home.recipe("gpt2"), corpus=corpora)
    run = PretrainWorkload(recipe)
    assert isinstance(run.batches, MixtureDataset) and isinstance(run.held_out, MixtureDataset)
    assert run.batches.schedule.counts == run.held_out.schedule.counts == (1, 3)
    folders = [Path(share.corpus) / "holdout" for share in corpora]
    assert [feed.chunks.documents.folder for feed in run.held_out.datasets] == folders
    # A corpus that holds nothing out has no part in it.
    bare = (CorpusShare(str(home.corpus / "holdout")), CorpusShare(str(second), 3.0))
    run = PretrainWorkload(dataclasses.replace(recipe, corpus=bare))
    assert not isinstance(run.held_out, MixtureDataset) and run.held_out is not None
    assert run.held_out.chunks.documents.folder == folders[1]
