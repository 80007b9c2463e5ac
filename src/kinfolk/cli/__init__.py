"""The `kinfolk` command: every mistake of a user is one sentence and exit code 2."""

import os
import signal
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from kinfolk.errors import UserError
from kinfolk.extensions import import_extensions
from kinfolk.files import DISK_FULL_ERRNOS, error_number
from kinfolk.machine import limit_spinning

if TYPE_CHECKING:
    from typer import Typer

COMMAND_MODULES = (  # of the commands
    *("audit", "chat", "claims", "compare", "embed", "evaluate", "export", "finetune", "generate"),
    *("inspect", "isotropy", "lr_find", "members", "merge", "neurons", "plan", "predict"),
    *("prefixes", "prepare", "pretrain", "probe", "push", "quickstart", "tokenizer", "translate"),
    "verify_resume",
)


def load_app() -> "Typer":
    """Return the application; importing the module of a command registers it."""
    from kinfolk.cli.app import app

    for name in COMMAND_MODULES:
        import_module(f"kinfolk.cli.{name}")
    return app


def main() -> None:
    """Run the command line."""
    limit_spinning()
    from rich.markup import escape
    from typer import TyperException

    from kinfolk.cli.options import UsageError
    from kinfolk.cli.output import console, errors, visible

    # Of the processes of torchrun, the first prints; a process with an error prints that.
    several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if several and os.environ["RANK"] != "0":
        console.quiet = errors.quiet = True

    # Paths and other texts of users are printed unchanged: [a] is not markup, lines do not wrap.
    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        text = f"[yellow]warning:[/] {escape(visible(str(message)))}"
        errors.print(text, highlight=False, soft_wrap=True)

    def fail(sentence: str, command: str = "") -> NoReturn:
        if several:
            from kinfolk.training.distributed import prints_error

            # Torchrun ends all processes when one has failed: this one prints its error first.
            if "TORCHELASTIC_RUN_ID" in os.environ:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            errors.quiet = not prints_error()
        text = f"[bold red]error:[/] {escape(visible(sentence))}"
        errors.print(text, highlight=False, soft_wrap=True)
        if command:
            errors.print(f"Try: {command} --help", highlight=False, soft_wrap=True)
        sys.exit(2)

    warnings.showwarning = warn
    try:
        import_extensions()
        code = load_app()(prog_name="kinfolk", standalone_mode=False)
    except UsageError as error:
        fail(str(error), error.command)
    except UserError as error:
        fail(str(error))
    except TyperException as error:  # about the group of commands itself
        if sentence := error.format_message().rstrip("."):
            fail(sentence, "kinfolk")
        sys.exit(2)  # no arguments: the help is printed
    except BrokenPipeError:  # `kinfolk ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if error_number(error) in DISK_FULL_ERRNOS:
            fail(
                f"the disk is full, and the output is not complete ({error}): free some space, or "
                "choose an -o on another disk"
            )
        if not isinstance(error, OSError):
            raise
        where = f" ({error.filename})" if error.filename else ""
        fail(f"{error.strerror or error}{where}")
    except KeyboardInterrupt:  # before a command runs
        sys.exit(130)
    if code:
        sys.exit(code)
