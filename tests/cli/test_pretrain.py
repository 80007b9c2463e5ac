"""`kinfolk pretrain`: a run, stopped and gone on with."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kinfolk.training.log import read
from kinfolk.training.step import StepOutput, TrainStep
from kinfolk.workflows.recipe import CorpusShare, Recipe
from kinfolk.workflows.report import curves
from support.clocks import StepClock
from support.learnable import classify, table
from support.runs import LENGTH, MEMBERS, Home, Kinfolk, text, tree

FEW = ("--length", 32, "--batch", 4, "--device", "cpu")


@pytest.mark.parametrize("member", MEMBERS)
def test_a_run_is_what_was_asked_for(
    member: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = kinfolk(
        *("pretrain", f"{member}/nano", "--corpus", home.corpus, "-o", out, "--steps", 3, *FEW),
        *("--seed", 7, "--workers", 0, "train.lr=2e-3", "model.dropout=0.2", "--json"),
    )
    assert said.code == 0
    values = json.loads(said.out)
    assert values.pop("tokens_per_second") > 0
    assert values == {"run": str(out), "report": str(out / "report.html")}
    assert f"{member}/nano  step 3/3  loss " in said.err
    recipe = Recipe.read(out / "recipe.json")
    train = recipe.train
    assert (train.steps, train.batch_size, train.seed, train.lr) == (3, 4, 7, 2e-3)
    assert (recipe.model.dropout, recipe.objective.max_length) == (0.2, 32)
    assert len(read(out)) == 3
    assert (out / "report.html").stat().st_size > 1000
    assert list((out / "tensorboard").iterdir())


def test_lines_name_the_step_of_a_score_and_show_the_losses_of_the_page(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = kinfolk(
        *("pretrain", "bert/nano", "--corpus", home.corpus, "-o", out, "--steps", 5, *FEW),
        *("train.eval_every=2", "train.eval_batches=1"),
    )
    lines = [line for line in said.err.splitlines() if "  step " in line]
    log, (learned, held_out) = read(out), curves(out, "bert")
    score = {
        step: f"  eval_loss {log[step - 1]['eval_loss']:.3f} (mlm {loss:.3f}, nsp "
        for step, loss in zip(map(int, held_out.xs), held_out.ys, strict=True)
    }
    assert "eval_loss" not in lines[0]
    assert score[2] in lines[1] and "(step 2)" not in lines[1]
    assert score[2] in lines[2] and ") (step 2)  " in lines[2]
    assert score[4] in lines[3]
    for line, loss, entry in zip(lines, learned.ys, log, strict=True):
        parts = f"(mlm {loss:.3f}, nsp {entry['losses']['nsp']:.3f})"
        assert f"  loss {entry['loss']:.3f} {parts}  " in line


@pytest.mark.parametrize(
    ("command", "number"),
    [("pretrain", signal.SIGINT), ("pretrain", signal.SIGTERM), ("finetune", signal.SIGHUP)],
)
def test_an_interrupt_says_what_is_saved_and_how_to_resume(
    command: str,
    number: signal.Signals,
    kinfolk: Kinfolk,
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = TrainStep.__call__

    def pressed(step: TrainStep, index: int, batches: Any) -> StepOutput:
        if index == 2:
            signal.raise_signal(number)
        return original(step, index, batches)

    out, before = tmp_path / "run", signal.getsignal(number)
    with monkeypatch.context() as patched:
        patched.setattr(TrainStep, "__call__", pressed)
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # under nohup it is ignored
        data: tuple[object, ...] = ("--corpus", home.corpus, "--steps", 5, *FEW)
        if command == "finetune":
            data = ("--train", table(tmp_path / "train", classify, 40), "--device", "cpu")
        said = kinfolk(command, "bert/nano", *data, "-o", out)
    signal.signal(number, before)
    assert said.code == 128 + number
    last = (out / "checkpoints" / "last").resolve()
    assert last.name == "step-00000003"
    saved = out / "checkpoints" / last.name
    line = f"interrupted at step 3: saved {saved}; resume with: kinfolk {command} --resume {out}"
    assert line in said.err.splitlines()
    assert (out / "report.html").is_file()
    again = kinfolk(command, "--resume", out)
    assert again.code == 0, again.err


@pytest.mark.parametrize("family", ["gpt2", "transformer_xl"])
def test_a_rate_that_destroys_the_weights_saves_none(
    family: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    rate = ("train.lr=1e4", "train.schedule=constant", "train.warmup=0")
    asked = (f"{family}/nano", "--corpus", home.corpus, "--steps", 2, *FEW, *rate)
    said = kinfolk("pretrain", *asked, "-o", tmp_path / "run")
    assert said.code == 2 and " is NaN at step 2. Lower train.lr (now 10000)" in said.sentence
    assert not (tmp_path / "run" / "checkpoints").exists()
    data = ("--train", table(tmp_path / "train", classify, 40), "--device", "cpu", "--lr", "1e37")
    said = kinfolk("finetune", f"{family}/nano", *data, "-o", tmp_path / "tuned")
    assert said.code == 2 and " is NaN at step 2. Lower train.lr (now 1e+37)" in said.sentence
    assert not (tmp_path / "tuned" / "checkpoints").exists()


def test_options_are_the_fields_of_the_recipe(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    options = (
        *("--lr", "2e-3", "--weight-decay", 0.1, "--warmup", 1, "--schedule", "linear"),
        *("--grad-accum", 2, "--save-every", 2, "--eval-every", 1, "--eval-batches", 1),
        *("--precision", "fp32", "--compile", "off", "--betas", "0.8,0.9", "--steps", 2),
    )
    fields = (
        *("train.lr=2e-3", "train.weight_decay=0.1", "train.warmup=1", "train.schedule=linear"),
        *("train.gradient_accumulation=2", "train.save_every=2", "train.eval_every=1"),
        *("train.eval_batches=1", "train.precision=float32", "train.compile=no"),
        *("train.betas=0.8,0.9", "train.steps=2"),
    )
    asked = ("pretrain", "gpt2/nano", "--corpus", home.corpus, *FEW)
    for name, some in (("options", options), ("fields", fields)):
        assert kinfolk(*asked, "-o", tmp_path / name, *some).code == 0
    recipes = [Recipe.read(tmp_path / name / "recipe.json") for name in ("options", "fields")]
    assert recipes[0] == recipes[1]
    assert (recipes[0].train.lr, recipes[0].train.compile) == (2e-3, "no")


def test_a_run_begins_with_its_size_and_ends_with_the_next_command(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = kinfolk(
        *("pretrain", "gpt2/nano", "--corpus", home.corpus, "-o", out, "--steps", 4, *FEW),
        *("--lr", "1e-3", "--eval-every", 4, "--warmup", 2),
    )
    estimate, header = said.err.splitlines()[:2], said.err.splitlines()[2:5]
    assert estimate[0].startswith(
        "gpt2/nano: 129,024 parameters, 512 tokens in 0.126 epochs, 0.00397"
    )
    assert re.fullmatch(
        r"memory: about [\d.]+ MB beside the [\d.,]+ [MG]B of the process, of [\d.,]+ GB; "
        r"disk: 1 checkpoint of 1.57 MB of [\d.,]+ [GT]B",
        estimate[1],
    )
    assert header[0] == "objective clm, cpu fp32"
    assert header[1] == ("corpus: 4,071 tokens, 59 documents; 4 steps of 4 sequences of 32 tokens")
    assert said.err.count("epochs") == said.err.count(" parameters") == 1
    assert header[2].startswith("lr 0.001 cosine, warmup 2, weight decay ")
    done, model, report, following = said.out.splitlines()
    assert re.fullmatch(r"done: 4 steps in \d+s, eval_loss \d\.\d{3}", done)
    assert model == f"model:  {out}/checkpoints/last"
    assert report == f"report: {out}/report.html"
    assert following == f"next:   kinfolk evaluate {out} --text FILE"


def test_a_loss_of_several_parts_has_one_meaning_in_every_line(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = kinfolk(
        *("pretrain", "bert/nano", "--corpus", home.corpus, "-o", out, "--steps", 4, *FEW),
        *("--eval-every", 4),
    )
    line = read(out)[-1]
    parts = line["eval_losses"]
    assert line["eval_loss"] == pytest.approx(parts["mlm"] + parts["nsp"])
    shown = "eval_loss {:.3f} (mlm {mlm:.3f}, nsp {nsp:.3f})".format(line["eval_loss"], **parts)
    assert said.out.splitlines()[0].endswith(f", {shown}")  # of the line "done"
    (last,) = [text for text in said.err.splitlines() if "  step 4/4  " in text]
    loss = "loss {:.3f} (mlm {mlm:.3f}, nsp {nsp:.3f})".format(line["loss"], **line["losses"])
    assert loss in last and shown in last


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_recipe_file_repeats_a_run(
    ending: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    first, again, changed = (tmp_path / name for name in ("first", "again", "changed"))
    asked = ("pretrain", "bert/nano", "--corpus", home.corpus, *FEW, "--steps", 3, "--seed", 3)
    assert kinfolk(*asked, "-o", first).code == 0
    file = tmp_path / f"recipe.{ending}"
    recipe = (first / "recipe.json").read_text("utf-8")
    file.write_text(recipe if ending == "json" else yaml.safe_dump(json.loads(recipe)))
    assert kinfolk("pretrain", "--recipe", file, "-o", again).code == 0
    assert tree(again / "checkpoints" / "last") == tree(first / "checkpoints" / "last")
    said = kinfolk("pretrain", "--recipe", file, "-o", changed, "--lr", "3e-3", "model.dropout=0.2")
    assert said.code == 0, said.err
    found = Recipe.read(changed / "recipe.json")
    assert (found.train.lr, found.model.dropout, found.train.seed) == (3e-3, 0.2, 3)


def test_yaml_needs_a_package_that_the_sentence_names(
    kinfolk: Kinfolk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "recipe.yaml").write_text("type: pretrain\n")
    said = kinfolk("pretrain", "--recipe", tmp_path / "recipe.yaml", "-o", tmp_path / "run")
    assert said.code == 2 and "pip install pyyaml" in said.sentence


def test_the_fields_of_a_family_are_listed(kinfolk: Kinfolk) -> None:
    said = kinfolk("pretrain", "bert", "--help-fields")
    assert said.code == 0
    assert "model.hidden_size" in said.out and "objective.mask_rate" in said.out


def test_bert_can_learn_by_hidden_words_alone(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    out = tmp_path / "run"
    kinfolk(
        *("pretrain", "bert/nano", "--corpus", home.corpus, "-o", out, "--steps", 2, *FEW),
        *("--objective", "mlm"),
    )
    assert [list(entry["counts"]) for entry in read(out)] == [["mlm"]] * 2


def test_corpora_are_mixed_by_weight(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    out, other = tmp_path / "run", tmp_path / "other=1"
    other_text = tmp_path / "other.txt"
    other_text.write_text(text(40, seed=3), encoding="utf-8")
    kinfolk("prepare", other_text, "--tokenizer", home.tokenizer, "-o", other)
    asked = ("pretrain", "gpt2/nano", "-o", out, "--steps", 3, *FEW)
    said = kinfolk(*asked, "--corpus", f"{home.corpus}=0.7", "--corpus", f"{other}=0.3")
    assert said.code == 0, said.err
    recipe = Recipe.read(out / "recipe.json")
    assert recipe.corpus == (CorpusShare(str(home.corpus), 0.7), CorpusShare(str(other), 0.3))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "corpus, 70.0% of rows" in page and "other=1, 30.0% of rows" in page


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (("=0.7", ""), "has no weight, but another one has"),
        (("=0", "=1"), "must be greater than 0 (got 0)"),
        (("=nan", "=1"), "must be greater than 0 (got nan)"),
        (("=x", "=1"), "=x is not a corpus|has no weight, but another one has"),
    ],
)
def test_weights_that_make_no_mixture_are_one_sentence(
    weights: tuple[str, str], expected: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    folders = (home.corpus, home.corpus / "holdout")
    named = [f"{folder}{weight}" for folder, weight in zip(folders, weights, strict=True)]
    asked = ("pretrain", "gpt2/nano", "-o", tmp_path / "run", "--steps", 3, *FEW)
    said = kinfolk(*asked, "--corpus", named[0], "--corpus", named[1])
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert any(choice in said.err for choice in expected.split("|")), said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupt_ends_with_130_and_resume_arrives(
    home: Home, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    whole, run, steps = tmp_path / "whole", tmp_path / "run", 500
    asked = ("pretrain", "gpt2/nano", "--corpus", home.corpus, *FEW, "train.keep_checkpoints=1")
    # No rate depends on the number of steps, which is cut below.
    asked = (*asked, "train.schedule=constant", "train.warmup=3")
    asked = (*asked, "train.save_every=1000", "train.eval_every=1000", "--steps")
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfolk", *map(str, asked), str(steps), "-o", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert process.stderr is not None
    while not (said := process.stderr.readline()).startswith("corpus: "):
        assert said  # until the header: the first step is done
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, said + err
    assert "Traceback" not in err
    done = len(read(run))
    assert f"interrupted at step {done}: saved {run}/checkpoints/step-{done:08d}; " in err
    assert f"resume with: kinfolk pretrain --resume {run}" in err
    assert 0 < done < steps
    assert (run / "checkpoints" / "last").readlink().name == f"step-{done:08d}"
    recipe, last = (run / "recipe.json").read_text("utf-8"), done + 5
    assert recipe.count(f'"steps": {steps},') == 1
    cut = recipe.replace(f'"steps": {steps},', f'"steps": {last},')
    (run / "recipe.json").write_text(cut, encoding="utf-8")
    assert kinfolk("pretrain", "--resume", run).code == 0
    kinfolk(*asked, last, "-o", whole)
    assert (run / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()
    assert tree(run / "checkpoints" / "last") == tree(whole / "checkpoints" / "last")


def test_fast_sets_the_recipe_that_members_shows_and_a_recipe_file_excludes_it(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = kinfolk(
        *("pretrain", "gpt2/nano", "--corpus", home.corpus, "-o", out, "--steps", 40, *FEW),
        *("--fast", "--matrix-lr", 0.01, "train.eval_every=40"),
    )
    assert said.code == 0, said
    train = Recipe.read(out / "recipe.json").train
    assert (train.optimizer, train.schedule, train.matrix_lr) == ("muon", "trapezoid", 0.01)
    assert train.warmup == 2
    assert f"lr {train.lr:g} (matrices of layers: muon, 0.01) trapezoid, warmup 2" in said.err
    listed = " ".join(kinfolk("members", "gpt2").out.split())
    assert f"--fast sets optimizer=muon, lr={train.lr:g}, matrix_lr=" in listed
    assert "schedule=trapezoid, decay_ratio=0.5, min_lr_ratio=0 " in listed
    refused = kinfolk("pretrain", "--recipe", out / "recipe.json", "-o", tmp_path / "b", "--fast")
    assert refused.code == 2 and "--recipe excludes" in refused.sentence
    missing = kinfolk("pretrain", "ulmfit", "--corpus", home.corpus, "-o", tmp_path / "c", "--fast")
    assert missing.code == 2 and "ulmfit has no fast recipe (supported: " in missing.sentence
    assert not (tmp_path / "c").exists()


def test_the_timing_of_steps_is_announced_and_the_header_has_the_warm_up_in_use(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinfolk: Kinfolk
) -> None:
    StepClock(lambda step, done: 0.05).install(monkeypatch)
    options = ("--length", LENGTH, "--batch", 4, "--minutes", 0.1, "--device", "cpu")
    said = kinfolk("pretrain", "gpt2/nano", "--corpus", home.corpus, "-o", tmp_path / "r", *options)
    assert said.code == 0, said.err
    lines = said.err.splitlines()
    assert lines[0] == "train.minutes=0.1: timing steps, for a first estimate of their number"
    assert lines[1] == "train.minutes=0.1: about 120 steps, estimated anew during the run"
    assert "lr 0.001 cosine, warmup 12, weight decay" in said.err
