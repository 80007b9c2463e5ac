"""Every example and the notebook run, use public names only, and print what they promise."""

import ast
import json
import runpy
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import kinfolk
from kinfolk.data.demo_text import demo_documents

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "pretrain_and_finetune.ipynb"

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
    text = tmp_path / "text.txt"
    texts = [" ".join(text.split()) for text in islice(demo_documents(), 60)]
    text.write_text("\n\n".join(texts), encoding="utf-8")
    lines = run("pretrain.py", text, tmp_path)
    losses = [float(line.split()[1]) for line in lines[:30]]
    assert losses[-1] < losses[0]
    assert lines[30].startswith("The list")
    assert (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").is_file()
    lines = run("load.py", tmp_path / "run")
    assert lines[-1].endswith("bits per byte (likelihood, left to right)")
    assert 0 < float(lines[-1].split()[0]) < 20
    assert "-> " in lines[0]


def test_labelled_rows_are_learned_and_predicted(run: Run, tmp_path: Path) -> None:
    lines = run("finetune.py", "bert/nano", tmp_path)
    assert float(lines[0].removeprefix("accuracy ")) > 0.9
    assert lines[1].startswith("the cast was lovely: good (")
    assert lines[2].startswith("the end was dull: bad (")


def test_every_example_is_tested_and_fits_on_a_screen() -> None:
    files = {file.name: file for file in EXAMPLES.glob("*.py")}
    assert files.keys() == {"pretrain.py", "load.py", "finetune.py"}
    assert all(len(f.read_text(encoding="utf-8").splitlines()) <= 40 for f in files.values())


def code_cells() -> list[str]:
    """Return the source of each code cell of the notebook."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    return ["".join(cell["source"]) for cell in cells]


def names_of_kinfolk(source: str) -> set[str]:
    """Return every `kinfolk.NAME` of a source, and "a.b" for an import from inside the package."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names |= {node.attr} if node.value.id == "kinfolk" else set()
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names if a.name.startswith("kinfolk.")}
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kinfolk"):
            names.add(f"{node.module}.*")
    return names


def test_examples_and_notebook_use_public_names_only() -> None:
    sources = {file.name: file.read_text(encoding="utf-8") for file in EXAMPLES.glob("*.py")}
    sources[NOTEBOOK.name] = "\n".join(code_cells())
    private = {name: names_of_kinfolk(text) - {*kinfolk.__all__} for name, text in sources.items()}
    assert not any(private.values()), private
    assert {"pretrain", "finetune", "predict"} <= names_of_kinfolk(sources[NOTEBOOK.name])
    assert names_of_kinfolk("from kinfolk.data import files\nkinfolk.hub") - {*kinfolk.__all__}


@pytest.mark.slow
def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    first, *others = code_cells()
    assert "STEPS = 300" in first
    for source in (first.replace("STEPS = 300", "STEPS = 10"), *others):
        exec(compile(source, str(NOTEBOOK), "exec"), namespace)
    losses = namespace["training"].losses
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert [p.value in ("good", "bad") for p in namespace["predictions"]] == [True, True]
    assert (tmp_path / "notebook" / "export" / "model.safetensors").is_file()
    lines = capsys.readouterr().out.splitlines()
    ours, theirs = lines[-4:-2], lines[-2:]
    if "transformers is not installed" not in lines[-1]:
        assert ours == theirs  # the same labels with the same probabilities
