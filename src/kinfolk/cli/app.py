"""The commands, and what they share."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kinfolk import __version__
from kinfolk.cli.options import AnyFunction, Command
from kinfolk.errors import UserError

app = typer.Typer(
    name="kinfolk",
    help="Pretrain, use and fairly compare every family of pretrained language model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Files = Annotated[
    list[Path],
    typer.Argument(
        help="Text, .jsonl, .tsv, .csv or .parquet; folders, 'patterns*', - or hf:NAME."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def show_version(asked: bool) -> None:
    """Print the version and end, before any command runs."""
    if asked:
        print(f"kinfolk {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def example(text: str) -> str:
    """Return the example under the help of a command."""
    return f"Example: `{text}`"


def command(
    text: str, *, panel: str, name: str | None = None, group: typer.Typer = app
) -> Callable[[AnyFunction], AnyFunction]:
    """Register a function as a command, with an example of its use and a panel in `--help`."""
    return group.command(name, cls=Command, epilog=example(text), rich_help_panel=panel)


def print_json(value: Any) -> None:
    """Print JSON and nothing else."""
    print(json.dumps(value, ensure_ascii=False))


def piped(what: str) -> str:
    """Read a text from the standard input, without the line end that closes it."""
    if sys.stdin.isatty():
        raise UserError(f"- is a {what} that is piped in: pipe one, or give it as it is")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"what was piped in is not UTF-8 at byte {error.start:,}") from None


def readable(text: str, what: str) -> str:
    """Return a text that was typed, if it is one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"the {what} is not UTF-8: convert it first") from None
    return text
