"""How rows become token sequences, against tables written by hand and other libraries."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.rng import Stream, generator
from kinfolk.tasks.formulations.base import pack_examples, segment_log_softmax, split_by_instance
from kinfolk.tasks.formulations.sequences import (
    apply_template,
    build_example,
    encode_continuation,
    encode_plain,
    encode_words,
    fill_pattern,
    num_special_tokens,
    split_to_fit,
    truncate_longest_first,
)
from kinfolk.tasks.formulations.span_head import char_to_token_span, window_starts
from kinfolk.tasks.rows import LabelledText, detokenize, space_between
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.text.tokenizer import TEMPLATES, SpecialTokens
from kinfolk.text.train import KINDS
from support.runs import text
from support.task_rows import WORDS, tokenizer

SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=(7, 8, 9))
NO = IGNORE_INDEX


def read(ids: list[int], **more: Any) -> Example:
    return Example(input_ids=np.array(ids), **{"order": np.arange(len(ids)), **more})


def test_readings_lie_side_by_side_and_know_where_they_went() -> None:
    some = [read([11, 12, 13]), read([21, 22, 23, 24, 25]), read([31, 32], order=np.zeros(2, int))]
    page = pack_examples(some, pad_id=9)
    assert page.inputs.input_ids.tolist() == [[11, 12, 13, 21, 22, 23, 24, 25], [31, 32] + [9] * 6]
    assert page.inputs.attention_mask.document_ids.tolist() == [
        [0] * 3 + [1] * 5,
        [0] * 2 + [PADDING_ID] * 6,
    ]
    assert page.inputs.attention_mask.query_order.tolist() == [[*range(8)], [0, 0, *range(2, 8)]]
    assert (
        page.inputs.attention_mask.key_order.tolist()
        == page.inputs.attention_mask.query_order.tolist()
    )
    assert page.inputs.position_ids is not None
    assert page.inputs.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4], [0, 1] + [0] * 6]
    assert page.offsets.tolist() == [0, 3, 8]
    assert page.inputs.token_type_ids is None and page.inputs.encoder_inputs is None


def test_slots_and_predicted_tokens_are_found_through_the_rows() -> None:
    labels = np.array([NO, 7, 8])
    some = [
        read([1, 2], read_positions=np.array([1])),
        read([3] * 7, read_positions=np.array([0, 6])),
        read([4, 5, 6], labels=labels, read_positions=np.array([2])),
    ]
    page = pack_examples(some, pad_id=0)
    flat = page.inputs.input_ids.flatten()
    assert flat[page.read_positions(some)].tolist() == [2, 3, 3, 6]
    tokens, owner = page.token_targets(some)
    assert tokens.labels.tolist() == [7, 8] and owner.tolist() == [2, 2]
    assert tokens.positions is not None and flat[tokens.positions].tolist() == [5, 6]


def test_sources_lie_in_rows_of_their_own_that_match() -> None:
    some = [
        read([1, 2], encoder_input_ids=np.array([11])),
        read([3], encoder_input_ids=np.array([12] * 6)),
        read([4, 5, 6], encoder_input_ids=np.array([13] * 9)),
    ]
    inputs = pack_examples(some, pad_id=0).inputs
    assert inputs.encoder_inputs is not None
    for row in range(len(inputs.input_ids)):
        for document in range(int(inputs.attention_mask.document_ids[row].max()) + 1):
            own = inputs.input_ids[row][
                inputs.attention_mask.document_ids[row] == document
            ].tolist()
            source = inputs.encoder_inputs.input_ids[row][
                inputs.encoder_inputs.attention_mask.document_ids[row] == document
            ].tolist()
            assert (own, source) in [([1, 2], [11]), ([3], [12] * 6), ([4, 5, 6], [13] * 9)]
    assert inputs.encoder_inputs.attention_mask.query_order.eq(0).all()
    assert int((inputs.encoder_inputs.attention_mask.document_ids >= 0).sum()) == 16


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Save the tokenizer in every frame, and open it with transformers."""
    folders = {frame: tmp_path_factory.mktemp(frame) for frame in TEMPLATES}
    for frame, folder in folders.items():
        tokenizer().save(Path(folder), template=frame)
    opened = transformers.AutoTokenizer.from_pretrained
    return {frame: opened(str(folder)) for frame, folder in folders.items()}


@pytest.mark.parity
@pytest.mark.parametrize("frame", TEMPLATES)
def test_frames_and_cuts_are_those_of_transformers(saved: dict[str, Any], frame: str) -> None:
    chance = random.Random(1)
    for _ in range(60):
        texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 14))) for _ in range(2)]
        texts = texts[: chance.randint(1, 2)]
        length = chance.randint(8, 24)
        there = saved[frame](
            *texts, truncation="longest_first", max_length=length, return_token_type_ids=True
        )
        ids = encode_plain(tokenizer(), texts)
        kept, cut = truncate_longest_first(ids, length - num_special_tokens(frame, len(texts)))
        here = apply_template(frame, tokenizer().special_tokens, kept)
        assert here.ids.tolist() == there["input_ids"]
        assert here.token_type_ids.tolist() == there["token_type_ids"]
        assert cut == sum(map(len, ids)) - sum(map(len, kept))
        for start, some in zip(here.offsets, kept, strict=True):
            assert here.ids[start : start + len(some)].tolist() == some


