"""Checkpoints that survive a kill, a full disk and flipped bits: atomic and checksummed.

RUN/checkpoints/step-00000500/     complete, with checksums.json
RUN/checkpoints/last, best         links
RUN/checkpoints/.step-*.partial    being written, or being removed
RUN/checkpoints/.step-*.aside      a complete one that is about to be replaced
"""

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfolk.config import shorten
from kinfolk.errors import UserError
from kinfolk.files import (
    DISK_FULL_ERRNOS,
    checksum_fault,
    error_number,
    folder_lock,
    replace_link,
    sync,
    write_checksums,
)


class CorruptCheckpointWarning(UserWarning):
    """A checkpoint is corrupt; the previous one is used."""


def save_checkpoint(
    run: Path, step: int, write: Callable[[Path], None], *, keep: int, best: bool = False
) -> Path:
    """Write a checkpoint to a temporary folder, rename it, update the links, delete old ones."""
    home = run / "checkpoints"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with folder_lock(home):
            _remove_leftovers(home)
            partial = _partial_name(home, step)
            try:
                partial.mkdir()
                write(partial)
                _sync_all(partial, write_checksums(partial))
                folder = _commit(partial, home / f"step-{step:08d}")
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            _link_and_rotate(folder, keep=keep, best=best)
    except Exception as error:
        number = error_number(error)
        if number is None:
            raise
        raise UserError(_error_message(run, step, number, error)) from error
    return folder


def finish_save(folder: Path, *, keep: int, best: bool) -> None:
    """Do what a save that was killed after its folder was complete has left undone."""
    home = folder.parent
    if folder.name.startswith("step-") and folder == _checkpoints(home)[-1]:
        with folder_lock(home):
            _link_and_rotate(folder, keep=keep, best=best)


def latest_valid(run: Path, *, unread: Collection[str] = ()) -> Path | None:
    """Return the newest valid checkpoint of a run; warn about each damaged one that is skipped."""
    for folder in reversed(_checkpoints(run / "checkpoints")):
        fault = checksum_fault(folder, unread=unread)
        if fault is None:
            return folder
        warn_corrupt(folder, fault)
    return None


def warn_corrupt(folder: Path, fault: str) -> None:
    """Warn that a checkpoint is not used."""
    warnings.warn(
        f"checkpoint {folder} is corrupt ({fault}); using the previous one",
        CorruptCheckpointWarning,
        stacklevel=3,
    )


def checkpoint_step(folder: Path) -> int:
    """Return the step of a checkpoint folder or of a link to one."""
    for name in (folder.name, folder.resolve().name):
        if match := re.fullmatch(r"step-(\d{8,})|\.step-(\d{8,})\.aside", name):
            return int(match[1] or match[2])
    raise UserError(f"{folder} is not a checkpoint: its name must be like step-00000500")


