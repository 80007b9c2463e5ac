"""Progress on narrow terminals and in pipes, and what Ctrl-C says."""

import io
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kinfolk.cli import output
from kinfolk.cli import run_progress as module
from kinfolk.cli.output import byte_progress, duration, row_progress
from kinfolk.cli.run_progress import run_progress
from kinfolk.data.prepare import train_tokenizer
from kinfolk.generation import generate as generation
from kinfolk.training.loop import Progress
from kinfolk.workflows.evaluate import open_evaluation
from support.runs import Home, Kinfolk


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.0, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]),
        (20.0, [2, 4, 6]),  # 40 s: the first step of each half minute
    ],
)
def test_a_slow_run_is_reported_every_30_seconds(
    seconds: float,
    expected: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with run_progress("gpt2/nano", header=lambda: ["header"]) as progress:
        for step in range(1, 1001 if seconds < 2 else 8):
            clock.now += seconds if seconds > 2 else 0.01
            progress.on_step(Progress(step, 1000, 5.0, None, 1234.0))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "header"
    steps = [int(line.split("step ")[1].partition("/")[0]) for line in lines[1:]]
    assert steps == expected


def test_the_time_left_follows_from_the_steps_of_this_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with run_progress("run") as progress:
        clock.now = 60.0
        progress.on_step(Progress(901, 1000, 5.0, None, 1234.0))  # resumed at step 900
    assert "  ETA 1h39m" in capsys.readouterr().err
    assert [duration(x) for x in (0.4, 12, 185, 3725)] == ["0s", "12s", "3m05s", "1h02m"]


def test_without_a_terminal_a_line_has_the_speed_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    with row_progress("evaluate") as rows, byte_progress("reading") as read:
        for done in range(1, 6):
            clock.now += 20
            rows(done, 1000)
            read(1_000_000 * done, None if done < 4 else 10_000_000)
        read.stage("counting", 0, None)
        clock.now += 40
        read.stage("counting", 2_000, 4_000)
    assert capsys.readouterr().err.splitlines() == [
        "evaluate  2/1,000  0.05/s  ETA 5h32m",
        "reading  2.0 MB  50.0 kB/s",
        "evaluate  4/1,000  0.05/s  ETA 5h32m",
        "reading  4.0 MB/10.0 MB  50.0 kB/s  ETA 2m00s",
        "counting  2.0 kB/4.0 kB  50 bytes/s  ETA 40s",
    ]


def test_a_stage_that_reports_nothing_shows_its_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0.02)
    screen, said = Console(file=io.StringIO(), width=50), ""
    with byte_progress("reading") as progress:
        progress.stage("learning", 0, None)
        screen.print(progress._bar.get_renderable())
        end = time.monotonic() + 30
        while said.count("learning  0s elapsed\n") < 2 and time.monotonic() < end:
            said += capsys.readouterr().err
    assert said.count("learning  0s elapsed\n") >= 2
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().split()[:2] == ["learning", "0s"]
    capsys.readouterr()
    time.sleep(0.1)
    assert not capsys.readouterr().err


def test_step_and_time_left_are_readable_at_50_columns_and_markup_is_text() -> None:
    screen = Console(file=io.StringIO(), width=50)
    with run_progress("[red]runs/a-long-name[/]") as progress:
        for step in (12_344, 12_345):
            losses = {"mlm": 5.0, "nsp": 0.6}
            progress.on_step(Progress(step, 20_000, 5.0, 4.9, 123_456.0, losses))
        screen.print(progress.bar.get_renderable())
    assert isinstance(screen.file, io.StringIO)
    (line,) = screen.file.getvalue().splitlines()
    assert re.search(r" 12345/20000 (\d+|-):(\d\d|--):(\d\d|--) ", line), line
    assert line.startswith("[red]run")
    assert "bold" not in line