def test_a_frame_knows_the_token_that_stands_for_the_whole() -> None:
    texts = [[50, 51], [60]]
    assert apply_template("bert", SPECIALS, texts).cls_index == 0
    assert apply_template("xlnet", SPECIALS, texts).ids.tolist() == [50, 51, 5, 60, 5, 4]
    assert apply_template("xlnet", SPECIALS, texts).cls_index == 5


def test_the_longer_text_is_cut_first() -> None:
    long, short = list(range(10)), list(range(3))
    assert truncate_longest_first([long, short], 8) == ([long[:5], short], 5)
    assert truncate_longest_first([short, long], 8) == ([short, long[:5]], 5)
    assert truncate_longest_first([long, long], 7) == ([long[:3], long[:4]], 13)
    assert truncate_longest_first([long, [*long, 10]], 7) == ([long[:3], long[:4]], 14)
    assert truncate_longest_first([[*long, 10], long], 7) == ([long[:4], long[:3]], 14)
    assert truncate_longest_first([long, []], 7) == ([long[:7], []], 3)
    assert truncate_longest_first([long], 12) == ([long], 0)
    with pytest.raises(UserError, match="--length leaves 1 tokens for 2 texts"):
        truncate_longest_first([long, short], 1)


def test_a_decoder_says_what_follows_a_step_apart() -> None:
    said = build_example("decoder", SPECIALS, [50, 51], [60, 61])
    assert said.input_ids.tolist() == [2, 50, 51, 60, 61]
    assert said.labels is not None
    assert said.labels.tolist() == [NO, NO, 60, 61, 3]
    assert said.order.tolist() == [0, 1, 2, 3, 4]
    assert said.position_ids is None and said.encoder_input_ids is None
    open_ended = build_example("decoder", SPECIALS, [50, 51], [60, 61], [70], end=False)
    assert open_ended.input_ids.tolist() == [2, 50, 51, 60, 61]
    assert open_ended.labels is not None
    assert open_ended.labels.tolist() == [NO, NO, 60, 61, 70]


def test_an_encoder_reads_and_a_decoder_says() -> None:
    said = build_example("encoder-decoder", SPECIALS, [50, 51], [60, 61])
    assert said.encoder_input_ids is not None and said.labels is not None
    assert said.encoder_input_ids.tolist() == [50, 51, 3]
    assert said.input_ids.tolist() == [0, 60, 61] and said.labels.tolist() == [60, 61, 3]
    hole = build_example("encoder-decoder", SPECIALS, [50], [60, 61], [51], end=False, infill=True)
    assert hole.encoder_input_ids is not None and hole.labels is not None
    assert hole.encoder_input_ids.tolist() == [50, 7, 51, 3]
    assert hole.input_ids.tolist() == [0, 7, 60, 61] and hole.labels.tolist() == [NO, 60, 61, NO]


