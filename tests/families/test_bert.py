"""BERT against its published sizes and against transformers."""

from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig as TheirConfig
from transformers import BertForPreTraining as Theirs

from kinfolk.families.bert import FAMILY, Bert, BertConfig
from kinfolk.hub import load_model, save
from support.peers import count_both, open_without_a_word, same_pair_step, same_pairs, shake

table: Any = FAMILY.hf
PUBLISHED = {"bert-base-uncased": 110_106_428}  # with both heads


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


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("vocab", "segments"), [(70, 2), (128, 3)])
def test_their_folder_says_the_same_here(
    activation: str, vocab: int, segments: int, tmp_path: Path
) -> None:
    peer = theirs(hidden_act=activation, vocab_size=vocab, type_vocab_size=segments)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, Bert) and ours.config.activation == activation
    same_pairs(ours, peer, "seq_relationship_logits")


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("vocab", "segments"), [(70, 2), (128, 3)])
def test_our_folder_says_the_same_there(
    activation: str, vocab: int, segments: int, tmp_path: Path
) -> None:
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        max_length=32,
        type_vocab_size=segments,
        activation=activation,
        layer_norm_eps=1e-3,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    same_pairs(ours, open_without_a_word(Theirs, tmp_path), "seq_relationship_logits")


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    same_pair_step(theirs(), table, "next_sentence_label")


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in FAMILY.sizes if name.startswith("bert-")])
def test_published_sizes_have_their_published_count(name: str) -> None:
    config = FAMILY.sizes[name]
    ours, theirs = count_both(config, table, Theirs)
    assert ours == theirs == PUBLISHED.get(name, theirs)
