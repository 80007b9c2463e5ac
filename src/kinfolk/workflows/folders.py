"""Folders that commands are given, checked and opened without importing torch.

Where there is no such folder, the name is looked up on the Hugging Face hub.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kinfolk.config import read_type, suggestions
from kinfolk.errors import UserError
from kinfolk.files import TRAINING_STATE, checksum_fault, folder_lock

if TYPE_CHECKING:
    from kinfolk.text.tokenizer import Tokenizer


# Of the files that hub.importers and hub.arpa read.
CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".index", ".hdf5", ".arpa", ".arpa.gz")
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # NAME or OWNER/NAME
LOCAL_FOLDERS = ("runs", "models", "checkpoints")  # usual names of folders, which are no owners
# Files that are downloaded: weights without code, configs and tokenizers.
HUB_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*config.json", "*.model", "*.spm"),
    *("*tokenizer.json", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
)
RESUME_ADVICE = "choose another -o, or resume it with --resume"


def check_new_folder(path: Path, remedy: str = "choose another -o") -> None:
    """Refuse an output folder that exists and is not empty, and one without a name: "." or "/"."""
    if not path.name:
        raise UserError(f"{path} is not the name of a new folder: {remedy}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} already exists: {remedy}")
    check_in_folder(path, remedy)


def check_in_folder(path: Path, remedy: str = "choose another -o") -> None:
    """Refuse an output below a file, and in a folder that cannot be written."""
    nearest = next((parent for parent in path.parents if parent.exists()), None)
    if nearest is None:
        return
    if not nearest.is_dir():
        raise UserError(f"{path}: {nearest} is a file, not a folder: {remedy}")
    if (fault := write_fault(nearest)) is not None:
        reason = "" if fault.errno == errno.ENOENT else f" ({fault.strerror})"  # /proc has no room
        raise UserError(f"{path}: the folder {nearest} cannot be written{reason}: {remedy}")


def write_fault(folder: Path) -> OSError | None:
    """Return why a folder cannot be written, tried where its rights or its size leave a doubt."""
    if os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).total:
        return None
    try:
        with TemporaryDirectory(dir=folder):
            return None
    except OSError as error:
        return error


@contextmanager
def exclusive_run(folder: Path) -> Iterator[None]:
    """Hold the folder of a run while this process trains in it; refuse it where another does."""
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(folder, wait=False))
        except BlockingIOError:
            raise UserError(
                f"{folder} is in use: another process trains in it; wait for its end, or choose "
                "another folder"
            ) from None
        yield


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
    check_in_folder(path)


def check_new_page(path: Path, inputs: Iterable[Path | None] = (), *, force: bool = False) -> None:
    """Refuse an HTML report that exists, or whose name says that it is another kind of file."""
    check_new_file(path, inputs, force=force)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"-o {path}: the page is HTML: choose a name that ends in .html")


def check_input_file(path: Path, of_a_folder: str = "give one of its files") -> None:
    """Refuse an input that does not exist or is read once, and a folder where one file is read."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: {of_a_folder}")
    if not path.exists():
        raise UserError(f"no such file: {path}")
    if not path.is_file():
        raise UserError(f"{path} is a pipe or a device: save its content in a file, and give that")


def check_parent_folder(path: Path) -> None:
    """Refuse an output file in a folder that does not exist."""
    if not path.parent.is_dir():
        raise UserError(f"folder {path.parent} does not exist: make it, or choose another -o")


def check_model_folder(path: Path | str, *, or_corpus: bool = False) -> Path:
    """Refuse a path that is neither a run nor a checkpoint nor a model folder."""
    path = Path(path)
    if is_checkpoint_file(path):
        return path
    if not path.exists():
        if is_size_of_family(str(path)):
            raise UserError(
                f"{path} has no weights: train it with kinfolk pretrain {path}, and give the run"
            )
        path = download_model(path, UserError(f"no such folder: {path}"))
    names = ("config.json", "recipe.json", "scores.json", *(("corpus.json",) if or_corpus else ()))
    if not path.is_dir():
        own = any((path.parent / name).is_file() for name in names)
        folder = f", {path.parent}" if own else ""
        raise UserError(f"{path} is a file: give the folder of the model{folder}")
    if any((path / name).is_file() for name in names) or has_foreign_checkpoint(path):
        return path
    raise UserError(f"{path} is neither a run (no recipe.json) nor a model folder (no config.json)")


def is_size_of_family(name: str) -> bool:
    """Return whether this is FAMILY/SIZE, which has no weights before it is trained."""
    from kinfolk.families import index

    family_name, _, size = name.partition("/")
    return family_name in index() and size in index()[family_name].sizes


