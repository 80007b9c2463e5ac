"""Transformer-XL: folders of older transformers (`transfo-xl`) and state dicts of its authors."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families.base import json_field
from kinfolk.families.mapping import require
from kinfolk.families.transformer_xl import TransformerXLConfig
from kinfolk.hub.weights import check_settings
from kinfolk.nn.language_model import MAX_TOKENS, MAX_VOCAB

MODEL_TYPE = "transfo-xl"
PREFIX = "transformer."  # of the network in transformers; the authors' names have none
SUPPORTED: dict[str, Any] = {"pre_lnorm": False, "attn_type": 0, "tie_weight": True}
SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "d_head": "head_dim",
    "d_inner": "intermediate_size",
    "div_val": "div_val",
}  # fields of config.json to ours
OPTIONAL = {"mem_len": "mem_len", "dropout": "dropout", "dropatt": "attention_dropout"}
MEM_LEN = 384  # of the released model of WikiText-103; a state dict does not say


def recognizes(values: Any) -> bool:
    """Return whether this is a state dict of the authors' code."""
    return isinstance(values, dict) and "layers.0.dec_attn.qkv_net.weight" in values


def state_dict(values: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a checkpoint, which holds nothing else."""
    return values


def convert(
    tensors: dict[str, Tensor], values: dict[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors; sizes are those of the tensors."""
    tables = _numbered(tensors, "word_emb.emb_layers.{}.weight")
    shared = "r_w_bias" in tensors
    heads, head_dim = tensors["r_w_bias" if shared else "layers.0.dec_attn.r_w_bias"].shape
    clusters = len(tensors.get("crit.cluster_weight", ()))
    if clusters and len(tables) == 1:
        raise UserError(
            f"{file} does not say where its {clusters + 1} clusters of tokens begin: put it into a "
            f'folder as pytorch_model.bin, with a config.json of model_type "{MODEL_TYPE}"'
        )
    ends = [sum(map(len, tables[: i + 1])) for i in range(len(tables))]
    data = {
        "vocab_size": ends[-1],
        "d_model": tensors["layers.0.dec_attn.qkv_net.weight"].shape[1],
        "n_layer": len(_numbered(tensors, "layers.{}.dec_attn.qkv_net.weight")),
        "n_head": heads,
        "d_head": head_dim,
        "d_inner": len(tensors["layers.0.pos_ff.CoreNet.0.weight"]),
        "cutoffs": ends[:-1],
        "div_val": tables[0].shape[1] // tables[1].shape[1] if clusters else 1,
        "mem_len": MEM_LEN,
    }
    return convert_folder(data, tensors, file)


def convert_folder(
    data: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors from a config.json and the tensors beside it."""
    require(data, **SUPPORTED)
    where = path / "config.json"
    check_settings(data, TransformerXLConfig, SIZES | OPTIONAL, where)
    cutoffs = data["cutoffs"]
    json_field(list).check(cutoffs, f"{where}: cutoffs")
    for cutoff in cutoffs:
        json_field(int, ge=1, lt=MAX_VOCAB).check(cutoff, f"{where}: cutoffs")
    clamp_len = data.get("clamp_len", -1)
    json_field(int, ge=-1, le=MAX_TOKENS).check(clamp_len, f"{where}: clamp_len")
    config = TransformerXLConfig(
        mem_len=data.get("mem_len", 1600),
        clamp_len=clamp_len if clamp_len > 0 else None,
        attention_window=data.get("mem_len", 1600) if data.get("same_length") else None,
        cutoffs=tuple(c for c in cutoffs if c < data["vocab_size"]),
        dropout=data.get("dropout", 0.1),
        attention_dropout=data.get("dropatt", 0.0),
        **{ours: data[theirs] for theirs, ours in SIZES.items()},
    )
    fields = {**asdict(config), "cutoffs": list(config.cutoffs)}  # as in JSON
    return {"model_type": "kinfolk_transformer_xl", **fields}, _rename(tensors, config)


def _rename(theirs: Mapping[str, Tensor], c: TransformerXLConfig) -> dict[str, Tensor]:
    """Return the tensors under our names, joined or split as ours are."""
    theirs = {name.removeprefix(PREFIX): tensor for name, tensor in theirs.items()}
    ours = _embeddings(theirs, c)
    for i in range(c.num_layers):
        there, here = f"layers.{i}", f"layers.{i}"
        attention = f"{here}.self_attention.sublayer"
        query, key, value = theirs[f"{there}.dec_attn.qkv_net.weight"].chunk(3)
        ours[f"{attention}.q_proj.weight"] = query
        ours[f"{attention}.kv_proj.weight"] = torch.cat([key, value])
        ours[f"{attention}.r_proj.weight"] = theirs[f"{there}.dec_attn.r_net.weight"]
        ours[f"{attention}.out_proj.weight"] = theirs[f"{there}.dec_attn.o_net.weight"]
        for name, bias in (("content_bias", "r_w_bias"), ("position_bias", "r_r_bias")):
            # One for all layers, unless they are untied.
            ours[f"{attention}.{name}"] = (
                theirs[bias] if bias in theirs else theirs[f"{there}.dec_attn.{bias}"]
            ).clone()
        modules = {
            "self_attention.norm": "dec_attn.layer_norm",
            "feed_forward.norm": "pos_ff.layer_norm",
            "feed_forward.sublayer.up_proj": "pos_ff.CoreNet.0",
            "feed_forward.sublayer.down_proj": "pos_ff.CoreNet.3",
        }
        for mine, other in modules.items():
            for part in ("weight", "bias"):
                ours[f"{here}.{mine}.{part}"] = theirs[f"{there}.{other}.{part}"]
    return ours


def _embeddings(theirs: Mapping[str, Tensor], c: TransformerXLConfig) -> dict[str, Tensor]:
    """Return the embeddings of the clusters, and the output layer that shares them."""
    ours: dict[str, Tensor] = {}
    tables = _numbered(theirs, "word_emb.emb_layers.{}.weight")
    bounds = [0, *c.cutoffs, c.vocab_size]
    for cluster, (low, high) in enumerate(pairwise(bounds)):
        rows = tables[0][low:high] if c.div_val == 1 else tables[cluster]
        ours[f"token_embeddings.embeddings.{cluster}.weight"] = rows
        if c.div_val > 1:
            projection = theirs[f"word_emb.emb_projs.{cluster}"]
            ours[f"token_embeddings.projections.{cluster}.weight"] = projection
    if c.div_val > 1:
        ours["token_embeddings.output_projection.weight"] = theirs["crit.out_projs.0"].T
    if c.cutoffs:
        ours["token_embeddings.cluster_head.weight"] = theirs["crit.cluster_weight"]
        ours["token_embeddings.cluster_head.bias"] = theirs["crit.cluster_bias"]
    ours["token_embeddings.bias"] = torch.cat(_numbered(theirs, "crit.out_layers.{}.bias"))
    return ours


def _numbered(tensors: Mapping[str, Tensor], name: str) -> list[Tensor]:
    """Return the tensors of this name with the numbers 0, 1, 2 ..."""
    found: list[Tensor] = []
    while (key := name.format(len(found))) in tensors:
        found.append(tensors[key])
    return found
