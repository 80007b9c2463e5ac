"""RoBERTa against its published sizes and against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer, RobertaModel
from transformers import RobertaConfig as TheirConfig
from transformers import RobertaForMaskedLM as Theirs

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.roberta import FAMILY, Roberta, RobertaConfig
from kinfolk.hub import load, load_model, save
from kinfolk.text import train_tokenizer
from support.networks import hollow
from support.peers import (
    LENGTHS,
    inputs,
    near,
    open_without_a_word,
    parameters,
    ragged,
    same_gradients,
    shake,
)

# With the head for tokens; and the body with a pooler, which is what is usually quoted.
table: Any = FAMILY.hf
PUBLISHED = {
    "roberta-base": (124_697_433, 124_645_632),
    "roberta-large": (355_412_057, 355_359_744),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def theirs(kind: Any = Theirs, **options: object) -> Any:
    config = TheirConfig(
        **{
            "vocab_size": 70,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 40,
            "max_position_embeddings": 34,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **options,
        }
    )
    return shake(kind(config), by=0.2)


def rows(vocab: int, pad: int) -> Tensor:
    """Draw ragged rows; they find their places by what is no padding."""
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(pad + 1, vocab, (len(LENGTHS), max(LENGTHS)), generator=draws)
    return torch.where(ragged() == 0, tokens, pad)


@torch.no_grad()
def same(ours: Roberta, peer: Theirs) -> None:
    tokens, document = rows(ours.config.vocab_size, ours.config.padding_idx), ragged()
    real = document == 0
    said = peer(tokens, attention_mask=real.long(), output_hidden_states=True)
    hidden = ours(inputs(tokens, AttentionMask.bidirectional(document))).hidden
    near(hidden[real], said.hidden_states[-1][real])
    near(ours.lm_logits(hidden).logits()[real], said.logits[real])
    whole = tokens[:1]  # a row without padding
    said = peer(whole, output_hidden_states=True).hidden_states[-1]
    near(ours(Inputs.from_ids(whole, causal=False)).hidden, said)


@pytest.mark.parity
@pytest.mark.parametrize("bend", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("vocab", "pad"), [(70, 1), (128, 0), (70, 3)])
def test_their_folder_says_the_same_here(bend: str, vocab: int, pad: int, tmp_path: Path) -> None:
    peer = theirs(hidden_act=bend, vocab_size=vocab, pad_token_id=pad)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, Roberta)
    assert (ours.config.padding_idx, ours.config.max_length) == (pad, 33 - pad)
    same(ours, peer)


@pytest.mark.parity
@pytest.mark.parametrize("bend", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("vocab", "pad"), [(70, 1), (128, 0), (70, 3)])
def test_our_folder_says_the_same_there(bend: str, vocab: int, pad: int, tmp_path: Path) -> None:
    config = RobertaConfig(
        vocab_size=vocab,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        max_length=32,
        activation=bend,
        layer_norm_eps=1e-3,
        padding_idx=pad,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    peer = open_without_a_word(AutoModelForMaskedLM, tmp_path)
    assert isinstance(peer, Theirs)
    same(ours, peer)
    peer.save_pretrained(tmp_path / "again")  # rows that are never read come back too
    again: Any = load_model(tmp_path / "again")
    assert again.config == config
    assert torch.equal(again.position_embeddings.weight, ours.position_embeddings.weight)


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    peer = theirs().train()
    config = table.from_config(peer.config.to_dict())
    ours = config.build().train()
    names = table.parameters(config)
    ours.load_state_dict(names.from_hf(dict(peer.named_parameters()), ours.state_dict(), "there"))
    document = ragged()
    tokens = rows(70, 1)
    labels = torch.where(document == 0, tokens, -100)
    said = peer(tokens, attention_mask=document + 1, labels=labels)
    said.loss.backward()
    hidden = ours(inputs(tokens, AttentionMask.bidirectional(document))).hidden
    loss = ours.lm_logits(hidden.flatten(0, 1)).nll(labels.flatten()) / (labels >= 0).sum()
    loss.backward()
    near(loss, said.loss)
    gradients = {k: p.grad for k, p in ours.named_parameters() if p.grad is not None}
    same_gradients(names.to_hf(gradients), peer)


@pytest.mark.parity
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_their_published_count(name: str) -> None:
    config = FAMILY.sizes[name]
    with hollow():
        ours = config.build()
        foreign = TheirConfig(**table.to_config(config, None))
        peer, body = Theirs(foreign), RobertaModel(foreign)
    assert foreign.max_position_embeddings == 514
    counts = tuple(sum(p.numel() for p in network.parameters()) for network in (peer, body))
    assert counts == PUBLISHED[name]
    assert parameters(ours) == counts[0]
    pooler = config.hidden_size * config.hidden_size + config.hidden_size
    assert parameters(ours) - parameters(ours.mlm_head) + pooler == counts[1]


@pytest.mark.parity
def test_a_body_with_a_pooler_opens_and_its_head_starts_fresh(tmp_path: Path) -> None:
    theirs(RobertaModel).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.random_modules == ("mlm_head",)
    assert isinstance(model, Roberta) and model.mlm_head.dense.weight.any()


@pytest.mark.parity
def test_its_tokenizer_frames_a_text_in_transformers_too(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(
        ["low lower lowest new newer newest wide wider"] * 9, kind="bpe", vocab_size=370
    )
    special_tokens = tokenizer.special_tokens
    config = RobertaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        padding_idx=special_tokens.pad,
    )
    save(tmp_path, config.build(), tokenizer)
    model: Any
    model, mine = load(tmp_path)
    assert model.config == config
    reader = AutoTokenizer.from_pretrained(tmp_path)
    text = "a lower, newer wide low"
    inner = mine.encode(text, add_special_tokens=False)
    assert (
        reader(text)["input_ids"]
        == mine.encode(text)
        == [special_tokens.cls, *inner, special_tokens.sep]
    )
    pair = reader(text, "low")["input_ids"]
    assert pair[len(inner) + 1 : len(inner) + 3] == [special_tokens.sep] * 2
    peer = open_without_a_word(AutoModelForMaskedLM, tmp_path)
    assert peer.config.pad_token_id == special_tokens.pad
    batch = reader([text, "low"], padding=True, return_tensors="pt")
    with torch.no_grad():
        said = peer(**batch).logits[0]
        row = torch.tensor([mine.encode(text)])
        near(model.lm_logits(model(Inputs.from_ids(row, causal=False)).hidden[0]).logits(), said)


def test_a_tokenizer_that_pads_otherwise_is_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["low lower lowest"] * 9, kind="byte", vocab_size=400)
    config = RobertaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=2, padding_idx=1
    )
    with pytest.raises(UserError, match=r"model\.padding_idx=1: .* model\.padding_idx=0"):
        save(tmp_path, config.build(), tokenizer)


@torch.no_grad()
def test_places_are_counted_from_behind_the_id_of_padding() -> None:
    config = RobertaConfig(
        vocab_size=70, hidden_size=16, num_layers=1, num_heads=2, max_length=5, padding_idx=3
    )
    model = shake(config.build(), by=0.2)
    assert model.position_embeddings.num_embeddings == 9
    row = torch.arange(10, 15)[None]
    before = model(Inputs.from_ids(row, causal=False)).hidden
    model.position_embeddings.weight[:4] += 1.0  # never read
    assert torch.equal(model(Inputs.from_ids(row, causal=False)).hidden, before)
    model.position_embeddings.weight[8] += 1.0  # the last of five
    assert not torch.equal(model(Inputs.from_ids(row, causal=False)).hidden, before)
