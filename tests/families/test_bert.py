"""BERT against its published sizes and against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig as TheirConfig
from transformers import BertForPreTraining as Theirs

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.families.bert import FAMILY, Bert, BertConfig
from kinfolk.hub import load_model, save
from support.networks import hollow
from support.peers import (
    ids,
    inputs,
    near,
    open_without_a_word,
    parameters,
    ragged,
    same_gradients,
    shake,
)

table: Any = FAMILY.hf
PUBLISHED = {"bert-base-uncased": 110_106_428}  # with both heads


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def theirs(**options: object) -> Theirs:
    config = TheirConfig(
        **{
            "vocab_size": 70,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 40,
            "max_position_embeddings": 32,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **options,
        }
    )
    return shake(Theirs(config), by=0.2)


def pairs(segments: int) -> Tensor:
    """Number the parts of each text by turns."""
    return (torch.arange(9).expand(3, -1) // 3) % segments


@torch.no_grad()
def same(ours: Bert, peer: Theirs) -> None:
    tokens, segments = ids(ours.config.vocab_size), pairs(ours.config.type_vocab_size)
    document = ragged()
    for real in (document == 0, torch.ones_like(document, dtype=torch.bool)):
        said = peer(
            tokens,
            attention_mask=real.long(),
            token_type_ids=segments,
            output_hidden_states=True,
        )
        attention_mask = AttentionMask.bidirectional(
            torch.where(real, 0, -1), unpacked=bool(real.all())
        )
        hidden = ours(inputs(tokens, attention_mask, token_type_ids=segments)).hidden
        near(hidden[real], said.hidden_states[-1][real])
        near(ours.lm_logits(hidden).logits()[real], said.prediction_logits[real])
        near(ours.seq_relationship_logits(hidden[:, 0]), said.seq_relationship_logits)
    said = peer(tokens, output_hidden_states=True).hidden_states[-1]
    near(ours(Inputs.from_ids(tokens, causal=False)).hidden, said)


@pytest.mark.parity
@pytest.mark.parametrize("bend", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("vocab", "segments"), [(70, 2), (128, 3)])
def test_their_folder_says_the_same_here(
    bend: str, vocab: int, segments: int, tmp_path: Path
) -> None:
    peer = theirs(hidden_act=bend, vocab_size=vocab, type_vocab_size=segments)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, Bert) and ours.config.activation == bend
    same(ours, peer)


@pytest.mark.parity
@pytest.mark.parametrize("bend", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("vocab", "segments"), [(70, 2), (128, 3)])
def test_our_folder_says_the_same_there(
    bend: str, vocab: int, segments: int, tmp_path: Path
) -> None:
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        max_length=32,
        type_vocab_size=segments,
        activation=bend,
        layer_norm_eps=1e-3,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    same(ours, open_without_a_word(Theirs, tmp_path))


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    peer = theirs().train()
    config = table.from_config(peer.config.to_dict())
    ours = config.build().train()
    names = table.parameters(config)
    ours.load_state_dict(names.from_hf(dict(peer.named_parameters()), ours.state_dict(), "there"))
    tokens, document, follows = ids(70), ragged(), torch.tensor([0, 1, 0])
    labels = torch.where(document == 0, tokens, -100)
    said = peer(
        tokens,
        attention_mask=document + 1,
        labels=labels,
        next_sentence_label=follows,
    )
    said.loss.backward()
    hidden = ours(inputs(tokens, AttentionMask.bidirectional(document))).hidden
    words = ours.lm_logits(hidden.flatten(0, 1)).nll(labels.flatten()) / (labels >= 0).sum()
    loss = words + torch.nn.functional.cross_entropy(
        ours.seq_relationship_logits(hidden[:, 0]), follows
    )
    loss.backward()
    near(loss, said.loss)
    gradients = {k: p.grad for k, p in ours.named_parameters() if p.grad is not None}
    same_gradients(names.to_hf(gradients), peer)


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in FAMILY.sizes if name.startswith("bert-")])
def test_published_sizes_have_their_published_count(name: str) -> None:
    config = FAMILY.sizes[name]
    with hollow():
        ours = config.build()
        peer = Theirs(TheirConfig(**table.to_config(config, None)))
    count = sum(p.numel() for p in peer.parameters())
    assert parameters(ours) == count == PUBLISHED.get(name, count)
