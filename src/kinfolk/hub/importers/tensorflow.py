"""TensorFlow checkpoints of BERT's and T5's authors, where the tensorflow package is installed."""

import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.hub.weights import read_object

SUFFIX = ".index"  # of a checkpoint: bert_model.ckpt.index, model.ckpt-1000000.index
OPTIMIZER = re.compile(r".*(adam_[mv]|_slot_\w+|global_step|Momentum)|(beta\d_power|lamb).*")


def read_tensorflow(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors as transformers has them."""
    try:
        tensorflow = import_module("tensorflow")
    except ImportError as error:
        raise UserError(
            f"{file} is a TensorFlow checkpoint: pip install tensorflow to read it, or convert it "
            "elsewhere (pip install tensorflow 'transformers<5'; transformers-cli convert "
            "--model_type bert --tf_checkpoint bert_model.ckpt --config bert_config.json "
            "--pytorch_dump_output pytorch_model.bin) and copy the folder"
        ) from error
    reader = tensorflow.train.load_checkpoint(str(file).removesuffix(SUFFIX))
    names = [name for name in reader.get_variable_to_shape_map() if not OPTIMIZER.fullmatch(name)]
    values = {name: torch.from_numpy(reader.get_tensor(name)) for name in sorted(names)}
    if "bert/embeddings/word_embeddings" in values:
        return _bert_config(file), {_bert_name(n): _bert_tensor(n, t) for n, t in values.items()}
    if "shared/embedding" in values:
        tensors = {_t5_name(n): t if n.endswith("embedding") else t.t() for n, t in values.items()}
        return _t5_config(tensors), tensors
    raise UserError(
        f"{file} holds neither a BERT nor a T5: convert it with the program that wrote it"
    )


def _bert_config(file: Path) -> dict[str, Any]:
    """Return the settings of bert_config.json, which has the names of transformers."""
    config = file.with_name("bert_config.json")
    if not config.is_file():
        raise UserError(f"{config} not found: copy it beside {file.name}")
    return {**read_object(config), "model_type": "bert", "architectures": ["BertForPreTraining"]}


def _bert_name(name: str) -> str:
    """Return the name in transformers: `layer_0/output/dense/kernel` is layer.0.output.dense."""
    path = re.sub(r"layer_(\d+)", r"layer.\1", name).replace("/", ".")
    path = path.replace("predictions.output_bias", "predictions.bias")
    if path.endswith("_embeddings"):
        return f"{path}.weight"
    path = re.sub(r"\.(kernel|gamma|output_weights)$", ".weight", path)
    return re.sub(r"\.(beta|output_bias)$", ".bias", path)


def _bert_tensor(name: str, tensor: Tensor) -> Tensor:
    return tensor.t() if name.endswith("kernel") else tensor


def _t5_name(name: str) -> str:
    """Return the name in transformers: `encoder/block_000/layer_000/SelfAttention/q`."""
    path = re.sub(r"(block|layer)_0*(\d+)", r"\1.\2", name).replace("/", ".")
    path = re.sub(r"\.(kernel|scale|embedding)$", "", path)
    return f"{path.replace('decoder.logits', 'lm_head')}.weight"


def _t5_config(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the sizes that the tensors have; the rest is the same in all published models."""
    attention = "encoder.block.0.layer.0.SelfAttention"
    vocab_size, d_model = tensors["shared.weight"].shape
    num_buckets, num_heads = tensors[f"{attention}.relative_attention_bias.weight"].shape
    gated = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in tensors
    feed_forward = f"encoder.block.0.layer.1.DenseReluDense.{'wi_0' if gated else 'wi'}.weight"
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": len(tensors[f"{attention}.q.weight"]) // num_heads,
        "d_ff": len(tensors[feed_forward]),
        "num_layers": _blocks("encoder", tensors),
        "num_decoder_layers": _blocks("decoder", tensors),
        "num_heads": num_heads,
        "relative_attention_num_buckets": num_buckets,
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }


def _blocks(stack: str, names: Iterable[str]) -> int:
    return len({match[1] for n in names if (match := re.match(rf"{stack}\.block\.(\d+)\.", n))})
