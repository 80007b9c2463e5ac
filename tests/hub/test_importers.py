"""Checkpoints of other programs: GLM's authors and fairseq, by networks written here."""

import argparse
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.hub import load_model, save
from support.checkpoints import (
    HEADS,
    LAYERS,
    SIZE,
    VOCAB,
    fairseq_tensors,
    glm_tensors,
    roberta_tensors,
)
from support.peers import near, shake


def glm_logits(w: dict[str, Tensor], ids: Tensor, *, approximate: str) -> Tensor:
    """Compute GLM as its authors do, for a text without blanks before the last three tokens."""
    length = ids.shape[1]
    block = torch.tensor([0] * (length - 3) + [1, 2, 3])
    place = torch.tensor([*range(length - 3), 4, 4, 4])
    allowed = torch.ones(length, length).tril().bool()
    allowed[:, : length - 3] = True

    def linear(x: Tensor, at: str) -> Tensor:
        return F.linear(x, w[f"{at}.weight"], w[f"{at}.bias"])

    def norm(x: Tensor, at: str) -> Tensor:
        return F.layer_norm(x, (SIZE,), w[f"{at}.weight"], w[f"{at}.bias"], 1e-5)

    x = w["word_embeddings.weight"][ids] + w["transformer.position_embeddings.weight"][place]
    x = x + w["transformer.block_position_embeddings.weight"][block]
    for i in range(LAYERS):
        at = f"transformer.layers.{i}"
        mixed = linear(norm(x, f"{at}.input_layernorm"), f"{at}.attention.query_key_value")
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in mixed.chunk(3, dim=-1))
        scores = (q @ k.transpose(2, 3) / (SIZE // HEADS) ** 0.5).masked_fill(~allowed, -torch.inf)
        out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(out, f"{at}.attention.dense")
        inner = linear(norm(x, f"{at}.post_attention_layernorm"), f"{at}.mlp.dense_h_to_4h")
        x = x + linear(F.gelu(inner, approximate=approximate), f"{at}.mlp.dense_4h_to_h")
    return norm(x, "transformer.final_layernorm") @ w["word_embeddings.weight"].T


@pytest.mark.parametrize("kind", ["checkpoint", "folder"])
@torch.no_grad()
def test_glm_of_its_authors(kind: str, tmp_path: Path) -> None:
    tensors = glm_tensors()
    path = tmp_path
    if kind == "checkpoint":
        path = tmp_path / "mp_rank_00_model_states.pt"
        rest = {"iteration": 5, "args": argparse.Namespace(num_layers=2), "csr_tensor": {"x"}}
        torch.save({"module": tensors} | rest, path)
    else:
        heads = {"model_type": "glm", "num_attention_heads": HEADS}
        (path / "config.json").write_text(json.dumps(heads))
        torch.save({f"glm.{n}": t for n, t in tensors.items()}, path / "pytorch_model.bin")
    model: Any = load_model(path)
    ids = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(1))
    order = torch.tensor([0] * 9 + [1, 2, 3]).expand_as(ids).int()
    inputs = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask(torch.zeros_like(order), order, order),
        position_ids=torch.tensor([*range(9), 4, 4, 4]).expand_as(ids),
        block_position_ids=torch.tensor([0] * 9 + [1, 2, 3]).expand_as(ids),
    )
    approximate = "tanh" if kind == "checkpoint" else "none"
    theirs = glm_logits(tensors, ids, approximate=approximate)
    near(model.lm_logits(model(inputs).hidden).logits(), theirs, within=1e-4)


def test_parts_of_a_model_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"module": glm_tensors()}, tmp_path / f"mp_rank_0{rank}_model_states.pt")
    with pytest.raises(UserError, match=r"several parts.*change_mp"):
        load_model(tmp_path / "mp_rank_00_model_states.pt")
    with pytest.raises(UserError, match=r"several checkpoints .*: pass one"):
        load_model(tmp_path)


def test_checkpoints_of_unknown_programs_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"not a checkpoint that kinfolk can read \(supported"):
        load_model(tmp_path)


@pytest.mark.parametrize("joined", [False, True])
@torch.no_grad()
def test_fairseq_joined_its_matrices_once(joined: bool, tmp_path: Path) -> None:
    """Old checkpoints have query, key and value in one matrix, and settings in `args` or `cfg`."""
    values = roberta_tensors(joined=joined)
    settings = {"encoder_attention_heads": 2, "activation_fn": "gelu"}
    saved: dict[str, Any] = {"model": values, "cfg": {"model": settings}}
    torch.save(saved, tmp_path / "model.pt")
    model: Any = load_model(tmp_path)
    hidden = model(Inputs.from_ids(torch.tensor([[0, 5, 6, 2]]), causal=False)).hidden
    assert hidden.isfinite().all() and hidden.shape == (1, 4, 8)
    if joined:
        matrix = values["encoder.sentence_encoder.layers.0.self_attn.in_proj_weight"]
        assert torch.equal(model.layers[0].self_attention.sublayer.qkv_proj.weight, matrix)
    del saved["cfg"]
    torch.save(saved, tmp_path / "model.pt")
    with pytest.raises(UserError, match="has no encoder_attention_heads"):
        load_model(tmp_path)


