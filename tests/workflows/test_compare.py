"""Comparisons from options to race.json, in one process, with runs that take a second."""

import csv
import io
import json
import random
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kinfolk
from kinfolk import UserError
from kinfolk.data.corpus import Corpus
from kinfolk.data.prepare import train_tokenizer
from kinfolk.metrics.comparison import Interval
from kinfolk.training import checkpoint
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.comparison.budget import Cost, batch_flops
from kinfolk.workflows.comparison.compare import (
    RaceResult,
    compare,
    plan_only,
    repeat_race,
    resume_race,
)
from kinfolk.workflows.comparison.data import read_task
from kinfolk.workflows.comparison.options import race_options
from kinfolk.workflows.comparison.plan import Entrant, Job, Plan
from kinfolk.workflows.comparison.pool import RaceCallback
from kinfolk.workflows.comparison.results import learning_rates, measured_spread, unequal_notes
from kinfolk.workflows.comparison.setup import (
    make_plan,
    processes_of_device,
    scaled,
    with_guessed_seconds,
)
from kinfolk.workflows.comparison.tables import unigram_sentences
from kinfolk.workflows.pretrain import PretrainWorkload
from kinfolk.workflows.recipe import Recipe
from support.runs import text

GOOD, BAD = ("lovely", "great", "fine"), ("awful", "dull", "bad")
SMALL: dict[str, Any] = {
    "tokens": 4000,
    "seeds": 2,
    "labels": ["all"],
    "length": 16,
    "batch_size": 4,
    "task_steps": 3,
    "max_tokens": 64,
    "samples": 2,
    "device": "cpu",
    "jobs": 0,
}
ENTRANTS = ["<b>gpt</b>=gpt2/nano", "bert/nano objective=mlm task.dropout=0.1", "ngram", "cove"]
BERT = "bert/nano (objective=mlm, task.dropout=0.1)"
# Values that depend on time, memory or the present date.
TIMES = {
    *("seconds", "seconds_range", "tokens_per_second", "peak_bytes", "joules"),
    "tokens_per_second_range",
    *("created", "total_seconds", "measured"),
}


def write_inputs(folder: Path, *, rows: int = 60) -> tuple[Path, Path]:
    """Write a text and a labelled file."""
    corpus, task = folder / "text.txt", folder / "films.tsv"
    corpus.write_text(text(documents=150), encoding="utf-8")
    chance = random.Random(0)
    lines = ["text\tlabel"]
    for number in range(rows):
        words, label = chance.choice(((GOOD, "<i>good</i>"), (BAD, "bad")))
        lines.append(f"film {number} was {chance.choice(words)}\t{label}")
    task.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return corpus, task


