"""The contracts run for a family in a file of a user, which KINFOLK_IMPORT names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinfolk.extensions import VARIABLE
from kinfolk.families import gpt2

REGISTER = "\n\nfrom kinfolk.families import register\n\nregister(FAMILY)\n"
FORWARD = "Output(self.final_norm(self.run_layers(inputs)), inputs.cache)"
MODELS = "tests/contracts/test_models.py"


def contracts(file: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run contracts for the family of a file."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test, "-k", "altgpt"],
        env={**os.environ, VARIABLE: str(file)},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """GPT-2 under another name, outside of the package."""
    text = Path(gpt2.__file__).read_text(encoding="utf-8")
    path = tmp_path / "altgpt.py"
    path.write_text(text.replace('"gpt2"', '"altgpt"') + REGISTER, encoding="utf-8")
    return path


def test_a_family_of_a_file_passes_the_contracts(file: Path) -> None:
    done = contracts(file, "tests/contracts")
    assert done.returncode == 0, done.stdout


def test_a_family_of_a_file_that_sees_later_tokens_fails_its_contract(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(FORWARD, FORWARD.replace("(inputs))", "(inputs)).flip(1)")))
    done = contracts(file, f"{MODELS}::test_no_token_sees_what_its_sight_forbids")
    assert done.returncode == 1, done.stdout
    assert "FAILED tests/contracts/test_models.py::test_no_token_sees_what_its_sight" in done.stdout
