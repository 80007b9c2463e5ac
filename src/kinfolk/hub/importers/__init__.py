"""Checkpoints of other programs, converted to config.json and tensors as transformers has them.

Each module of this package has `recognizes(values)`, which looks at the contents of a file of
`torch.save`, `state_dict(values)`, which returns its tensors, and `convert(tensors, values, file)`,
which returns the config and the tensors, with names of transformers or of kinfolk. Folders whose
`model_type` is a key of FOLDERS are converted too. TensorFlow's checkpoints, several files each,
are named by their `.index` file, and ELMo's by their `.hdf5` file.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.hub.importers import (
    deepspeed,
    fairseq,
    fastai,
    hdf5,
    mt_lstm,
    tensorflow,
    transfo_xl,
)
from kinfolk.hub.weights import floating_point, read_pytorch

IMPORTERS = (deepspeed, fairseq, fastai, transfo_xl, mt_lstm)
FOLDERS = {module.MODEL_TYPE: module for module in (deepspeed, transfo_xl)}
SUFFIXES = (
    ".pt",
    ".pth",
    ".ckpt",
    tensorflow.SUFFIX,
    hdf5.SUFFIX,
)  # of checkpoints of other programs


def find_checkpoint(path: Path) -> Path | None:
    """Return the checkpoint of another program: the file itself, or the only one of a folder."""
    if path.is_file():
        return path
    files = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES]
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise UserError(f"{path} has several checkpoints ({names}): pass one of these files")
    if not files:
        hdf5.check_options(path)
    return files[0] if files else None


def read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of a checkpoint of another program."""
    if file.suffix == tensorflow.SUFFIX:
        with conversion_errors(file):
            config, tensors = tensorflow.read_tensorflow(file)
        return config, floating_point(tensors, file)
    if file.suffix == hdf5.SUFFIX:
        options, tensors = hdf5.read_hdf5(file)
        with conversion_errors(file):
            config, tensors = hdf5.convert(options, tensors)
        return config, floating_point(tensors, file, integers=True)
    values = read_pytorch(file)
    for importer in IMPORTERS:
        if importer.recognizes(values):
            tensors = floating_point(importer.state_dict(values), file)
            with conversion_errors(file):
                return importer.convert(tensors, values, file)
    raise UserError(
        f"{file} is not a checkpoint that kinfolk can read (supported: RoBERTa and the Transformer "
        "of fairseq, AWD-LSTM of fastai, GLM, Transformer-XL, CoVe and ELMo of their authors): "
        "save the model as a folder of transformers"
    )


def convert_folder(
    data: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors of a folder whose `model_type` is in FOLDERS."""
    with conversion_errors(folder):
        return FOLDERS[data["model_type"]].convert_folder(data, tensors, folder)


@contextmanager
def conversion_errors(path: Path) -> Iterator[None]:
    """Raise a user error where tensors are missing, or have other shapes than a program writes."""
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{path} has no {error.args[0]}: copy or save the model again") from error
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} has tensors of unexpected shapes ({str(error).splitlines()[0]}): copy or save "
            "the model again"
        ) from error
