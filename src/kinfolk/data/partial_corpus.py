"""A corpus that is being written: its lock, its journal, and the rename at the end."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kinfolk.data.corpus import WriteProgress
from kinfolk.errors import UserError
from kinfolk.files import lock_file, new_file
from kinfolk.types import OnMessage


@dataclass
class PartialCorpus:
    """A corpus that is renamed to its name when it is complete."""

    work_dir: Path
    fingerprint: str | None  # of its inputs and options; None where text cannot be read again
    progress: tuple[WriteProgress, ...] = ()
    complete: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the unfinished corpus."""
        return self.work_dir / "corpus"

    @property
    def journal(self) -> Path:
        """The file that holds the progress."""
        return self.work_dir / "journal.json"

    def save_progress(self, done: tuple[WriteProgress, ...], *, complete: bool = False) -> None:
        """Record what is safely on the disk."""
        self.progress, self.complete = done, complete
        if self.fingerprint is None:
            return
        states = [asdict(progress) for progress in done]
        entry = {"fingerprint": self.fingerprint, "whole": complete, "done": states}
        with new_file(self.journal, durable=True) as file:
            json.dump(entry, file)

    def load_progress(self, on_message: OnMessage) -> None:
        """Resume from what an earlier run with the same inputs recorded, or start again."""
        started = self.journal.exists()
        # A journal that is corrupt or of another version is ignored.
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            entry = json.loads(self.journal.read_text(encoding="utf-8"))
            if entry["fingerprint"] == self.fingerprint:
                states = [{**s, "pending_bits": tuple(s["pending_bits"])} for s in entry["done"]]
                self.progress = tuple(WriteProgress(**state) for state in states)
                self.complete = bool(entry["whole"])
                documents = sum(progress.documents for progress in self.progress)
                on_message(f"resuming after {documents:,} documents")
                return
        if started:
            on_message("starting again: text, tokenizer or options changed")
        self.clear()
        self.folder.mkdir()

    def clear(self) -> None:
        """Remove all that is written."""
        self.journal.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self, out: Path) -> None:
        """Rename the corpus to `out`; an interrupted call can be repeated."""
        self.save_progress(self.progress, complete=True)
        for left in self.folder.rglob("*.part"):
            left.unlink()
        self.folder.rename(out)
        self.journal.unlink(missing_ok=True)


@contextmanager
def resumable_output(
    out: Path, fingerprint: str | None, on_message: OnMessage
) -> Iterator[PartialCorpus]:
    """Return a partial corpus beside `out`, renamed to `out` at the end.

    After an error, a corpus without an entry in its journal is removed; one with an entry is kept
    for the next run with the same inputs.
    """
    target = out.absolute()
    part = PartialCorpus(target.with_name(f".{target.name}.part"), fingerprint)
    fresh = [parent for parent in part.work_dir.parents if not parent.exists()]
    try:
        with exclusive_output(part.work_dir, target):
            check_vacant(out)
            part.load_progress(on_message)
            try:
                yield part
                part.finish(target)
            except BaseException as error:
                if part.journal.exists():
                    on_message(
                        f"progress is kept in {part.work_dir}: the same command resumes from it"
                    )
                else:
                    part.clear()
                    if isinstance(error, KeyboardInterrupt):
                        on_message(f"nothing is kept of {out}: the same command starts again")
                raise
    except BaseException:
        with suppress(OSError):  # something is kept there, or another process uses it
            for parent in fresh:
                parent.rmdir()
        raise


@contextmanager
def exclusive_output(home: Path, out: Path) -> Iterator[None]:
    """Hold the lock in a folder; remove the folder at the end if it is empty."""
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


def check_vacant(out: Path) -> None:
    if not out.name:
        raise UserError(f"{out} is not the name of a new folder: choose another -o")
    if (out / "corpus.json").exists():
        raise UserError(f"{out} is already a corpus: choose another -o or remove it")
    if out.is_symlink() and not out.exists():
        raise UserError(f"{out} is a link to nothing: choose another -o or remove it")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} already exists and is not empty: choose another -o")
