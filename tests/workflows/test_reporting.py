"""The page of a run shows its curve, and the lines under it."""

import dataclasses
import json
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from markupsafe import escape

from kinfolk.data.corpus import Corpus
from kinfolk.metrics.baselines import entropy
from kinfolk.nn.meta import count_parameters
from kinfolk.tasks.task import format_score
from kinfolk.training.distributed import Processes
from kinfolk.training.log import read, samples, speed_lines
from kinfolk.training.loop import Callback, Progress
from kinfolk.training.provenance import command_line
from kinfolk.workflows.baselines import Baselines
from kinfolk.workflows.load import load
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import CorpusShare, recipe
from kinfolk.workflows.report import (
    baseline_rows,
    curves,
    loss_panels,
    loss_title,
    sample_timelines,
    training_panels,
    write_report,
)
from support.learnable import dev, opinions, tune
from support.runs import MEMBERS, Home, OnStep


@pytest.mark.parametrize("member", MEMBERS)
def test_the_page_says_what_was_run(member: str, home: Home, runs: dict[str, Path]) -> None:
    text = (runs[member] / "report.html").read_text(encoding="utf-8")
    corpus = Corpus.open(home.corpus)
    for said in (
        f"{member}/nano",
        f"{corpus.tokens:,}",
        "unigram entropy",
        "Kneser-Ney",
        "<figure",
    ):
        assert said in text
    found = Baselines([(corpus, Corpus.open(home.corpus / "holdout"), 1.0)])
    assert f"{found.unigram:.2f}" in text
    assert f"<h3>{loss_title(home.recipe(member).objective.loss_name)}</h3>" in text


def test_the_curve_is_the_loss_of_tokens(runs: dict[str, Path]) -> None:
    gpt2, held_out = curves(runs["gpt2"], "gpt2")
    log = read(runs["gpt2"])
    assert gpt2.ys == [entry["loss"] for entry in log]
    assert held_out.ys == [entry["eval_loss"] for entry in log if "eval_loss" in entry]
    # BERT's loss is a sum: only its token part can stand above the baselines.
    bert, held_out = curves(runs["bert"], "bert")
    log = read(runs["bert"])
    assert bert.ys == [entry["losses"]["mlm"] for entry in log]
    scored = [entry for entry in log if "eval_loss" in entry]
    assert held_out.ys == [entry["eval_losses"]["mlm"] for entry in scored]
    for entry in scored:
        assert entry["eval_loss"] == pytest.approx(sum(entry["eval_losses"].values()))


def test_curves_of_fine_tuning_are_of_one_loss_each(tmp_path: Path) -> None:
    """GPT learns labels and, as an auxiliary loss, the tokens of the texts."""
    found = opinions(tmp_path)
    run = tune("gpt/nano", found, tmp_path / "run", epochs=2)
    scored = [entry for entry in read(run) if "eval_loss" in entry]
    label, auxiliary = loss_panels(run, "gpt", "dev")
    for panel, part in ((label, "label"), (auxiliary, "lm_auxiliary")):
        _, held_out = panel.curves
        assert held_out.ys == [entry["eval_losses"][part] for entry in scored]
    for entry in scored:
        label_loss, tokens = entry["eval_losses"].values()
        assert entry["eval_loss"] == pytest.approx(label_loss + 0.5 * tokens)


@pytest.mark.parametrize("member", ["gpt2", "bert", "electra"])
def test_progress_and_page_show_the_same_losses(member: str, home: Home, tmp_path: Path) -> None:
    seen: list[Progress] = []
    run = pretrain(home.recipe(member), tmp_path / "run", callbacks=[OnStep(seen.append)])
    learned, held_out = curves(run, member)
    tokens = [(p.step, next(iter(p.losses.values()), p.loss)) for p in seen]
    assert tokens == list(zip(learned.xs, learned.ys, strict=True))
    scored = [p for p in seen if p.eval_loss is not None]
    tokens = [(p.step, next(iter(p.eval_losses.values()), p.eval_loss)) for p in scored]
    assert tokens == list(zip(held_out.xs, held_out.ys, strict=True))
    log = read(run)
    assert [p.loss for p in seen] == [line["loss"] for line in log]
    assert [p.eval_loss for p in seen] == [line.get("eval_loss") for line in log]


