"""Processes that a workflow starts: their environment, and how much of an error is shown."""

import os
import sys
from pathlib import Path

from kinfolk.errors import UserError
from kinfolk.extensions import VARIABLE, named_modules
from kinfolk.families import registered_families
from kinfolk.tasks.formats.base import all_formats
from kinfolk.tasks.task import kinds

ERROR_LINES = 3  # of a process that failed, which are shown


def child_environment(**variables: str) -> dict[str, str]:
    """Return this environment with these variables, and with what was registered in this process.

    The child calls `import_extensions`, which imports the modules that registered it.
    """
    environment = {**os.environ, **variables}
    modules = registering_modules()
    if "__main__" in modules:
        raise UserError(
            "this program registers a family, task kind or file format, which other processes "
            "cannot import from it: move that into a file of its own, which the program imports"
        )
    if names := dict.fromkeys([*named_modules(), *modules]):
        environment[VARIABLE] = ",".join(names)
        environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return environment


def registering_modules() -> list[str]:
    """Return the modules from outside the package that registered something in this process."""
    modules = [family.model.__module__ for family in registered_families()]
    modules += [kind.__module__ for kind in kinds().values()]
    modules += [format.read.__module__ for format in all_formats()]
    package = __name__.partition(".")[0]
    return [name for name in dict.fromkeys(modules) if name.partition(".")[0] != package]
