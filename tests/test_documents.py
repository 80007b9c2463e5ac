"""What README and docs tell people to type is what the command line understands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from kinfolk.cli import load_app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


def typed(page: Path) -> Iterator[list[str]]:
    """Yield the words of each `kinfolk` command in the fenced blocks of a page."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("kinfolk "):
                continue
            words = shlex.split(line, comments=True)
            if "..." not in words:
                end = next((i for i, word in enumerate(words) if word in ("|", ">")), len(words))
                yield words[1:end]


COMMANDS = [(page.name, words) for page in PAGES for words in typed(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[" ".join(w[:3]) for _, w in COMMANDS])
def test_a_printed_command_has_a_name_and_options_that_there_are(
    page: str, words: list[str]
) -> None:
    command, rest = get_command(load_app()), words
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, f"{page}: {' '.join(words)}"
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[0], list(rest))  # complains about what it does not know


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 25
