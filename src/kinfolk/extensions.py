"""Files and modules of a user that register families, task kinds or file formats.

    KINFOLK_IMPORT=altgpt.py,rank.tasks kinfolk pretrain altgpt/nano --corpus corpus -o runs/altgpt

The command imports them before it looks up a name of theirs. A Python program imports them itself.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from kinfolk.errors import UserError

VARIABLE = "KINFOLK_IMPORT"  # files and names of modules, between commas
HINT = f"if a file of yours registers it, name that file in {VARIABLE}"


def named_modules() -> list[str]:
    """Return the files and modules that KINFOLK_IMPORT names."""
    return [name for part in os.environ.get(VARIABLE, "").split(",") if (name := part.strip())]


def import_extensions() -> None:
    """Import the files and modules that KINFOLK_IMPORT names."""
    for name in named_modules():
        path = Path(name)
        is_file = path.suffix == ".py"
        if is_file and not path.is_file():
            raise UserError(f"{VARIABLE} names {name}, which is not a file")
        if is_file:
            sys.path.append(str(path.resolve().parent))
        try:
            module = import_module(path.stem if is_file else name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{VARIABLE} names {name}, which cannot be imported ({reason})"
            ) from error
        origin = getattr(module, "__file__", None)
        if is_file and (origin is None or Path(origin).resolve() != path.resolve()):
            raise UserError(
                f"{VARIABLE} names {name}, but Python imports {origin or 'a module of its own'} by "
                f"the name {path.stem}: rename the file"
            )
