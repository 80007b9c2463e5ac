"""Model folders: exact when they come back, open in transformers, and strict."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import kinfolk.families
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.families.bert import BertConfig
from kinfolk.families.bilstm import BiLSTMConfig
from kinfolk.families.glm import GLMConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.t5 import T5Config
from kinfolk.families.xlnet import XLNetConfig
from kinfolk.hub import load, load_model, save
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of
from kinfolk.text import Tokenizer, train_tokenizer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CONFIGS = {
    "gpt2": GPT2Config(vocab_size=70, hidden_size=8, num_layers=2, num_heads=2, max_length=16),
    "bert": BertConfig(vocab_size=70, hidden_size=8, num_layers=2, num_heads=2, max_length=16),
    "t5": T5Config(
        vocab_size=70,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        gated=True,
        activation="gelu_new",
        tie_word_embeddings=False,
    ),
}
KINDS = {
    "gpt2": transformers.AutoModelForCausalLM,
    "bert": transformers.BertForPreTraining,
    "t5": transformers.T5ForConditionalGeneration,
}
WEIGHTS = "model.safetensors"


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """Write a small GPT-2."""
    save(tmp_path, CONFIGS["gpt2"].build(), None)
    return tmp_path


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(
        ["low lower lowest new newer newest wide wider"] * 9, kind="byte", vocab_size=400
    )


def rename(folder: Path, change: Any) -> None:
    """Write the weights of a folder again, changed."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(change(tensors), folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize("name", CONFIGS)
def test_a_network_comes_back_exactly(name: str, tmp_path: Path) -> None:
    model = CONFIGS[name].build()
    save(tmp_path, model, None)
    back = load_model(tmp_path)
    assert isinstance(back, nn.Module) and not back.training
    assert back.config == model.config
    weights, expected = back.state_dict(), model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[k], expected[k]) for k in expected)
    assert all(p.requires_grad and p.is_contiguous() for p in back.parameters())


def test_saving_over_the_folder_a_network_came_from_is_safe(gpt2: Path) -> None:
    model = load_model(gpt2)
    before = load_file(gpt2 / WEIGHTS)["transformer.wte.weight"].clone()
    save(gpt2, model, None)
    assert torch.equal(load_file(gpt2 / WEIGHTS)["transformer.wte.weight"], before)


def test_whoever_may_read_the_config_may_read_the_weights(gpt2: Path) -> None:
    assert (gpt2 / WEIGHTS).stat().st_mode == (gpt2 / "config.json").stat().st_mode


def test_a_config_that_an_editor_saved_with_a_byte_order_mark_is_read(gpt2: Path) -> None:
    before = load_model(gpt2)
    for name in ("config.json", "kinfolk.json"):
        if (gpt2 / name).is_file():
            (gpt2 / name).write_bytes(b"\xef\xbb\xbf" + (gpt2 / name).read_bytes())
    assert load_model(gpt2).config == before.config


def test_half_precision_is_saved_as_such_and_opened_in_float32(tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["gpt2"].build().bfloat16(), None)
    assert load_file(tmp_path / WEIGHTS)["transformer.wte.weight"].dtype == torch.bfloat16
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    model = load_model(tmp_path)
    assert isinstance(model, nn.Module)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parity
