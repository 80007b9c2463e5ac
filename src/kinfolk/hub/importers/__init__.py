"""Checkpoints of other programs, converted to config.json and tensors as transformers has them.

Each module of this package has `recognizes(values)`, which looks at the contents of a file of
`torch.save`, and `convert(values, file)`, which returns the config and the tensors, with names of
transformers or of kinfolk. Folders whose `model_type` is a key of FOLDERS are converted too.
TensorFlow's checkpoints, several files each, are named by their `.index` file.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.hub.importers import deepspeed, fairseq, fastai, tensorflow, transfo_xl
from kinfolk.hub.weights import floating_point, read_pytorch

IMPORTERS = (deepspeed, fairseq, fastai, transfo_xl)
FOLDERS = {module.MODEL_TYPE: module.convert_folder for module in (deepspeed, transfo_xl)}
SUFFIXES = (".pt", ".pth", ".ckpt", tensorflow.SUFFIX)  # of checkpoints of other programs


def find_checkpoint(path: Path) -> Path | None:
    """Return the checkpoint of another program: the file itself, or the only one of a folder."""
    if path.is_file():
        return path
    files = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES]
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise UserError(f"{path} has several checkpoints ({names}): pass one of these files")
    return files[0] if files else None


def read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of a checkpoint of another program."""
    if file.suffix == tensorflow.SUFFIX:
        config, tensors = tensorflow.read(file)
        return config, floating_point(tensors, file)
    values = read_pytorch(file)
    for importer in IMPORTERS:
        if importer.recognizes(values):
            config, tensors = importer.convert(values, file)
            return config, floating_point(tensors, file)
    raise UserError(
        f"{file} is not a checkpoint that kinfolk can read (supported: RoBERTa and the Transformer "
        "of fairseq, AWD-LSTM of fastai, GLM and Transformer-XL of their authors): save the model "
        "as a folder of transformers"
    )
