"""Small checkpoints of other programs: the names and shapes that they write."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

VOCAB, SIZE, HEADS, LAYERS, ROWS = 70, 128, 2, 2, 33  # of GLM
# See the script beside it.
GOLDEN = Path(__file__).parents[1] / "families" / "golden" / "transformer_xl.safetensors"


@cache
def golden(case: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a network's config, weights, and what it was asked and said."""
    with safe_open(GOLDEN, "pt") as file:  # type: ignore[no-untyped-call]
        theirs: dict[str, Any] = json.loads(file.metadata()[case])
        found = [name for name in file.keys() if name.startswith(f"{case}/")]  # noqa: SIM118
        tensors = {name.removeprefix(f"{case}/"): file.get_tensor(name) for name in found}
    return theirs, tensors


def group(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors of one kind: weights, hidden, scores ..."""
    return {k.removeprefix(f"{kind}/"): t for k, t in tensors.items() if k.startswith(f"{kind}/")}


def glm_tensors() -> dict[str, Tensor]:
    """Draw the weights of GLM, by the names of its authors."""
    draws = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return 0.2 * torch.randn(*shape, generator=draws)

    tensors = {
        "word_embeddings.weight": some(VOCAB, SIZE),
        "transformer.position_embeddings.weight": some(ROWS, SIZE),
        "transformer.block_position_embeddings.weight": some(ROWS, SIZE),
    }
    shapes = {
        "input_layernorm": (SIZE,),
        "attention.query_key_value": (3 * SIZE, SIZE),
        "attention.dense": (SIZE, SIZE),
        "post_attention_layernorm": (SIZE,),
        "mlp.dense_h_to_4h": (4 * SIZE, SIZE),
        "mlp.dense_4h_to_h": (SIZE, 4 * SIZE),
    }
    for at, shape in [
        *((f"transformer.layers.{i}.{n}", s) for i in range(LAYERS) for n, s in shapes.items()),
        ("transformer.final_layernorm", (SIZE,)),
    ]:
        tensors |= {f"{at}.weight": some(*shape), f"{at}.bias": some(shape[0])}
    return tensors


def roberta_tensors(*, joined: bool = False) -> dict[str, Tensor]:
    """Draw the weights of fairseq's RoBERTa; query, key and value may be one matrix, as in 2019."""
    draws = torch.Generator().manual_seed(0)
    tensors = {
        "encoder.sentence_encoder.embed_tokens.weight": (9, 8),
        "encoder.sentence_encoder.embed_positions.weight": (12, 8),
        "encoder.sentence_encoder.layernorm_embedding.weight": (8,),
        "encoder.sentence_encoder.layernorm_embedding.bias": (8,),
        "encoder.lm_head.bias": (9,),
    }
    layer = "encoder.sentence_encoder.layers.0"
    modules = {"self_attn.out_proj": (8, 8), "fc1": (16, 8), "fc2": (8, 16)}
    modules |= dict.fromkeys(("self_attn_layer_norm", "final_layer_norm"), (8,))
    if joined:
        tensors |= {f"{layer}.self_attn.in_proj_weight": (24, 8)}
        tensors |= {f"{layer}.self_attn.in_proj_bias": (24,)}
    else:
        modules |= {f"self_attn.{p}_proj": (8, 8) for p in "qkv"}
    heads = {f"{layer}.{n}": s for n, s in modules.items()}
    heads |= {"encoder.lm_head.dense": (8, 8), "encoder.lm_head.layer_norm": (8,)}
    for name, size in heads.items():
        tensors |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    return {n: torch.randn(*s, generator=draws) for n, s in tensors.items()}


def fairseq_tensors(*, joined: bool) -> dict[str, Tensor]:
    """Draw the weights of fairseq's Transformer: one encoder layer, two decoder layers."""
    draws = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {}
    for stack, layers in (("encoder", 1), ("decoder", 2)):
        for layer in (f"{stack}.layers.{i}" for i in range(layers)):
            shapes |= {f"{layer}.fc1": (24, 16), f"{layer}.fc2": (16, 24)}
            shapes |= {f"{layer}.final_layer_norm": (16,)}
            for attention in ("self_attn", "encoder_attn")[: 1 + (stack == "decoder")]:
                shapes |= {
                    f"{layer}.{attention}.{p}_proj": (16, 16) for p in ("q", "k", "v", "out")
                }
                shapes |= {f"{layer}.{attention}_layer_norm": (16,)}
    tensors = {"encoder.embed_tokens.weight": 0.3 * torch.randn(20, 16, generator=draws)}
    tensors["decoder.embed_tokens.weight"] = tensors["encoder.embed_tokens.weight"]
    tensors["encoder.version"] = torch.tensor([3.0])
    tensors["encoder.embed_positions._float_tensor"] = torch.zeros(1)
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = 0.3 * torch.randn(*shape, generator=draws)
        tensors[f"{name}.bias"] = 0.3 * torch.randn(shape[0], generator=draws)
    if joined:
        for name in [n for n in tensors if ".q_proj." in n]:
            parts = [tensors.pop(name.replace(".q_", f".{p}_")) for p in "qkv"]
            tensors[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    return tensors
