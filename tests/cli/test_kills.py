"""Commands that write a folder: after a kill they can be repeated, and two at once do not mix."""

import os
import signal
import sys
from pathlib import Path

import pytest

from kinfolk.cli import main
from kinfolk.files import new_folder
from support.runs import Home, Kinfolk, one_sentence, tree

COMMANDS = pytest.mark.parametrize(
    "command",
    [
        "tokenizer train {text} --vocab-size 420 -o {out}",
        "export {gpt2} -o {out}",
        "import {gpt2}/checkpoints/last -o {out}",
    ],
)


def words(command: str, out: Path, home: Home, runs: dict[str, Path]) -> list[str]:
    names = {"text": home.text, "out": out, "gpt2": runs["gpt2"]}
    return [word.format(**names) for word in command.split()]


def signalled(arguments: list[str], number: int) -> int:
    """Run a command in another process, which gets a signal when its folder is written."""

    def end(*_: object) -> None:
        os.kill(os.getpid(), number)

    child = os.fork()
    if child == 0:
        sys.argv, Path.rename = ["kinfolk", *arguments], end  # type: ignore[assignment]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        main()
        os._exit(0)  # not reached
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@COMMANDS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_after_a_signal_the_same_command_writes_what_it_would_have(
    command: str,
    number: int,
    kinfolk: Kinfolk,
    home: Home,
    runs: dict[str, Path],
    tmp_path: Path,
) -> None:
    arguments = words(command, tmp_path / "out", home, runs)
    assert signalled(arguments, number) == -number
    assert not (tmp_path / "out").exists()
    assert kinfolk(*arguments).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert kinfolk(*words(command, tmp_path / "whole", home, runs)).code == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@COMMANDS
def test_of_two_at_once_one_is_refused(
    command: str, kinfolk: Kinfolk, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    with new_folder(tmp_path / "out") as folder:
        (folder / "mine").write_text("mine", encoding="utf-8")
        sentence = one_sentence(kinfolk(*words(command, tmp_path / "out", home, runs)))
    assert "another process" in sentence
    assert tree(tmp_path / "out") == {"mine": b"mine"}
