"""XLNet as Hugging Face names it. Its matrices have an axis for the heads and one inside a head."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.hub.names import Names, Rule, given, layers, part, refuse, taken
from kinfolk.models.xlnet import XLNetConfig
from kinfolk.text.tokenizer import Specials

TYPE = "xlnet"
CONFIG = XLNetConfig
FRAME = "xlnet"

FIELDS = {
    "vocab": "vocab_size",
    "width": "d_model",
    "depth": "n_layer",
    "heads": "n_head",
    "bend": "ff_activation",
    "dropout": "dropout",
    "epsilon": "layer_norm_eps",
    "std": "initializer_range",
}


def to_config(c: XLNetConfig, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    return {
        "architectures": ["XLNetLMHeadModel"],
        **given(c, FIELDS),
        "d_head": c.width // c.heads,
        "d_inner": c.inner or 4 * c.width,
        "clamp_len": -1 if c.clamp is None else c.clamp,
        "attn_type": "bi",
        "untie_r": True,
        "mem_len": None,
        "tie_word_embeddings": True,
        "bos_token_id": specials.bos if specials else None,
        "eos_token_id": specials.eos if specials else None,
        "pad_token_id": specials.pad if specials else None,
    }


def from_config(data: Mapping[str, Any]) -> XLNetConfig:
    """Read config.json. How long a memory is, is for the caller to say."""
    refuse(data, attn_type="bi", bi_data=False, untie_r=True, tie_word_embeddings=True)
    c = XLNetConfig(**taken(data, FIELDS))
    clamp, inner = data.get("clamp_len", -1), data.get("d_inner", 4096)
    refuse(data, d_head=c.width // c.heads)
    return replace(
        c, clamp=clamp if clamp > 0 else None, inner=None if inner == 4 * c.width else inner
    )


@dataclass(frozen=True)
class Headed(Rule):
    """One of our tensors whose parts Hugging Face lays out by heads."""

    shape: tuple[int, ...] = ()  # of each of theirs

    def give(self, tensor: Tensor) -> dict[str, Tensor]:
        """Turn ours into theirs."""
        parts = (p.T if self.turned else p for p in tensor.chunk(len(self.theirs)))
        return {name: p.reshape(self.shape) for name, p in zip(self.theirs, parts, strict=True)}

    def take(self, theirs: Mapping[str, Tensor], rows: int) -> Tensor:
        """Turn theirs into ours, as a copy in float32."""
        parts = [theirs[name].float() for name in self.theirs]
        return torch.cat([p.flatten(1).T if self.turned else p.flatten(1) for p in parts])


def names(c: XLNetConfig) -> Names:
    """Name every parameter."""
    block, layer = "blocks.{i}", "transformer.layer.{i}"
    ours, seen = f"{block}.attend.branch", f"{layer}.rel_attn"
    heads = (c.width, c.heads, c.width // c.heads)
    return Names(
        prefix="transformer.",
        rules=[
            Rule("tokens.weight", ("transformer.word_embedding.weight",), rows=c.vocab),
            Rule("blank", ("transformer.mask_emb",)),
            *layers(
                c.depth,
                [
                    Headed(f"{ours}.query.weight", (f"{seen}.q",), turned=True, shape=heads),
                    Headed(
                        f"{ours}.kv.weight", (f"{seen}.k", f"{seen}.v"), turned=True, shape=heads
                    ),
                    Headed(f"{ours}.distance.weight", (f"{seen}.r",), turned=True, shape=heads),
                    Headed(f"{ours}.out.weight", (f"{seen}.o",), shape=heads),
                    Rule(f"{ours}.content_bias", (f"{seen}.r_w_bias",)),
                    Rule(f"{ours}.distance_bias", (f"{seen}.r_r_bias",)),
                    Rule(f"{ours}.segment_bias", (f"{seen}.r_s_bias",)),
                    Rule(f"{ours}.segments", (f"{seen}.seg_embed",)),
                    *part(f"{block}.attend.norm", f"{seen}.layer_norm"),
                    *part(f"{block}.feed.branch.widen", f"{layer}.ff.layer_1"),
                    *part(f"{block}.feed.branch.narrow", f"{layer}.ff.layer_2"),
                    *part(f"{block}.feed.norm", f"{layer}.ff.layer_norm"),
                ],
            ),
            Rule("bias", ("lm_loss.bias",)),
        ],
        heads=("lm_loss.",),
        aliases={"lm_loss.weight": "transformer.word_embedding.weight"},
    )
