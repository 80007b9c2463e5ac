"""A preparation that is killed goes on where it was, and ends with the bytes of a clean one."""

import errno
import io
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from kinfolk.data import prepare
from kinfolk.data import prepare as module
from kinfolk.data.corpus import Corpus
from kinfolk.data.encode import DocumentEncoder
from kinfolk.data.partial_corpus import PartialCorpus
from kinfolk.errors import UserError
from support import killed_prepare
from support.runs import text as made_up
from support.runs import tree

DOCUMENTS = 80


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(made_up(DOCUMENTS), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def clean(text: Path) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GROUP_CHARS", killed_prepare.CHUNK)
        patch.setattr(module, "GROUPS_PER_CHECKPOINT", killed_prepare.SAFE)
        killed_prepare.go(text, text.parent / "clean")
    return tree(text.parent / "clean")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the constants that `killed_prepare.go` sets back at the end."""
    monkeypatch.setattr(module, "GROUP_CHARS", killed_prepare.CHUNK)
    monkeypatch.setattr(module, "GROUPS_PER_CHECKPOINT", killed_prepare.SAFE)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the texts that are encoded."""
    texts: list[str] = []
    original = DocumentEncoder.__call__

    def call(self: DocumentEncoder, found: Any) -> Any:
        texts.extend(found)
        return original(self, found)

    monkeypatch.setattr(DocumentEncoder, "__call__", call)
    return texts


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("place", "call", "after", "safe"),
    [
        ("add", 1, True, False),  # nothing is in the journal yet
        ("add", 3, True, True),
        ("add", 9, False, True),
        ("fsync", 2, False, False),  # while files are made safe for the first time
        ("fsync", 15, True, True),
        ("save_progress", 1, False, False),
        ("save_progress", 2, True, True),
        ("replace", 3, False, True),  # of the journal by a newer one
        ("_finish", 1, False, True),
        ("_finish", 2, True, True),  # both corpora are whole, and nobody says so
        ("unlink", 2, True, True),  # of what a whole corpus does not need
        ("unlink", 4, True, True),
        ("rename", 1, False, True),
    ],
)
def test_whoever_is_killed_goes_on(
    place: str,
    call: int,
    after: bool,
    safe: bool,
    text: Path,
    clean: dict[str, bytes],
    tmp_path: Path,
    encoded: list[str],
) -> None:
    out, said = tmp_path / "c", list[str]()
    assert (
        killed_prepare.run(killed_prepare.doomed, text, out, place, call, after, 1)
        == -signal.SIGKILL
    )
    assert not out.exists()
    killed_prepare.go(text, out, on_message=said.append)
    assert tree(out) == clean
    assert left(tmp_path) == ["c"]
    goes_on = [sentence for sentence in said if sentence.startswith("resuming after ")]
    assert bool(goes_on) == safe
    done = int(goes_on[0].split()[2]) if goes_on else 0
    assert done + len(encoded) == DOCUMENTS or (done, encoded) == (DOCUMENTS, [])


