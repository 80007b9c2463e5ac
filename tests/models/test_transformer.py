"""The Transformer against its published sizes and against torch's own."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peer import ids, inputs, near, parameters, ragged, shake
from torch import Tensor, nn

from hollow import hollow
from kinfolk.errors import UserError
from kinfolk.hub import load_model, save
from kinfolk.models.transformer import PRESETS, Transformer, TransformerConfig, waves
from kinfolk.sight import Sight
from kinfolk.types import Inputs, State

CONFIG = TransformerConfig(vocab=70, width=16, depth=2, heads=2, inner=24, dropout=0.0)
SOURCES = (12, 3, 8)  # the lengths of the sources; not those of the targets

# Table 3 says 65 and 213 million. Its base model is larger than its own sizes give with any one
# vocabulary that fits the big one: 65 would take 40,800 pieces, 213 would take 35,800.
PUBLISHED = {"transformer-base": (63_045_632, 65e6), "transformer-big": (214_171_648, 213e6)}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def batch(document: Tensor, source: Tensor) -> Inputs:
    """Pair ragged targets with ragged sources."""
    read = inputs(ids(70, length=max(SOURCES)), Sight.full(source))
    return inputs(ids(70), Sight.causal(document), source=read)


def theirs(c: TransformerConfig) -> nn.Transformer:
    """Build torch's, without the two norms that the paper does not have."""
    sizes = (c.width, c.heads, c.inner or 4 * c.width, 0.0)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, batch_first=True), c.depth, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, batch_first=True), c.depth)
    peer = nn.Transformer(custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    return shake(peer)  # type: ignore[no-any-return]


@torch.no_grad()
def copied(peer: nn.Transformer, model: Transformer) -> Transformer:
    """Take torch's weights over; its projections have biases, which become zero there."""
    for ours, other in (
        *zip(model.encoder.blocks, peer.encoder.layers, strict=True),
        *zip(model.decoder.blocks, peer.decoder.layers, strict=True),
    ):
        for name, parameter in other.named_parameters():
            if "attn" in name and "bias" in name:
                parameter.zero_()
        ours.attend.branch.qkv.weight.copy_(other.self_attn.in_proj_weight)
        ours.attend.branch.out.weight.copy_(other.self_attn.out_proj.weight)
        norms = [ours.attend.norm, ours.feed.norm]
        if ours.cross is not None:
            cross = other.multihead_attn.in_proj_weight
            ours.cross.branch.query.weight.copy_(cross[: model.config.width])
            ours.cross.branch.kv.weight.copy_(cross[model.config.width :])
            ours.cross.branch.out.weight.copy_(other.multihead_attn.out_proj.weight)
            norms.insert(1, ours.cross.norm)
        for number, norm in enumerate(norms, 1):
            norm.load_state_dict(getattr(other, f"norm{number}").state_dict())
        ours.feed.branch.widen.load_state_dict(other.linear1.state_dict())
        ours.feed.branch.narrow.load_state_dict(other.linear2.state_dict())
    return model


def embedded(model: Transformer, tokens: Tensor) -> Tensor:
    """Embed as section 3.4 and 3.5 say, written out."""
    width = model.config.width
    table = torch.zeros(tokens.shape[1], width)
    for place in range(tokens.shape[1]):
        for i in range(width // 2):
            angle = place / 10_000 ** (2 * i / width)
            table[place, 2 * i], table[place, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return model.tokens.weight[tokens] * math.sqrt(width) + table


@pytest.mark.parity
@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, inner=None, heads=4)])
@pytest.mark.parametrize("training", [False, True], ids=["resting", "training"])
def test_both_stacks_say_what_torchs_say(config: TransformerConfig, training: bool) -> None:
    peer = theirs(config)
    model = copied(peer, shake(config.build()))
    peer.train(training)
    model.train(training)
    whole, wholes = ragged((9, 9, 9)), ragged((12, 12, 12))
    for document, source in [(ragged(), ragged(SOURCES)), (ragged(), wholes), (whole, wholes)]:
        both = batch(document, source)
        assert both.source is not None
        read = peer.encoder(embedded(model, both.source.ids), src_key_padding_mask=source < 0)
        said = peer.decoder(
            embedded(model, both.ids),
            read,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(9) < 0,
            tgt_key_padding_mask=document < 0,
            memory_key_padding_mask=source < 0,
        )
        near(model.encode(both.source)[source == 0], read[source == 0])
        hidden = model(both).hidden
        assert hidden.isfinite().all()
        near(hidden[document == 0], said[document == 0])
        logits = model.predict(hidden).logits()[document == 0]
        near(logits, (said @ model.tokens.weight[:70].T)[document == 0])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_the_papers_within_its_rounding(name: str) -> None:
    with hollow():
        count = parameters(PRESETS[name].build())
    exact, said = PUBLISHED[name]
    assert count == exact
    assert abs(count - said) < 0.031 * said