@pytest.mark.parametrize("name", CONFIGS)
def test_the_tokenizer_opens_in_transformers_with_the_same_ids(
    name: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = type(CONFIGS[name])(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=2
    )
    save(tmp_path, config.build(), tokenizer, length=99)
    _, mine = load(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "a lower, newer wide low"
    assert mine.encode(text) == peer(text)["input_ids"]
    assert mine.decode(mine.encode(text)) == peer.decode(peer(text)["input_ids"], True) == text
    assert peer.model_max_length == 99
    special_tokens = mine.special_tokens
    framed = {
        "gpt2": (None, None),
        "bert": (special_tokens.cls, special_tokens.sep),
        "t5": (None, special_tokens.eos),
    }[name]
    inner = mine.encode(text, add_special_tokens=False)
    assert mine.encode(text) == [i for i in (framed[0], *inner, framed[1]) if i is not None]
    network = KINDS[name].from_pretrained(tmp_path)
    assert network.config.pad_token_id == special_tokens.pad
    if name != "bert":
        said = network.generation_config
        assert (said.eos_token_id, said.pad_token_id) == (special_tokens.eos, special_tokens.pad)
        written = network.generate(**peer(text, return_tensors="pt"), max_new_tokens=3)
        assert written.shape[0] == 1
    if name == "t5":
        assert network.generation_config.decoder_start_token_id == special_tokens.pad


def test_a_tokenizer_that_knows_more_than_the_network_is_refused(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="more than the network's vocab_size=70"):
        save(tmp_path, CONFIGS["gpt2"].build(), tokenizer)


def test_a_network_outside_of_the_family_is_refused(tmp_path: Path) -> None:
    class Odd(LanguageModel):
        config = ModelConfig()

    with pytest.raises(UserError, match="ModelConfig has no registered name"):
        save(tmp_path, Odd(), None)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5"])
def test_a_member_that_transformers_does_not_have_keeps_our_names(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CONFIGS[kind].build()
    monkeypatch.setitem(kinfolk.families._loaded, kind, replace(family(kind), hf=None))
    save(tmp_path, model, None)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["model_type"] == f"kinfolk_{kind}"
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["token_embeddings.weight"].shape == (70, 8), "rows that only align are not saved"
    again = load_model(tmp_path)
    assert again.config == CONFIGS[kind]
    expected = model.state_dict()
    assert all(torch.equal(expected[name], weight) for name, weight in again.state_dict().items())


@pytest.mark.parity
def test_shards_are_read_as_one(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=70, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    peer = transformers.GPT2LMHeadModel(config)
    peer.save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / WEIGHTS).exists()
    model = load_model(tmp_path)
    assert torch.equal(model.position_embeddings.weight, peer.transformer.wpe.weight)  # type: ignore[attr-defined]


@pytest.mark.parity
def test_gpt2_as_it_was_published_opens(gpt2: Path) -> None:
    expected = load_model(gpt2)

    def old(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        bare = {name.removeprefix("transformer."): t for name, t in tensors.items()}
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 16, 16).tril() for i in range(2)}
        return bare | masks

    rename(gpt2, old)
    ids = torch.arange(9)[None]
    hidden = load_model(gpt2)(Inputs.from_ids(ids, causal=True)).hidden
    assert torch.equal(hidden, expected(Inputs.from_ids(ids, causal=True)).hidden)
    rename(gpt2, lambda tensors: tensors | {"lm_head.weight": tensors["wte.weight"] + 1})
    with pytest.raises(UserError, match=r"lm_head\.weight and wte\.weight differ"):
        load_model(gpt2)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "fresh"),
    [
        ("GPT2Model", ()),
        ("BertModel", ("mlm_head", "seq_relationship")),
        ("BertForMaskedLM", ("pooler", "seq_relationship")),
    ],
)
def test_networks_saved_without_their_heads_open(
    kind: str, fresh: tuple[str, ...], tmp_path: Path
) -> None:
    make = getattr(transformers, kind)
    sizes = {"vocab_size": 70, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"bos_token_id": None, "eos_token_id": None}
    make(make.config_class(**sizes, **tokens)).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.random_modules == fresh
    assert all(not p.is_meta and p.isfinite().all() for p in model.parameters())
    assert not fresh or model.seq_relationship.weight.any()  # type: ignore[union-attr]


