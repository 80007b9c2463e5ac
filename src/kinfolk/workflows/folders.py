"""Folders that commands are given, checked and opened without importing torch."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.text.tokenizer import Tokenizer


CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt")  # of other programs, which hub.importers reads
RESUME = "choose another -o, or resume it with --resume"


def check_new_folder(path: Path, remedy: str = "choose another -o") -> None:
    """Refuse an output folder that exists and is not empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} already exists: {remedy}")


def check_new_file(path: Path, inputs: Iterable[Path | None] = (), *, force: bool = False) -> None:
    """Refuse an output file that exists.

    `force` replaces a file that exists, but never an input or a file in an input folder.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder: -o must name a file, such as {path}/output")
    if path.exists():
        target = path.resolve()
        for given in filter(None, inputs):
            if given.resolve() in (target, *target.parents):
                raise UserError(f"{path} is an input: choose another -o")
        if not force:
            raise UserError(f"{path} already exists: choose another -o, or replace it with --force")


def check_parent_folder(path: Path) -> None:
    """Refuse an output file in a folder that does not exist."""
    if not path.parent.is_dir():
        raise UserError(f"folder {path.parent} does not exist: make it, or choose another -o")


def check_model_folder(path: Path | str, *, or_corpus: bool = False) -> Path:
    """Refuse a path that is neither a run nor a checkpoint nor a model folder."""
    path = Path(path)
    if is_checkpoint_file(path):
        return path
    if not path.is_dir():
        raise UserError(f"no such folder: {path}")
    names = ("config.json", "recipe.json", "scores.json", *(("corpus.json",) if or_corpus else ()))
    if any((path / name).is_file() for name in names) or any(
        map(is_checkpoint_file, path.iterdir())
    ):
        return path
    raise UserError(f"{path} is neither a run (no recipe.json) nor a model folder (no config.json)")


def is_checkpoint_file(path: Path) -> bool:
    """Return whether a file has the suffix that other programs give to checkpoints."""
    return path.suffix in CHECKPOINT_SUFFIXES and path.is_file()


def find_model_folder(path: Path | str) -> Path:
    """Return the model folder: of a run its newest valid checkpoint, else the folder itself.

    Of a fine-tuned run it is the checkpoint with the best dev score, of several seeds their best.
    """
    path = check_model_folder(path)
    if path.is_file() or (path / "config.json").is_file():
        return path
    best = path / "best" if (path / "best").is_dir() else path / "checkpoints" / "best"
    if (path / "scores.json").is_file() and best.is_dir():
        return find_model_folder(best.resolve())
    from kinfolk.training import checkpoint  # imports torch

    newest = checkpoint.latest_valid(path)
    if newest is None and any(map(is_checkpoint_file, path.iterdir())):
        return path
    if newest is None:
        raise UserError(
            f"{path} has no checkpoint yet: resume it with kinfolk pretrain --resume {path}"
        )
    return newest


def load_tokenizer(path: Path | str) -> "Tokenizer":
    """Load the tokenizer of a tokenizer folder, a run, a model folder or a corpus."""
    from kinfolk.text.tokenizer import Tokenizer

    path = Path(path)
    if (path / "tokenizer.json").is_file() or not path.is_dir():
        return Tokenizer.load(path)
    if (path / "corpus.json").is_file():
        return Tokenizer.load(path / "tokenizer")
    return Tokenizer.load(find_model_folder(path))
