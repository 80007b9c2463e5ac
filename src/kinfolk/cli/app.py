"""The application that commands register with, and the options and printing that they share."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from kinfolk import __version__
from kinfolk.cli.options import AnyFunction, Command
from kinfolk.errors import UserError

# Commands in the order of work, as `kinfolk --help` lists them.
ORDER = (
    *("quickstart", "tokenizer", "audit", "prepare", "pretrain", "finetune", "evaluate"),
    *("generate", "fill", "chat", "translate", "summarize", "predict"),
    *("members", "import", "export"),
)


class Commands(TyperGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of work."""
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    name="kinfolk",
    cls=Commands,
    add_completion=False,
    help="Pretrain, fine-tune, evaluate and generate with families of language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)

# Panels of `kinfolk --help`, in the order of work.
START, DATA, TRAIN = "Start", "Data", "Train"
EVALUATE, USE, MODELS = "Evaluate", "Use", "Models"
OUT = ("-o", "--out")


def option(metavar: str, help: str, panel: str | None = None, *names: str) -> Any:
    """Declare an option; without names it is called as its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel)


AsJson = Annotated[bool, option("", "Print the result as JSON.", None, "--json")]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES...",
        help="Input files, folders or glob patterns (.txt .md .jsonl .tsv .csv .parquet, also .gz "
        ".xz .zst), - for stdin, or hf:OWNER/NAME for a Hugging Face dataset.",
    ),
]
Device = Annotated[str, option("NAME", "auto, cpu or cuda.")]
ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Run, checkpoint or model folder.")
]
TokenizerPath = Annotated[
    Path | None,
    option(
        "PATH", "Tokenizer folder or file, in place of the model's own or one trained on the data."
    ),
]
NewFolder = Annotated[Path, option("DIR", "Output folder. Must be new or empty.", None, *OUT)]
RunFolder = Annotated[Path | None, option("RUN", "Run folder. Must be new or empty.", None, *OUT)]
Resume = Annotated[Path | None, option("RUN", "Resume an interrupted run.")]
Report = Annotated[Path | None, option("FILE.html", "HTML report.", None, *OUT, "--report")]


def show_version(value: bool) -> None:
    """Print the version and exit, before any command runs."""
    if value:
        print(f"kinfolk {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, metavar="", help="Print the version."
        ),
    ] = False,
) -> None:
    """Read the options before a command."""


def example(text: str) -> str:
    """Return the example under the help of a command."""
    return f"Example: `{text}`"


def command(
    text: str, *, panel: str | None, name: str | None = None, group: typer.Typer = app
) -> Callable[[AnyFunction], AnyFunction]:
    """Register a function as a command, with an example of its use and a panel in `--help`."""
    return group.command(name, cls=Command, epilog=example(text), rich_help_panel=panel)


def print_json(value: Any) -> None:
    """Print JSON and nothing else."""
    print(json.dumps(value, ensure_ascii=False))


def note(sentence: str) -> None:
    """Print a sentence on stderr, unchanged and in one line."""
    errors.print(sentence, highlight=False, markup=False, soft_wrap=True)


def piped(what: str) -> str:
    """Return the text on stdin, without the line end that closes it."""
    if sys.stdin.isatty():
        raise UserError(
            f"the {what} is - but stdin is a terminal: pipe text in, or pass it directly"
        )
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"stdin is not UTF-8 at byte {error.start:,}") from None


def readable(text: str, what: str) -> str:
    """Return an argument that is valid text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"the {what} is not UTF-8: convert it first") from None
    return text
