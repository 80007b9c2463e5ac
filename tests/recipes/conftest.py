"""A home with runs of three families."""

from pathlib import Path

import pytest

from little import MEMBERS, Home


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def runs(home: Home) -> dict[str, Path]:
    return {member: home.run(member) for member in MEMBERS}
