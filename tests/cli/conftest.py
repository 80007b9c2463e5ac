"""A home with runs of three families, and the command as a function."""

from pathlib import Path

import pytest

from support.runs import MEMBERS, Home, Kinfolk, command


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def runs(home: Home) -> dict[str, Path]:
    return {member: home.run(member) for member in MEMBERS}


@pytest.fixture
def kinfolk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kinfolk:
    return command(monkeypatch, capsys)
