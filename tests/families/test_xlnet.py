"""XLNet against its published sizes and against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer
from transformers import XLNetConfig as TheirConfig
from transformers import XLNetLMHeadModel as Theirs

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.errors import UserError
from kinfolk.families.xlnet import FAMILY, XLNet, XLNetConfig
from kinfolk.hub import load_model, save
from kinfolk.text import Tokenizer, train_tokenizer
from support.peers import (
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

# The sum of the table, the vector of guesses, the layers and the bias of the last scores, as
# transformers builds it. The paper gives no number.
table: Any = FAMILY.hf
PUBLISHED = {"xlnet-base-cased": 116_750_336, "xlnet-large-cased": 360_300_800}
SMALL = XLNetConfig(
    vocab_size=70, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=40, dropout=0.0
)

# Who is guessed after whom in three rows of 9, 5 and 7 tokens: 0 is context.
ORDER = torch.tensor(
    [
        [0, 2, 0, 1, 0, 0, 4, 3, 0],
        [1, 0, 3, 2, 4, 0, 0, 0, 0],
        [0, 0, 1, 0, 2, 4, 3, 0, 0],
    ]
)
ASKED = torch.tensor([[1, 3, 6, 7], [0, 3, 2, 4], [2, 4, 6, 5]])
SEGMENTS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2]).expand(3, -1)


def theirs(config: XLNetConfig = SMALL) -> Theirs:
    return shake(Theirs(TheirConfig(**table.to_config(config, None))), by=0.2)


def permuted(document: Tensor, *, segments: bool = True) -> Inputs:
    """Ask for tokens in the order above."""
    more = {"token_type_ids": SEGMENTS} if segments else {}
    return inputs(ids(70), AttentionMask(document, ORDER, ORDER), target_positions=ASKED, **more)


def mapped() -> Tensor:
    """Say the same as ASKED in their way: (batch, guesses, length), one where a guess stands."""
    return torch.nn.functional.one_hot(ASKED, 9).float()


def hidden_from(attention_mask: AttentionMask) -> Tensor:
    """Say who may not see whom in their way: one where query does not see key, nor itself."""
    places = torch.arange(attention_mask.key_order.shape[1]).expand_as(attention_mask.key_order)
    guessed = attention_mask.key_order > 0
    blind = ~attention_mask.dense() | (
        guessed[:, :, None] & torch.eye(places.shape[1], dtype=torch.bool)
    )
    return blind.float()


@torch.no_grad()
def same(ours: XLNet, peer: Theirs) -> None:
    """Compare reading: rows of one length and ragged ones, with segments and without."""
    tokens = ids(ours.config.vocab_size)
    document = ragged()
    for real in (document == 0, torch.ones_like(document, dtype=torch.bool)):
        for segments in (None, SEGMENTS):
            said = peer(
                tokens,
                attention_mask=real.float(),
                token_type_ids=segments,
                output_hidden_states=True,
            )
            attention_mask = AttentionMask.bidirectional(
                torch.where(real, 0, -1), unpacked=bool(real.all())
            )
            hidden = ours(inputs(tokens, attention_mask, token_type_ids=segments)).hidden
            near(hidden[real], said.hidden_states[-1][real])
            near(ours.lm_logits(hidden).logits()[real], said.logits[real])


@torch.no_grad()
def same_guesses(ours: XLNet, peer: Theirs) -> None:
    """Compare guessing: a permutation of each row, ragged and not."""
    for document in (ragged(), torch.zeros(3, 9, dtype=torch.long)):
        for segments in (False, True):
            given = permuted(document, segments=segments)
            said = peer(
                given.input_ids,
                input_mask=(document < 0).float(),
                perm_mask=hidden_from(given.attention_mask),
                target_mapping=mapped(),
                token_type_ids=given.token_type_ids,
                output_hidden_states=True,
            )
            hidden = ours(given).hidden
            near(hidden, said.hidden_states[-1])
            near(ours.lm_logits(hidden).logits(), said.logits)


CASES = pytest.mark.parametrize(
    "config",
    [
        pytest.param(SMALL, id="exact"),
        pytest.param(replace(SMALL, activation="gelu_new"), id="tanh"),
        pytest.param(
            replace(SMALL, activation="relu", intermediate_size=None, layer_norm_eps=1e-3),
            id="relu",
        ),
        pytest.param(replace(SMALL, clamp_len=3, num_heads=4), id="clamped"),
        pytest.param(replace(SMALL, vocab_size=128, num_layers=3, init_std=0.1), id="aligned"),
    ],
)


@pytest.mark.parity
@CASES
def test_their_folder_says_the_same_here(config: XLNetConfig, tmp_path: Path) -> None:
    peer = theirs(config)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, XLNet) and ours.config == config
    same(ours, peer)
    same_guesses(ours, peer)


@pytest.mark.parity
@CASES
def test_our_folder_says_the_same_there(config: XLNetConfig, tmp_path: Path) -> None:
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    peer = open_without_a_word(Theirs, tmp_path)
    same(ours, peer)
    same_guesses(ours, peer)


@pytest.mark.parity
@torch.no_grad()
def test_a_causal_network_attends_to_the_left_alone(tmp_path: Path) -> None:
    """One row at a time: transformers adds masks of several rows in place, which fails."""
    peer = theirs(replace(SMALL, causal=True))
    peer.save_pretrained(tmp_path)
    ours: Any = load_model(tmp_path)
    assert ours.config.causal and peer.config.attn_type == "uni"
    save(tmp_path / "again", ours, None)
    assert load_model(tmp_path / "again").config == ours.config
    tokens = ids(70)
    for row in range(3):
        said = peer(tokens[row : row + 1], output_hidden_states=True).hidden_states[-1]
        near(ours(Inputs.from_ids(tokens[row : row + 1], causal=False)).hidden, said)
    for row in (0, 2):  # a target of the other row has no token to its left
        order = ORDER[row : row + 1]
        given = inputs(
            tokens[row : row + 1],
            AttentionMask(torch.zeros_like(order), order, order),
            target_positions=ASKED[row : row + 1],
        )
        said = peer(
            given.input_ids,
            perm_mask=hidden_from(given.attention_mask),
            target_mapping=mapped()[row : row + 1],
        )
        near(ours.lm_logits(ours(given).hidden).logits(), said.logits)


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    peer = theirs().train()
    ours = with_weights_of(peer, SMALL, table)
    document = ragged()
    given = permuted(document)
    labels = given.input_ids.gather(1, ASKED)
    said = peer(
        given.input_ids,
        input_mask=(document < 0).float(),
        perm_mask=hidden_from(given.attention_mask),
        target_mapping=mapped(),
        token_type_ids=given.token_type_ids,
        labels=labels,
    )
    same_step(table, ours, mean_nll(ours, ours(given).hidden, labels), peer, said.loss)


@pytest.mark.parity
@torch.no_grad()
@pytest.mark.parametrize("memory", [None, 5], ids=["all", "cut"])
def test_a_memory_is_theirs(memory: int | None) -> None:
    """Three segments in a row, with guesses in the last; `memory` slots are kept, or all."""
    peer = shake(Theirs(TheirConfig(**table.to_config(SMALL, None) | {"mem_len": memory})), by=0.2)
    ours = with_weights_of(peer, SMALL, table).eval()
    state, mems = KVCache(30), None
    for part in range(2):
        tokens = (ids(70, length=4) + part) % 70
        said = peer(tokens, mems=mems, use_mems=True, output_hidden_states=True)
        mems = said.mems
        hidden = ours(
            replace(Inputs.from_ids(tokens, causal=False), cache=state).append_to_cache()
        ).hidden
        near(hidden, said.hidden_states[-1])
        if memory is not None:
            state.keep_last(memory)
    assert mems is not None and mems[0].shape[0] == (memory or 8) == state.length
    given = replace(permuted(torch.zeros(3, 9, dtype=torch.long)), cache=state)
    said = peer(
        given.input_ids,
        mems=mems,
        use_mems=True,
        perm_mask=hidden_from(given.attention_mask),
        target_mapping=mapped(),
        token_type_ids=given.token_type_ids,
    )
    near(ours.lm_logits(ours(given.append_to_cache()).hidden).logits(), said.logits)


@pytest.mark.parity
@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_sizes_have_their_published_count(name: str) -> None:
    assert count_both(FAMILY.sizes[name], table, Theirs) == (PUBLISHED[name], PUBLISHED[name])


@pytest.mark.parity
def test_the_tokenizer_opens_in_transformers_with_the_same_frame(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(
        ["low lower lowest new newer newest wide wider"] * 9, kind="byte", vocab_size=400
    )
    save(tmp_path, replace(SMALL, vocab_size=tokenizer.vocab_size).build(), tokenizer)
    mine = Tokenizer.load(tmp_path)
    peer = AutoTokenizer.from_pretrained(tmp_path)
    text, special = "a lower, newer wide low", mine.special_tokens
    inner, other = (mine.encode(t, add_special_tokens=False) for t in (text, "wide"))
    said = peer(text)
    assert said["input_ids"] == mine.encode(text) == [*inner, special.sep, special.cls]
    assert said["token_type_ids"] == [0] * (len(inner) + 1) + [2]
    pair = peer(text, "wide")
    assert pair["input_ids"] == [*inner, special.sep, *other, special.sep, special.cls]
    assert pair["token_type_ids"] == [0] * (len(inner) + 1) + [1] * (len(other) + 1) + [2]


@torch.no_grad()
def test_two_segments_with_a_memory_equal_one_pass_over_both() -> None:
    """Left to right, in rows of any length; and a guess at what comes next, from the memory."""
    model = shake(SMALL.build(), by=0.2).double()
    tokens, document = ids(70), ragged()
    whole = model(inputs(tokens, AttentionMask.causal(document))).hidden
    state, parts = KVCache(9), []
    for start, stop in [(0, 4), (4, 5), (5, 9)]:
        now = slice(start, stop)
        segment = inputs(
            tokens[:, now], AttentionMask.causal(document[:, now], start=start), cache=state
        )
        parts.append(model(segment.append_to_cache()).hidden)
    real = document == 0
    near(torch.cat(parts, 1)[real], whole[real], within=1e-12)
    last = torch.full((3, 1), 8)
    attention_mask = AttentionMask.causal(torch.zeros_like(document))
    guess = model(inputs(tokens, attention_mask, target_positions=last)).hidden
    state = KVCache(9)
    begun = inputs(
        tokens[:, :7], AttentionMask.causal(torch.zeros(3, 7, dtype=torch.long)), cache=state
    )
    model(begun.append_to_cache())
    end = AttentionMask.causal(torch.zeros(3, 2, dtype=torch.long), start=7)
    rest = inputs(tokens[:, 7:], end, target_positions=last - 7, cache=state)
    again = model(rest.append_to_cache()).hidden
    near(again, guess, within=1e-12)


def test_the_content_learns_of_nothing_that_its_sight_forbids() -> None:
    """The contract asks the guesses; a pass without questions is the content itself."""
    model = shake(SMALL.build(), by=0.2)
    given = replace(permuted(ragged()), target_positions=None)
    seen: list[Tensor] = []
    hook = model.token_embeddings.register_forward_hook(lambda *step: seen.append(step[-1]))
    scores = model.lm_logits(model(given).hidden).logits().square().sum(-1)
    hook.remove()
    real, table = ragged() == 0, given.attention_mask.dense()
    for row, slot in real.nonzero().tolist():
        (found,) = torch.autograd.grad(scores[row, slot], seen, retain_graph=True)
        assert torch.equal(found[row].abs().amax(-1) > 0, table[row, slot])
        assert not found[torch.arange(3) != row].any()


@torch.no_grad()
def test_a_guess_does_not_change_with_the_token_that_stands_there() -> None:
    model = shake(SMALL.build(), by=0.2)
    given = permuted(torch.zeros(3, 9, dtype=torch.long))
    first = model(given).hidden
    for question in range(4):
        slot = ASKED[:, question : question + 1]
        changed = given.input_ids.scatter(1, slot, (given.input_ids.gather(1, slot) + 1) % 70)
        again = model(replace(given, input_ids=changed)).hidden
        later = ORDER.gather(1, ASKED) > ORDER.gather(1, slot)
        assert torch.equal(again[~later], first[~later])
        assert (again != first).any(-1)[later].all()


@pytest.mark.parametrize(
    "options", [{"attn_type": "tri"}, {"bi_data": True}, {"untie_r": False}, {"d_head": 4}]
)
def test_what_changes_the_network_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        table.from_config(table.to_config(SMALL, None) | options)
