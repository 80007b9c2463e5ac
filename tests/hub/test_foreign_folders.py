"""Folders as strangers have them: PyTorch files, shards, wrappers, old configs, other heads."""

import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import kinfolk
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.generation.fill import fill_masks
from kinfolk.hub import load_model, save
from kinfolk.nn.task_heads import ModelWithHead, ModelWithHeadConfig, pooling_of
from support.peers import near, shake

SIZES: dict[str, Any] = {
    "vocab_size": 70,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}
GPT_SIZES: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 70}
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
IDS = torch.randint(5, 70, (2, 9), generator=torch.Generator().manual_seed(0))


def write_pickled(folder: Path, model: Any, change: Change = dict, **config: Any) -> Path:
    """Write a model as config.json and pytorch_model.bin, with changed tensors and fields."""
    folder.mkdir(exist_ok=True)
    data = model.config.to_dict() | {"architectures": [type(model).__name__]} | config
    data = {name: value for name, value in data.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(data))
    torch.save(change(dict(model.state_dict())), folder / "pytorch_model.bin")
    return folder


def bert(kind: Any = transformers.BertForPreTraining, **fields: Any) -> Any:
    return shake(kind(transformers.BertConfig(**SIZES | fields)))


def hidden(model: Any, *, causal: bool = False) -> Tensor:
    with torch.no_grad():
        return model(Inputs.from_ids(IDS, causal=causal)).hidden


def loaded(folder: Path) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_model(folder)
    return model, [str(warning.message) for warning in caught]