def model_or_family(model: str) -> str:
    """Return FAMILY[/SIZE] or the folder of a model, which is downloaded if the hub has it."""
    from kinfolk.families import check_name, index

    if not model.strip():
        raise UserError("the name of a model is empty: give FAMILY[/SIZE] or a model folder")
    if Path(model).exists():
        return model
    try:
        check_name(model)
    except UserError as error:
        family_name, known = model.partition("/")[0], index()
        if family_name in known:
            raise
        # roberta-large is near roberta, and is a name of the hub: only gtp2 is misspelled.
        on_hub = any(model.startswith(f"{name}-") for name in known)
        misspelled = not on_hub and bool(suggestions(family_name, [*known]))
        return str(download_model(model, error, misspelled=misspelled))
    return model


def check_hub_name(name: str) -> None:
    """Refuse what is not OWNER/NAME."""
    if "/" not in name or not HUB_NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name on the hub: write OWNER/NAME, like me/small-bert")


def download_model(name: Path | str, error: UserError, *, misspelled: bool = False) -> Path:
    """Return the folder of a model on the Hugging Face hub; raise the error where it has none.

    A path into an existing folder, or into one of the usual names, is no such name. The error about
    a misspelled family names the right one, and nothing is added about the hub.
    """
    name = str(name)
    owner = name.rpartition("/")[0]
    local = owner in LOCAL_FOLDERS or (owner and Path(owner).exists())
    if local or not HUB_NAME.fullmatch(name):
        raise error
    advice = f"run hf download {name} where the hub can be reached, and pass the folder"
    try:
        from huggingface_hub import snapshot_download

        folder = Path(
            snapshot_download(name, allow_patterns=list(HUB_FILES), ignore_patterns=["onnx/*"])
        )
    except Exception as reason:  # of the library and of its HTTP client
        if misspelled:
            raise error from reason
        absent = type(reason).__name__ in ("RepositoryNotFoundError", "HFValidationError")
        answer = "has no model of this name" if absent else f"cannot be reached: {advice}"
        raise UserError(f"{error}; the Hugging Face hub {answer}") from reason
    if (folder / "config.json").is_file() and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{name} has no safetensors on the hub, and no other weights are downloaded: {advice}"
        )
    return folder


def is_checkpoint_file(path: Path) -> bool:
    """Return whether a file has the suffix that other programs give to checkpoints."""
    return path.name.endswith(CHECKPOINT_SUFFIXES) and path.is_file()


def has_foreign_checkpoint(folder: Path) -> bool:
    """Return whether a folder has a checkpoint of another program, or the options of ELMo's."""
    return any(map(is_checkpoint_file, folder.iterdir())) or any(folder.glob("*options.json"))


def find_model_folder(path: Path | str) -> Path:
    """Return the model folder: of a run its newest valid checkpoint, else the folder itself.

    Of a fine-tuned run it is the checkpoint with the best dev score, of several seeds their best.
    Where that is damaged, the newest valid one is used, with a warning.
    """
    path = check_model_folder(path)
    if path.is_file() or (path / "config.json").is_file():
        return path
    if (path / "recipe.json").is_file() and read_type(path / "recipe.json") == "prefixes":
        raise UserError(
            f"{path} holds prefixes, not a model: give the model that they were learned for, and "
            f"--prefix-from {path}"
        )
    finetuned, best = (path / "scores.json").is_file(), path / "checkpoints" / "best"
    if finetuned and (path / "best").is_dir():
        return find_model_folder((path / "best").resolve())
    from kinfolk.training import checkpoint  # imports torch

    if finetuned and best.is_dir():
        best = best.resolve()
        if (fault := checksum_fault(best, unread=TRAINING_STATE)) is None:
            return best
        checkpoint.warn_corrupt(best, fault)
    newest = checkpoint.latest_valid(path, unread=TRAINING_STATE)
    if newest is None and has_foreign_checkpoint(path):
        return path
    if newest is None:
        raise UserError(
            f"{path} has no checkpoint yet: resume it with kinfolk pretrain --resume {path}"
        )
    return newest


def load_tokenizer(path: Path | str) -> "Tokenizer":
    """Load the tokenizer of a tokenizer folder or file, a run, a model folder or a corpus.

    That of a checkpoint of another program lies beside it.
    """
    from kinfolk.text.formats import find_vocabulary
    from kinfolk.text.tokenizer import Tokenizer

    path = Path(path)
    if not path.exists():
        path = download_model(path, UserError(f"{path} does not exist and holds no tokenizer.json"))
    if is_checkpoint_file(path):
        path = path.parent
    if not path.is_dir() or find_vocabulary(path) is not None:
        return Tokenizer.load(path)
    if (path / "corpus.json").is_file():
        return Tokenizer.load(path / "tokenizer")
    if any((path / name).is_file() for name in ("recipe.json", "scores.json")):
        path = find_model_folder(path)
    return Tokenizer.load(path)
