"""The command compare: what it prints, what it refuses, and how it ends when it is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinfolk.cli import main
from kinfolk.cli.compare import show_race, terminal_progress
from kinfolk.workflows.comparison.plan import Job
from support.runs import text

SMALL = ["--tokens", "4000", "--length", "16", "--batch-size", "4", "--device", "cpu"]
TIMES = {
    *("seconds", "seconds_range", "tokens_per_second", "peak_bytes", "joules"),
    "tokens_per_second_range",
    *("created", "total_seconds", "measured"),
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a text."""
    path = tmp_path / "text.txt"
    path.write_text(text(documents=150), encoding="utf-8")
    return path


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Return a labelled file."""
    path = tmp_path / "films.tsv"
    rows = [f"film {n} was {'fine' if n % 2 else 'dull'}\t{'ab'[n % 2]}" for n in range(60)]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> int:
    """Run the command and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["kinfolk", "compare", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_models_that_are_counted_are_compared(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = corpus.parent / "race"
    entrants = ("ngram/2", "<i>four</i>=ngram/4")
    options = ("--corpus", corpus, "--samples", 0, "--jobs", 0, *SMALL)
    assert run(monkeypatch, *entrants, *options, "-o", out) == 0
    shown = capfd.readouterr()
    assert "held-out text" in shown.out and "<i>four</i>" in shown.out
    assert "is ahead of" in shown.out
    assert "[4/6] likelihood ngram/2 seed 0" in shown.err
    race = json.loads((out / "race.json").read_text(encoding="utf-8"))
    assert run(monkeypatch, "--resume", out, "--json") == 0
    assert json.loads(capfd.readouterr().out) == race
    assert "<i>four</i>" not in (out / "race.html").read_text(encoding="utf-8")


def test_the_plan_is_printed_and_nothing_is_written(
    corpus: Path, task: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = corpus.parent / "race"
    options = ("--corpus", corpus, "--task", task, *SMALL, "-o", out, "--plan")
    assert run(monkeypatch, "gpt2/nano", "ngram", *options) == 0
    shown = capfd.readouterr().out
    assert "gpt2/nano" in shown and "3 pretrain" not in shown and "4 pretrain" in shown
    assert "ngram/tiny is left out: ngram models cannot be fine-tuned" in " ".join(shown.split())
    assert "classify " in shown and "2 classes; " in " ".join(shown.split())
    assert "estimate" in shown and not out.exists()


def test_the_plan_times_real_steps(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The seconds of a step were FLOPs divided by a constant, and called measured."""
    timed = []

    def quick_seconds(recipe: Any, seconds: float) -> float | None:
        timed.append((recipe.name, seconds))
        return None if len(timed) > 1 else 1.2345

    monkeypatch.setattr("kinfolk.workflows.comparison.setup.quick_seconds", quick_seconds)
    options = ("--corpus", corpus, *SMALL, "--plan")
    assert run(monkeypatch, "gpt2/nano", "ngram", *options) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert [name for name, _ in timed] == ["gpt2/nano"] and timed[0][1] <= 1
    assert "1.2345" in shown and "guessed" not in shown
    assert "pretraining from a few steps of each entrant, other jobs a guess" in shown
    assert run(monkeypatch, "gpt2/nano", *options) == 0  # without the memory for it
    shown = " ".join(capfd.readouterr().out.split())
    assert "guessed seconds a step" in shown and "pretraining from FLOPs" in shown


def test_the_time_left_follows_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr("kinfolk.cli.compare.time.monotonic", lambda: now[0])
    jobs = [
        Job("b", "baseline", "g", "TF-IDF", seconds=1),
        Job("p0", "pretrain", "g", "gpt2", seconds=10),
        Job("p1", "pretrain", "h", "gpt2", seconds=10),
        Job("q", "pretrain", "k", "bert", seconds=10),
        Job("f", "finetune", "h", "gpt2", seconds=20),
    ]
    progress = terminal_progress()
    progress.on_earlier(jobs[0], 0.0)
    progress.on_earlier(jobs[1], 50.0)  # five times as long as guessed
    progress.on_plan(SimpleNamespace(jobs=jobs), jobs[2:])
    assert "5 jobs, 2 of them done, about 3m20s" in capfd.readouterr().err
    progress.on_start(jobs[2])
    progress.on_progress(jobs[2], 0.5)  # it is resumed
    now[0] += 40
    progress.on_progress(jobs[2], 0.75)
    assert "75%; about 3m10s left" in capfd.readouterr().err  # 40 s of this one
    progress.on_done(jobs[2], 80.0, None)
    # gpt2 took 130 s in place of 20, and so will its fine-tuning and others.
    assert "about 3m15s left" in capfd.readouterr().err
    assert progress.earlier == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing ENTRANT"),
        (("gpt2",), "missing -o RACE"),
        (("gpt2", "-o", "race"), "missing --corpus PATH"),
        (("gpt2", "-o", "race", "--corpus", "t.txt"), "no budget is given"),
        (("gtp2", "-o", "race", "--corpus", "t.txt", "--tokens", 9), "did you mean gpt2"),
        (("--resume", "race", "--seeds", 2), "--resume cannot be combined"),
        (("--resume", "race"), "not the folder of a comparison"),
        (("--repeat", "race", "-o", "new", "--seeds", 2), "--repeat cannot be combined with other"),
        (("--repeat", "race", "--resume", "race"), "--resume cannot be combined with other"),
        (("--repeat", "race"), "missing -o RACE"),
        (("--repeat", "race", "-o", "new"), "race is not the folder of a comparison"),
        (("gpt2", "--minuts", 3), "unknown option --minuts: did you mean --minutes"),
        (("gpt2", "-o", "race", "--corpus", "t.txt", "--tokens", "3X"), "write 3e9 or 3B"),
        (("gpt2", "-o", "race", "--corpus", "t.txt", "--minutes", "3d"), "write 3, 90s or 1.5h"),
        (("gpt2", "-o", ".", "--corpus", "t.txt"), "is not the name of a new folder"),
    ],
    ids=str,
)
def test_mistakes_are_one_sentence(
    arguments: tuple[Any, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "race").exists() and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("tokens", "300k", 3e5),
        ("tokens", "1M", 1e6),
        ("tokens", "2e6", 2e6),
        ("flops", "1e12", 1e12),
        ("flops", "1.5T", 1.5e12),
        ("minutes", "3", 3),
        ("minutes", "1m", 1),
        ("minutes", "90s", 1.5),
        ("minutes", "0.5h", 30),
        ("minutes", "2min", 2),
    ],
)
def test_amounts_have_suffixes(
    option: str,
    text: str,
    value: float,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []
    name = "kinfolk.workflows.comparison.options.race_options"
    monkeypatch.setattr(name, lambda *a, **k: given.append(a[2]) or sys.exit(0))
    assert run(monkeypatch, "gpt2", "--corpus", corpus, f"--{option}", text, "--plan") == 0
    assert {key: found for key, found in given[0].items() if found is not None} == {
        option: pytest.approx(value)
    }


def test_only_the_folder_of_a_comparison_can_be_continued(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("gpt2", "--corpus", corpus, *SMALL, "-o", corpus.parent)
    assert run(monkeypatch, *options) == 2
    assert capfd.readouterr().err.strip().endswith("already exists: choose another -o")
    (corpus.parent / "options.json").write_text("{}", encoding="utf-8")
    assert run(monkeypatch, *options) == 2
    assert "choose another -o, or continue it with --resume" in capfd.readouterr().err


def score(entrant: str, mean: float, kind: str, words: str, units: str) -> dict[str, Any]:
    """Return a row of held-out text."""
    interval = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}
    return {"entrant": entrant, "kind": kind, "words": words, "units": units, **interval}


def test_scores_that_are_not_comparable_stand_in_tables_of_their_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    token, span = "pseudo-likelihood, each token", "pseudo-likelihood, each span"
    rows = [
        {**score("bert", 1.1, "pseudo-likelihood", token, "tokens of bpe"), "unigram": 3.0},
        score("gpt2", 2.5, "likelihood", "likelihood, left to right", "text"),
        score("roberta", 1.0, "pseudo-likelihood", token, "tokens of bpe"),
        score("bytes", 0.9, "pseudo-likelihood", token, "tokens of byte"),
        score("t5", 0.8, "pseudo-likelihood", span, "tokens of bpe, spans of 3 tokens"),
        score("unigram", 3.0, "baseline", "likelihood of counts", "text"),
        score("5-gram", 2.0, "baseline", "likelihood of counts", "text"),
        score("ngram", 2.2, "likelihood", "likelihood, left to right", "text"),
    ]
    sentences = [f"sentence {n}" for n in range(21)]
    show_race({"likelihood": {"rows": rows}, "tasks": [], "verdicts": sentences, "notes": []})
    shown = " ".join(capfd.readouterr().out.split())
    tables = shown.split(" held-out text, ")
    apart = "; not comparable with other tables"
    assert [table.split(" entrant ")[0] for table in tables] == [
        "held-out text",
        f"{span}, tokens of bpe, spans of 3 tokens{apart}",
        f"{token}, tokens of bpe{apart}",
        f"{token}, tokens of byte{apart}",
    ]
    order = [
        [word for word in table.split(" kind ")[1].split() if word in {r["entrant"] for r in rows}]
        for table in tables
    ]
    assert order == [
        ["5-gram", "ngram", "gpt2", "unigram"],
        ["t5"],
        ["roberta", "bert", "unigram"],
        ["bytes"],
    ]
    assert "2.000 1.900 to 2.100 baseline" in tables[0]
    assert "1.000 0.900 to 1.100 pseudo-likelihood" in tables[2]
    assert "- 1 more sentence is in race.json" in shown


def test_baselines_of_a_task_are_marked(capfd: pytest.CaptureFixture[str]) -> None:
    row = {"labels": "all", "mean": 0.5, "low": 0.4, "high": 0.6}
    rows = [{**row, "entrant": "gpt2", "baseline": False}]
    rows += [{**row, "entrant": "TF-IDF", "baseline": True}]
    task = {"name": "t.tsv", "metric": "accuracy", "unit": "points", "maximum": 1, "rows": rows}
    left_out = [{"entrant": "ngram", "reason": "n-grams are counted"}]
    task |= {"lower_is_better": False, "left_out": left_out}
    show_race({"likelihood": {"rows": []}, "tasks": [task], "verdicts": [], "notes": []})
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert "TF-IDF (baseline) 50.0 40.0 to 60.0" in lines
    assert "gpt2 50.0 40.0 to 60.0" in lines
    assert "ngram is left out: n-grams are counted" in lines


def scores(value: Any) -> Any:
    """Return race.json without what depends on time."""
    if isinstance(value, dict):
        return {key: scores(inner) for key, inner in value.items() if key not in TIMES}
    return [scores(inner) for inner in value] if isinstance(value, list) else value


def start(*arguments: Any) -> "subprocess.Popen[str]":
    """Start the command in a process of its own."""
    command = [sys.executable, "-m", "kinfolk", "compare", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )


def wait_for(condition: Any, process: "subprocess.Popen[str]") -> None:
    """Wait until something is on the disk."""
    ends = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.02)


def end(process: "subprocess.Popen[str]") -> None:
    """Wait for a command that succeeds."""
    _, shown = process.communicate()
    assert process.returncode == 0, shown


@pytest.mark.slow
def test_a_comparison_that_is_killed_twice_ends_with_the_same_scores(
    corpus: Path, task: Path
) -> None:
    folders = [corpus.parent / name for name in ("whole", "killed")]
    options = ["gpt2/nano", "bert/nano", "ngram", "--corpus", corpus, "--task", task, *SMALL]
    options += ["--seeds", 2, "--labels", "8,all", "--task-steps", 8, "--max-tokens", 64]
    end(start(*options, "-o", folders[0]))
    race = folders[1]

    def results() -> int:
        return len([*(race / "jobs").glob("*.json")])

    first = start(*options, "-o", race)
    wait_for(lambda: [*race.glob("runs/gpt2-nano/seed-0/checkpoints/step-*")], first)
    first.kill()
    first.communicate()
    done = results()
    second = start("--resume", race)
    wait_for(lambda: results() > done + 3, second)
    second.kill()
    second.communicate()
    end(start("--resume", race, "--json"))
    expected, found = (
        json.loads((folder / "race.json").read_text(encoding="utf-8")) for folder in folders
    )
    assert found["complete"]
    assert scores(found) == scores(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_says_how_to_continue(corpus: Path, number: int, code: int) -> None:
    race = corpus.parent / "race"
    process = start("gpt2/nano", "--corpus", corpus, *SMALL, "--samples", 0, "-o", race)
    wait_for(lambda: [*race.glob("runs/gpt2-nano/seed-0/recipe.json")], process)
    process.send_signal(number)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == code
    assert shown.count(f"continue with: kinfolk compare --resume {race}") == 1
    assert "Traceback" not in shown