def test_the_page_has_the_number_of_parameters(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("gpt2", "bert"):
        page = (runs[name] / "report.html").read_text(encoding="utf-8")
        (count,) = re.findall(r"<dt>parameters</dt>\s*<dd>([\d,]+)</dd>", page)
        network, _ = load(runs[name])
        assert int(count.replace(",", "")) == count_parameters(network)
    counted = pretrain(recipe("ngram/2", home.corpus), tmp_path / "ngram")  # it has none
    assert "parameters</dt>" not in (counted / "report.html").read_text(encoding="utf-8")


def interrupt(progress: Progress) -> None:
    if progress.step == 5:
        raise KeyboardInterrupt


def test_an_interrupted_run_has_a_page(home: Home, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretrain(home.recipe("albert"), tmp_path / "run", callbacks=[OnStep(interrupt)])
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "albert/nano, held out" in page and "Kneser-Ney" in page


def test_the_page_of_fine_tuning_has_its_curves_and_the_scores_of_the_best(tmp_path: Path) -> None:
    found, settings = opinions(tmp_path, 64, 24), ("train.batch_size=8", "train.lr=2e-3")
    run = tune("bert/nano", found, tmp_path / "run", *settings, epochs=3)
    page = (run / "report.html").read_text(encoding="utf-8")
    for text in ("bert: train.tsv", "bert, dev", "classify", "accuracy", "accuracy by step"):
        assert text in page
    for name, value in dev(run).items():
        assert f"<td>{format_score(name, value)}</td>" in page
    with pytest.raises(KeyboardInterrupt):
        tune("bert/nano", found, tmp_path / "cut", *settings, callbacks=[OnStep(interrupt)])
    page = (tmp_path / "cut" / "report.html").read_text(encoding="utf-8")
    assert "<figure" in page and "Dev rows" not in page  # nothing was scored yet
    assert not (tmp_path / "cut" / "scores.json").exists()


def test_baselines_are_priced_by_byte_where_text_was_held_out(home: Home) -> None:
    corpus, held_out = Corpus.open(home.corpus), Corpus.open(home.corpus / "holdout")
    unigram, trigram = baseline_rows(Baselines([(corpus, held_out, 1.0)]))
    assert unigram.bits_per_byte is not None and trigram.bits_per_byte is not None
    assert trigram.bits_per_byte < unigram.bits_per_byte
    (alone,) = baseline_rows(Baselines([(corpus, None, 1.0)]))
    assert alone.bits_per_byte is None


def test_the_page_of_a_mixture_names_every_corpus(home: Home, second: Path, tmp_path: Path) -> None:
    mixture = (CorpusShare(str(home.corpus), 3), CorpusShare(str(second), 1))
    recipe = dataclasses.replace(home.recipe("gpt2", "train.steps=3"), corpus=mixture)
    run = pretrain(recipe, tmp_path / "run")
    page = (run / "report.html").read_text(encoding="utf-8")
    for share, said in zip(
        mixture, ("corpus, 75.0% of rows", "second, 25.0% of rows"), strict=True
    ):
        assert f"{said}: {share.open().tokens:,} tokens" in page
    assert "Kneser-Ney" in page and "held out" in page


def test_the_lines_of_a_mixture_weigh_a_token_as_its_rows_do(home: Home, second: Path) -> None:
    first, other = Corpus.open(home.corpus), Corpus.open(second)
    held = [Corpus.open(c.folder / "holdout") for c in (first, other)]
    found = Baselines([(first, held[0], 3.0), (other, held[1], 1.0)])
    shares = [text.token_counts() / text.tokens for text in held]
    mixed = 0.75 * shares[0] + 0.25 * shares[1]
    mixed = mixed[mixed > 0]
    assert found.unigram == pytest.approx(-(mixed * np.log(mixed)).sum(), abs=1e-9)
    # Nearly all weight on one side: that side's own line.
    nearly = Baselines([(first, held[0], 1.0), (other, held[1], 1e-9)])
    assert nearly.unigram == pytest.approx(entropy(held[0].token_counts()), abs=1e-6)
    assert found.trigram is not None and nearly.trigram is not None
    assert found.trigram.tokens == sum(text.tokens + text.documents for text in held)
    # The 3-gram model is the same for any weights, and each text is priced by itself.
    sides = [
        Baselines([(first, a, 1.0), (other, b, 1.0)]).trigram
        for a, b in ((held[0], None), (None, held[1]))
    ]
    assert sides[0] is not None and sides[1] is not None
    assert found.trigram.loss == pytest.approx(0.75 * sides[0].loss + 0.25 * sides[1].loss)
    assert nearly.trigram.loss == pytest.approx(sides[0].loss, rel=1e-6)
    assert nearly.trigram.bits_per_byte == pytest.approx(sides[0].bits_per_byte, rel=1e-3)
    alone = Baselines([(first, None, 3.0), (other, None, 1.0)])
    assert alone.trigram is None and baseline_rows(alone)[0].bits_per_byte is None


PANELS = ("learning rate", "gradient norm before clipping", "throughput", "time of a step")


def test_the_page_has_every_number_of_training_by_step(runs: dict[str, Path]) -> None:
    run = runs["gpt2"]
    panels = {panel.title: panel for panel in training_panels(run)}
    assert tuple(panels) == (*PANELS, "memory")
    log, timed = read(run), speed_lines(run)
    drawn = {title: [curve.ys for curve in panel.curves] for title, panel in panels.items()}
    assert drawn["learning rate"] == [[entry["lr"] for entry in log]]
    assert drawn[PANELS[1]] == [[entry["grad_norm"] for entry in log]]
    assert drawn["throughput"] == [[entry["tokens_per_second"] for entry in timed]]
    waits = [1000 * entry["wait_seconds"] for entry in timed]
    assert drawn["time of a step"] == [[1000 * entry["seconds"] for entry in timed], waits]
    now, highest = drawn["memory"]
    assert all(0 < a <= b for a, b in zip(now, highest, strict=True))
    page = (run / "report.html").read_text(encoding="utf-8")
    assert all(f"<h3>{title}</h3>" in page for title in panels)


def test_a_run_of_an_earlier_version_has_no_memory_and_no_command(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(runs["gpt2"], tmp_path / "run", symlinks=True)
    for name in ("command.json", "samples.jsonl"):
        (tmp_path / "run" / name).unlink()
    lines = [
        {"step": entry["step"], "seconds": 1.0, "tokens_per_second": 2.0}
        for entry in speed_lines(runs["gpt2"])
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "run" / "speed.jsonl").write_text(text)
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "<h3>memory</h3>" not in page and "started with" not in page
    assert "<h3>throughput</h3>" in page and "recipe.json: all settings" in page


@pytest.mark.parametrize("finished", [True, False])
def test_the_page_says_how_the_run_was_started_and_how_to_resume_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    argv = ["/usr/bin/kinfolk", "pretrain", "gpt2/nano", "-o", "my runs/<b>"]
    monkeypatch.setattr(sys, "argv", argv)
    out = tmp_path / "my run"
    stopping = [] if finished else [OnStep(interrupt)]
    with nullcontext() if finished else pytest.raises(KeyboardInterrupt):
        pretrain(home.recipe("gpt2"), out, callbacks=stopping)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<code>kinfolk pretrain gpt2/nano -o &#39;my runs/&lt;b&gt;&#39;</code>" in page
    assert f"<code>{Path.cwd()}</code>" in page
    resume = f"<code>kinfolk pretrain --resume &#39;{out}&#39;</code>"
    assert (resume in page) is not finished
    assert escape((out / "recipe.json").read_text(encoding="utf-8")) in page


@pytest.mark.parametrize(
    ("argv", "original", "expected"),
    [
        (["/v/bin/kinfolk", "pretrain", "a b"], [], "kinfolk pretrain 'a b'"),
        (["/v/kinfolk/__main__.py", "merge"], [], "kinfolk merge"),
        (["train.py", "--fast"], ["/v/python", "train.py", "--fast"], "python train.py --fast"),
        (["/v/pytest/__main__.py"], ["python", "-m", "pytest"], "python -m pytest"),
        ([""], ["python"], None),
        (["-c"], ["python", "-c", "import kinfolk"], None),
        (["/v/ipykernel_launcher.py", "-f", "x.json"], ["python", "-m", "ipykernel"], None),
    ],
)
def test_the_command_line_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], original: list[str], expected: str | None
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", original)
    assert command_line(Processes()) == expected


def test_under_torchrun_the_command_starts_as_many_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/v/kinfolk/__main__.py", "pretrain", "gpt2"])
    command = command_line(Processes(0, 4, 0, 4))
    assert command == "torchrun --standalone --nproc-per-node 4 -m kinfolk pretrain gpt2"
    command = command_line(Processes(0, 8, 0, 4))  # on two machines
    assert command == "torchrun --nnodes 2 --nproc-per-node 4 -m kinfolk pretrain gpt2"


@pytest.mark.parametrize("member", MEMBERS)
def test_the_page_has_samples_of_the_same_text_over_time(
    member: str, runs: dict[str, Path]
) -> None:
    (timeline,) = sample_timelines(runs[member])
    assert [step for step, _ in timeline.texts] == [4, 8, 12]
    page = (runs[member] / "report.html").read_text(encoding="utf-8")
    assert "Samples over time" in page and f"<dt>step {timeline.texts[-1][0]}</dt>" in page
    assert ("[MASK]" in timeline.prompt) == (member != "gpt2")
    if member != "gpt2":
        before = timeline.prompt.partition("[MASK]")[0]
        assert all(text.startswith(before) for _, text in timeline.texts)


def test_samples_change_no_number_and_stay_through_a_resume(home: Home, tmp_path: Path) -> None:
    whole = pretrain(home.recipe("gpt2"), tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainWorkload, "samples", lambda self: ())
        plain = pretrain(home.recipe("gpt2"), tmp_path / "plain")
    assert not (plain / "samples.jsonl").exists()
    for name in ("log.jsonl", "checkpoints/last/model.safetensors"):
        assert (plain / name).read_bytes() == (whole / name).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        pretrain(home.recipe("gpt2"), tmp_path / "cut", callbacks=[OnStep(interrupt)])
    resume(tmp_path / "cut")
    assert samples(tmp_path / "cut") == samples(whole)


def test_samples_that_fail_are_reported_once_and_end_no_run(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: PretrainWorkload) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PretrainWorkload, "samples", fail)
    heard: list[str] = []

    class Messages(Callback):
        def on_message(self, message: str) -> None:
            heard.append(message)

    pretrain(home.recipe("gpt2"), tmp_path / "run", callbacks=[Messages()])
    assert [text for text in heard if "samples" in text] == [
        "no samples from step 4 on: CUDA out of memory"
    ]


def test_the_page_of_fine_tuning_has_predictions_over_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["kinfolk", "finetune", "bert/nano"])
    found, settings = opinions(tmp_path, 64, 24), ("train.batch_size=8", "train.lr=2e-3")
    run = tune("bert/nano", found, tmp_path / "run", *settings, epochs=2)
    timelines = sample_timelines(run)
    assert len(timelines) == 3
    rows = found.splits[1][:3]
    assert [timeline.prompt for timeline in timelines] == [row.text for row in rows]
    assert [timeline.title for timeline in timelines] == [f"reference: {row.label}" for row in rows]
    page = (run / "report.html").read_text(encoding="utf-8")
    for text in (*(f"<h3>{title}</h3>" for title in PANELS), "Samples over time", "started with"):
        assert text in page
