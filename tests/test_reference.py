"""The pages of docs/reference are those that their declarations make."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kinfolk
from kinfolk.config import FAMILY_NAMES

FILE = Path(__file__).parents[1] / "tools" / "reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Open the tool as a module."""
    spec = importlib.util.spec_from_file_location("reference_tool", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference: ModuleType) -> dict[str, str]:
    """Make the pages."""
    made: dict[str, str] = reference.pages()
    return made


def test_the_pages_are_up_to_date(reference: ModuleType, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        assert (reference.FOLDER / name).read_text(encoding="utf-8") == text, (
            f"docs/reference/{name}: run python tools/reference.py --write"
        )


def test_every_command_option_setting_and_function_is_listed(pages: dict[str, str]) -> None:
    commands, settings, python = (
        pages[name] for name in ("commands.md", "settings.md", "python.md")
    )
    assert "## kinfolk tokenizer train" in commands and "`--weight-decay`" in commands
    assert "`--thaw`" not in commands  # the hidden name of an earlier version
    assert "`train.lr`" in settings and "`objective.mask_rate`" in settings
    families = set(FAMILY_NAMES) - {"bilstm"}  # a baseline of comparisons
    assert [name for name in families if f"### {name}\n" not in settings] == []
    assert [name for name in kinfolk.__all__ if f"### {name}\n" not in python] == []
    assert " at 0x" not in python  # an address differs in every process


def test_a_page_that_is_out_of_date_is_named_and_written(
    reference: ModuleType,
    pages: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    monkeypatch.setattr(reference, "pages", lambda: pages)
    assert reference.main([]) == 1
    assert "commands.md, settings.md, python.md" in capsys.readouterr().out
    assert reference.main(["--write"]) == 0 and reference.main([]) == 0
    (tmp_path / "python.md").write_text("# Python", encoding="utf-8")
    assert reference.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "out of date: python.md"


def test_docstrings_become_prose_with_examples_as_code(reference: ModuleType) -> None:
    text = "One line\nand its end, <2de> and `<x>`.\n\n    call()\n\n- a\n- b"
    assert reference.prose(text) == (
        "One line and its end, \\<2de> and `<x>`.\n\n```python\ncall()\n```\n\n- a\n- b"
    )