def fairseq_logits(w: dict[str, Tensor], source: Tensor, target: Tensor) -> Tensor:
    """Compute fairseq's Transformer: positions from 2 on, sines then cosines, post-norm."""

    def linear(x: Tensor, at: str) -> Tensor:
        return F.linear(x, w[f"{at}.weight"], w[f"{at}.bias"])

    def norm(x: Tensor, at: str) -> Tensor:
        return F.layer_norm(x, (16,), w[f"{at}.weight"], w[f"{at}.bias"])

    def embed(ids: Tensor) -> Tensor:
        frequency = 10_000.0 ** (-torch.arange(8) / 7)  # half_dim - 1, as in tensor2tensor
        angles = (torch.arange(ids.shape[1]) + 2)[:, None] * frequency
        return w["encoder.embed_tokens.weight"][ids] * 4 + torch.cat(
            [angles.sin(), angles.cos()], 1
        )

    def attend(x: Tensor, keys: Tensor, at: str, *, causal: bool = False) -> Tensor:
        q, k, v = (
            linear(t, f"{at}.{p}_proj").unflatten(2, (2, -1)).transpose(1, 2)
            for t, p in zip((x, keys, keys), "qkv", strict=True)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return norm(
            x + linear(out.transpose(1, 2).flatten(2), f"{at}.out_proj"), f"{at}_layer_norm"
        )

    def feed_forward(x: Tensor, at: str) -> Tensor:
        inner = linear(linear(x, f"{at}.fc1").relu(), f"{at}.fc2")
        return norm(x + inner, f"{at}.final_layer_norm")

    at = "encoder.layers.0"
    x = embed(source)
    read = feed_forward(attend(x, x, f"{at}.self_attn"), at)
    x = embed(target)
    for at in ("decoder.layers.0", "decoder.layers.1"):
        x = attend(x, x, f"{at}.self_attn", causal=True)
        x = feed_forward(attend(x, read, f"{at}.encoder_attn"), at)
    return x @ w["encoder.embed_tokens.weight"].T


@pytest.mark.parametrize("joined", [False, True])
@torch.no_grad()
def test_a_transformer_of_fairseq(joined: bool, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint_best.pt"
    settings = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "arch": "transformer"}
    args = argparse.Namespace(**settings)
    tensors = fairseq_tensors(joined=joined)
    torch.save({"model": tensors, "args": args}, file)
    model: Any = load_model(file)
    draws = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, 20, (2, n), generator=draws) for n in (7, 5))
    pair = Inputs.from_ids(
        target, causal=True, encoder_inputs=Inputs.from_ids(source, causal=False)
    )
    logits = fairseq_logits(fairseq_tensors(joined=False), source, target)
    near(model.lm_logits(model(pair).hidden).logits(), logits)
    save(tmp_path / "folder", model, None)
    assert load_model(tmp_path / "folder").config == model.config
    assert model.config.decoder_start_token_id == 2


@pytest.mark.parametrize(
    ("settings", "tensors", "match"),
    [
        ({"decoder_normalize_before": True}, {}, "decoder_normalize_before"),
        ({"encoder_learned_pos": True}, {}, "encoder_learned_pos"),
        ({"decoder_attention_heads": 4}, {}, "different numbers of attention heads"),
        ({}, {"decoder.embed_tokens.weight": torch.ones(20, 16)}, "different embeddings"),
        (
            {},
            {"decoder.layers.1.fc2.bias": None},
            r"missing weights.*decoder\.layers\.1\.fc2\.bias",
        ),
    ],
)
def test_other_transformers_of_fairseq_are_refused(
    settings: dict[str, Any], tensors: dict[str, Any], match: str, tmp_path: Path
) -> None:
    model = {n: t for n, t in (fairseq_tensors(joined=False) | tensors).items() if t is not None}
    cfg = {"model": {"encoder_attention_heads": 2} | settings}
    torch.save({"model": model, "cfg": cfg}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=match):
        load_model(tmp_path)


def fake_tensorflow(monkeypatch: pytest.MonkeyPatch, variables: dict[str, Tensor]) -> None:
    """Stand in for the package: `tf.train.load_checkpoint(prefix)` and its reader."""
    arrays = {name: tensor.numpy() for name, tensor in variables.items()}
    arrays["global_step"] = torch.tensor(7).numpy()
    reader = SimpleNamespace(
        get_variable_to_shape_map=lambda: {n: a.shape for n, a in arrays.items()},
        get_tensor=arrays.__getitem__,
    )
    train = SimpleNamespace(load_checkpoint=lambda prefix: reader)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(train=train))  # type: ignore[arg-type]