def test_one_killed_after_the_last_step_is_whole(
    text: Path, clean: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "c"
    assert (
        killed_prepare.run(killed_prepare.doomed, text, out, "rename", 1, True, 1)
        == -signal.SIGKILL
    )
    assert tree(out) == clean
    with pytest.raises(UserError, match="already a corpus"):
        killed_prepare.go(text, out)


def test_workers_die_with_the_one_who_sent_them_and_another_number_goes_on(
    text: Path, clean: dict[str, bytes], tmp_path: Path, encoded: list[str]
) -> None:
    out = tmp_path / "c"
    assert (
        killed_prepare.run(killed_prepare.doomed, text, out, "add", 7, False, 2) == -signal.SIGKILL
    )
    killed_prepare.go(text, out, workers=1)
    assert tree(out) == clean
    assert 0 < len(encoded) < DOCUMENTS


def test_what_is_left_out_is_listed_once_after_a_kill(text: Path, tmp_path: Path) -> None:
    blocks = text.read_text(encoding="utf-8").split("\n\n")
    own = tmp_path / "text.txt"
    own.write_text("\n\n".join(block for block in blocks for _ in range(2)), encoding="utf-8")
    killed_prepare.go(own, tmp_path / "clean")
    killed = killed_prepare.run(killed_prepare.doomed, own, tmp_path / "c", "add", 9, True, 1)
    assert killed == -signal.SIGKILL
    killed_prepare.go(own, tmp_path / "c")
    assert tree(tmp_path / "c") == tree(tmp_path / "clean")
    dropped = (tmp_path / "c" / prepare.DROPPED_FILE).read_text(encoding="utf-8").splitlines()
    assert len(dropped) == DOCUMENTS


def test_killed_again_and_again(text: Path, clean: dict[str, bytes], tmp_path: Path) -> None:
    out, deaths = tmp_path / "c", 0
    while (
        killed_prepare.run(killed_prepare.doomed, text, out, "add", 4, False, 1) == -signal.SIGKILL
    ):
        deaths += 1
        assert deaths < 20
    assert deaths > 3
    assert tree(out) == clean


@pytest.mark.parametrize("journal", ["{}", "[1]", "null", '{"fingerprint": 1', '{"done": 3}'])
def test_a_damaged_journal_begins_again(
    journal: str, text: Path, clean: dict[str, bytes], tmp_path: Path
) -> None:
    assert (
        killed_prepare.run(killed_prepare.doomed, text, tmp_path / "c", "add", 9, True, 1)
        == -signal.SIGKILL
    )
    (written,) = tmp_path.glob("*/journal.json")
    written.write_text(journal)
    said: list[str] = []
    killed_prepare.go(text, tmp_path / "c", on_message=said.append)
    assert any(sentence.startswith("starting again: ") for sentence in said)
    assert tree(tmp_path / "c") == clean


@pytest.mark.parametrize("change", ["text", "holdout", "word_boundaries", "dedup"])
def test_other_work_begins_again(
    change: str, text: Path, tmp_path: Path, encoded: list[str]
) -> None:
    own = tmp_path / "text.txt"
    shutil.copy(text, own)
    assert (
        killed_prepare.run(killed_prepare.doomed, own, tmp_path / "c", "add", 9, True, 1)
        == -signal.SIGKILL
    )
    if change == "text":
        own.write_text(own.read_text() + "\n\nOne more.\n")
    others: dict[str, Any] = {"holdout": 0.4, "word_boundaries": None, "dedup": None}
    options = {change: others[change]} if change in others else {}
    said: list[str] = []
    killed_prepare.go(own, tmp_path / "c", on_message=said.append, **options)
    assert any(sentence.startswith("starting again: ") for sentence in said)
    assert len(encoded) == DOCUMENTS + (change == "text")
    killed_prepare.go(own, tmp_path / "again", **options)
    assert tree(tmp_path / "c") == tree(tmp_path / "again")


def test_two_at_once_are_refused(text: Path, clean: dict[str, bytes], tmp_path: Path) -> None:
    refused = []

    def second(read: int, whole: int | None) -> None:
        with pytest.raises(UserError, match="another kinfolk prepare is writing") as error:
            killed_prepare.go(text, tmp_path / "c")
        refused.append(error)

    killed_prepare.go(text, tmp_path / "c", progress=second)
    assert refused
    assert tree(tmp_path / "c") == clean
    assert left(tmp_path) == ["c"]


def test_what_is_interrupted_late_is_kept(
    text: Path, clean: dict[str, bytes], tmp_path: Path, encoded: list[str]
) -> None:
    calls, said = 0, list[str]()

    def stop(read: int, whole: int | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed_prepare.go(text, tmp_path / "c", progress=stop, on_message=said.append)
    assert said[-1].endswith("the same command resumes from it")
    assert left(tmp_path) == [".c.part"]
    encoded.clear()
    killed_prepare.go(text, tmp_path / "c")
    assert len(encoded) < DOCUMENTS
    assert tree(tmp_path / "c") == clean


def test_a_full_disk_is_said_and_leaves_nothing_under_the_name(text: Path, tmp_path: Path) -> None:
    for size in (0, 2000, 6000):
        assert killed_prepare.run(killed_prepare.full, text, tmp_path / "c", size) == 2
        assert not (tmp_path / "c").exists()
    killed_prepare.go(text, tmp_path / "c")
    assert Corpus.open(tmp_path / "c").documents > 0


def test_too_little_room_is_refused_before_anything_is_written(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = text.stat().st_size
    usage = shutil.disk_usage(tmp_path)._replace(free=size // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"needs about .* kB, and the disk of .* has .* left"):
        killed_prepare.go(text, tmp_path / "c")
    assert left(tmp_path) == []


def test_the_room_that_is_said_is_the_room_that_is_taken(text: Path, tmp_path: Path) -> None:
    said: list[str] = []
    killed_prepare.go(text, tmp_path / "c", on_message=said.append, holdout=0.0)
    found = next(sentence for sentence in said if sentence.startswith("the corpus needs about "))
    need = float(found.split()[4]) * {"kB": 1e3, "MB": 1e6}[found.split()[5]]
    taken = sum(file.stat().st_size for file in (tmp_path / "c").glob("*.*"))
    assert 0.8 * taken < need < 2 * taken


def test_what_can_be_read_once_is_not_kept(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(read: int, whole: int | None) -> None:
        assert whole is None
        raise OSError(errno.EIO, "gone")

    said: list[str] = []
    for progress, failure in ((stop, True), (lambda read, whole: None, False)):
        stdin = io.TextIOWrapper(io.BytesIO(text.read_bytes()))
        monkeypatch.setattr(sys, "stdin", stdin)
        try:
            killed_prepare.go(Path("-"), tmp_path / "c", progress=progress, on_message=said.append)
        except OSError:
            assert failure
        assert left(tmp_path) == ([] if failure else ["c"])
    assert said[0] == "this input can be read only once: a run that is killed cannot be resumed"
    both = Corpus.open(tmp_path / "c").documents + Corpus.open(tmp_path / "c" / "holdout").documents
    assert both == DOCUMENTS


def test_a_journal_that_lies_is_noticed(text: Path, tmp_path: Path) -> None:
    assert (
        killed_prepare.run(killed_prepare.doomed, text, tmp_path / "c", "add", 9, True, 1)
        == -signal.SIGKILL
    )
    (tmp_path / ".c.part" / "corpus" / "tokens.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"tokens\.bin is shorter than it was: remove"):
        killed_prepare.go(text, tmp_path / "c")
    assert PartialCorpus(tmp_path / ".c.part", None).journal.exists()
