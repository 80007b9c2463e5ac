"""Checkpoints of fairseq: RoBERTa and its classification heads."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import UserError

ENCODER = re.compile(r"(?:decoder|encoder)\.sentence_encoder\.(.+)")  # "decoder" before 2020
HEAD = re.compile(r"(?:decoder\.|encoder\.)?lm_head\.(.+)")
CLASSIFIER = re.compile(r"classification_heads\.([^.]+)\.(.+)")
LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")

# Modules of fairseq to those of transformers.
EMBEDDINGS = {
    "embed_tokens": "word_embeddings",
    "embed_positions": "position_embeddings",
    "emb_layer_norm": "LayerNorm",
    "layernorm_embedding": "LayerNorm",
}
LAYER_MODULES = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}


def recognizes(values: Any) -> bool:
    """Return whether this is a checkpoint of fairseq with a RoBERTa."""
    return (
        isinstance(values, dict)
        and isinstance(values.get("model"), dict)
        and any(ENCODER.fullmatch(name) for name in values["model"])
    )


def convert(values: dict[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of transformers' RoBERTa."""
    settings = _settings(values, file)
    if settings.get("encoder_normalize_before"):
        raise UserError(f"{file}: encoder_normalize_before is not supported: RoBERTa is post-norm")
    tensors: dict[str, Tensor] = {}
    for name, tensor in _split_qkv(values["model"]).items():
        if (new := _rename(name)) is not None:
            tensors[new] = tensor
    words = tensors["roberta.embeddings.word_embeddings.weight"]
    # fairseq's RoBERTa has no token types; transformers adds one row to every token.
    tensors["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, words.shape[1])
    layers = {int(match[1]) for name in tensors if (match := re.search(r"layer\.(\d+)\.", name))}
    config = {
        "model_type": "roberta",
        "architectures": ["RobertaForMaskedLM"],
        "vocab_size": len(words),
        "hidden_size": words.shape[1],
        "num_hidden_layers": len(layers),
        "num_attention_heads": settings["encoder_attention_heads"],
        "intermediate_size": len(tensors["roberta.encoder.layer.0.intermediate.dense.weight"]),
        "max_position_embeddings": len(tensors["roberta.embeddings.position_embeddings.weight"]),
        "hidden_act": settings.get("activation_fn", "gelu"),
        "hidden_dropout_prob": settings.get("dropout", 0.1),
        "attention_probs_dropout_prob": settings.get("attention_dropout", 0.1),
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    }
    return config, tensors


def _settings(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the settings of the network: of `args`, or of `cfg.model` since fairseq 0.10."""
    args = values.get("args") or (values.get("cfg") or {}).get("model")
    settings = dict(args) if isinstance(args, dict) else vars(args) if args is not None else {}
    if "encoder_attention_heads" not in settings:
        raise UserError(f"{file} has no encoder_attention_heads among its settings: save it again")
    return settings


def _split_qkv(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split the matrices of query, key and value, which were one before 2019."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.items():
        before, joined, part = name.rpartition("in_proj_")
        if joined:
            for letter, third in zip("qkv", tensor.chunk(3), strict=True):
                tensors[f"{before}{letter}_proj.{part}"] = third
        else:
            tensors[name] = tensor
    return tensors


def _rename(name: str) -> str | None:
    """Return the name in transformers; None for buffers and for the tied output matrix."""
    if match := HEAD.fullmatch(name):
        return None if match[1] == "weight" else f"lm_head.{match[1]}"
    if match := CLASSIFIER.fullmatch(name):
        return f"classification_heads.{match[1]}.{match[2]}"
    if (match := ENCODER.fullmatch(name)) is None:
        return None
    inner = match[1]
    if match := LAYER.fullmatch(inner):
        return f"roberta.encoder.layer.{match[1]}.{LAYER_MODULES[match[2]]}.{match[3]}"
    module, _, part = inner.rpartition(".")
    return f"roberta.embeddings.{EMBEDDINGS[module]}.{part}" if module in EMBEDDINGS else None