def scores(value: Any) -> Any:
    """Return race.json without what depends on time."""
    if isinstance(value, dict):
        return {key: scores(inner) for key, inner in value.items() if key not in TIMES}
    return [scores(inner) for inner in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a text and a labelled file."""
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def result(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> RaceResult:
    """Return a small comparison that ran to its end."""
    corpus, task = inputs
    out = tmp_path_factory.mktemp("race") / "race"
    return compare(ENTRANTS, corpus, out, tasks=task, **SMALL)


def test_race_json_has_every_table(result: RaceResult) -> None:
    race = json.loads((result.path / "race.json").read_text(encoding="utf-8"))
    assert race["schema"] == 1 and race["complete"]
    kinds = {row["entrant"]: row["kind"] for row in race["likelihood"]["rows"]}
    assert kinds == {
        "unigram": "baseline",
        "5-gram": "baseline",
        "<b>gpt</b>": "likelihood",
        "ngram/tiny": "likelihood",
        BERT: "pseudo-likelihood",
    }
    (task,) = race["tasks"]
    scored = Counter(row["entrant"] for row in task["rows"])
    names = ("<b>gpt</b>", BERT, "bilstm/nano", "majority", "TF-IDF")
    assert scored == dict.fromkeys(names, 1)
    assert all(len(row["seeds"]) == 2 for row in task["rows"] if not row["baseline"])
    left_out = {entry["entrant"]: entry["reason"] for entry in task["left_out"]}
    assert left_out == {
        "ngram/tiny": "ngram models cannot be fine-tuned: n-grams are counted, and no parameter "
        "has a gradient",
        "cove/tiny": "cove is trained on sentence pairs, and --corpus is running text",
    }
    assert {table["task"] for table in race["probes"]} == {"films.tsv"}
    assert {row["entrant"] for row in race["samples"]} >= {"<b>gpt</b>", "held-out text"}
    assert race["verdicts"]


def test_an_entrant_that_cannot_pretrain_is_left_out_with_the_reason(result: RaceResult) -> None:
    (cove,) = (entrant for entrant in result.race["entrants"] if entrant["family"] == "cove")
    assert cove["left_out"] == ("cove is trained on sentence pairs, and --corpus is running text")
    assert not (result.path / "runs" / "cove-tiny").exists()


def small_plan(entrants: list[str], corpus: Path, **more: Any) -> Plan:
    """Return the plan of a small comparison."""
    chosen = {name: value for name, value in SMALL.items() if name not in ("tokens", "jobs")}
    options = race_options(entrants, corpus, {"tokens": 5000}, **chosen, **more)
    return plan_only(options, jobs=1, on_message=lambda message: None)


def test_a_network_beside_the_entrants_that_cannot_do_a_task_is_listed(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    corpus, _ = inputs
    task = tmp_path / "short.tsv"
    lines = [f"a text of {n} words to write\ta text of {n}" for n in range(60)]
    task.write_text("\n".join(["source\ttarget", *lines]) + "\n", encoding="utf-8")
    (planned,) = small_plan(["t5/nano"], corpus, tasks=task).tasks
    assert planned.entrants == ("t5/nano",)
    (reason,) = planned.left_out.values()
    assert [*planned.left_out] == ["bilstm/nano"]
    assert reason.startswith("bilstm does not support write tasks (supported: ")
    assert reason.endswith(")")  # no advice for another command


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\x00", "a\u202eb"])
def test_names_are_printable(name: str, inputs: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="characters that cannot be printed: choose another"):
        race_options([f"{name}=gpt2/nano"], inputs[0], {"tokens": 4000})


@pytest.mark.parametrize("setting", ["train.lr=5e-3", "train.optimizer=muon"])
def test_the_page_says_whose_rate_was_set(inputs: tuple[Path, Path], setting: str) -> None:
    corpus, _ = inputs
    plan = small_plan(["gpt2/nano", f"mine=gpt2/nano {setting}"], corpus)
    words = learning_rates(plan)["words"]
    assert words.endswith("Settings of its own changed rate or optimizer of mine.")
    searched = replace(plan, options=replace(plan.options, search=3))
    assert "mine" in learning_rates(searched)["words"]


def test_pseudo_likelihoods_are_not_compared_with_likelihoods(result: RaceResult) -> None:
    kinds = {row["entrant"]: row["kind"] for row in result.race["likelihood"]["rows"]}
    for pair in result.race["likelihood"]["differences"]:
        assert (kinds[pair["first"]] == "pseudo-likelihood") == (
            kinds[pair["second"]] == "pseudo-likelihood"
        )


def test_an_encoder_that_is_no_better_than_counting_words_is_said_to_be(
    result: RaceResult,
) -> None:
    """BERT of 60 steps, beside the unigram model of the same tokens."""
    rows = {row["entrant"]: row for row in result.race["likelihood"]["rows"]}
    unigram = rows["unigram"]["mean"]
    assert rows[BERT]["unigram"] == unigram
    assert "unigram" not in rows["<b>gpt</b>"] and "unigram" not in rows["unigram"]
    where = "on the held-out text (pseudo-likelihood, each token from all others)"
    assert [*unigram_sentences({"a": interval(unigram, 4.0)}, unigram, "t")] == [
        f"a ({unigram:.3f}) is not better than counting words ({unigram:.3f}) on t"
    ]
    both = {"a": interval(2.0, 2.2), "b": interval(2.05, 2.3), "c": interval(1.9, 2.05)}
    assert [*unigram_sentences(both, 2.1, "t")] == [
        "a (2.000) and b (2.050) are not shown to be better than counting words (2.100) on t"
    ]
    sentence = f"is not better than counting words ({unigram:.3f}) {where}"
    said = any(sentence in verdict for verdict in result.race["verdicts"])
    assert said == (rows[BERT]["mean"] >= unigram)


def interval(value: float, high: float) -> Interval:
    """Return a score with the upper end of its interval."""
    return Interval(value, 0.0, high, (value,))


def test_runs_read_as_many_tokens_within_two_percent(result: RaceResult) -> None:
    """Those of the logs; the plan has the mean of a step."""
    read = {}
    for run in (result.path / "runs").glob("*/seed-*"):
        lines = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines()]
        tokens = sum(line["seconds"] * line["tokens_per_second"] for line in lines)
        if run.parent.name != "ngram-tiny":  # which counts the whole text
            read[run.parent.name, run.name] = tokens
    assert len(read) == 4
    least, most = min(read.values()), max(read.values())
    assert most - least <= 0.02 * SMALL["tokens"]
    assert result.race["budget"]["spread"] <= 0.02
    measured = result.race["budget"]["measured"]
    assert measured == {
        "unit": "tokens",
        "low": pytest.approx(least),
        "high": pytest.approx(most),
        "spread": pytest.approx((most - least) / SMALL["tokens"]),
    }
    costs = {e["name"]: e["cost"] for e in result.race["entrants"] if e["cost"]}
    for name, folder in (("<b>gpt</b>", "b-gpt-b"), (BERT, "bert-nano-objective-mlm")):
        own = [tokens for (run, _), tokens in read.items() if run.startswith(folder)]
        assert len(own) == 2
        assert costs[name]["tokens"] == pytest.approx(sum(own) / 2)
        assert costs[name]["tokens_range"] == pytest.approx([min(own), max(own)])
    page = (result.path / "race.html").read_text(encoding="utf-8")
    assert f"The runs read {least:,.0f} to {most:,.0f} tokens: " in page


@pytest.mark.slow
def test_runs_with_rows_of_random_length_read_as_many_tokens(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """ULMFiT's BPTT with three seeds, whose batches differ; the plan has the steps of each."""
    chosen = {**SMALL, "tokens": 10_000, "seeds": 3, "samples": 0, "baselines": False}
    found = compare(["gpt2/nano", "ulmfit/nano"], inputs[0], tmp_path / "race", **chosen)
    measured = found.race["budget"]["measured"]
    assert measured["spread"] <= 0.02
    assert measured["spread"] == pytest.approx(found.race["budget"]["spread"], abs=0.01)
    plan = Plan.read(found.path / "plan.json")
    planned = plan.entrant_of["ulmfit/nano"]
    assert len({*planned.seed_steps}) > 1 and not plan.entrant_of["gpt2/nano"].seed_steps
    for seed, steps in enumerate(planned.seed_steps):
        run = found.path / "runs" / "ulmfit-nano" / f"seed-{seed}"
        assert len((run / "log.jsonl").read_text().splitlines()) == steps
        assert Recipe.read(run / "recipe.json").train.steps == steps
    (row,) = (row for row in found.race["entrants"] if row["name"] == "ulmfit/nano")
    assert row["cost"]["steps_range"] == [min(planned.seed_steps), max(planned.seed_steps)]


def test_runs_that_are_too_far_apart_are_said_to_be(result: RaceResult) -> None:
    plan = Plan.read(result.path / "plan.json")
    assert not unequal_notes(
        plan, {"unit": "tokens", "low": 294_000, "high": 300_000, "spread": 0.02}
    )
    far = {"unit": "tokens", "low": 298_834, "high": 308_160, "spread": 0.031}
    (note,) = unequal_notes(plan, far)
    by_clock = replace(plan, budget={**plan.budget, "kind": "minutes"})
    assert unequal_notes(by_clock, far)
    # A repetition has the steps of another comparison, whatever seconds they take.
    assert not unequal_notes(replace(by_clock, repeats="which"), far)
    assert note == (
        "The runs read 298,834 to 308,160 tokens: 3.1\u00a0% of the budget apart, which is more "
        "than the 2\u00a0% that equal budgets allow: differences between entrants may come from "
        "that."
    )
    assert not [note for note in result.race["notes"] if "budget apart" in note]


@pytest.mark.slow
def test_runs_do_as_many_flops_within_two_percent(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Counted on every batch of a seed that the plan has not read, as many as the log has steps."""
    chosen = {**SMALL, "tokens": None, "flops": 6e9, "samples": 0, "baselines": False}
    entrants = ["gpt2/nano", "bert/nano", "electra/nano", "t5/nano", "ulmfit/nano"]
    found = compare(entrants, inputs[0], tmp_path / "race", **chosen)
    done = {}
    for name in entrants:
        run = found.path / "runs" / name.replace("/", "-") / "seed-1"
        work = PretrainWorkload(Recipe.read(run / "recipe.json"))
        steps = len((run / "log.jsonl").read_text().splitlines())
        count = len(work.batches)
        done[name] = sum(batch_flops(work, work.batches[n % count]) for n in range(steps))
    assert max(done.values()) - min(done.values()) <= 0.02 * 6e9
    measured = found.race["budget"]["measured"]
    assert measured["unit"] == "flops" and measured["spread"] <= 0.02
    for entrant in found.race["entrants"]:
        assert entrant["cost"]["flops"] == pytest.approx(done[entrant["name"]], rel=0.02)


def test_the_page_escapes_names_and_labels(result: RaceResult) -> None:
    page = (result.path / "race.html").read_text(encoding="utf-8")
    assert "<b>gpt</b>" not in page and "<i>good</i>" not in page
    assert "&lt;b&gt;gpt&lt;/b&gt;" in page


def test_race_csv_has_each_seed_and_the_mean(result: RaceResult) -> None:
    with (result.path / "race.csv").open(encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file)]
    films = [line for line in lines if line["table"] == "films.tsv" and line["labels"] == "all"]
    assert Counter(line["seed"] for line in films if line["entrant"] == "<b>gpt</b>") == {
        "0": 1,
        "1": 1,
        "mean": 1,
    }


def test_race_csv_says_which_scores_are_comparable(result: RaceResult) -> None:
    with (result.path / "race.csv").open(encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file)]
    found = {
        (line["table"], line["entrant"]): (line["kind"], line["method"], line["units"])
        for line in lines
        if line["kind"] not in ("probe", "sample", "reference")
    }
    ngram = "likelihood, left to right, of {}-gram counts"
    assert found == {
        ("held-out text", "unigram"): ("baseline", ngram.format(1), "text"),
        ("held-out text", "5-gram"): ("baseline", ngram.format(5), "text"),
        ("held-out text", "<b>gpt</b>"): ("likelihood", "likelihood, left to right", "text"),
        ("held-out text", "ngram/tiny"): ("likelihood", "likelihood, left to right", "text"),
        ("held-out text", BERT): (
            "pseudo-likelihood",
            "pseudo-likelihood, each token from all others",
            "tokens of corpus",
        ),
        ("films.tsv", "<b>gpt</b>"): ("fine-tuned", "", ""),
        ("films.tsv", BERT): ("fine-tuned", "", ""),
        **{("films.tsv", n): ("baseline", "", "") for n in ("majority", "TF-IDF", "bilstm/nano")},
    }


def test_race_csv_has_probes_and_generated_text(result: RaceResult) -> None:
    with (result.path / "race.csv").open(encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file)]
    (probe,) = result.race["probes"]
    expected = {
        (row["entrant"], f"layer {layer}, {weights}"): score
        for row in probe["rows"]
        for weights in ["pretrained" if row["pretrained"] else "random weights"]
        for layer, score in enumerate(row["layers"])
    }
    probes = [line for line in lines if line["kind"] == "probe"]
    assert {(line["entrant"], line["method"]): float(line["value"]) for line in probes} == expected
    assert len(expected) == 2 * 2 * 3  # networks, weights, layers with the embeddings
    quality = {
        (line["entrant"], line["metric"]): float(line["value"])
        for line in lines
        if line["table"] == "generated text"
    }
    for row in result.race["samples"]:
        assert quality[(row["entrant"], "self_bleu")] == row["self_bleu"]
    assert {name for name, _ in quality} == {row["entrant"] for row in result.race["samples"]}


def test_entrants_without_samples_are_named_with_the_reason(result: RaceResult) -> None:
    reason = "trained to predict tokens from both sides or labels, and cannot continue a text"
    assert result.race["not_sampled"] == [{"entrant": BERT, "reason": reason}]
    page = (result.path / "race.html").read_text(encoding="utf-8")
    assert f"Not sampled: {BERT} ({reason})." in page


@pytest.mark.parametrize(
    ("entrants", "seeds", "start"),
    [
        (["gpt2/nano"], 1, "--seeds 1: no interval covers the chance in training"),
        (["gpt2/nano"], 2, "--seeds 2: intervals from the spread of 2 seeds are so wide"),
        (["gpt2/nano"], 3, None),
        (["ngram"], 1, None),  # no seed changes it
    ],
)
def test_few_seeds_are_warned_of_before_training_and_in_the_notes(
    inputs: tuple[Path, Path], entrants: list[str], seeds: int, start: str | None
) -> None:
    chosen = {**SMALL, "seeds": seeds}
    amounts, jobs = {"tokens": chosen.pop("tokens")}, chosen.pop("jobs")
    options = race_options(entrants, inputs[0], amounts, **chosen)
    said: list[str] = []
    plan = plan_only(options, jobs=jobs, on_message=said.append)
    assert "measuring the steps of 1 entrant" in said
    for messages in (said, plan.notes):
        found = [message for message in messages if "--seeds" in message]
        assert len(found) == (start is not None)
        assert start is None or found[0].startswith(start)


def test_scores_of_test_rows_are_those_of_the_statistics(result: RaceResult) -> None:
    for path in (result.path / "jobs").glob("finetune.*.json"):
        job = json.loads(path.read_text(encoding="utf-8"))
        hits, count = map(sum, zip(*job["statistics"], strict=True))
        assert job["score"] == pytest.approx(hits / count)


def test_weights_of_fine_tuning_are_removed_and_predictions_kept(result: RaceResult) -> None:
    folders = [*(result.path / "finetuned").glob("*/*/*/seed-*")]
    assert len(folders) == 6
    for folder in folders:
        assert (folder / "predictions.jsonl").is_file()
        assert not (folder / "checkpoints").exists()
    assert [*(result.path / "runs").glob("*/seed-0/checkpoints/last")]


# What jobs that were killed report besides, where they had used much memory before.
EARLIER: dict[str, dict[str, Any]] = {
    "pretrain": {"peak_bytes": 2**50, "joules": None},
    "finetune": {},
}


class Interrupt(RaceCallback):
    """Raise in the middle of a pretraining, or when a number of jobs are done."""

    def __init__(self, *, jobs: int | None = None, running: str = "") -> None:
        self.jobs, self.running, self.names = jobs, running, list[str]()

    def on_start(self, job: Job) -> None:
        """Stop when a job of this kind starts."""
        if self.running and job.kind == self.running:
            raise KeyboardInterrupt

    def on_done(self, job: Job, seconds: float, failed: str | None) -> None:
        """Stop after a number of jobs."""
        self.names.append(job.name)
        if self.jobs is not None and len(self.names) == self.jobs:
            raise KeyboardInterrupt


def test_an_interrupted_comparison_continues_to_the_same_scores(
    result: RaceResult, inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, task = inputs
    out = tmp_path / "race"
    saved: list[Path] = []
    save = checkpoint.save_checkpoint

    def killed(*arguments: Any, **settings: Any) -> Path:
        saved.append(save(*arguments, **settings))
        if len(saved) == 2:
            raise MemoryError  # nothing after this checkpoint is kept
        return saved[-1]

    monkeypatch.setattr(checkpoint, "save_checkpoint", killed)
    with pytest.raises(MemoryError):
        compare(ENTRANTS, corpus, out, tasks=task, **SMALL)
    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    jobs = Plan.read(out / "plan.json").jobs
    killed_jobs = [next(job for job in jobs if job.kind == kind) for kind in EARLIER]
    assert [path.stem for path in (out / "jobs").glob("*.usage")] == [killed_jobs[0].name]
    for job in killed_jobs:  # as if they had run for long, and had used much memory
        earlier = {"seconds": 1000.0, "peak_bytes": 2**50, "starts": 1}
        (out / "jobs" / f"{job.name}.usage").write_text(json.dumps(earlier), encoding="utf-8")
    first = Interrupt(jobs=4)
    with pytest.raises(KeyboardInterrupt):
        resume_race(out, jobs=0, callbacks=[first])
    partial = json.loads((out / "race.json").read_text(encoding="utf-8"))
    assert not partial["complete"] and partial["entrants"]
    second = Interrupt()
    again = resume_race(out, jobs=0, callbacks=[second])
    assert {*first.names}.isdisjoint(second.names)
    for job in killed_jobs:
        found = json.loads((out / "jobs" / f"{job.name}.json").read_text(encoding="utf-8"))
        assert EARLIER[job.kind].items() <= found.items()
        assert job.kind == "pretrain" or 1000 < found["seconds"] < 1060
    assert not [*(out / "jobs").glob("*.usage")]
    assert scores(again.race) == scores(result.race)


def test_a_finished_comparison_is_not_run_again(result: RaceResult) -> None:
    seen = Interrupt(jobs=1)
    again = resume_race(result.path, jobs=0, callbacks=[seen])
    assert not seen.names
    assert again.race == result.race


def test_a_repetition_has_the_same_table(result: RaceResult, tmp_path: Path) -> None:
    repeat_race(result.path, tmp_path / "again", jobs=0)
    tables = [folder / "race.csv" for folder in (result.path, tmp_path / "again")]
    assert tables[0].read_bytes() == tables[1].read_bytes()


def test_the_plan_on_disk_is_the_plan(result: RaceResult) -> None:
    plan = Plan.read(result.path / "plan.json")
    plan.write(result.path / "again.json")
    assert (result.path / "again.json").read_text() == (result.path / "plan.json").read_text()
    assert len(plan.groups()) == 8  # baselines, three networks with two seeds, the n-gram model


# Bad input: nothing is trained, and no folder is left


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 500}, r"--tokens 500 is enough for \d+ steps of .* use --tokens \d+ or more"),
        ({"tokens": 4000, "minutes": 1}, "2 budgets are given: give one of --minutes"),
        ({"tokens": None}, "no budget is given: give one of --minutes"),
        ({"tokens": -1}, "--tokens must be greater than 0"),
        ({"seeds": 0}, "--seeds must be from 1"),
        ({"search": 1}, "--search must be from 2"),
        ({"document": "page"}, r"--document must be block or file \(got page\)"),
        ({"task_epochs": 0}, r"--task-epochs must be greater than 0 \(got 0\)"),
        ({"labels": ["many"]}, "--labels many: give numbers"),
        ({"labels": []}, "--labels is empty: give numbers"),
        ({"batch_size": 4096}, "fewer than a batch of 4096 rows of 16 tokens"),
        ({"jobs": 1000}, "--jobs must be from 0"),
        ({"device": "tpu"}, "device"),
        ({"colour": "red"}, "unknown option 'colour' of compare: did you mean"),
        ({"task": "train.tsv"}, "unknown option 'task' of compare: did you mean tasks"),
        ({"corpus": "nowhere.txt"}, "nowhere.txt"),
        ({"tasks": "nowhere.tsv"}, "no such file: nowhere.tsv"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_before_anything_is_trained(
    inputs: tuple[Path, Path], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    arguments = {**SMALL, "corpus": inputs[0], "tasks": inputs[1], **change}
    corpus = arguments.pop("corpus")
    with pytest.raises(UserError, match=message):
        compare(["gpt2/nano", "bert/nano"], corpus, tmp_path / "race", **arguments)
    assert not (tmp_path / "race").exists()


@pytest.mark.parametrize(
    ("entrants", "message"),
    [
        ([], "no entrant is given"),
        (["gpt2/nano", "gpt2/nano"], "2 entrants are called 'gpt2/nano': give them names"),
        (["Unigram=gpt2/nano"], "'Unigram' is called like a baseline"),
        (["bilstm/nano=glm/nano"], "'bilstm/nano' is called like a baseline"),
        (["TF-IDF=gpt2/nano"], "'TF-IDF' is called like a baseline"),
        (["gpt2/nano task.seed=0"], "task.seed=0 of the entrant .* cannot be set"),
        (["gpt2/nano task.steps=9"], "cannot be set: --task-steps sets it for all entrants"),
        (["gpt2/nano task.epochs=9"], "cannot be set: --task-epochs sets it for all entrants"),
        (
            [Entrant("a", "gpt2/nano", task_settings=("steps=9",))],
            "task.steps=9 of the entrant 'a' cannot be set: --task-steps",
        ),
        (["gpt2/nano train.gradient_accumulation=2"], "cannot be set: it is the same for all"),
        (["gtp2"], "did you mean gpt2"),
        (["/"], "/ is a folder, and entrants start from new weights"),
        (["bert/teny"], "did you mean tiny"),
        (["bert/nano objective=nsb"], "bert has no objective 'nsb'"),
        (["bert/nano model.dropuot=0.1"], "did you mean dropout"),
        (["bert/nano task.droput=0.1"], "task.droput of .*: did you mean dropout"),
        (["bert/nano train.steps=5"], "train.steps=5 of .* the budget sets it"),
        (["bert/nano colour=red"], "colour=red in the entrant"),
        (["bert/nano tokenizer=bpe"], "neither a folder nor KIND:SIZE"),
        (["cove"], "no entrant can take part: cove is trained on sentence pairs"),
    ],
    ids=str,
)
def test_wrong_entrants_are_refused(
    inputs: tuple[Path, Path], tmp_path: Path, entrants: list[str | Entrant], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare(entrants, inputs[0], tmp_path / "race", tasks=inputs[1], **SMALL)
    assert not (tmp_path / "race").exists()


def test_a_file_without_labels_is_no_task(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "numbers.jsonl").write_text('{"a": 1}\n{"a": 2}\n', encoding="utf-8")
    with pytest.raises(UserError, match="no text and label columns were detected"):
        compare(
            ["gpt2/nano"], inputs[0], tmp_path / "race", tasks=tmp_path / "numbers.jsonl", **SMALL
        )
    assert not (tmp_path / "race").exists()


def unknown_file(name: str) -> bytes:
    """Return the contents of a file that is no labelled data."""
    if name == "films.zip":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("films.tsv", "text\tlabel\na film\tgood\n")
        return packed.getvalue()
    return bytes(range(256)) * 20 if name == "binary.tsv" else text(documents=20).encode()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("binary.tsv", "is not UTF-8 at byte 128"),
        ("films.zip", "is not UTF-8 at byte"),
        ("prose.tsv", "has no labelled rows: training needs some"),
        ("prose.txt", "was read as text without labels: give a table with a text and a label"),
    ],
)
def test_a_file_of_an_unknown_format_is_refused(
    name: str, message: str, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    task = tmp_path / name
    task.write_bytes(unknown_file(name))
    with pytest.raises(UserError, match=message):
        compare(["gpt2/nano"], inputs[0], tmp_path / "race", tasks=task, **SMALL)
    assert not (tmp_path / "race").exists()


def test_the_plan_lists_every_job_and_leaves_no_folder(inputs: tuple[Path, Path]) -> None:
    chosen = {**SMALL, "labels": ["8", "16", "1000", "all"], "search": 3}
    tokens, jobs = 2 * chosen.pop("tokens"), chosen.pop("jobs")
    amounts = {"tokens": tokens}
    options = race_options(["gpt2/nano", "ngram"], inputs[0], amounts, tasks=inputs[1], **chosen)
    plan = plan_only(options, jobs=jobs, on_message=lambda message: None)
    counts = Counter((job.kind, job.entrant) for job in plan.jobs)
    assert counts == {
        ("search", "gpt2/nano"): 3,
        ("pretrain", "gpt2/nano"): 2,
        ("pretrain", "ngram/tiny"): 1,  # no seed changes it
        **{("likelihood", name): 1 for name in ("unigram", "5-gram", "ngram/tiny")},
        ("likelihood", "gpt2/nano"): 2,
        **{("finetune", name): 6 for name in ("gpt2/nano", "bilstm/nano")},  # 1000 rows are all
        **{("baseline", name): 6 for name in ("majority", "TF-IDF")},
        ("probe", "gpt2/nano"): 1,
        **{("sample", name): 1 for name in ("gpt2/nano", "ngram/tiny")},
    }
    gpt2 = plan.entrant_of["gpt2/nano"]
    assert gpt2.recipe is not None
    lr = gpt2.recipe["train"]["lr"]
    assert gpt2.rates == pytest.approx([lr / 3, lr, lr * 3], rel=0.01)
    spent = (gpt2.steps + 3 * gpt2.search_steps) * (gpt2.cost or {})["tokens"]
    assert spent == pytest.approx(tokens, rel=0.02)  # the search is part of the budget
    assert all(group.startswith("search") == (job.stage == 0) for group, job in
               ((job.group, job) for job in plan.jobs))  # fmt: skip


def test_tokenizers_that_no_entrant_has_are_not_trained(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    chosen = {**SMALL, "own_tokenizers": True, "length": 8, "vocab_size": 400}
    amounts, jobs = {"tokens": chosen.pop("tokens")}, chosen.pop("jobs")
    entrants = ["bert/nano", "gpt2/nano"]
    options = race_options(entrants, inputs[0], amounts, tasks=inputs[1], **chosen)
    plan = make_plan(options, tmp_path, jobs=jobs, on_message=lambda message: None)
    assert {path.name for path in (tmp_path / "corpora").iterdir()} == {"bpe", "wordpiece"}
    assert not (tmp_path / "corpus").exists()
    corpora = {name: Path(entrant.corpus).name for name, entrant in plan.entrant_of.items()}
    assert corpora["bert/nano"] == "wordpiece"
    assert {corpora[name] for name in ("gpt2/nano", "unigram", "bilstm/nano")} == {"bpe"}
    assert plan.corpus["tokenizer"] == "byte-level BPE, 400 tokens, of its own kind for each family"


def test_tokenizer_folders_of_one_name_are_two_tokenizers(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    for place, kind in (("a", "bpe"), ("b", "byte")):
        train_tokenizer(inputs[0], kind=kind, vocab_size=400).save(tmp_path / place / "bpe")
    entrants = [f"{place}=gpt2/nano tokenizer={tmp_path / place / 'bpe'}" for place in "ab"]
    chosen = {**SMALL, "length": 8}
    amounts, jobs = {"tokens": chosen.pop("tokens")}, chosen.pop("jobs")
    options = race_options(entrants, inputs[0], amounts, **chosen)
    plan = make_plan(options, tmp_path / "race", jobs=jobs, on_message=lambda message: None)
    planned = [plan.entrant_of[name] for name in "ab"]
    assert len({entrant.corpus for entrant in planned}) == 2
    sizes = [Corpus.open(entrant.corpus).tokens for entrant in planned]
    assert sizes[0] < sizes[1]  # bytes are more tokens
    assert all(Path(entrant.corpus).name.startswith("bpe-") for entrant in planned)


def test_texts_that_networks_do_not_read_to_their_ends_are_counted(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Texts have four words of several tokens each: all are longer than 8 tokens, none than 64."""
    task = tmp_path / "words.tsv"
    lines = [f"abcdefgh ijklmnop qrstuvwx {n} yz{n}\t{'yes' if n % 2 else 'no'}" for n in range(40)]
    lines[:20] = [f"a {n}\t{'yes' if n % 2 else 'no'}" for n in range(20)]
    task.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    for length, is_cut in ((8, True), (64, False)):
        chosen = {**SMALL, "length": length, "tokens": 40_000}
        amounts, jobs = {"tokens": chosen.pop("tokens")}, chosen.pop("jobs")
        options = race_options(["gpt2/nano"], inputs[0], amounts, tasks=task, **chosen)
        plan = plan_only(options, jobs=jobs, on_message=lambda message: None)
        rows = read_task(str(task), options).test
        long = sum(len(row.text) > 10 for row in rows) / len(rows)
        share = long if is_cut else 0.0
        assert 0 < long < 1
        assert plan.tasks[0].truncated == {"gpt2/nano": share, "bilstm/nano": share}
        notes = [note for note in plan.notes if "(--length)" in note]
        assert notes == (
            [
                f"words.tsv: networks read 8 tokens of a text (--length), so that {100 * long:.1f} "
                "% of the test rows are cut; baselines without a network read them whole."
            ]
            if is_cut
            else []
        )


def test_fine_tuning_has_the_same_defaults_for_all(result: RaceResult) -> None:
    (task,) = result.race["tasks"]
    settings = {row["entrant"]: row["settings"] for row in task["rows"]}
    assert settings["majority"] is None
    networks = {name: chosen for name, chosen in settings.items() if chosen is not None}
    assert {chosen["steps"] for chosen in networks.values()} == {3}
    bert = networks[BERT]
    assert bert == {"lr": 1.9e-3, "steps": 3, "pooling": "first, starts as the mean"}
    assert networks["<b>gpt</b>"]["pooling"] == "last"
    page = (result.path / "race.html").read_text(encoding="utf-8")
    assert '<td data-value="0.0019">0.0019</td>' in page and "first, starts as the mean" in page


def test_the_seconds_of_runs_are_those_of_their_steps(result: RaceResult) -> None:
    for entrant in result.race["entrants"]:
        if entrant["name"] != "<b>gpt</b>":
            continue
        runs = sorted((result.path / "runs" / "b-gpt-b").glob("seed-*"))
        logs = [(run / "speed.jsonl").read_text().splitlines() for run in runs]
        seconds = [sum(json.loads(line)["seconds"] for line in lines) for lines in logs]
        assert len(seconds) == 2
        assert entrant["cost"]["seconds"] == pytest.approx(sum(seconds) / 2)
        cost = entrant["cost"]
        assert cost["seconds_range"] == pytest.approx([min(seconds), max(seconds)])
        # It was the mean of the median speed of the steps, six times what tokens and time gave.
        assert cost["tokens_per_second"] == pytest.approx(cost["tokens"] / cost["seconds"])
        low, high = cost["tokens_per_second_range"]
        assert low <= cost["tokens_per_second"] <= high


def test_the_measured_spread_of_a_budget_in_minutes_is_that_of_all_runs() -> None:
    jobs = [Job(f"p{n}", "pretrain", "g", "a", n) for n in range(4)]
    plan: Any = SimpleNamespace(jobs=jobs, budget={"kind": "minutes", "amount": 2})
    seconds = [114.0, 126.0, None]  # a counted model has none, and a run is not done yet
    results = {f"p{n}": {"seconds": value} for n, value in enumerate(seconds)}
    found = measured_spread(plan, results)
    spread = pytest.approx(0.1)
    assert found == {"unit": "seconds", "low": 114.0, "high": 126.0, "spread": spread}
    plan.budget["kind"] = "tokens"
    assert measured_spread(plan, results) is None


@pytest.mark.parametrize(
    ("jobs", "devices", "processes"), [(0, 0, 1), (1, 0, 1), (3, 0, 3), (4, 4, 1), (5, 4, 2)]
)
def test_jobs_share_the_devices(
    jobs: int, devices: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: devices > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: devices)
    assert processes_of_device(jobs, "auto") == processes


def test_the_first_estimate_knows_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of 10 minutes on an H200 was announced with 276 hours."""
    step = Cost(tokens=8192.0, flops=1.6e11, seconds=0.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert with_guessed_seconds(step, "cuda", threads=1).seconds == pytest.approx(0.032)
    assert with_guessed_seconds(step, "cpu", threads=4).seconds == pytest.approx(2.0)
    measured = replace(step, seconds=0.5)
    assert with_guessed_seconds(measured, "cuda", threads=1) == measured


def test_warm_up_has_the_steps_of_the_family_and_at_most_a_tenth_of_all() -> None:
    """As a share of fewer steps, it left BERT of four layers at the loss of a unigram model."""
    train = TrainConfig(steps=1000, warmup=50, save_every=1000)
    assert scaled(train, 200, own_warmup=False).warmup == 20
    assert scaled(train, 900, own_warmup=False).warmup == 50
    assert scaled(replace(train, warmup=500), 200, own_warmup=False).warmup == 20
    assert scaled(replace(train, warmup=7), 200, own_warmup=True).warmup == 7
    assert scaled(train, 200, own_warmup=False).save_every == 50


def test_a_folder_that_exists_is_refused(result: RaceResult, inputs: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="already exists"):
        compare(["gpt2/nano"], inputs[0], result.path, **SMALL)


def test_a_folder_that_is_no_comparison_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a comparison"):
        kinfolk.resume_race(tmp_path)