@torch.no_grad()
def test_pytorch_files_and_their_shards(tmp_path: Path) -> None:
    theirs = bert()
    whole, told = loaded(write_pickled(tmp_path / "whole", theirs))
    near(hidden(whole), theirs.bert(IDS).last_hidden_state)
    assert not told
    shards = write_pickled(tmp_path / "shards", theirs)
    (shards / "pytorch_model.bin").unlink()
    names = list(theirs.state_dict())
    index = {name: f"pytorch_model-0000{i % 3}.bin" for i, name in enumerate(names)}
    for shard in {*index.values()}:
        torch.save(
            {n: t for n, t in theirs.state_dict().items() if index[n] == shard}, shards / shard
        )
    (shards / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(hidden(load_model(shards)), hidden(whole))
    index[names[0]] = "../whole/pytorch_model.bin"
    (shards / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(UserError, match="is not a file beside it"):
        load_model(shards)


class Planted:
    """An object whose pickle runs a command."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    folder = write_pickled(tmp_path / "model", bert())
    planted = tmp_path / "planted"
    for write in (torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))):
        write({"a": Planted(planted)}, folder / "pytorch_model.bin")
        with pytest.raises(UserError, match=r"could run any code.*safetensors"):
            load_model(folder)
    torch.save(nn.Linear(2, 2), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"could run any code .*nn\.modules\.linear\.Linear"):
        load_model(folder)
    assert not planted.exists()


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (
            torch.tensor([float("nan")]),
            "NaN or infinite values in cls.predictions.transform.dense.bias",
        ),
        (torch.zeros(16, dtype=torch.complex64), "complex64, not a floating-point"),
        (
            torch.zeros(16, dtype=torch.int64),
            r"missing weights in .*cls\.predictions\.transform\.dense\.bias",
        ),
        ("text", "is not a tensor"),
    ],
)
def test_values_that_are_not_weights(value: Any, match: str, tmp_path: Path) -> None:
    folder = write_pickled(
        tmp_path, bert(), lambda tensors: tensors | {"cls.predictions.transform.dense.bias": value}
    )
    with pytest.raises(UserError, match=match):
        load_model(folder)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"weights", b"\x80\x02}q\x00."])
def test_damaged_files(content: bytes, tmp_path: Path) -> None:
    folder = write_pickled(tmp_path, bert())
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"pytorch_model\.bin|missing weights") as told:
        load_model(folder)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "wrapper", ["module.", "model.", "module.model.", "_orig_mod.", "net.encoder."]
)
@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_wrappers_before_the_names(wrapper: str, prefix: str, tmp_path: Path) -> None:
    theirs = bert()

    def wrap(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {n: t for n, t in tensors.items() if prefix or n.startswith("bert.")}
        return {wrapper + (n if prefix else n.removeprefix("bert.")): t for n, t in kept.items()}

    model, _ = loaded(write_pickled(tmp_path, theirs, wrap))
    assert torch.equal(hidden(model), hidden(loaded(write_pickled(tmp_path, theirs))[0]))


def test_the_family_is_told_by_the_weights(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "bert": bert(),
        "roberta": shake(transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES))),
        "albert": shake(
            transformers.AlbertForPreTraining(transformers.AlbertConfig(**SIZES, embedding_size=8))
        ),
        "gpt2": shake(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT_SIZES))),
        "gpt": shake(transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT_SIZES))),
    }
    for name, theirs in kinds.items():
        model, told = loaded(write_pickled(tmp_path / name, theirs, model_type=...))
        assert type(model.config).__name__.lower() == f"{name}config"
        assert f"named after {name}'s" in told[0]
    (tmp_path / "bert" / "config.json").write_text(json.dumps(SIZES))
    torch.save({"a": torch.zeros(2)}, tmp_path / "bert" / "pytorch_model.bin")
    with pytest.raises(UserError, match="not named after any supported family"):
        load_model(tmp_path / "bert")


def test_heads_of_other_programs_are_left_out_and_named(tmp_path: Path) -> None:
    def more(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {"poetry.weight": torch.ones(3, 16), "cls.meter.bias": torch.ones(2)}

    folder = write_pickled(tmp_path, bert(), more, architectures=["BertForPoetry"])
    _, told = loaded(folder)
    assert "poetry.weight, cls.meter.bias" in told[0]
    write_pickled(tmp_path, bert(), lambda t: t | {"bert.encoder.layer.0.extra": torch.ones(2)})
    with pytest.raises(UserError, match=r"unexpected weights in .*encoder\.layer\.0\.extra"):
        load_model(folder)


def test_labels_without_names(tmp_path: Path) -> None:
    theirs = bert(transformers.BertForSequenceClassification, num_labels=5)
    two = {"0": "LABEL_0", "1": "LABEL_1"}
    model, told = loaded(write_pickled(tmp_path, theirs, id2label=two, num_labels=5))
    assert isinstance(model, ModelWithHead) and not told
    assert model.config.labels == tuple(f"LABEL_{i}" for i in range(5))
    model, _ = loaded(write_pickled(tmp_path, theirs, id2label=..., num_labels=5))
    assert len(model.config.labels) == 5


@pytest.mark.parametrize("name", ["gelu_fast", "gelu_python", "swish", "gelu_pytorch_tanh"])
@torch.no_grad()
def test_names_of_activations(name: str, tmp_path: Path) -> None:
    theirs = bert(hidden_act=name)
    model, _ = loaded(write_pickled(tmp_path, theirs))
    near(hidden(model), theirs.bert(IDS).last_hidden_state, within=2e-5)


@pytest.mark.parametrize("name", ["GPT2", "OpenAIGPT"])
@torch.no_grad()
def test_two_headed_decoders(name: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{name}Config")(**GPT_SIZES)
    theirs = shake(getattr(transformers, f"{name}DoubleHeadsModel")(config))
    model, told = loaded(write_pickled(tmp_path, theirs))
    near(hidden(model, causal=True), theirs.transformer(IDS).last_hidden_state)
    assert "multiple_choice_head" in told[0]


@torch.no_grad()
def test_a_generator_of_electra_alone(tmp_path: Path) -> None:
    config = transformers.ElectraConfig(**SIZES, embedding_size=8)
    theirs = shake(transformers.ElectraForMaskedLM(config))
    model, _ = loaded(write_pickled(tmp_path, theirs))
    states = model.forward_lm(Inputs.from_ids(IDS, causal=False)).hidden
    near(model.lm_logits(states).logits(), theirs(IDS).logits)
    near(hidden(model), theirs.electra(IDS).last_hidden_state)


def test_random_heads_are_never_used(tmp_path: Path) -> None:
    model, told = loaded(write_pickled(tmp_path, bert(transformers.BertModel)))
    assert not told and model.random_modules == ("mlm_head", "seq_relationship")
    with pytest.raises(UserError, match="no weights of mlm_head, which predict tokens"):
        fill_masks(model, [5, 6, 7], mask=6)
    with pytest.raises(UserError, match="no weights of mlm_head"):
        kinfolk.logits(model, [5, 6, 7])
    head = ModelWithHeadConfig(
        backbone=model.config, head="text", labels=("a", "b"), pooling=pooling_of(model.config)
    )
    with pytest.raises(UserError, match=r"was fine-tuned.*use predict"):
        fill_masks(ModelWithHead.of(model, head), [5, 6, 7], mask=6)  # no warning about its LM head
    masked, _ = loaded(write_pickled(tmp_path, bert(transformers.BertForMaskedLM)))
    with pytest.warns(UserWarning, match="no weights of pooler: they start from random values"):
        ModelWithHead.of(masked, head)
    assert len(fill_masks(masked, [5, 6, 7], mask=6)) == 1


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Albert", "Electra", "XLNet"])
def test_random_heads_are_not_saved(name: str, tmp_path: Path) -> None:
    sizes = {"embedding_size": 8} if name in ("Albert", "Electra") else {}
    fields = {**SIZES, **sizes}
    if name == "XLNet":
        fields = {"vocab_size": 70, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 48}
    theirs = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**fields))
    theirs.save_pretrained(tmp_path / "theirs")
    model, _ = loaded(tmp_path / "theirs")
    if not model.random_modules:
        assert name == "XLNet"  # its logits are computed from the embeddings
        return
    with pytest.warns(UserWarning, match="no trained weights of .* not written"):
        save(tmp_path / "ours", model, None)
    again, _ = loaded(tmp_path / "ours")
    assert again.random_modules == model.random_modules
    assert torch.equal(hidden(again), hidden(model))
    model.random_modules = ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path / "trained", model, None)
    assert not loaded(tmp_path / "trained")[0].random_modules