def test_the_published_count_follows_from_the_papers_sizes() -> None:
    """Section 3: matrices of attention without biases, a feed-forward with, norms after each."""
    for name, (exact, _) in PUBLISHED.items():
        c = PRESETS[name]
        attention, norm = 4 * c.width**2, 2 * c.width
        feed = 2 * c.width * 4 * c.width + 5 * c.width
        encoder, decoder = attention + feed + 2 * norm, 2 * attention + feed + 3 * norm
        assert exact == 37000 * c.width + 6 * (encoder + decoder)


def test_places_are_not_learned_and_not_saved(tmp_path: Path) -> None:
    model = shake(CONFIG.build())
    assert not [name for name in model.state_dict() if "place" in name or "wave" in name]
    save(tmp_path, model, None)
    again = load_model(tmp_path)
    both = batch(ragged(), ragged(SOURCES))
    assert torch.equal(again(both).hidden, model(both).hidden)
    assert (waves(torch.tensor([[5000]]), 16) != waves(torch.tensor([[5001]]), 16)).any()


def test_tokens_start_at_size_one_once_scaled_and_one_table_serves_all() -> None:
    model = replace(CONFIG, vocab=2000, width=64).build()
    scaled = model.tokens.weight[:2000] * 8.0
    assert scaled.std().item() == pytest.approx(1.0, rel=0.02)
    assert [n for n, p in model.named_parameters() if 2048 in p.shape] == ["tokens.weight"]


@torch.no_grad()
def test_a_prompt_padded_in_front_goes_on_as_if_it_were_not() -> None:
    """Places come from the inputs: the first token of each text stands at 0 wherever it lies."""
    model = shake(CONFIG.build())
    both, lengths = batch(ragged(), ragged(SOURCES)), (7, 3, 5)
    document, state = ragged(lengths).flip(1), State(capacity=9)
    skipped = torch.tensor([[7 - length] for length in lengths])
    for start, stop in [(0, 7), (7, 8), (8, 9)]:
        now = slice(start, stop)
        places = (torch.arange(start, stop) - skipped).clamp(min=0)
        here = document if start == 0 else torch.zeros(3, 1, dtype=torch.long)
        step = Inputs(
            ids=both.ids[:, now],
            sight=Sight(here, places, places),
            places=places,
            source=both.source,
            state=state,
        )
        hidden = model(step.append_to_cache()).hidden[:, -1]
    assert both.source is not None and len(state.caches) == len(state.crossed) == 2
    for row, (length, read) in enumerate(zip(lengths, SOURCES, strict=True)):
        source = Inputs.of(both.source.ids[row : row + 1, :read], causal=False)
        text = Inputs.of(both.ids[row : row + 1, 7 - length :], causal=True, source=source)
        near(hidden[row], model(text).hidden[0, -1])


def test_a_source_is_needed() -> None:
    with pytest.raises(UserError, match="give its inputs in `source`"):
        CONFIG.build()(Inputs.of(ids(70), causal=True))
