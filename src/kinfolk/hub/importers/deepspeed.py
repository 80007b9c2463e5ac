"""GLM: the authors' DeepSpeed checkpoints (`mp_rank_00_...`) and folders for transformers."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families.glm import GLMConfig
from kinfolk.hub.weights import check_settings

MODEL_TYPE = "glm"
HEAD_DIM = 64  # of all published sizes; a checkpoint does not say
LAYER = re.compile(r"transformer\.layers\.(\d+)\.(.+)\.(weight|bias)")
MODULES = {
    "word_embeddings": "token_embeddings",
    "transformer.position_embeddings": "position_embeddings",
    "transformer.block_position_embeddings": "block_position_embeddings",
    "transformer.final_layernorm": "final_norm",
}
LAYER_MODULES = {
    "input_layernorm": "self_attention.norm",
    "attention.query_key_value": "self_attention.sublayer.qkv_proj",
    "attention.dense": "self_attention.sublayer.out_proj",
    "post_attention_layernorm": "feed_forward.norm",
    "mlp.dense_h_to_4h": "feed_forward.sublayer.up_proj",
    "mlp.dense_4h_to_h": "feed_forward.sublayer.down_proj",
}


def recognizes(values: Any) -> bool:
    """Return whether this is a checkpoint of the authors' code."""
    module = values.get("module") if isinstance(values, dict) else None
    return isinstance(module, dict) and "transformer.block_position_embeddings.weight" in module


def state_dict(values: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a checkpoint."""
    tensors: dict[str, Any] = values["module"]
    return tensors


def convert(
    tensors: dict[str, Tensor], values: dict[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors; sizes are those of the tensors."""
    if (rank := re.search(r"mp_rank_(\d+)", file.name)) and file.with_name(
        file.name.replace(rank[0], f"mp_rank_{int(rank[1]) + 1:02d}")
    ).exists():
        raise UserError(
            f"{file} is one of several parts of a model: join them with the authors' change_mp.py"
        )
    hidden_size = tensors["word_embeddings.weight"].shape[1]
    # The authors' code computes GELU by tanh.
    return _convert(tensors, file, num_heads=hidden_size // HEAD_DIM, activation="gelu_new")


def convert_folder(
    data: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors from a config.json and the tensors beside it."""
    if "transformer.block_position_embeddings.weight" not in {
        name.removeprefix("glm.") for name in tensors
    }:
        raise UserError(f"{path} is a later GLM without block positions, which is not supported")
    check_settings(data, GLMConfig, {"num_attention_heads": "num_heads"}, path / "config.json")
    return _convert(tensors, path, num_heads=data["num_attention_heads"], activation="gelu")


def _convert(
    theirs: Mapping[str, Tensor], path: Path, **fields: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        if (ours := _rename(name.removeprefix("glm."))) is not None:
            tensors[ours] = tensor
    lengths = {len(tensors[f"{kind}position_embeddings.weight"]) for kind in ("", "block_")}
    if len(lengths) > 1:
        raise UserError(f"{path} has position tables of different lengths")
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    vocab_size, hidden_size = tensors["token_embeddings.weight"].shape
    config = GLMConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=len(layers),
        max_length=lengths.pop(),
        **fields,
    )
    return {"model_type": "kinfolk_glm", **asdict(config)}, tensors


def _rename(name: str) -> str | None:
    """Return our name of a tensor; None for one of another network, such as a task head."""
    if match := LAYER.fullmatch(name):
        module = LAYER_MODULES.get(match[2])
        return None if module is None else f"layers.{match[1]}.{module}.{match[3]}"
    module, _, part = name.rpartition(".")
    return f"{MODULES[module]}.{part}" if module in MODULES else None
