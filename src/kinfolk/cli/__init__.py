"""The `kinfolk` command: every mistake of a user is one sentence and exit code 2."""

import os
import sys
import warnings
from typing import Any, NoReturn

from kinfolk.errors import UserError


def main() -> None:
    """Run the command line."""
    from rich.markup import escape

    from kinfolk.cli.app import console, errors
    from kinfolk.cli.commands import app

    # What users named is printed as it is: [a] in a path is no markup, and no path is broken.
    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        said = f"[yellow]warning:[/] {escape(str(message))}"
        errors.print(said, highlight=False, soft_wrap=True)

    def complain(sentence: str) -> NoReturn:
        errors.print(f"[bold red]error:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
        sys.exit(2)

    warnings.showwarning = warn
    try:
        app()
    except UserError as error:
        complain(str(error))
    except BrokenPipeError:  # `kinfolk ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        complain(f"{error.strerror or error}{where}")
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)
