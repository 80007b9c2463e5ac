"""ELMo as its authors released it: `*_weights.hdf5` and `*options.json` beside it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families.elmo import ELMoConfig
from kinfolk.nn.characters import NUM_CHARACTERS, digits_of_ids

SUFFIX = ".hdf5"
OPTIONS = "*options.json"
CELL = "RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{name}"
# Options with one supported value, by their section; some releases leave them out.
SUPPORTED = {"lstm": {"use_skip_connections": True}}


def read_hdf5(file: Path) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """Return the options beside a file of weights, and its tensors."""
    options = _read_options(file)
    try:
        h5py = import_module("h5py")
    except ImportError as error:
        raise UserError(f"{file} needs the h5py package: pip install 'kinfolk[elmo]'") from error
    tensors: dict[str, Tensor] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            tensors[name] = torch.from_numpy(item[...])

    try:
        with h5py.File(file, "r") as opened:
            opened.visititems(visit)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error}): copy it again") from error
    return options, tensors


def check_options(folder: Path) -> None:
    """Refuse a folder with the options of a release and without its weights."""
    if found := sorted(folder.glob(OPTIONS)):
        raise UserError(
            f"{found[0]} has no weights beside it: copy the *_weights{SUFFIX} of the release there"
        )


def convert(
    options: Mapping[str, Any], theirs: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors.

    A release has no softmax and no vocabulary: words are read by their characters, and the
    characters of ids come from the tokenizer that the model is loaded with.
    """
    try:
        config = _config(options)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"options.json lacks {error}: copy the options.json of the release again"
        ) from error
    tensors = _rename(theirs, config)
    fields = {**asdict(config), "filters": list(config.filters), "cutoffs": []}  # as in JSON
    return {"model_type": "kinfolk_elmo", **fields}, tensors


def _read_options(file: Path) -> Mapping[str, Any]:
    """Read the options beside the weights: of several files, the one with the same beginning."""
    found = sorted(file.parent.glob(OPTIONS))
    stem = file.name.removesuffix(SUFFIX).removesuffix("weights")
    found = [path for path in found if path.name.startswith(stem)] or found
    if len(found) != 1:
        several = f"{len(found)} files of options" if found else "no options.json"
        raise UserError(f"{file} has {several} beside it: copy the one of the release there")
    try:
        options = json.loads(found[0].read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{found[0]} is not JSON ({error}): copy it again") from error
    if not isinstance(options, dict):
        raise UserError(f"{found[0]} must hold a JSON object: copy it again")
    return options


def _config(options: Mapping[str, Any]) -> ELMoConfig:
    lstm, cnn = options["lstm"], options["char_cnn"]
    for section, values in SUPPORTED.items():
        for name, value in values.items():
            if options[section].get(name, value) != value:
                raise UserError(f"options.json: {section}.{name} must be {value}")
    widths = [width for width, _ in cnn["filters"]]
    if widths != [*range(1, len(widths) + 1)]:
        raise UserError(
            f"options.json: char_cnn.filters of widths {widths} are not supported (supported: 1, "
            "2, 3 ...)"
        )
    return ELMoConfig(
        vocab_size=1,
        hidden_size=2 * lstm["projection_dim"],
        num_layers=lstm["n_layers"],
        lstm_size=lstm["dim"],
        character_size=cnn["embedding"]["dim"],
        max_characters=cnn["max_characters_per_token"],
        filters=tuple(count for _, count in cnn["filters"]),
        num_highway=cnn["n_highway"],
        activation=cnn["activation"],
        cell_clip=lstm.get("cell_clip"),
        projection_clip=lstm.get("proj_clip"),
        num_samples=None,
        dropout=options.get("dropout", 0.1),
    )


def _rename(theirs: Mapping[str, Tensor], c: ELMoConfig) -> dict[str, Tensor]:
    """Return the tensors under our names; matrices of TensorFlow are transposed."""
    reader, embedding = "token_embeddings.cnn", theirs["char_embed"]
    ours = {
        "token_embeddings.table": digits_of_ids(c.vocab_size, c.max_characters),
        # The release masks words that are not there; their characters have id 0 here.
        f"{reader}.embedding.weight": torch.cat([torch.zeros_like(embedding[:1]), embedding]),
        f"{reader}.out_proj.weight": theirs["CNN_proj/W_proj"].T,
        f"{reader}.out_proj.bias": theirs["CNN_proj/b_proj"],
    }
    if len(embedding) != NUM_CHARACTERS - 1:
        raise UserError(
            f"char_embed has {len(embedding)} characters: ELMo has {NUM_CHARACTERS - 1}"
        )
    for i in range(len(c.filters)):
        # (1, width, size, filters) to (filters, size, width)
        ours[f"{reader}.filters.{i}.weight"] = theirs[f"CNN/W_cnn_{i}"][0].permute(2, 1, 0)
        ours[f"{reader}.filters.{i}.bias"] = theirs[f"CNN/b_cnn_{i}"]
    for i in range(c.num_highway):
        for mine, other in (("transform", "transform"), ("gate", "carry")):
            here = f"{reader}.highways.{i}.{mine}"
            ours[f"{here}.weight"] = theirs[f"CNN_high_{i}/W_{other}"].T
            ours[f"{here}.bias"] = theirs[f"CNN_high_{i}/b_{other}"]
    for layer in range(c.num_layers):
        for direction, name in enumerate(("forward", "backward")):
            cell = {
                part: theirs[CELL.format(direction=direction, layer=layer, name=part)]
                for part in ("W_0", "B", "W_P_0")
            }
            ours |= {f"layers.{layer}.{name}_lstm.{n}": t for n, t in _lstm(cell, c).items()}
    return {name: tensor.contiguous() for name, tensor in ours.items()}


def _lstm(cell: Mapping[str, Tensor], c: ELMoConfig) -> dict[str, Tensor]:
    """Return the weights of a layer; TensorFlow orders gates input, cell, forget, output."""

    def gates(tensor: Tensor) -> Tensor:
        i, g, f, o = tensor.chunk(4)
        return torch.cat([i, f, g, o])

    inputs, states = torch.split(cell["W_0"].T, c.projection_size, dim=1)
    bias = gates(cell["B"])
    bias.chunk(4)[1].add_(1.0)  # which TensorFlow adds when it runs
    return {
        "weight_ih_l0": gates(inputs),
        "weight_hh_l0": gates(states),
        "bias_ih_l0": bias,
        "bias_hh_l0": torch.zeros_like(bias),
        "weight_hr_l0": cell["W_P_0"].T,
    }
