"""T5 as Hugging Face names it, in versions 1.0 and 1.1.

transformers 5 shares the tables of both versions unless a folder holds two, and takes
`tie_word_embeddings` for another question: whether the hidden state is scaled by width**-0.5 before
the table, which 1.0 does and 1.1 does not. It then saves the answer as `scale_decoder_outputs`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.hub.names import Names, Rule, given, layers, part, refuse, taken
from kinfolk.models.t5 import T5Config
from kinfolk.text.tokenizer import Specials

TYPE = "t5"
CONFIG = T5Config
FRAME = "t5"

FIELDS = {
    "vocab": "vocab_size",
    "width": "d_model",
    "depth": "num_layers",
    "heads": "num_heads",
    "buckets": "relative_attention_num_buckets",
    "farthest": "relative_attention_max_distance",
    "start": "decoder_start_token_id",
    "dropout": "dropout_rate",
    "epsilon": "layer_norm_epsilon",
}


def to_config(c: T5Config, specials: Specials | None) -> dict[str, Any]:
    """Write config.json."""
    if specials is not None and specials.pad != c.start:
        raise UserError(
            f"the tokenizer pads with the id {specials.pad} and the decoder starts from "
            f"{c.start}: build it with model.start={specials.pad}"
        )
    bend = "gelu" if c.gated and c.bend == "gelu_new" else c.bend  # see `_bend`
    return {
        "architectures": ["T5ForConditionalGeneration"],
        **given(c, FIELDS),
        "num_decoder_layers": c.depth if c.decoder_depth is None else c.decoder_depth,
        "d_kv": c.attention // c.heads,
        "d_ff": c.inner or 4 * c.width,
        "feed_forward_proj": f"gated-{bend}" if c.gated else bend,
        "dense_act_fn": c.bend,
        "is_gated_act": c.gated,
        "tie_word_embeddings": c.tied,
        "scale_decoder_outputs": c.tied,
        "is_encoder_decoder": True,
        "pad_token_id": c.start,
        "eos_token_id": specials.eos if specials else 1,
    }


def from_config(data: Mapping[str, Any]) -> T5Config:
    """Read config.json."""
    # The decoder is trained, and generates, from the padding id.
    pad = 0 if data.get("pad_token_id") is None else data["pad_token_id"]
    refuse(data, is_encoder_decoder=True, is_decoder=False, decoder_start_token_id=pad)
    known: dict[str, Any] = {"start": pad} | taken(data, FIELDS)
    c = T5Config(**known)
    depth, inner = data.get("num_decoder_layers"), data.get("d_ff", 2048)
    head = data.get("d_kv", 64)
    return replace(
        c,
        decoder_depth=None if depth == c.depth else depth,
        head_width=None if head * c.heads == c.width else head,
        inner=None if inner == 4 * c.width else inner,
        gated=data.get("feed_forward_proj", "relu").startswith("gated-"),
        bend=_bend(data),
        tied=data.get("scale_decoder_outputs", data.get("tie_word_embeddings") is not False),
    )


def _bend(data: Mapping[str, Any]) -> str:
    """Read the activation; "gated-gelu" has always meant the approximation by tanh."""
    form = data.get("feed_forward_proj", "relu")
    said = "gelu_new" if form == "gated-gelu" else form.removeprefix("gated-")
    return str(data.get("dense_act_fn", said))


def names(c: T5Config) -> Names:
    """Name every parameter."""
    aliases = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}
    rules = [
        Rule("tokens.weight", ("shared.weight",), rows=c.vocab),
        *_stack("encoder", c.depth, c.gated),
        *_stack("decoder", c.depth if c.decoder_depth is None else c.decoder_depth, c.gated),
    ]
    if c.tied:
        aliases["lm_head.weight"] = "shared.weight"
    else:
        rules.append(Rule("head.weight", ("lm_head.weight",), rows=c.vocab))
    return Names(
        rules=rules,
        aliases=aliases,
        copies={} if c.tied else {"lm_head.weight": "shared.weight"},
        # The first folders had a bias by distance across, which nothing ever read.
        ignored=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    )


def _stack(stack: str, depth: int, gated: bool) -> list[Rule]:
    block, layer = f"{stack}.blocks.{{i}}", f"{stack}.block.{{i}}.layer"
    own, across = f"{layer}.0.SelfAttention", f"{layer}.1.EncDecAttention"
    feed, dense = f"{block}.feed", f"{layer}.{2 if stack == 'decoder' else 1}"
    wide = {"gate": "wi_0", "widen": "wi_1"} if gated else {"widen": "wi"}
    pairs = {
        f"{block}.attend.norm": [f"{layer}.0.layer_norm"],
        f"{block}.attend.branch.qkv": [f"{own}.{name}" for name in "qkv"],
        f"{block}.attend.branch.out": [f"{own}.o"],
        f"{feed}.norm": [f"{dense}.layer_norm"],
        **{f"{feed}.branch.{o}": [f"{dense}.DenseReluDense.{t}"] for o, t in wide.items()},
        f"{feed}.branch.narrow": [f"{dense}.DenseReluDense.wo"],
    }
    if stack == "decoder":
        pairs |= {
            f"{block}.cross.norm": [f"{layer}.1.layer_norm"],
            f"{block}.cross.branch.query": [f"{across}.q"],
            f"{block}.cross.branch.kv": [f"{across}.{name}" for name in "kv"],
            f"{block}.cross.branch.out": [f"{across}.o"],
        }
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return [
        *part(f"{stack}.bias.table", bias, bias=False),
        *layers(depth, [r for ours, t in pairs.items() for r in part(ours, *t, bias=False)]),
        *part(f"{stack}.norm", f"{stack}.final_layer_norm", bias=False),
    ]
