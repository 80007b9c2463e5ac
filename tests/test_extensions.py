"""Families from files of users: the command and the processes of a comparison know them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kinfolk.families
from kinfolk import machine
from kinfolk.errors import UserError
from kinfolk.extensions import VARIABLE, import_extensions
from kinfolk.families import register
from kinfolk.workflows.processes import child_environment, registering_modules
from support import own_family

REGISTER = "\n\nfrom kinfolk.families import register\n\nregister(FAMILY)\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of a user that registers a family."""
    path = tmp_path / "altgpt.py"
    text = Path(own_family.__file__).read_text().replace("own_family", "altgpt")
    path.write_text(text + REGISTER)
    return path


def python(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, check=False
    )


def test_the_command_knows_the_family_of_a_file(file: Path) -> None:
    env = {**os.environ, VARIABLE: str(file)}
    done = python("-m", "kinfolk", "members", "altgpt", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sizes"] == ["nano", "tiny"]


def test_a_family_that_nobody_registered_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"name that file in {VARIABLE}"):
        kinfolk.families.family("qqqqqqqq")
    with pytest.raises(UserError, match=r"did you mean bert\?$"):  # no hint beside a likely name
        kinfolk.families.family("brt")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("none.py", "KINFOLK_IMPORT names none.py, which is not a file"),
        ("no_such_module", "cannot be imported (ModuleNotFoundError: No module named"),
        ("{broken}", "cannot be imported (ZeroDivisionError: division by zero)"),
        ("{statistics}", "by the name statistics: rename the file"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(
    named: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken_extension.py"
    broken.write_text("1 / 0\n")
    statistics = tmp_path / "statistics.py"  # a module of Python has this name
    statistics.write_text("")
    monkeypatch.setenv(VARIABLE, named.format(broken=broken, statistics=statistics))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UserError, match=re.escape(message)):
        import_extensions()


def test_a_process_that_is_started_knows_what_this_one_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kinfolk.families, "_loaded", dict(kinfolk.families._loaded))
    before = registering_modules()
    register(own_family.FAMILY)
    assert registering_modules() == [*before, own_family.__name__]
    code = (
        "from kinfolk.extensions import import_extensions; import_extensions(); "
        "from support import own_family; print(own_family.FAMILY.name)"
    )
    done = python("-c", code, env=child_environment(OMP_NUM_THREADS="1"))
    assert done.stdout.strip() == "own_family", done.stderr


def test_a_family_in_the_program_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinfolk.families, "_loaded", dict(kinfolk.families._loaded))
    monkeypatch.setattr(own_family.OwnModel, "__module__", "__main__")
    register(own_family.FAMILY)
    with pytest.raises(UserError, match="move that into a file of its own"):
        child_environment()


def test_without_extensions_the_environment_stays_as_it_is() -> None:
    assert child_environment(OMP_NUM_THREADS="2") == {**os.environ, "OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize(
    ("load", "set_by_user", "torch", "limited"),
    [(2.0, {}, False, True), (0.0, {}, False, False), (2.0, {}, True, False)]
    + [(2.0, {name: "5"}, False, False) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")],
)
def test_waiting_threads_sleep_soon_where_others_use_the_cpus(
    load: float,
    set_by_user: dict[str, str],
    torch: bool,
    limited: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine, "available_cpus", lambda: 2)
    environment = dict(set_by_user)
    monkeypatch.setattr(machine.os, "environ", environment)
    monkeypatch.setattr(machine.sys, "modules", {"torch": None} if torch else {})
    machine.limit_spinning()
    expected = {"GOMP_SPINCOUNT": machine.SPIN_COUNT} if limited else {}
    assert environment == set_by_user | expected
