"""A home with runs of three families, and a second corpus in the same ids."""

from pathlib import Path

import pytest

from kinfolk.data.prepare import prepare
from kinfolk.text import Tokenizer
from support.runs import MEMBERS, Home, text


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def runs(home: Home) -> dict[str, Path]:
    return {member: home.run(member) for member in MEMBERS}


@pytest.fixture(scope="session")
def second(home: Home) -> Path:
    """Return a corpus of other text under the home's tokenizer, a part of it held out."""
    source, out = home.folder / "second.md", home.folder / "second"
    source.write_text(text(50, seed=5), encoding="utf-8")
    prepare([source], tokenizer=Tokenizer.load(home.tokenizer), out=out, holdout=0.3)
    return out