def test_evaluation_and_tokenizer_training_report_up_to_the_total(
    home: Home, runs: dict[str, Path]
) -> None:
    batches: list[tuple[int, int]] = []
    evaluation = open_evaluation(runs["gpt2"], None, home.text)
    evaluation.likelihood(rows=4, progress=lambda done, total: batches.append((done, total)))
    assert len(batches) > 3
    assert batches == [(number, len(batches)) for number in range(1, len(batches) + 1)]
    stages: list[tuple[str, int, int | None]] = []
    train_tokenizer(home.text, vocab_size=420, progress=lambda *done: stages.append(done))
    assert list(dict.fromkeys(stage for stage, *_ in stages)) == ["reading", "counting", "learning"]
    ends = {stage: (done, total) for stage, done, total in stages}
    assert ends["reading"] == (home.text.stat().st_size,) * 2
    assert ends["counting"][0] == ends["counting"][1]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("evaluate {gpt2} --text {text}", r"evaluate  \d+/\d+  [\d,.]+/s  ETA \d+s"),
        (
            "generate {gpt2} --prompts {prompts} --max-new-tokens 2",
            r"generate  [1-5]/5  \d.*/s  ETA \d+s",
        ),
        (
            "tokenizer train {text} --vocab-size 420 -o {out}",
            r"counting  .*B/.*B  .*/s  ETA \d+s\n(.*\n)*learning  0s elapsed\n",
        ),
    ],
)
def test_commands_in_a_pipe_print_lines_with_the_speed_and_the_time_left(
    command: str,
    line: str,
    kinfolk: Kinfolk,
    home: Home,
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0)  # every report is a line
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The"}\n' * 5)
    names = {"text": home.text, "prompts": prompts, "out": tmp_path / "out", "gpt2": runs["gpt2"]}
    said = kinfolk(*(part.format(**names) for part in command.split()))
    assert said.code == 0, said.err
    assert re.search(line, said.err), said.err
    assert "ETA" not in said.out and "elapsed" not in said.out


def test_probes_and_isotropy_show_their_progress(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0)  # every report is a line
    rows, texts = tmp_path / "rows.tsv", tmp_path / "texts.txt"
    lines = [f"the {word} {n}\t{word}" for n in range(6) for word in ("cat", "dog")]
    rows.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    texts.write_text("a cat\na dog\nthe bird\n", encoding="utf-8")
    said = kinfolk("probe", runs["bert"], "--train", rows, "--dev", rows, "--seeds", 1)
    assert said.code == 0 and re.search(r"^probes  20/20  .*/s", said.err, re.MULTILINE), said.err
    said = kinfolk("isotropy", runs["bert"], "--text", texts)
    assert said.code == 0 and re.search(r"^layers  \d+s elapsed", said.err, re.MULTILINE), said.err


def test_ctrl_c_says_what_was_printed_of_the_prompts(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = generation.generate_many

    def interrupted(*arguments: Any, **named: Any) -> Iterator[Any]:
        yield from islice(original(*arguments, **named), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "generate_many", interrupted)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The"}\n' * 5)
    options = ("--prompts", tmp_path / "prompts.jsonl", "--max-new-tokens", 2, "--json")
    said = kinfolk("generate", runs["gpt2"], *options)
    assert (said.code, len(said.out.splitlines())) == (130, 2)
    expected = "stopped: the outputs of 2 prompts are printed; pass the other prompts to continue"
    assert said.sentence == expected


@pytest.mark.parametrize(
    ("function", "command", "expected"),
    [
        ("data.prepare.train_tokenizer", "tokenizer train {text} -o {out}", "nothing was written"),
        ("workflows.evaluate.score_documents", "evaluate {gpt2} --text {text}", "no score is"),
        ("data.audit.audit", "audit {text} -o {out}.html", "nothing was written"),
    ],
)
def test_ctrl_c_says_that_nothing_was_written(
    function: str,
    command: str,
    expected: str,
    kinfolk: Kinfolk,
    home: Home,
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"kinfolk.{function}", interrupted)
    names = {"text": home.text, "out": tmp_path / "out", "gpt2": runs["gpt2"]}
    said = kinfolk(*(part.format(**names) for part in command.split()))
    assert (said.code, said.out) == (130, "")
    assert said.sentence.startswith(f"stopped: {expected}")
    assert said.sentence.endswith("run the same command again")
    assert not list(tmp_path.iterdir())
