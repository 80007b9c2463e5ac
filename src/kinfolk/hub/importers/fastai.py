"""AWD-LSTM language models of fastai: versions 0.7 (the release of ULMFiT), 1 and 2."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families.ulmfit import PUBLISHED

TABLE = "encoder.weight"
LAYER_TENSORS = ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0")


def recognizes(values: Any) -> bool:
    """Return whether this is the state dict of an AWD-LSTM, or a learner's file with one."""
    return isinstance(values, dict) and _prefix(state_dict(values)) is not None


def state_dict(values: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors, which a learner saves beside the state of its optimizer."""
    model = values.get("model")
    return model if isinstance(model, dict) else values


def convert(
    tensors: dict[str, Tensor], values: dict[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors; sizes are those of the tensors, dropout rates fastai's."""
    theirs, prefix = tensors, _prefix(tensors)
    assert prefix is not None
    _check_layers(theirs, file)
    table = theirs[prefix + TABLE]
    layers = 0
    ours: dict[str, Tensor] = {"token_embeddings.weight": table}
    while any(name.startswith(f"{prefix}rnns.{layers}.") for name in theirs):
        there, here = f"{prefix}rnns.{layers}", f"layers.{layers}"
        ours |= {f"{here}.{name}": theirs[f"{there}.module.{name}"] for name in LAYER_TENSORS}
        ours[f"{here}.weight_hh_l0"] = _recurrent_weights(theirs, there)
        layers += 1
    tied = theirs.get("1.decoder.weight", table)
    if not torch.equal(tied, table):
        raise UserError(
            f"{file}: the weights of its decoder and its encoder differ, and those of ulmfit are "
            "one table: train it with tie_weights=True"
        )
    # Version 0.7 has no bias, and a file of save_encoder has no decoder.
    ours["bias"] = theirs.get("1.decoder.bias", table.new_zeros(len(table)))
    config = replace(
        PUBLISHED["ulmfit-wt103-fastai"],
        vocab_size=len(table),
        hidden_size=table.shape[1],
        lstm_size=ours["layers.0.weight_hh_l0"].shape[1],
        num_layers=layers,
    )
    return {"model_type": "kinfolk_ulmfit", **asdict(config)}, ours


def _prefix(theirs: Mapping[str, Any]) -> str | None:
    """Return the prefix of the encoder: "0." in a language model, none where it is alone."""
    found = (prefix for prefix in ("0.", "") if f"{prefix}rnns.0.module.weight_ih_l0" in theirs)
    return next((prefix for prefix in found if prefix + TABLE in theirs), None)


def _recurrent_weights(theirs: Mapping[str, Tensor], layer: str) -> Tensor:
    """Return the recurrent weights before dropout; what has no `_raw` is a dropped copy."""
    names = (f"{layer}.weight_hh_l0_raw", f"{layer}.module.weight_hh_l0_raw")
    known = next((name for name in names if name in theirs), f"{layer}.module.weight_hh_l0")
    return theirs[known]


def _check_layers(theirs: Mapping[str, Any], file: Path) -> None:
    """Refuse networks that read a text in both directions."""
    if any(name.endswith("_reverse") for name in theirs):
        raise UserError(
            f"{file} is bidirectional, and ulmfit reads from left to right: use a model with "
            "bidir=False"
        )
