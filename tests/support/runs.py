"""What tests of whole runs share: a little text, its corpus, and runs that take a second."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import typer.main

from kinfolk.cli import main
from kinfolk.data.prepare import prepare
from kinfolk.text import train_tokenizer
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import Recipe, recipe

MEMBERS = ("gpt2", "bert", "t5")
LENGTH = 32
WHO = ("the cat", "a dog", "the old man", "my sister", "a red bird", "the king")
DOES = ("saw", "followed", "found", "forgot", "painted", "carried")
WHAT = ("the garden", "a ball", "the river", "an apple", "the letter", "a song")
WHERE = ("in the morning", "near the house", "without a word", "by chance", "again")


def text(documents: int = 80, seed: int = 0) -> str:
    """Make up documents of a few sentences."""
    chance = random.Random(seed)

    def sentence() -> str:
        words = " ".join(chance.choice(part) for part in (WHO, DOES, WHAT, WHERE))
        return words.capitalize() + "."

    def document() -> str:
        return " ".join(sentence() for _ in range(chance.randint(2, 6)))

    return "\n\n".join(document() for _ in range(documents)) + "\n"


@dataclass(frozen=True)
class Home:
    """A folder with a text, its tokenizer and its corpus, a part of it held out."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, *, seed: int = 0, vocab: int = 420) -> "Home":
        """Write them all."""
        home = cls(folder)
        folder.mkdir(parents=True, exist_ok=True)
        home.text.write_text(text(seed=seed), encoding="utf-8")
        tokenizer = train_tokenizer([text(seed=seed)], kind="bpe", vocab_size=vocab)
        tokenizer.save(home.tokenizer)
        prepare([home.text], tokenizer=tokenizer, out=home.corpus, holdout=0.2)
        return home

    @property
    def text(self) -> Path:
        """The text file."""
        return self.folder / "text.txt"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's folder."""
        return self.folder / "tokenizer"

    @property
    def corpus(self) -> Path:
        """The corpus folder."""
        return self.folder / "corpus"

    def recipe(self, member: str, *settings: str) -> Recipe:
        """Put a run of a few steps together, with dropout on."""
        config = ["model.dropout=0.1"]
        config += ["model.attention_dropout=0.1"] if member not in ("t5", "elmo") else []
        train = ["steps=12", "save_every=4", "batch_size=4", "warmup=3", "lr=3e-3", "device=cpu"]
        train += ["eval_every=3", "eval_batches=2", "keep_checkpoints=3"]
        chosen = [*config, *(f"train.{setting}" for setting in train), *settings]
        return recipe(f"{member}/nano", self.corpus, length=LENGTH, settings=chosen)

    def run(self, member: str, name: str | None = None, *settings: str) -> Path:
        """Run it, unless it has been run."""
        out = self.folder / "runs" / (name or member)
        return out if out.exists() else pretrain(self.recipe(member, *settings), out)


class OnStep(Callback):
    """Call a function with the progress of a run."""

    def __init__(self, call: Callable[[Progress], None]) -> None:
        self.call = call

    def on_step(self, progress: Progress) -> None:
        self.call(progress)


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The last line on stderr, but for the one that names the help of the command."""
        lines = [line for line in self.err.splitlines() if not line.startswith("Try: kinfolk ")]
        return lines[-1]


Kinfolk = Callable[..., Said]


def one_sentence(said: Said) -> str:
    """Check how a mistake is told, and return its sentence."""
    assert said.code == 2, said
    assert said.out == ""
    lines = said.err.splitlines()
    if lines[-1].startswith("Try: kinfolk "):  # a wrong use of options
        assert lines[-1].endswith(" --help")
        lines.pop()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in said.err
    return lines[-1].removeprefix("error: ")


# The options of all commands, declared once a process: that takes as long as twenty commands that
# are refused.
parser = cache(typer.main.get_command)


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kinfolk:
    """Return `kinfolk` as a function of its arguments."""
    import warnings

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` sets its own
    monkeypatch.setattr(typer.main, "get_command", parser)

    def kinfolk(*arguments: object) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["kinfolk", *map(str, arguments)])
        code: object = 0
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)  # as for a user: printed, not raised
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
        assert isinstance(code, int), code
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return kinfolk


def tree(folder: Path, only: Sequence[str] | None = None) -> dict[str, bytes]:
    """Read all files of a folder, or those named."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in found}
    return {name: p.read_bytes() for name, p in named.items() if only is None or name in only}
