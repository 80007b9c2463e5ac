"""The `kinfolk` command: every mistake of a user is one sentence and exit code 2."""

import os
import sys
import warnings
from typing import Any

from kinfolk.errors import UserError


def main() -> None:
    """Run the command line."""
    from kinfolk.cli.app import app, console, errors

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        errors.print(f"[yellow]warning:[/] {message}", highlight=False)

    warnings.showwarning = warn
    try:
        app()
    except UserError as error:
        errors.print("[bold red]error:[/]", str(error), highlight=False, markup=True)
        sys.exit(2)
    except BrokenPipeError:  # `kinfolk ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        errors.print(f"[bold red]error:[/] {error.strerror or error}{where}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)