def test_bert_with_the_names_tensorflow_had_opens(tmp_path: Path) -> None:
    model = CONFIGS["bert"].build()
    save(tmp_path, model, None)
    old = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for new, ending in old.items():
            tensors = {name.replace(new, ending): t for name, t in tensors.items()}
        words = tensors["bert.embeddings.word_embeddings.weight"]
        return tensors | {
            "cls.predictions.decoder.weight": words.clone(),
            "bert.embeddings.position_ids": torch.arange(16)[None],
        }

    rename(tmp_path, change)
    again = load_model(tmp_path).state_dict()  # type: ignore[attr-defined]
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parity
def test_a_t5_of_version_1_1_that_shares_its_table_after_all_opens(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=70, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    peer = transformers.T5ForConditionalGeneration(config).eval()
    peer.save_pretrained(tmp_path)
    with pytest.warns(
        UserWarning, match=r"lm_head\.weight: it is initialized as a copy of shared\.weight"
    ):
        model = load_model(tmp_path)
    ids = torch.arange(9)[None]
    inputs = Inputs.from_ids(ids, causal=True, encoder_inputs=Inputs.from_ids(ids, causal=False))
    logits = model.lm_logits(model(inputs).hidden).logits()  # type: ignore[attr-defined]
    expected = peer(input_ids=ids, decoder_input_ids=ids).logits
    assert (logits - expected).abs().max() < 1e-5


def test_bad_folders_are_told_in_a_sentence(gpt2: Path, tmp_path_factory: Any) -> None:
    def refused(match: str, folder: Path = gpt2) -> None:
        with pytest.raises(UserError, match=match) as told:
            load_model(folder)
        assert "\n" not in str(told.value)

    refused("folder .* not found", gpt2 / "nowhere")
    empty = tmp_path_factory.mktemp("empty")
    refused(r"has no config\.json", empty)
    (empty / "config.json").write_text("{")
    refused("is not JSON", empty)
    (empty / "config.json").write_text("[]")
    refused("must hold a JSON object", empty)
    (empty / "config.json").write_text('{"model_type": "yeti"}')
    refused("'yeti'.*bert.*gpt2.*t5", empty)
    (empty / "config.json").write_text('{"model_type": "gpt2"}')
    refused(r"has no model\.safetensors", empty)
    (empty / "pytorch_model.bin").write_bytes(b"")
    refused(r"pytorch_model\.bin cannot be read", empty)
    (empty / "pytorch_model.bin").unlink()
    (empty / "model.safetensors.index.json").write_text('{"weight_map": {"wte": "lost.bin"}}')
    refused(r"lost\.bin cannot be read", empty)

    whole = (gpt2 / WEIGHTS).read_bytes()
    rename(gpt2, lambda tensors: tensors | {"transformer.extra": torch.zeros(1)})
    refused("unexpected weights in .*: transformer.extra")
    rename(gpt2, lambda t: {k: v for k, v in t.items() if "extra" not in k and "ln_f" not in k})
    refused(r"missing weights .*ln_f\.weight, transformer\.ln_f\.bias")
    (gpt2 / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    refused("cannot be read")


def test_the_start_token_of_t5_comes_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(tmp_path, replace(CONFIGS["t5"], decoder_start_token_id=5).build(), None)
    assert load_model(tmp_path).config.decoder_start_token_id == 5
    changed = json.loads((tmp_path / "config.json").read_text()) | {"decoder_start_token_id": 6}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(
        UserError, match=r"decoder_start_token_id=6 is not supported \(supported: 5\)"
    ):
        load_model(tmp_path)
    odd = replace(CONFIGS["t5"], decoder_start_token_id=5, vocab_size=400).build()
    with pytest.raises(UserError, match=r"model\.decoder_start_token_id="):
        save(tmp_path, odd, tokenizer)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_of_no_weights_is_told(name: str, tmp_path: Path) -> None:
    save(tmp_path, CONFIGS[name].build(), None)
    rename(tmp_path, lambda tensors: {})
    with pytest.raises(UserError, match="missing weights"):
        load_model(tmp_path)


def test_who_generates_has_a_generation_config_and_nobody_else(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 70, "hidden_size": 8, "num_layers": 1}
    configs = [
        *CONFIGS.values(),
        BiLSTMConfig(**sizes),
        XLNetConfig(**sizes, num_heads=2),
        GLMConfig(**sizes, num_heads=2),
    ]
    written = set()
    for config in configs:
        folder = tmp_path / type(config).__name__
        save(folder, config.build(), None)
        if (folder / "generation_config.json").is_file():
            written.add(type(config))
    assert written == {GPT2Config, T5Config, XLNetConfig, GLMConfig}


def test_heads_that_start_fresh_are_drawn_alone_and_move_no_random_state(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=70, hidden_size=64, num_layers=1, num_heads=2, max_length=16, init_std=0.3
    )
    transformers.BertModel(
        transformers.BertConfig(**json.loads(_saved(config, tmp_path)))
    ).save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    model = load_model(tmp_path)
    assert model.random_modules == ("mlm_head", "seq_relationship")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(p.is_meta for p in model.parameters())
    fresh = dict(model.named_parameters())
    assert fresh["mlm_head.dense.weight"].std().item() == pytest.approx(0.3, rel=0.1)
    assert fresh["mlm_head.norm.weight"].unique().tolist() == [1.0]
    for name in (
        "mlm_head.bias",
        "mlm_head.dense.bias",
        "mlm_head.norm.bias",
        "seq_relationship.bias",
    ):
        assert not fresh[name].any()


def _saved(config: Any, folder: Path) -> str:
    save(folder, config.build(), None)
    return (folder / "config.json").read_text()


def test_a_head_whose_class_is_not_named_is_told(tmp_path: Path) -> None:
    body = CONFIGS["bert"]
    config = ModelWithHeadConfig(
        backbone=body, head="text", labels=("a", "b"), pooling=pooling_of(body)
    )
    save(tmp_path, config.build(), None)
    data = json.loads((tmp_path / "config.json").read_text())
    del data["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    said = r"has no `architectures`, .* contain classifier.weight.*BertForSequenceClassification"
    with warnings.catch_warnings(), pytest.raises(UserError, match=said):
        warnings.simplefilter("error")
        load_model(tmp_path)