def save_training_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a tree of tensors and plain values: training.safetensors and training.json."""
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "", tensors)
    save_file(_unshare_storage(tensors), folder / "training.safetensors")
    text = json.dumps(tree, allow_nan=False)
    (folder / "training.json").write_text(text + "\n", encoding="utf-8")


def load_training_state(folder: Path) -> dict[str, Any]:
    """Read the state that `save_training_state` wrote, bit-exactly, on the CPU."""
    try:
        text = (folder / "training.json").read_text(encoding="utf-8")
        mapped = load_file(folder / "training.safetensors")
    except FileNotFoundError as error:
        missing = Path(error.filename or folder / "training.safetensors").name
        raise UserError(
            f"{folder} cannot be resumed: {missing} is missing; "
            "a model folder alone has no optimizer state"
        ) from error
    # Cloned: memory-mapped tensors would keep the file open after the checkpoint is deleted.
    tensors = {name: tensor.clone() for name, tensor in mapped.items()}
    try:
        state = _decode(json.loads(text), tensors)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise wrong_state(folder, f"{type(error).__name__}: {error}") from None
    if not isinstance(state, dict):
        raise wrong_state(folder, "not an object")
    return state


def wrong_state(folder: Path, fault: str) -> UserError:
    """Return the error about a checkpoint whose training.json no run has written."""
    return UserError(
        f"{folder / 'training.json'} is not the state of this run ({shorten(fault)}): remove "
        f"{folder.name} to resume from the checkpoint before it"
    )


def _partial_name(home: Path, step: int) -> Path:
    return home / f".step-{step:08d}.partial"


def _checkpoints(home: Path) -> list[Path]:
    """List the folders of checkpoints, valid or not, by step."""
    folders = [*home.glob("step-*"), *home.glob(".step-*.aside")]
    named = [f for f in folders if re.fullmatch(r"step-\d{8,}|\.step-\d{8,}\.aside", f.name)]
    # The replacement of a folder set aside sorts after it: "s" comes after ".".
    return sorted(named, key=lambda folder: (checkpoint_step(folder), folder.name))


def _remove_leftovers(home: Path) -> None:
    """Remove the temporary folders of a killed process."""
    for leftover in home.glob(".*.partial"):
        if leftover.is_symlink():
            leftover.unlink()
        else:
            shutil.rmtree(leftover)
    for aside in home.glob(".step-*.aside"):
        folder = home / f"step-{checkpoint_step(aside):08d}"
        if folder.exists():
            _remove(aside)
        else:
            aside.rename(folder)


def _sync_all(folder: Path, files: Sequence[Path]) -> None:
    """Flush the files of a folder and its folders to the disk."""
    for path in (*files, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        sync(path)


def _commit(partial: Path, folder: Path) -> Path:
    """Rename a complete folder into place; an existing one stays valid until it is replaced."""
    aside = folder.with_name(f".{folder.name}.aside")
    if folder.exists():
        folder.rename(aside)
    try:
        partial.rename(folder)
    except OSError:
        if aside.exists():
            aside.rename(folder)
        raise
    sync(folder.parent)
    if aside.exists():
        _remove(aside)
    return folder


def _link_and_rotate(folder: Path, *, keep: int, best: bool) -> None:
    """Let the links name a new checkpoint, and delete old ones."""
    home = folder.parent
    for link in ("last", "best") if best else ("last",):
        replace_link(home / link, folder.name)
    sync(home)
    _rotate(home, checkpoint_step(folder), keep)


def _rotate(home: Path, step: int, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints up to this step, and `best`."""
    past = [folder for folder in _checkpoints(home) if checkpoint_step(folder) <= step]
    best = (home / "best").resolve()
    for folder in past[:-keep]:
        if folder.resolve() != best:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Rename, then delete: a kill must not leave a damaged folder under a valid name."""
    partial = _partial_name(folder.parent, checkpoint_step(folder))
    folder.rename(partial)
    shutil.rmtree(partial)


def _error_message(run: Path, step: int, number: int, error: Exception) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptCheckpointWarning)
        newest = latest_valid(run)
    left = "there is no earlier checkpoint"
    if newest is not None:
        left = f"the checkpoint of step {checkpoint_step(newest)} is intact"
    home = run / "checkpoints"
    if number in DISK_FULL_ERRNOS:
        return (
            f"the disk is full while saving step {step} to {home}: {left}; "
            "free some space and resume the run"
        )
    return (
        f"step {step} could not be saved to {home} ({error}): {left}; "
        "fix the cause and resume the run"
    )


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Convert a tree to JSON; types that JSON lacks become an object with one $ key."""
    match value:
        case Tensor():
            assert name not in tensors, f"two tensors are named {name}"
            tensors[name] = value
            return {"$tensor": name}
        case dict():
            kinds = {type(key) for key in value}
            assert kinds <= {str} or kinds == {int}, f"{name}: keys must be all str or all int"
            assert not any(str(key).startswith("$") for key in value), f"{name}: a key with $"
            branch = {
                str(k): _encode(v, f"{name}/{k}".lstrip("/"), tensors) for k, v in value.items()
            }
            return {"$numbered": branch} if kinds == {int} else branch
        case tuple():
            return {"$tuple": _encode(list(value), name, tensors)}
        case list():
            return [_encode(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
        case float() if not math.isfinite(value):
            return {"$float": repr(value)}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"{name}: a {type(value).__name__} cannot be written to a checkpoint")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    match value:
        case {"$tensor": name}:
            return tensors[name]
        case {"$numbered": branch}:
            return {int(key): _decode(item, tensors) for key, item in branch.items()}
        case {"$tuple": items}:
            return tuple(_decode(item, tensors) for item in items)
        case {"$float": text}:
            return float(text)
        case dict():
            return {key: _decode(item, tensors) for key, item in value.items()}
        case list():
            return [_decode(item, tensors) for item in value]
    return value


def _unshare_storage(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give each tensor its own storage, as safetensors requires."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        alone = storage.nbytes() == tensor.nbytes and storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        tensor = tensor.detach()
        separate[name] = tensor.contiguous() if alone else tensor.clone().contiguous()
    return separate