@torch.no_grad()
def test_berts_tensorflow_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "vocab_size": 30,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 12,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    }
    torch.manual_seed(0)
    config = transformers.BertConfig(**sizes)
    theirs: Any = shake(transformers.BertForPreTraining(config), by=0.3)
    state = dict(theirs.named_parameters())
    dense = {"bert/pooler/dense": "bert.pooler.dense"}
    dense |= {"cls/predictions/transform/dense": "cls.predictions.transform.dense"}
    layer, there = "bert/encoder/layer_0", "bert.encoder.layer.0"
    for part in ("self/query", "self/key", "self/value", "output/dense"):
        dense[f"{layer}/attention/{part}"] = f"{there}.attention.{part.replace('/', '.')}"
    dense |= {f"{layer}/{n}/dense": f"{there}.{n}.dense" for n in ("intermediate", "output")}
    norms = {
        "bert/embeddings": "bert.embeddings",
        f"{layer}/attention/output": f"{there}.attention.output",
        f"{layer}/output": f"{there}.output",
        "cls/predictions/transform": "cls.predictions.transform",
    }
    variables = {
        f"bert/embeddings/{n}_embeddings": state[f"bert.embeddings.{n}_embeddings.weight"]
        for n in ("word", "position", "token_type")
    }
    for ours, other in dense.items():
        variables |= {f"{ours}/kernel": state[f"{other}.weight"].T}
        variables |= {f"{ours}/bias": state[f"{other}.bias"]}
    for ours, other in norms.items():
        variables |= {f"{ours}/LayerNorm/gamma": state[f"{other}.LayerNorm.weight"]}
        variables |= {f"{ours}/LayerNorm/beta": state[f"{other}.LayerNorm.bias"]}
    variables["cls/predictions/output_bias"] = state["cls.predictions.bias"]
    variables["cls/seq_relationship/output_weights"] = state["cls.seq_relationship.weight"]
    variables["cls/seq_relationship/output_bias"] = state["cls.seq_relationship.bias"]
    variables["bert/pooler/dense/kernel/adam_m"] = state["bert.pooler.dense.weight"]
    assert len(variables) == len(state) + 1
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
    with pytest.raises(UserError, match=r"TensorFlow checkpoint: pip install tensorflow.*convert"):
        monkeypatch.setitem(sys.modules, "tensorflow", None)  # type: ignore[arg-type]
        load_model(tmp_path)
    fake_tensorflow(monkeypatch, variables)
    with pytest.raises(UserError, match=r"bert_config\.json not found"):
        load_model(tmp_path)
    (tmp_path / "bert_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"bert_config\.json must hold a JSON object"):
        load_model(tmp_path)
    (tmp_path / "bert_config.json").write_text(json.dumps(sizes))
    model: Any = load_model(tmp_path)
    ids = torch.randint(30, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = theirs(ids)
    hidden = model(Inputs.from_ids(ids, causal=False)).hidden
    near(model.lm_logits(hidden).logits(), expected.prediction_logits)
    near(model.seq_relationship_logits(hidden[:, 0]), expected.seq_relationship_logits)


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_t5s_tensorflow_checkpoint(
    gated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = transformers.T5Config(
        vocab_size=30,
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=1,
        num_decoder_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    theirs: Any = transformers.T5ForConditionalGeneration(config)
    if gated:  # transformers ties both versions; version 1.1 has an output layer of its own
        theirs.lm_head.weight = nn.Parameter(torch.randn(30, 16))
    shake(theirs)
    variables = {}
    for name, tensor in theirs.named_parameters():
        path = re.sub(r"(block|layer)\.(\d)\.", r"\1_00\2/", name.removesuffix(".weight"))
        if "norm" in path:
            path += "/scale"
        elif "Dense" in path or "lm_head" in path:
            path += "/kernel"
        path = path.replace(".", "/").replace("lm_head", "decoder/logits")
        variables["shared/embedding" if path == "shared" else path] = tensor
    variables = {n: t if n == "shared/embedding" else t.t() for n, t in variables.items()}
    variables["shared/embedding_slot_vc"] = torch.ones(30)
    fake_tensorflow(monkeypatch, variables)
    (tmp_path / "model.ckpt-1000.index").write_bytes(b"")
    model: Any = load_model(tmp_path)
    draws = torch.Generator().manual_seed(0)
    source, target = (torch.randint(30, (2, n), generator=draws) for n in (9, 5))
    read = Inputs.from_ids(source, causal=False)
    hidden = model(Inputs.from_ids(target, causal=True, encoder_inputs=read)).hidden
    expected = theirs(input_ids=source, decoder_input_ids=target).logits
    near(model.lm_logits(hidden).logits(), expected, within=1e-4)


def test_other_tensorflow_checkpoints_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tensorflow(monkeypatch, {"dense/kernel": torch.ones(2, 2)})
    (tmp_path / "model.ckpt-1.index").write_bytes(b"")
    with pytest.raises(UserError, match="neither a BERT nor a T5"):
        load_model(tmp_path)
