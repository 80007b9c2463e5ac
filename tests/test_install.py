"""An installed package is whole: the command knows its version, and every file is packed."""

import tomllib
from pathlib import Path, PurePath

import pytest

import kinfolk as package
from support.runs import command

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_command_prints_the_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, capsys)("--version").out == f"kinfolk {package.__version__}\n"


def test_the_package_takes_its_version_from_the_code() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert (
        PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "kinfolk.version.__version__"
    )


def test_every_file_of_the_package_is_packed() -> None:
    source = ROOT / "src" / "kinfolk"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["kinfolk"]
    files = [
        f.relative_to(source)
        for f in source.rglob("*")
        if f.is_file() and f.suffix not in (".py", ".pyc")
    ]
    assert files
    left = [f for f in files if not any(PurePath(f).match(p.removeprefix("**/")) for p in patterns)]
    assert not left


# Extras that `make` does not install: Ray alone takes 240 MB. Their tests are skipped without them.
NOT_INSTALLED = ("ray", "wandb", "mlflow")


def test_every_requirement_that_make_installs_is_pinned() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    extras = [
        requirements
        for name, requirements in PROJECT["project"]["optional-dependencies"].items()
        if name not in NOT_INSTALLED
    ]
    wanted = {
        requirement.split(">=")[0].lower().replace("_", "-")
        for requirement in [*PROJECT["project"]["dependencies"], *(r for e in extras for r in e)]
        if not requirement.startswith("kinfolk[")
    }
    assert wanted <= pinned
