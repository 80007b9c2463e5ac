"""ALBERT against its published sizes and against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AlbertConfig as TheirConfig
from transformers import AlbertForPreTraining as Theirs

from kinfolk.errors import UserError
from kinfolk.families.albert import FAMILY, Albert, AlbertConfig
from kinfolk.hub import load, load_model, save
from kinfolk.text import train_tokenizer
from support.networks import hollow
from support.peers import open_without_a_word, parameters, same_pair_step, same_pairs, shake

# Millions without heads, as the paper's table 1 and the released folders of version 2 have them.
table: Any = FAMILY.hf
PUBLISHED = {
    "albert-base-v2": 11.7,
    "albert-large-v2": 17.7,
    "albert-xlarge-v2": 58.7,
    "albert-xxlarge-v2": 222.6,
}
GROUPS = [(1, 1), (2, 1), (2, 2), (3, 1)]  # of layers, and layers in each
SMALL = {
    "vocab_size": 70,
    "embedding_size": 6,
    "hidden_size": 16,
    "num_layers": 4,
    "num_heads": 2,
    "max_length": 32,
}


def theirs(**options: object) -> Theirs:
    config = TheirConfig(
        **{
            "vocab_size": 70,
            "embedding_size": 6,
            "hidden_size": 16,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "intermediate_size": 40,
            "max_position_embeddings": 32,
            "classifier_dropout_prob": 0.0,
            **options,
        }
    )
    return shake(Theirs(config), by=0.2)


@pytest.mark.parity
@pytest.mark.parametrize(("groups", "inner"), GROUPS)
def test_their_folder_says_the_same_here(groups: int, inner: int, tmp_path: Path) -> None:
    peer = theirs(num_hidden_groups=groups, inner_group_num=inner, type_vocab_size=3)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, Albert)
    assert (ours.config.num_hidden_groups, ours.config.inner_group_num) == (groups, inner)
    same_pairs(ours, peer, "sop_logits")


@pytest.mark.parity
@pytest.mark.parametrize("shared", ["all", "attention", "feed", "none"])
@pytest.mark.parametrize(("groups", "inner"), GROUPS)
def test_our_folder_says_the_same_there(
    shared: Any, groups: int, inner: int, tmp_path: Path
) -> None:
    """What transformers cannot share, it reads from copies; here it is one again."""
    config = AlbertConfig(
        **SMALL,
        sharing=shared,
        num_hidden_groups=groups,
        inner_group_num=inner,
        activation="gelu",
        layer_norm_eps=1e-3,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    same_pairs(ours, open_without_a_word(Theirs, tmp_path), "sop_logits")
    again: Any = load_model(tmp_path)
    assert again.config == config
    assert again.state_dict().keys() == ours.state_dict().keys()
    assert all(torch.equal(again.state_dict()[k], v) for k, v in ours.state_dict().items())


@pytest.mark.parity
def test_halves_that_differ_in_a_folder_that_shares_them_are_refused(tmp_path: Path) -> None:
    save(tmp_path, AlbertConfig(**SMALL, sharing="attention").build(), None)
    peer = Theirs.from_pretrained(tmp_path)
    with torch.no_grad():
        peer.albert.encoder.albert_layer_groups[3].albert_layers[0].attention.dense.bias += 1.0
    peer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"groups\.3\..*attention\.dense\.bias and .* differ"):
        load_model(tmp_path)


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    same_pair_step(theirs(num_hidden_groups=2), table, "sentence_order_label")


@pytest.mark.parity
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_their_published_count(name: str) -> None:
    config = FAMILY.sizes[name]
    with hollow():
        ours = config.build()
        peer = Theirs(TheirConfig(**table.to_config(config, None)))
    assert parameters(ours) == sum(p.numel() for p in peer.parameters())
    body = sum(p.numel() for p in peer.albert.parameters())
    assert round(body / 1e6, 1) == PUBLISHED[name]


@pytest.mark.parity
def test_the_tokenizer_opens_in_transformers_with_the_same_frame(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(
        ["low lower lowest new newer newest wide wider"] * 9, kind="byte", vocab_size=400
    )
    config = AlbertConfig(**{**SMALL, "vocab_size": tokenizer.vocab_size})
    save(tmp_path, config.build(), tokenizer)
    _, mine = load(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "a lower, newer wide low"
    inner = mine.encode(text, add_special_tokens=False)
    framed = [mine.special_tokens.cls, *inner, mine.special_tokens.sep]
    assert peer(text)["input_ids"] == mine.encode(text) == framed
    assert peer.model_max_length == 32


@pytest.mark.parametrize(
    ("shared", "attends", "feeds"),
    [("all", 2, 2), ("attention", 2, 4), ("feed", 4, 2), ("none", 4, 4)],
)
def test_only_what_is_shared_is_the_same(shared: Any, attends: int, feeds: int) -> None:
    ours = AlbertConfig(**SMALL, sharing=shared, num_hidden_groups=2).build()
    assert (len(ours.layers.attentions), len(ours.layers.feed_forwards)) == (attends, feeds)


def test_layers_of_a_group_run_one_after_the_other() -> None:
    config = AlbertConfig(**SMALL, num_hidden_groups=2, inner_group_num=2)
    assert [a for a, _ in config.layer_modules()] == [0, 1, 0, 1, 2, 3, 2, 3]


def test_more_groups_than_layers_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"model\.num_hidden_groups=5 is more than model\.num_layers=4"
    ):
        AlbertConfig(**SMALL, num_hidden_groups=5)


@pytest.mark.parametrize("config", [*FAMILY.sizes.values(), AlbertConfig(**SMALL, sharing="feed")])
def test_a_config_comes_back_through_transformers(config: AlbertConfig) -> None:
    peer = transformers.AutoConfig.for_model("albert", **table.to_config(config, None))
    assert table.from_config(peer.to_dict()) == config
