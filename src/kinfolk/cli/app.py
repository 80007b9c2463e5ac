"""The application that commands register with, and the arguments and options that they share."""

import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from kinfolk.cli.options import AnyFunction, Command
from kinfolk.cli.output import note
from kinfolk.errors import UserError
from kinfolk.version import __version__

# Commands in the order of work, as `kinfolk --help` lists them.
ORDER = (
    *("quickstart", "tokenizer", "audit", "prepare", "merge", "plan", "lr-find", "pretrain"),
    *("finetune", "prefixes", "verify-resume", "evaluate", "compare", "claims", "inspect"),
    *("isotropy", "probe", "neurons"),
    *("generate", "fill", "chat", "translate", "summarize", "predict", "embed"),
    *("members", "import", "export", "push"),
)


class Commands(TyperGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of work."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C prints what was saved, which typer would not."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            if error.args:  # else nothing is lost, or the command has printed it
                note(f"stopped: {error}")
            raise typer.Exit(130) from None


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

# Panels of `kinfolk --help`, in the order of work.
START, DATA, TRAIN = "Start", "Data", "Train"
EVALUATE, USE, MODELS = "Evaluate", "Use", "Models"


def option(metavar: str, help: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    """Declare an option as the default of a parameter; without names it is called as that one.

    `settings` are those of `typer.Option`; `default=...` makes the option required.
    """
    default = settings.pop("default", None)
    return typer.Option(
        default, *names, metavar=metavar, help=help, rich_help_panel=panel, **settings
    )


def flag(name: str, help: str) -> Any:
    """Declare an option without a value."""
    return option("", help, name, default=False)


MAX_VOCAB, MAX_TOKENS = 2**26, 2**24  # of options, as in the fields of configs
OUT = ("-o", "--out")
JSON = flag("--json", "Print the result as JSON.")
DEVICE = option("NAME", "auto, cpu or cuda.", default="auto")
FILES = typer.Argument(
    ...,
    metavar="FILES...",
    help="Input files, folders or glob patterns (text, .jsonl .tsv .csv .parquet, also .gz .bz2 "
    ".xz .zst), - for stdin, or hf:OWNER/NAME for a Hugging Face dataset.",
)
MODEL = typer.Argument(..., metavar="MODEL", help="Run, checkpoint or model folder.")
TOKENIZER = option(
    "PATH", "Tokenizer folder or file, in place of the model's own or one trained on the data."
)
NEW_FOLDER_HELP = "Output folder. Must be new or empty."
NEW_FOLDER = option("DIR", NEW_FOLDER_HELP, *OUT, default=...)
RUN_FOLDER = option("RUN", "Run folder. Must be new or empty.", *OUT)
RESUME = option("RUN", "Resume an interrupted run.")
REPORT = option("FILE.html", "HTML report.", *OUT, "--report")
FORCE = flag("--force", "Replace an output file that exists.")
UNIT = option(
    "block|file", "A document is a block between blank lines, or a whole file.", default="block"
)
FIELD = option("NAME", "Field of JSON lines with the text: meta.text.")
COLUMN = option("NAME", "Column of tables with the text: name or number.")
TASK_INDEX = option(
    "N", "Which task of a multi-task model, counting from 1.", default=1, min=1, max=2**16
)
NUM_SENTENCES = option(
    "N", "extract: Sentences of a summary (default: as in training).", min=1, max=2**20
)
NULL_THRESHOLD = option(
    "X", "Predict no answer where its score exceeds the best span's by more than X."
)


def show_version(value: bool) -> None:
    """Print the version and exit, before any command runs."""
    if value:
        print(f"kinfolk {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = option(
        "", "Print the version.", "--version", default=False, callback=show_version, is_eager=True
    ),
) -> None:
    """Read the options before a command."""


def command(
    example: str, *, panel: str | None, name: str | None = None, group: typer.Typer = app
) -> Callable[[AnyFunction], AnyFunction]:
    """Register a function as a command, with an example of its use and a panel in `--help`.

    Without a name, the function `lr_find_command` is the command `lr-find`.
    """
    epilog = f"Example: `{example}`"

    def register(function: AnyFunction) -> AnyFunction:
        own = function.__name__.removesuffix("_command").replace("_", "-")
        return group.command(name or own, cls=Command, epilog=epilog, rich_help_panel=panel)(
            function
        )

    return register


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
