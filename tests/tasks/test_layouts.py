"""How rows become what a network reads, against tables written by hand and other libraries."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.pieces import Loose
from kinfolk.errors import UserError
from kinfolk.objectives.blanks import Blanks
from kinfolk.objectives.pairs import Pairs
from kinfolk.rng import Stream, generator
from kinfolk.tasks.examples import Reading, lay_out
from kinfolk.tasks.framing import around, encoded, fitting, framed
from kinfolk.tasks.rows import Labelled
from kinfolk.tasks.speech import after_text, around_hole, glue, joined, reading
from kinfolk.tasks.ways.ends import covering, windows
from kinfolk.tasks.ways.way import by_group, log_softmax_by
from kinfolk.tasks.ways.words import spelled, stretches
from kinfolk.text import Tokenizer, train
from kinfolk.text.tokenizer import FRAMES, Specials
from kinfolk.text.vocabulary import KINDS
from little import text
from solving import WORDS, tokenizer

SPECIALS = Specials(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=(7, 8, 9))
NO = IGNORE_INDEX


def read(ids: list[int], **more: Any) -> Reading:
    return Reading(ids=np.array(ids), **{"time": np.arange(len(ids)), **more})


def test_readings_lie_side_by_side_and_know_where_they_went() -> None:
    some = [read([11, 12, 13]), read([21, 22, 23, 24, 25]), read([31, 32], time=np.zeros(2, int))]
    page = lay_out(some, pad=9)
    assert page.inputs.input_ids.tolist() == [[11, 12, 13, 21, 22, 23, 24, 25], [31, 32] + [9] * 6]
    assert page.inputs.attention_mask.document_ids.tolist() == [
        [0] * 3 + [1] * 5,
        [0] * 2 + [PADDING_ID] * 6,
    ]
    assert page.inputs.attention_mask.query_order.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4], [0] * 8]
    assert (
        page.inputs.attention_mask.key_order.tolist()
        == page.inputs.attention_mask.query_order.tolist()
    )
    assert page.inputs.position_ids is not None
    assert page.inputs.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4], [0, 1] + [0] * 6]
    assert page.starts.tolist() == [0, 3, 8]
    assert page.inputs.token_type_ids is None and page.inputs.encoder_inputs is None


def test_slots_and_predicted_tokens_are_found_through_the_rows() -> None:
    labels = np.array([NO, 7, 8])
    some = [
        read([1, 2], slots=np.array([1])),
        read([3] * 7, slots=np.array([0, 6])),
        read([4, 5, 6], labels=labels, slots=np.array([2])),
    ]
    page = lay_out(some, pad=0)
    flat = page.inputs.input_ids.flatten()
    assert flat[page.slots(some)].tolist() == [2, 3, 3, 6]
    tokens, owner = page.tokens(some)
    assert tokens.labels.tolist() == [7, 8] and owner.tolist() == [2, 2]
    assert tokens.positions is not None and flat[tokens.positions].tolist() == [5, 6]


def test_sources_lie_in_rows_of_their_own_that_match() -> None:
    some = [
        read([1, 2], source=np.array([11])),
        read([3], source=np.array([12] * 6)),
        read([4, 5, 6], source=np.array([13] * 9)),
    ]
    inputs = lay_out(some, pad=0).inputs
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
    folders = {frame: tmp_path_factory.mktemp(frame) for frame in FRAMES}
    for frame, folder in folders.items():
        tokenizer().save(Path(folder), frame=frame)
    opened = transformers.AutoTokenizer.from_pretrained
    return {frame: opened(str(folder)) for frame, folder in folders.items()}


@pytest.mark.parity
@pytest.mark.parametrize("frame", FRAMES)
def test_frames_and_cuts_are_those_of_transformers(saved: dict[str, Any], frame: str) -> None:
    chance = random.Random(1)
    for _ in range(60):
        texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 14))) for _ in range(2)]
        texts = texts[: chance.randint(1, 2)]
        length = chance.randint(8, 24)
        there = saved[frame](
            *texts, truncation="longest_first", max_length=length, return_token_type_ids=True
        )
        ids = encoded(tokenizer(), texts)
        kept, cut = fitting(ids, length - around(frame, len(texts)))
        here = framed(frame, tokenizer().specials, kept)
        assert here.ids.tolist() == there["input_ids"]
        assert here.segments.tolist() == there["token_type_ids"]
        assert cut == sum(map(len, ids)) - sum(map(len, kept))
        for start, some in zip(here.starts, kept, strict=True):
            assert here.ids[start : start + len(some)].tolist() == some


def test_a_frame_knows_the_token_that_stands_for_the_whole() -> None:
    texts = [[50, 51], [60]]
    assert framed("bert", SPECIALS, texts).summary == 0
    assert framed("xlnet", SPECIALS, texts).ids.tolist() == [50, 51, 5, 60, 5, 4]
    assert framed("xlnet", SPECIALS, texts).summary == 5


def test_the_longer_text_is_cut_first() -> None:
    long, short = list(range(10)), list(range(3))
    assert fitting([long, short], 8) == ([long[:5], short], 5)
    assert fitting([short, long], 8) == ([short, long[:5]], 5)
    assert fitting([long, long], 7) == ([long[:3], long[:4]], 13)
    assert fitting([long, [*long, 10]], 7) == ([long[:3], long[:4]], 14)
    assert fitting([[*long, 10], long], 7) == ([long[:4], long[:3]], 14)
    assert fitting([long, []], 7) == ([long[:7], []], 3)
    assert fitting([long], 12) == ([long], 0)
    with pytest.raises(UserError, match="1 tokens has no room for 2 texts"):
        fitting([long, short], 1)


def test_a_decoder_says_what_follows_a_step_apart() -> None:
    said = reading("decoder", SPECIALS, [50, 51], [60, 61])
    assert said.ids.tolist() == [2, 50, 51, 60, 61]
    assert said.labels is not None
    assert said.labels.tolist() == [NO, NO, 60, 61, 3]
    assert said.time.tolist() == [0, 1, 2, 3, 4]
    assert said.places is None and said.source is None
    open_ended = reading("decoder", SPECIALS, [50, 51], [60, 61], [70], end=False)
    assert open_ended.ids.tolist() == [2, 50, 51, 60, 61]
    assert open_ended.labels is not None
    assert open_ended.labels.tolist() == [NO, NO, 60, 61, 70]


def test_an_encoder_reads_and_a_decoder_says() -> None:
    said = reading("encoder-decoder", SPECIALS, [50, 51], [60, 61])
    assert said.source is not None and said.labels is not None
    assert said.source.tolist() == [50, 51, 3]
    assert said.ids.tolist() == [0, 60, 61] and said.labels.tolist() == [60, 61, 3]
    hole = reading("encoder-decoder", SPECIALS, [50], [60, 61], [51], end=False, hole=True)
    assert hole.source is not None and hole.labels is not None
    assert hole.source.tolist() == [50, 7, 51, 3]
    assert hole.ids.tolist() == [0, 7, 60, 61] and hole.labels.tolist() == [NO, 60, 61, NO]


def test_blanks_are_filled_at_the_place_of_their_mask() -> None:
    said = reading("blanks", SPECIALS, [50, 51], [60, 61], [52], hole=True)
    assert said.labels is not None and said.places is not None and said.within is not None
    assert said.ids.tolist() == [50, 51, 6, 52, 2, 60, 61]
    assert said.labels.tolist() == [NO, NO, NO, NO, 60, 61, 3]
    assert said.places.tolist() == [0, 1, 2, 3, 2, 2, 2]
    assert said.within.tolist() == [0, 0, 0, 0, 1, 2, 3]
    assert said.time.tolist() == [0, 0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("hole", [True, False])
def test_blanks_are_laid_out_as_in_pretraining(hole: bool) -> None:
    known = Blanks(specials=SPECIALS, vocab=100, length=32)
    after = [52, 53] if hole else []
    whole = np.array([50, 51, 60, 61, 62, *after])
    mask = known.marks.mask if hole else known.marks.tail
    wanted = known.punch(whole, [(2, 5)], mask)
    found = reading("blanks", SPECIALS, [50, 51], [60, 61, 62], after, hole=hole)
    for name in ("ids", "labels", "places", "within", "time"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name


def test_pairs_are_laid_out_as_in_translation() -> None:
    known = Pairs(specials=SPECIALS, vocab=100, length=32)
    (piece,) = list(known.pieces(Loose.of([[[50, 51, 52], [60, 61]]])))
    wanted = known.example(piece, generator(0, Stream.ORDER))
    found = reading("encoder-decoder", SPECIALS, [50, 51, 52], [60, 61])
    for name in ("source", "ids", "labels"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name


def test_windows_cover_a_context_and_end_where_it_does() -> None:
    assert windows(10, 10, 5) == [0]
    assert windows(11, 10, 5) == [0, 1]
    assert windows(20, 10, 5) == [0, 5, 10]
    assert windows(23, 10, 5) == [0, 5, 10, 13]
    assert windows(30, 10, 50) == [0, 10, 20]  # no token is passed over
    for size in range(60):
        for room, step in ((7, 3), (8, 8), (1, 1)):
            starts = windows(size, room, step)
            assert {t for s in starts for t in range(s, min(s + room, size))} == set(range(size))
            assert max(starts) + room <= max(size, room) and len(set(starts)) == len(starts)


def test_an_answer_covers_tokens_counted_from_one() -> None:
    spans = [(0, 3), (4, 7), (7, 9), (10, 14)]  # of "the cat's tail"
    assert covering(spans, (4, 9)) == (2, 3)
    assert covering(spans, (0, 3)) == (1, 1)
    assert covering(spans, (5, 12)) == (2, 4)  # a part of a token takes it all
    assert covering(spans, (-1, -1)) == (0, 0)
    assert covering(spans[2:], (4, 9)) == (0, 0)  # half of it is no answer
    assert covering(spans[:2], (4, 9)) == (0, 0)
    assert covering([], (4, 9)) == (0, 0)


def test_words_are_parted_where_room_ends() -> None:
    assert stretches([1, 1, 1, 1], 4) == [(0, 4)]
    assert stretches([2, 2, 2], 4) == [(0, 2), (2, 3)]
    assert stretches([1, 9, 1], 4) == [(0, 1), (1, 2), (2, 3)]  # one word too long for any room
    assert stretches([], 4) == []
    chance = random.Random(0)
    for _ in range(50):
        sizes = chance.choices(range(1, 7), k=chance.randint(1, 30))
        found = stretches(sizes, 6)
        assert [place for start, stop in found for place in range(start, stop)] == [
            *range(len(sizes))
        ]
        assert all(sum(sizes[start:stop]) <= 6 for start, stop in found)


@pytest.fixture(scope="module")
def kinds() -> dict[str, Tokenizer]:
    return {kind: train([text()], kind=kind, vocab=420, fewer=True) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_in_parts_have_the_ids_of_the_whole(kinds: dict[str, Tokenizer], kind: str) -> None:
    known = kinds[kind]
    before, said, after = "The cat saw", "the garden", " in the morning."
    parts = [known.offsets(before)[0], after_text(known, before, said), known.offsets(after)[0]]
    assert [id for part in parts for id in part] == known.offsets(f"{before} {said}{after}")[0]
    words = ["a", "red", "bird", "followed", "the", "river", "."]
    pieces = spelled(known, words)
    assert len(pieces) == len(words)
    assert [id for piece in pieces for id in piece] == known.offsets(" ".join(words))[0]


def test_words_are_joined_as_they_are_written() -> None:
    assert joined(["我", "爱", "Berlin", "and", "茶"]) == "我爱Berlin and茶"
    assert glue("a ", "b") == "" and glue("", "b") == "" and glue("a", "b") == " "


def test_a_pattern_is_filled_in_and_parted_at_its_hole() -> None:
    row = Labelled(("a {fine} film", "yes"), "good", 1)
    assert around_hole("{text1} / {text2}: {answer}!", row) == ("a {fine} film / yes: ", "!")
    with pytest.raises(UserError, match=r"has no {answer}"):
        around_hole("{text}", row)
    with pytest.raises(UserError, match=r"use {text}, {text1}, {text2} and {answer}"):
        around_hole("{premise} {answer}", row)


def test_scores_compete_within_their_group() -> None:
    torch.manual_seed(0)
    sizes = [1, 4, 2, 7]
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    scores = (torch.randn(14) * 50).requires_grad_()
    found = log_softmax_by(scores, group, 4)
    wanted = torch.cat([part.log_softmax(0) for part in torch.split(scores, sizes)])
    torch.testing.assert_close(found, wanted)
    weight = torch.randn(14)
    here, there = (torch.autograd.grad((x * weight).sum(), scores)[0] for x in (found, wanted))
    torch.testing.assert_close(here, there)
    assert [len(part) for part in by_group(scores.detach(), group)] == sizes
