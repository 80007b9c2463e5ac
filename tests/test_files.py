"""Files and folders are there whole or not at all, whatever goes wrong on the way."""

import fcntl
import hashlib
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinfolk.files import (
    folder_lock,
    lock_file,
    new_file,
    new_folder,
    partial_path,
    replace_link,
    sha256,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("old")
    with new_file(path) as file:
        file.write("new é\n")
        assert path.read_text() == "old"
    assert path.read_bytes() == "new é\n".encode()
    assert names(tmp_path) == ["log.jsonl"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_that_fails_leaves_the_old_one(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(error), new_file(path, "wb") as file:
        file.write(b"half")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["page.html"]


def test_a_durable_file_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "journal.json", list[bytes]()
    real = os.fsync

    def fsync(handle: int) -> None:
        assert not path.exists()
        seen.append(partial_path(path).read_bytes())
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with new_file(path, durable=True) as file:
        file.write("whole")
    assert seen == [b"whole"] and path.read_text() == "whole"
    path.unlink()
    with new_file(path) as file:
        file.write("whole")
    assert len(seen) == 1, "others are left to the system"


def test_a_folder_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    leftover = partial_path(path)
    leftover.mkdir()
    (leftover / "of a kill").write_text("")
    with new_folder(path) as folder:
        (folder / "recipe.json").write_text("{}")
        assert not any(path.iterdir())
    assert names(path) == ["recipe.json"] and names(tmp_path) == ["run"]


def test_a_folder_that_fails_leaves_nothing_behind_not_even_new_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run"
    with pytest.raises(KeyboardInterrupt), new_folder(path) as folder:
        (folder / "recipe.json").write_text("{}")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_a_folder_with_files_in_it_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "kept").write_text("")
    with pytest.raises(OSError), new_folder(path):
        pass
    assert names(path) == ["kept"] and names(tmp_path) == ["run"]


def test_a_link_is_changed_in_one_step(tmp_path: Path) -> None:
    link = tmp_path / "best"
    for target in ("step-1", "step-2"):
        partial_path(link).symlink_to("left by a kill")
        replace_link(link, target)
        assert str(link.readlink()) == target
    assert names(tmp_path) == ["best"]


HOLD = """
import sys
from pathlib import Path
from kinfolk.files import folder_lock, lock_file
path = Path(sys.argv[1])
if path.is_dir():
    with folder_lock(path):
        print("in", flush=True)
        sys.stdin.read()
else:
    file = lock_file(path)
    print("in", flush=True)
    sys.stdin.read()
"""


def held(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_folder_lock_waits_for_the_other_process_and_ends_with_it(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        other = held(tmp_path)
        assert other.stdout is not None
        assert not select.select([other.stdout], [], [], 1)[0], "it came in while it was locked"
    assert other.stdout.readline() == "in\n"
    other.kill()
    other.wait()
    with folder_lock(tmp_path):
        pass
    for stream in (other.stdin, other.stdout):
        assert stream is not None
        stream.close()


def test_a_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    read, write = os.pipe()
    started, start = os.pipe()
    with folder_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.write(start, b"1")
            os.read(read, 1)  # lives until the parent closes the pipe
            os._exit(0)
        assert os.read(started, 1) == b"1"
        with pytest.raises(BlockingIOError), folder_lock(tmp_path, wait=False):
            pass
    with folder_lock(tmp_path, wait=False):
        pass
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0


def test_two_processes_do_not_write_one_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with new_folder(path) as folder:
        (folder / "recipe.json").write_text("first")
        with pytest.raises(BlockingIOError, match="another process"), new_folder(path):
            pass
    assert (path / "recipe.json").read_text() == "first" and names(tmp_path) == ["run"]


@pytest.mark.parametrize(("owner", "name"), [(os, "open"), (fcntl, "flock")])
def test_a_new_folder_that_another_process_finishes_before_it_is_locked_is_refused(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, call = tmp_path / "run", getattr(owner, name)

    def finished_by_another(*arguments: Any, **named: Any) -> Any:
        if not path.exists():
            (partial_path(path) / "recipe.json").write_text("first")
            partial_path(path).rename(path)
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, finished_by_another)
    with pytest.raises(FileExistsError, match="this folder exists by now"), new_folder(path):
        raise AssertionError("two processes write one folder")
    assert (path / "recipe.json").read_text() == "first" and names(tmp_path) == ["run"]


@pytest.mark.parametrize(("owner", "name"), [(os, "open"), (fcntl, "flock")])
def test_a_new_folder_that_another_process_gives_up_is_made_again(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, call, removed = tmp_path / "run", getattr(owner, name), []

    def removed_by_another(*arguments: Any, **named: Any) -> Any:
        if not removed:
            partial_path(path).rmdir()
            removed.append(1)
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, removed_by_another)
    with new_folder(path) as folder:
        (folder / "recipe.json").write_text("second")
    assert (path / "recipe.json").read_text() == "second" and names(tmp_path) == ["run"]


def test_a_lock_file_is_refused_while_another_process_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    other = held(path)
    assert other.stdout is not None and other.stdout.readline() == "in\n"
    with pytest.raises(BlockingIOError):
        lock_file(path)
    other.kill()
    other.wait()
    lock_file(path).close()
    for stream in (other.stdin, other.stdout):
        assert stream is not None
        stream.close()


def test_the_hash_is_that_of_the_whole_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()