def test_blanks_are_filled_at_the_place_of_their_mask() -> None:
    said = build_example("blanks", SPECIALS, [50, 51], [60, 61], [52], infill=True)
    assert (
        said.labels is not None
        and said.position_ids is not None
        and said.block_position_ids is not None
    )
    assert said.input_ids.tolist() == [50, 51, 6, 52, 2, 60, 61]
    assert said.labels.tolist() == [NO, NO, NO, NO, 60, 61, 3]
    assert said.position_ids.tolist() == [0, 1, 2, 3, 2, 2, 2]
    assert said.block_position_ids.tolist() == [0, 0, 0, 0, 1, 2, 3]
    assert said.order.tolist() == [0, 0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("infill", [True, False])
def test_blanks_are_laid_out_as_in_pretraining(infill: bool) -> None:
    known = BlankInfilling(special_tokens=SPECIALS, vocab_size=100, max_length=32)
    after = [52, 53] if infill else []
    whole = np.array([50, 51, 60, 61, 62, *after])
    mask = known.glm_tokens.mask if infill else known.glm_tokens.gmask
    wanted = known.corrupt(whole, [(2, 5)], mask)
    found = build_example("blanks", SPECIALS, [50, 51], [60, 61, 62], after, infill=infill)
    for name in ("input_ids", "labels", "position_ids", "block_position_ids", "order"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name


def test_pairs_are_laid_out_as_in_translation() -> None:
    known = Seq2Seq(special_tokens=SPECIALS, vocab_size=100, max_length=32)
    (chunk,) = list(known.chunks(InMemoryDocuments.from_lists([[[50, 51, 52], [60, 61]]])))
    wanted = known.example(chunk, generator(0, Stream.ORDER))
    found = build_example("encoder-decoder", SPECIALS, [50, 51, 52], [60, 61])
    for name in ("encoder_input_ids", "input_ids", "labels"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name


def test_windows_cover_a_context_and_end_where_it_does() -> None:
    assert window_starts(10, 10, 5) == [0]
    assert window_starts(11, 10, 5) == [0, 1]
    assert window_starts(20, 10, 5) == [0, 5, 10]
    assert window_starts(23, 10, 5) == [0, 5, 10, 13]
    assert window_starts(30, 10, 50) == [0, 10, 20]  # no token is passed over
    for size in range(60):
        for room, step in ((7, 3), (8, 8), (1, 1)):
            starts = window_starts(size, room, step)
            assert {t for s in starts for t in range(s, min(s + room, size))} == set(range(size))
            assert max(starts) + room <= max(size, room) and len(set(starts)) == len(starts)


def test_an_answer_covers_tokens_counted_from_one() -> None:
    spans = [(0, 3), (4, 7), (7, 9), (10, 14)]  # of "the cat's tail"
    assert char_to_token_span(spans, (4, 9)) == (2, 3)
    assert char_to_token_span(spans, (0, 3)) == (1, 1)
    assert char_to_token_span(spans, (5, 12)) == (2, 4)  # a part of a token takes it all
    assert char_to_token_span(spans, (-1, -1)) == (0, 0)
    assert char_to_token_span(spans[2:], (4, 9)) == (0, 0)  # half of it is no answer
    assert char_to_token_span(spans[:2], (4, 9)) == (0, 0)
    assert char_to_token_span([], (4, 9)) == (0, 0)


def test_words_are_parted_where_room_ends() -> None:
    assert split_to_fit([1, 1, 1, 1], 4) == [(0, 4)]
    assert split_to_fit([2, 2, 2], 4) == [(0, 2), (2, 3)]
    assert split_to_fit([1, 9, 1], 4) == [(0, 1), (1, 2), (2, 3)]  # one word too long for any room
    assert split_to_fit([], 4) == []
    chance = random.Random(0)
    for _ in range(50):
        sizes = chance.choices(range(1, 7), k=chance.randint(1, 30))
        found = split_to_fit(sizes, 6)
        assert [place for start, stop in found for place in range(start, stop)] == [
            *range(len(sizes))
        ]
        assert all(sum(sizes[start:stop]) <= 6 for start, stop in found)


@pytest.fixture(scope="module")
def kinds() -> dict[str, Tokenizer]:
    return {
        kind: train_tokenizer([text()], kind=kind, vocab_size=420, fewer=True) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_texts_in_parts_have_the_ids_of_the_whole(kinds: dict[str, Tokenizer], kind: str) -> None:
    known = kinds[kind]
    before, said, after = "The cat saw", "the garden", " in the morning."
    parts = [
        known.offsets(before)[0],
        encode_continuation(known, before, said),
        known.offsets(after)[0],
    ]
    assert [id for part in parts for id in part] == known.offsets(f"{before} {said}{after}")[0]
    words = ["a", "red", "bird", "followed", "the", "river", "."]
    chunks = encode_words(known, words)
    assert len(chunks) == len(words)
    assert [id for chunk in chunks for id in chunk] == known.offsets(" ".join(words))[0]


def test_words_are_joined_as_they_are_written() -> None:
    assert detokenize(["我", "爱", "Berlin", "and", "茶"]) == "我爱Berlin and茶"
    assert (
        space_between("a ", "b") == ""
        and space_between("", "b") == ""
        and space_between("a", "b") == " "
    )


@pytest.mark.parametrize(
    "hole",
    ["{text.x}", "{text[a]}", "{text[0]}", "{text!r}", "{text:>99999999999}", "{}", "{", "}"],
)
def test_only_the_fields_of_a_row_are_filled_in(hole: str) -> None:
    row = LabelledText(("a film",), None, 1)
    with pytest.raises(UserError, match="names a field that the rows do not have"):
        fill_pattern(f"{hole} {{answer}}", row)
    assert fill_pattern("{{text}} {text}: {answer}", row) == ("{text} a film: ", "")


def test_a_pattern_is_filled_in_and_parted_at_its_hole() -> None:
    row = LabelledText(("a {fine} film", "yes"), "good", 1)
    assert fill_pattern("{text1} / {text2}: {answer}!", row) == ("a {fine} film / yes: ", "!")
    with pytest.raises(UserError, match=r"has no {answer}"):
        fill_pattern("{text}", row)
    with pytest.raises(UserError, match=r"use {text}, {text1}, {text2} and {answer}"):
        fill_pattern("{premise} {answer}", row)


def test_scores_compete_within_their_group() -> None:
    torch.manual_seed(0)
    sizes = [1, 4, 2, 7]
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    scores = (torch.randn(14) * 50).requires_grad_()
    found = segment_log_softmax(scores, group, 4)
    wanted = torch.cat([part.log_softmax(0) for part in torch.split(scores, sizes)])
    torch.testing.assert_close(found, wanted)
    weight = torch.randn(14)
    here, there = (torch.autograd.grad((x * weight).sum(), scores)[0] for x in (found, wanted))
    torch.testing.assert_close(here, there)
    assert [len(part) for part in split_by_instance(scores.detach(), group)] == sizes
