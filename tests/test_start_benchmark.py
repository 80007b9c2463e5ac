"""The benchmark of the start measures a whole command with empty caches of the compiler."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.runs import Home

FILE = Path(__file__).parents[1] / "benchmarks" / "start.py"


@pytest.mark.slow
def test_the_first_step_of_a_command_is_timed(tmp_path: Path) -> None:
    home = Home.make(tmp_path / "home")
    asked = f"gpt2/nano --corpus {home.corpus} --compile auto --steps 3 --device cpu"
    words = [*asked.split(), "--out", str(tmp_path / "starts.jsonl")]
    command = [sys.executable, str(FILE), *words, "--setting", "train.batch_size=2"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = map(json.loads, (tmp_path / "starts.jsonl").read_text("utf-8").splitlines())
    assert 0 < line["first_step"] < line["total"] and line["steps"] == 3
    assert line["compile_seconds"] == 0 and line["tokens_per_second"] > 0
    assert f"| gpt2/nano | auto | {line['first_step']:.1f} s |" in out.stdout


def test_a_command_that_fails_is_shown(tmp_path: Path) -> None:
    asked = f"gpt2/nano --corpus {tmp_path / 'none'} --compile auto --steps 1 --device cpu"
    out = subprocess.run(
        [sys.executable, str(FILE), *asked.split()], capture_output=True, text=True
    )
    assert out.returncode and "none" in out.stderr and "kinfolk.pretrain gpt2/nano" in out.stderr
