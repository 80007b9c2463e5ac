"""A folder beside the one to come, with a journal of what is safe in it, so that work can go on.

.NAME.part/lock           held by the one who works
.NAME.part/journal.json   what is safe on the disk, and a fingerprint of the work
.NAME.part/corpus/        what becomes NAME
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kinfolk.data.writer import WriteProgress
from kinfolk.errors import UserError
from kinfolk.files import lock_file, new_file

Say = Callable[[str], None]


@dataclass
class PartialCorpus:
    """A corpus that will get its name when it is whole."""

    work_dir: Path
    fingerprint: str | None  # of all that decides its bytes; None where text cannot be read again
    progress: tuple[WriteProgress, ...] = ()
    whole: bool = False

    @property
    def folder(self) -> Path:
        """Where it lies until then."""
        return self.work_dir / "corpus"

    @property
    def journal(self) -> Path:
        """Where it is written down what is done."""
        return self.work_dir / "journal.json"

    def save_progress(self, done: tuple[WriteProgress, ...], *, whole: bool = False) -> None:
        """Write down what is safe on the disk."""
        self.progress, self.whole = done, whole
        if self.fingerprint is None:
            return
        states = [asdict(written) for written in done]
        entry = {"fingerprint": self.fingerprint, "whole": whole, "done": states}
        with new_file(self.journal, durable=True) as file:
            json.dump(entry, file)

    def load_progress(self, say: Say) -> None:
        """Go on from what an earlier run of the same work wrote down, or begin with nothing."""
        entry = {}
        with suppress(OSError, ValueError):
            entry = json.loads(self.journal.read_text(encoding="utf-8"))
        if entry and entry["fingerprint"] == self.fingerprint:
            states = (
                {**state, "pending_bits": tuple(state["pending_bits"])} for state in entry["done"]
            )
            self.progress, self.whole = (
                tuple(WriteProgress(**state) for state in states),
                entry["whole"],
            )
            documents = sum(written.documents for written in self.progress)
            say(f"going on after the {documents:,} documents that an earlier run has written")
            return
        if entry:
            say("starting over: text, tokenizer or options are not those of the run before")
        self.clear()
        self.folder.mkdir()

    def clear(self) -> None:
        """Forget all that is done."""
        self.journal.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self, out: Path) -> None:
        """Give it its name; whoever is killed in here goes on in here."""
        self.save_progress(self.progress, whole=True)
        for left in self.folder.rglob("*.part"):
            left.unlink()
        self.folder.rename(out)
        self.journal.unlink(missing_ok=True)


@contextmanager
def resumable_output(
    out: Path, fingerprint: str | None, *, vacant: Callable[[], None], say: Say
) -> Iterator[PartialCorpus]:
    """Lend a corpus beside `out`, and give it that name at the end; `vacant` checks it is free.

    Whatever goes wrong, nothing is left of a corpus that has no entry in its journal yet; one that
    has is kept for the next run of the same work.
    """
    out = out.absolute()
    part = PartialCorpus(out.with_name(f".{out.name}.part"), fingerprint)
    fresh = [parent for parent in part.work_dir.parents if not parent.exists()]
    try:
        with _alone(part.work_dir, out):
            vacant()
            part.load_progress(say)
            try:
                yield part
                part.finish(out)
            except BaseException:
                if part.journal.exists():
                    say(
                        f"what is done is kept in {part.work_dir}: "
                        "the same command goes on from there"
                    )
                else:
                    part.clear()
                raise
    except BaseException:
        with suppress(OSError):  # something is kept there, or somebody else uses it by now
            for parent in fresh:
                parent.rmdir()
        raise


@contextmanager
def _alone(home: Path, out: Path) -> Iterator[None]:
    """Hold the lock in a folder, or complain that somebody else does; remove it if it is empty."""
    lock = home / "lock"
    try:
        file = lock_file(lock)
    except BlockingIOError as error:
        raise UserError(
            f"another kinfolk prepare is writing {out}: wait for it, or choose another -o"
        ) from error
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose another -o") from error
    with file:
        try:
            yield
        finally:
            lock.unlink()
            with suppress(OSError):
                home.rmdir()
