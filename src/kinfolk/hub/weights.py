"""Read the tensors of a model folder, from safetensors or PyTorch files, without running code."""

import argparse
import json
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kinfolk.config import describe
from kinfolk.errors import UserError

SAFETENSORS = "model.safetensors"
# Weight files in order of preference; each may be split into shards, which FILE.index.json lists.
WEIGHT_FILES = (SAFETENSORS, "pytorch_model.bin")
LFS_POINTER = b"version https://git-lfs"


def read_weights(folder: Path, *, integers: bool = False) -> dict[str, Tensor]:
    """Read all floating-point tensors of a folder, from one file or from shards.

    With `integers`, also the others.
    """
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return read_tensors(folder / name, integers=integers)
        if (index := folder / f"{name}.index.json").is_file():
            tensors: dict[str, Tensor] = {}
            for shard in _shards(index):
                tensors |= read_tensors(folder / shard, integers=integers)
            return tensors
    raise UserError(f"{folder} has no {' or '.join(WEIGHT_FILES)}: copy or save the model again")


def read_tensors(file: Path, *, integers: bool = False) -> dict[str, Tensor]:
    """Read one file of named tensors; integer and boolean ones are left out by default."""
    check_downloaded(file)
    if file.suffix == ".safetensors":
        try:
            values: Any = load_file(file)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read ({error}): copy or save it again") from error
    else:
        values = read_pytorch(file)
        if not isinstance(values, dict):
            raise UserError(f"{file} holds a {type(values).__name__}, not tensors by name")
    return floating_point(values, file, integers=integers)


def check_downloaded(file: Path) -> None:
    """Refuse the text that Git leaves in place of a large file that was not downloaded."""
    if not file.is_file():
        return
    with file.open("rb") as source:
        start = source.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        raise UserError(
            f"{file} is a Git LFS pointer, not the file itself: run git lfs pull in the "
            "repository, or download the file"
        )


def floating_point(
    values: dict[str, Any], file: Path, *, integers: bool = False
) -> dict[str, Tensor]:
    """Return the floating-point tensors; refuse what is not a tensor, and NaN or infinity."""
    tensors: dict[str, Tensor] = {}
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise UserError(f"{file}: {name!r} is not a tensor: save the model's state_dict")
        if value.is_floating_point() or (integers and not value.is_complex()):
            tensors[name] = value
        elif value.is_complex():
            raise UserError(f"{file}: {name} is {value.dtype}, not a floating-point tensor")
    if values and not tensors:
        types = ", ".join(sorted({str(value.dtype) for value in values.values()}))
        raise UserError(
            f"{file} has no floating-point tensors (its types: {types}): convert the weights to "
            "float32 or float16 where they were made"
        )
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if bad := [name for name, tensor in floats.items() if not bool(tensor.isfinite().all())]:
        raise UserError(
            f"{file} has NaN or infinite values in {', '.join(bad[:3])}: use a checkpoint from "
            "before the training diverged"
        )
    return tensors


def write_safetensors(file: Path, columns: Mapping[str, tuple[int, str, Iterable[Any]]]) -> Path:
    """Write tensors of one axis part by part: the size, safetensors' type and the parts of each.

    The library writes a file from memory; what was counted on disk need not fit there.
    """
    widths = {"I64": 8, "F32": 4}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (size, dtype, _) in columns.items():
        end = offset + size * widths[dtype]
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, _, parts in columns.values():
            for part in parts:
                part.tofile(out)
    return file


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"))  # editors may add a BOM
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON ({error}): copy or save it again") from error
    if not isinstance(data, dict):
        raise UserError(f"{file} must hold a JSON object: copy or save it again")
    return data


def check_settings(
    settings: Mapping[str, Any], config: type[Any], names: Mapping[str, str], where: Path
) -> None:
    """Check settings of another program by the types and ranges of our fields.

    `names` maps the name of a setting to the field of our config.
    """
    declared = describe(config)
    for theirs, ours in names.items():
        if theirs in settings:
            declared[ours].check(settings[theirs], f"{where}: {theirs}")


def read_pytorch(file: Path) -> Any:
    """Read a file of `torch.save`: tensors, containers and fairseq's settings, nothing else."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the protocol of pickles that are refused
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{file} is a pickle that holds more than tensors and could run any code "
            f"({_unsupported(error)}): save its state_dict with safetensors where it was made"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} cannot be read ({reason}): copy or save it again") from error


def _unsupported(error: pickle.UnpicklingError) -> str:
    """Return the part of PyTorch's message that names what the pickle asks for."""
    asked = [line for line in str(error).splitlines() if "GLOBAL" in line or "Unsupported" in line]
    return asked[0].strip() if asked else "it is not a file of torch.save"


def _shards(index: Path) -> Iterable[str]:
    """Return the files that an index lists, which must lie beside it."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise UserError(f"{index} is not an index of weights: copy or save it again") from error
    if odd := [name for name in names if Path(str(name)).name != name]:
        raise UserError(f"{index} lists {odd[0]!r}, which is not a file beside it")
    return sorted(names)
