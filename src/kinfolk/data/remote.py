"""Datasets of the Hugging Face hub, streamed: `hf:OWNER/NAME[/CONFIGURATION][:SPLIT]`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kinfolk.data.listing import DATASET_PREFIX
from kinfolk.data.streams import InputFile
from kinfolk.data.tables import DEFAULT_TEXT_FIELD, get_text
from kinfolk.errors import UserError

def read_dataset(source: InputFile, field: str = DEFAULT_TEXT_FIELD) -> Iterator[str]:
    """Read a field of each row; nothing is fetched before it is asked for."""
    path = source.path
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(f"{path} needs the datasets package: pip install 'kinfolk[hub]'") from error
    name, part, split = parse_dataset_name(path)
    found = _call_datasets(
        path, lambda: iter(load_dataset(name, part, split=split, streaming=True))
    )
    number = 0
    while (row := _call_datasets(path, lambda: next(found, None))) is not None:
        number += 1
        text = get_text(row, field, f"row {number:,} of {path}")
        source.place += len(text.encode())
        yield text


def parse_dataset_name(path: Path) -> tuple[str, str | None, str]:
    """Take an address apart: the dataset (or its folder), its configuration and its split.

    hf:allenai/c4/en:validation gives ("allenai/c4", "en", "validation").
    """
    name, _, split = str(path).removeprefix(DATASET_PREFIX).partition(":")
    owner, *rest = name.split("/", 2)
    if Path(name).is_dir() or len(rest) < 2:
        return name, None, split or "train"
    return f"{owner}/{rest[0]}", rest[1], split or "train"


def _call_datasets(path: Path, ask: Callable[[], Any]) -> Any:
    """Ask the library, whose failures are of many kinds: the network's, the hub's, a file's."""
    try:
        return ask()
    except Exception as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{path} cannot be read ({said}): check the network and the address, "
            "hf:OWNER/NAME/CONFIGURATION:SPLIT"
        ) from error
