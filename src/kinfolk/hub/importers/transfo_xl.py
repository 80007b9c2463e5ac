"""Transformer-XL: folders of older transformers (`transfo-xl`) and state dicts of its authors."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families.mapping import require
from kinfolk.families.transformer_xl import TransformerXLConfig

MODEL_TYPE = "transfo-xl"
PREFIX = "transformer."  # of the network in transformers; the authors' names have none
SUPPORTED: dict[str, Any] = {"pre_lnorm": False, "attn_type": 0, "tie_weight": True}
MEM_LEN = 384  # of the released model of WikiText-103; a state dict does not say


def recognizes(values: Any) -> bool:
    """Return whether this is a state dict of the authors' code."""
    return isinstance(values, dict) and "layers.0.dec_attn.qkv_net.weight" in values


def convert(values: dict[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors; sizes are those of the tensors."""
    tables = _numbered(values, "word_emb.emb_layers.{}.weight")
    shared = "r_w_bias" in values
    heads, head_dim = values["r_w_bias" if shared else "layers.0.dec_attn.r_w_bias"].shape
    clusters = len(values.get("crit.cluster_weight", ()))
    if clusters and len(tables) == 1:
        raise UserError(
            f"{file} does not say where its {clusters + 1} clusters of tokens begin: put it into a "
            f'folder as pytorch_model.bin, with a config.json of model_type "{MODEL_TYPE}"'
        )
    ends = [sum(map(len, tables[: i + 1])) for i in range(len(tables))]
    data = {
        "vocab_size": ends[-1],
        "d_model": values["layers.0.dec_attn.qkv_net.weight"].shape[1],
        "n_layer": len(_numbered(values, "layers.{}.dec_attn.qkv_net.weight")),
        "n_head": heads,
        "d_head": head_dim,
        "d_inner": len(values["layers.0.pos_ff.CoreNet.0.weight"]),
        "cutoffs": ends[:-1],
        "div_val": tables[0].shape[1] // tables[1].shape[1] if clusters else 1,
        "mem_len": MEM_LEN,
    }
    return convert_folder(data, values, file)


def convert_folder(
    data: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return our config and tensors from a config.json and the tensors beside it."""
    require(data, **SUPPORTED)
    clamp_len, mem_len = data.get("clamp_len", -1), data.get("mem_len", 1600)
    try:
        config = TransformerXLConfig(
            vocab_size=data["vocab_size"],
            hidden_size=data["d_model"],
            num_layers=data["n_layer"],
            num_heads=data["n_head"],
            head_dim=data["d_head"],
            intermediate_size=data["d_inner"],
            mem_len=mem_len,
            clamp_len=clamp_len if clamp_len > 0 else None,
            attention_window=mem_len if data.get("same_length") else None,
            cutoffs=tuple(c for c in data["cutoffs"] if c < data["vocab_size"]),
            div_val=data["div_val"],
            dropout=data.get("dropout", 0.1),
            attention_dropout=data.get("dropatt", 0.0),
        )
        fields = {**asdict(config), "cutoffs": list(config.cutoffs)}  # as in JSON
        return {"model_type": "kinfolk_transformer_xl", **fields}, _rename(tensors, config)
    except KeyError as error:
        raise UserError(f"{path} has no {error.args[0]}: copy or save the model again") from error


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
