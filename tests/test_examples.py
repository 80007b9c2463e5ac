"""Every example runs, and says what it promises."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a way to run an example as Python runs a script, and to read what it prints."""

    def printed(name: str, *arguments: object) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return printed


def test_a_run_is_trained_then_loaded(run: Run, tmp_path: Path) -> None:
    lines = run("pretrain.py", tmp_path)
    losses = [float(line.split()[1]) for line in lines[:30]]
    assert losses[-1] < losses[0]
    assert lines[30].startswith("The list")
    assert (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").is_file()
    lines = run("load.py", tmp_path / "run")
    assert lines[-1].endswith("bits per byte (likelihood, left to right)")
    assert 0 < float(lines[-1].split()[0]) < 20
    assert "-> " in lines[0]


def test_every_example_is_tested_and_fits_on_a_screen() -> None:
    files = {file.name: file for file in EXAMPLES.glob("*.py")}
    assert files.keys() == {"pretrain.py", "load.py"}
    assert all(len(f.read_text(encoding="utf-8").splitlines()) <= 50 for f in files.values())
