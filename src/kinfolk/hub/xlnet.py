"""XLNet as Hugging Face names it. Its matrices have an axis for the heads and one inside a head."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.families.mapping import (
    ParameterMap,
    ParameterRule,
    from_hf_fields,
    module,
    per_layer,
    require,
    to_hf_fields,
)
from kinfolk.models.xlnet import XLNetConfig
from kinfolk.text.tokenizer import SpecialTokens

TYPE = "xlnet"
CONFIG = XLNetConfig
FRAME = "xlnet"

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "activation": "ff_activation",
    "dropout": "dropout",
    "layer_norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}


def to_config(c: XLNetConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["XLNetLMHeadModel"],
        **to_hf_fields(c, FIELDS),
        "d_head": c.hidden_size // c.num_heads,
        "d_inner": c.intermediate_size or 4 * c.hidden_size,
        "clamp_len": -1 if c.clamp_len is None else c.clamp_len,
        "attn_type": "bi",
        "untie_r": True,
        "mem_len": None,
        "tie_word_embeddings": True,
        "bos_token_id": special_tokens.bos if special_tokens else None,
        "eos_token_id": special_tokens.eos if special_tokens else None,
        "pad_token_id": special_tokens.pad if special_tokens else None,
    }


def from_config(data: Mapping[str, Any]) -> XLNetConfig:
    """Read config.json. How long a memory is, is for the caller to say."""
    require(data, attn_type="bi", bi_data=False, untie_r=True, tie_word_embeddings=True)
    c = XLNetConfig(**from_hf_fields(data, FIELDS))
    clamp, inner = data.get("clamp_len", -1), data.get("d_inner", 4096)
    require(data, d_head=c.hidden_size // c.num_heads)
    return replace(
        c,
        clamp_len=clamp if clamp > 0 else None,
        intermediate_size=None if inner == 4 * c.hidden_size else inner,
    )


@dataclass(frozen=True)
class PerHeadRule(ParameterRule):
    """One of our tensors whose parts Hugging Face lays out by heads."""

    shape: tuple[int, ...] = ()  # of each of theirs

    def to_hf(self, tensor: Tensor) -> dict[str, Tensor]:
        """Turn ours into theirs."""
        parts = (p.T if self.transposed else p for p in tensor.chunk(len(self.hf_names)))
        return {name: p.reshape(self.shape) for name, p in zip(self.hf_names, parts, strict=True)}

    def from_hf(self, theirs: Mapping[str, Tensor], rows: int) -> Tensor:
        """Turn theirs into ours, as a copy in float32."""
        parts = [theirs[name].float() for name in self.hf_names]
        return torch.cat([p.flatten(1).T if self.transposed else p.flatten(1) for p in parts])


def names(c: XLNetConfig) -> ParameterMap:
    """Name every parameter."""
    block, layer = "layers.{i}", "transformer.layer.{i}"
    ours, seen = f"{block}.self_attention.sublayer", f"{layer}.rel_attn"
    heads = (c.hidden_size, c.num_heads, c.hidden_size // c.num_heads)
    return ParameterMap(
        base_model_prefix="transformer.",
        rules=[
            ParameterRule(
                "token_embeddings.weight",
                ("transformer.word_embedding.weight",),
                vocab_rows=c.vocab_size,
            ),
            ParameterRule("mask_embedding", ("transformer.mask_emb",)),
            *per_layer(
                c.num_layers,
                [
                    PerHeadRule(
                        f"{ours}.q_proj.weight", (f"{seen}.q",), transposed=True, shape=heads
                    ),
                    PerHeadRule(
                        f"{ours}.kv_proj.weight",
                        (f"{seen}.k", f"{seen}.v"),
                        transposed=True,
                        shape=heads,
                    ),
                    PerHeadRule(
                        f"{ours}.r_proj.weight", (f"{seen}.r",), transposed=True, shape=heads
                    ),
                    PerHeadRule(f"{ours}.out_proj.weight", (f"{seen}.o",), shape=heads),
                    ParameterRule(f"{ours}.content_bias", (f"{seen}.r_w_bias",)),
                    ParameterRule(f"{ours}.position_bias", (f"{seen}.r_r_bias",)),
                    ParameterRule(f"{ours}.segment_bias", (f"{seen}.r_s_bias",)),
                    ParameterRule(f"{ours}.segment_embeddings", (f"{seen}.seg_embed",)),
                    *module(f"{block}.self_attention.norm", f"{seen}.layer_norm"),
                    *module(f"{block}.feed_forward.sublayer.up_proj", f"{layer}.ff.layer_1"),
                    *module(f"{block}.feed_forward.sublayer.down_proj", f"{layer}.ff.layer_2"),
                    *module(f"{block}.feed_forward.norm", f"{layer}.ff.layer_norm"),
                ],
            ),
            ParameterRule("lm_bias", ("lm_loss.bias",)),
        ],
        optional_prefixes=("lm_loss.",),
        aliases={"lm_loss.weight": "transformer.word_embedding.weight"},
    )
