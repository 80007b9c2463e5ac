"""CoVe: the encoder that its authors published, a state dict of torch's bidirectional LSTM.

The released file has the names of `nn.LSTM`; modules that hold it put `rnn.` or `rnn1.` before
them, and may have word vectors, `vectors.weight`. There is no decoder.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.families.cove import CoVeConfig

LSTM_NAME = re.compile(r"(?:rnn\d?\.)?((?:weight|bias)_[ih]h)_l(\d+)((?:_reverse)?)")
VECTORS = "vectors.weight"


def recognizes(values: Any) -> bool:
    """Return whether these are the tensors of a bidirectional LSTM, and perhaps word vectors."""
    if not isinstance(values, dict):
        return False
    names = [str(name) for name in values if name != VECTORS]
    return any(name.endswith("_reverse") for name in names) and all(
        LSTM_NAME.fullmatch(name) for name in names
    )


def state_dict(values: Any) -> Any:
    """Return the tensors of a file."""
    return values


def convert(
    theirs: Mapping[str, Tensor], values: Any, file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors; without word vectors the vocabulary is one empty word."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        if match := LSTM_NAME.fullmatch(name):
            tensors[f"encoder.layers.{match[2]}.{match[1]}_l0{match[3]}"] = tensor
    layers = {name.split(".")[2] for name in tensors}
    gates, embedding_size = tensors["encoder.layers.0.weight_ih_l0"].shape
    vectors = theirs.get(VECTORS, torch.zeros(1, embedding_size))
    config = CoVeConfig(
        vocab_size=len(vectors),
        embedding_size=embedding_size,
        hidden_size=gates // 2,  # four gates, two directions
        num_layers=len(layers),
        encoder_only=True,
        freeze_embeddings=True,
    )
    return (
        {"model_type": "kinfolk_cove", **asdict(config)},
        {**tensors, "token_embeddings.weight": vectors},
    )
