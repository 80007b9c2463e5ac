"""T5, versions 1.0 and 1.1, against its published sizes and against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config as TheirConfig
from transformers import T5ForConditionalGeneration as Theirs

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.families.t5 import FAMILY, T5, T5Config
from kinfolk.hub import load_model, save
from support.peers import (
    LENGTHS,
    cached_steps,
    count_both,
    ids,
    inputs,
    mean_nll,
    near,
    open_without_a_word,
    ragged,
    same_step,
    shake,
    with_weights_of,
)

table: Any = FAMILY.hf
PUBLISHED = {
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
}
FIRST = T5Config(
    vocab_size=70,
    hidden_size=16,
    num_layers=1,
    num_decoder_layers=3,
    num_heads=2,
    head_dim=6,
    intermediate_size=24,
    dropout=0,
)
SECOND = replace(FIRST, gated=True, activation="gelu_new", tie_word_embeddings=False)
SOURCES = (12, 3, 8)  # the lengths of the sources; not those of the targets


def theirs(config: T5Config) -> Theirs:
    peer = Theirs(TheirConfig(**table.to_config(config, None)))
    if not config.tie_word_embeddings:  # transformers 5 ties it unless a folder has two tables
        peer.lm_head.weight = nn.Parameter(torch.zeros(config.vocab_size, config.hidden_size))
    return shake(peer)


def batch(vocab: int, document: Tensor, source: Tensor) -> Inputs:
    """Pair ragged targets with ragged sources."""
    read = inputs(ids(vocab, length=max(SOURCES)), AttentionMask.bidirectional(source))
    return inputs(ids(vocab), AttentionMask.causal(document), encoder_inputs=read)


@torch.no_grad()
def same(ours: T5, peer: Theirs) -> None:
    whole, wholes = ragged((9, 9, 9)), ragged((12, 12, 12))
    for document, source in [(ragged(), ragged(SOURCES)), (ragged(), wholes), (whole, wholes)]:
        both = batch(ours.config.vocab_size, document, source)
        assert both.encoder_inputs is not None
        said = peer(
            input_ids=both.encoder_inputs.input_ids,
            attention_mask=source + 1,
            decoder_input_ids=both.input_ids,
            decoder_attention_mask=document + 1,
            output_hidden_states=True,
        )
        real = source == 0
        near(ours.encode(both.encoder_inputs)[real], said.encoder_last_hidden_state[real])
        real = document == 0
        hidden = ours(both).hidden
        assert hidden.isfinite().all()
        near(hidden[real], said.decoder_hidden_states[-1][real])
        near(ours.lm_logits(hidden).logits()[real], said.logits[real])


CASES = pytest.mark.parametrize(
    "config",
    [
        pytest.param(FIRST, id="1.0"),
        pytest.param(SECOND, id="1.1"),
        pytest.param(
            replace(FIRST, vocab_size=128, num_decoder_layers=None, head_dim=None), id="aligned"
        ),
        pytest.param(
            replace(SECOND, vocab_size=128, activation="silu", layer_norm_eps=1e-3), id="silu"
        ),
        pytest.param(replace(SECOND, activation="gelu"), id="exact"),
        pytest.param(replace(FIRST, num_buckets=8, max_distance=6, activation="gelu"), id="near"),
    ],
)


@pytest.mark.parity
@CASES
def test_their_folder_says_the_same_here(config: T5Config, tmp_path: Path) -> None:
    peer = theirs(config)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, T5) and ours.config == config
    same(ours, peer)


@pytest.mark.parity
@CASES
def test_our_folder_says_the_same_there(config: T5Config, tmp_path: Path) -> None:
    ours = shake(config.build())
    save(tmp_path, ours, None)
    same(ours, open_without_a_word(Theirs, tmp_path))


@pytest.mark.parity
@pytest.mark.parametrize("config", [FIRST, SECOND], ids=["1.0", "1.1"])
def test_training_gives_the_same_gradients(config: T5Config) -> None:
    peer = theirs(config).train()
    ours = with_weights_of(peer, config, table)
    document = ragged()
    both = batch(70, document, ragged((12, 12, 12)))  # padded targets, sources without padding
    assert both.encoder_inputs is not None
    labels = torch.where(document == 0, both.input_ids.flip(1), -100)
    expected = peer(
        input_ids=both.encoder_inputs.input_ids,
        decoder_input_ids=both.input_ids,
        decoder_attention_mask=document + 1,
        labels=labels,
    )
    same_step(table, ours, mean_nll(ours, ours(both).hidden, labels), peer, expected.loss)


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in FAMILY.sizes if name.startswith("t5-")])
def test_published_sizes_have_their_published_count(name: str) -> None:
    config = FAMILY.sizes[name]
    ours, count = count_both(config, table, Theirs)
    if not config.tie_word_embeddings:  # transformers 5 ties the output layer
        count += config.vocab_size * config.hidden_size
    assert ours == count == PUBLISHED.get(name, count)


@torch.no_grad()
@pytest.mark.parametrize("config", [FIRST, SECOND], ids=["1.0", "1.1"])
def test_cached_steps_equal_a_full_pass_in_rows_of_any_length(config: T5Config) -> None:
    model = shake(config.build())
    document = ragged()
    both = batch(70, document, ragged(SOURCES))
    whole, real = model(both).hidden, document == 0
    near(cached_steps(model, both)[real], whole[real])
    assert both.encoder_inputs is not None
    for row, (length, read) in enumerate(zip(LENGTHS, SOURCES, strict=True)):
        source = Inputs.from_ids(both.encoder_inputs.input_ids[row : row + 1, :read], causal=False)
        text = Inputs.from_ids(
            both.input_ids[row : row + 1, :length], causal=True, encoder_inputs=source
        )
        near(whole[row, :length], model(text).hidden[0])


@torch.no_grad()
def test_a_prompt_padded_in_front_goes_on_as_if_it_were_not() -> None:
    model = shake(SECOND.build())
    both, lengths = batch(70, ragged(), ragged(SOURCES)), (7, 3, 5)
    document, state = ragged(lengths).flip(1), KVCache(max_length=9)
    for start, stop in [(0, 7), (7, 8), (8, 9)]:
        now = slice(start, stop)
        here = document if start == 0 else torch.zeros(3, 1, dtype=torch.long)
        step = Inputs(
            input_ids=both.input_ids[:, now],
            attention_mask=AttentionMask.causal(here, start=start),
            position_ids=both.position_ids[:, now],
            encoder_inputs=both.encoder_inputs,
            cache=state,
        )
        hidden = model(step.append_to_cache()).hidden[:, -1]
    assert both.encoder_inputs is not None
    for row, (length, read) in enumerate(zip(lengths, SOURCES, strict=True)):
        source = Inputs.from_ids(both.encoder_inputs.input_ids[row : row + 1, :read], causal=False)
        text = Inputs.from_ids(
            both.input_ids[row : row + 1, 7 - length :], causal=True, encoder_inputs=source
        )
        near(hidden[row], model(text).hidden[0, -1])


@torch.no_grad()
def test_mimetic_initialization_starts_with_neighbors_and_with_the_same_token() -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=70, hidden_size=128, num_layers=2, num_heads=4, mimetic_init=True)
    model = config.build()
    distances = torch.arange(-8, 9)
    bias = model.encoder.position_bias(9, 9, 8)  # key position minus query position: -8 to 8
    assert bias.shape == (4, 17)
    assert distances[bias.argmax(1)].tolist() == [-1, 1, -1, 1]
    assert distances[bias.topk(2).indices].tolist() == [[-1, -2], [1, 2]] * 2
    assert (model.decoder.position_bias(9, 9).abs() < 1).all()
    tokens = model.token_embeddings.weight[:70]
    for layer in model.decoder.layers:
        attention = layer.cross_attention.sublayer
        query, key = attention.q_proj(tokens), attention.kv_proj(tokens).chunk(2, dim=-1)[0]
        heads = zip(query.split(32, dim=1), key.split(32, dim=1), strict=True)
        scores = torch.stack([q @ k.T for q, k in heads])
        assert (scores.argmax(-1) == torch.arange(70)).float().mean() > 0.95
        # Of the size that 1/sqrt(d) gives: neither flat nor a choice of one token alone.
        assert 0.5 < scores[:, ~torch.eye(70, dtype=torch.bool)].std() < 2


def test_mimetic_initialization_changes_no_other_weights() -> None:
    weights = []
    for mimetic in (False, True):
        config = replace(SECOND, mimetic_init=mimetic)
        torch.manual_seed(0)
        weights.append(config.build().state_dict())
        with torch.device("meta"):  # as `plan` counts parameters
            assert {n: w.shape for n, w in config.build().state_dict().items()} == {
                n: w.shape for n, w in weights[-1].items()
            }
    changed = {name for name in weights[0] if not torch.equal(weights[0][name], weights[1][name])}
    cross = {f"decoder.layers.{i}.cross_attention.sublayer.q_proj.weight" for i in range(3)}
    assert changed == {"encoder.position_bias.embedding.weight", *cross}
