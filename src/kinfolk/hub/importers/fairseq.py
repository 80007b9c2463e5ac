"""Checkpoints of fairseq: RoBERTa with its classification heads, and the 2017 Transformer."""

import re
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families.transformer import TransformerConfig, parameters
from kinfolk.hub.weights import check_settings

ENCODER = re.compile(r"(?:decoder|encoder)\.sentence_encoder\.(.+)")  # "decoder" before 2020
HEAD = re.compile(r"(?:decoder\.|encoder\.)?lm_head\.(.+)")
CLASSIFIER = re.compile(r"classification_heads\.([^.]+)\.(.+)")
LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")

# Ids of fairseq's dictionaries. Positions are counted from the one after the padding id; the
# decoder starts with the end-of-text token.
PADDING, END = 1, 2
EMBEDDING_TABLES = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")

# Settings to the fields of our config that have the same type and range, also of RoBERTa's.
SETTINGS = {
    "encoder_attention_heads": "num_heads",
    "activation_fn": "activation",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
}
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
    """Return whether this is a checkpoint of fairseq with a RoBERTa or a Transformer."""
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        return False
    return _is_transformer(values["model"]) or any(map(ENCODER.fullmatch, values["model"]))


def state_dict(values: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a checkpoint."""
    tensors: dict[str, Any] = values["model"]
    return tensors


def convert(
    tensors: dict[str, Tensor], values: dict[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of transformers' RoBERTa, or of our Transformer."""
    tensors, settings = _split_qkv(tensors), _settings(values, file)
    return (_transformer if _is_transformer(tensors) else _roberta)(tensors, settings, file)


def _is_transformer(model: dict[str, Any]) -> bool:
    return "decoder.layers.0.encoder_attn_layer_norm.weight" in model


def _transformer(
    model: dict[str, Tensor], settings: dict[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors; sizes are those of the tensors."""
    _refuse(settings, file, "encoder_normalize_before", "decoder_normalize_before")
    _refuse(settings, file, "encoder_learned_pos", "decoder_learned_pos", "layernorm_embedding")
    if (
        settings.get("decoder_attention_heads", heads := settings["encoder_attention_heads"])
        != heads
    ):
        raise UserError(f"{file}: encoder and decoder have different numbers of attention heads")
    # The names are those of transformers' Marian, but for the prefix.
    theirs = {f"model.{name}": tensor for name, tensor in model.items()}
    tables = [
        theirs[f"model.{n}.weight"] for n in EMBEDDING_TABLES if f"model.{n}.weight" in theirs
    ]
    if not all(torch.equal(table, tables[0]) for table in tables):
        raise UserError(
            f"{file}: source, target and output layer have different embeddings, which is not "
            "supported: train with share_all_embeddings"
        )
    theirs["model.shared.weight"] = tables[0]
    vocab_size, hidden_size = tables[0].shape
    config = TransformerConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=_num_layers(model, "encoder"),
        num_decoder_layers=_num_layers(model, "decoder"),
        num_heads=heads,
        intermediate_size=len(model["encoder.layers.0.fc1.weight"]),
        activation=settings.get("activation_fn", "relu"),
        attention_bias=True,
        scale_embedding=not settings.get("no_scale_embedding", False),
        sinusoids="fairseq",
        first_position=PADDING + 1,
        decoder_start_token_id=END,
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
        activation_dropout=settings.get("activation_dropout", 0.0),
    )
    rules = parameters(config).rules
    if missing := [name for rule in rules for name in rule.hf_names if name not in theirs]:
        names = ", ".join(name.removeprefix("model.") for name in missing[:3])
        raise UserError(f"missing weights in {file}: {names}; save the model again")
    tensors = {
        rule.name: rule.from_hf(theirs, sum(len(theirs[name]) for name in rule.hf_names))
        for rule in rules
    }
    return {"model_type": "kinfolk_transformer", **asdict(config)}, tensors


def _num_layers(model: dict[str, Tensor], stack: str) -> int:
    return len(
        [name for name in model if re.fullmatch(rf"{stack}\.layers\.\d+\.fc1\.weight", name)]
    )


def _refuse(settings: dict[str, Any], file: Path, *names: str) -> None:
    """Refuse settings of networks that kinfolk lacks."""
    if used := [name for name in names if settings.get(name)]:
        raise UserError(f"{file}: {used[0]}=True is not supported: convert another model")


def _roberta(
    model: dict[str, Tensor], settings: dict[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if settings.get("encoder_normalize_before"):
        raise UserError(f"{file}: encoder_normalize_before is not supported: RoBERTa is post-norm")
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.items():
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
    cfg = values.get("cfg")
    args = values.get("args") or (cfg.get("model") if isinstance(cfg, dict) else None)
    settings = vars(args) if isinstance(args, Namespace) else args if isinstance(args, dict) else {}
    if "encoder_attention_heads" not in settings:
        raise UserError(f"{file} has no encoder_attention_heads among its settings: save it again")
    check_settings(settings, TransformerConfig, SETTINGS, file)
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
