"""Ids and text, both ways, here and in transformers."""

import json
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.generation.prompts import stream_decode
from kinfolk.text import KINDS, Tokenizer, train_tokenizer

TEXT = [
    "The cat sat on the mat, and the dog sat by the cat.",
    "It was the best of times, it was the worst of times.\nIt's the age of foolishness!",
    "你好，世界。今天的天气很好，我们去公园。",
] * 3
SIZES = {
    "bpe": 400,
    "word-bpe": 190,
    "wordpiece": 200,
    "unigram": 157,
    "word": 130,
    "char": 4096,
    "byte": 0,
}
EVERYTHING = st.text(st.characters(exclude_categories=["Cs"]))  # all but lone surrogates


@cache
def _trained(kind: str) -> Tokenizer:
    return train_tokenizer(TEXT, kind=kind, vocab_size=SIZES[kind])


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {kind: _trained(kind) for kind in KINDS}


BYTES = {kind: _trained(kind) for kind in ("bpe", "byte")}
NAMES = [BYTES["byte"].id_to_token(id) for id in BYTES["byte"].special_tokens.ids]


@given(text=EVERYTHING | st.sampled_from(["[MASK] a", "<|endoftext|>", " [PAD]  x\r\n"]))
@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_bytes_lose_nothing(kind: str, text: str) -> None:
    ids, _ = BYTES[kind].offsets(text)
    assert BYTES[kind].decode(ids) == text
    assert not BYTES[kind].special_tokens.ids & set(ids)


@given(text=EVERYTHING.filter(lambda text: not any(name in text for name in NAMES)))
@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_encoding_text_that_names_no_special_loses_nothing(kind: str, text: str) -> None:
    assert BYTES[kind].decode(BYTES[kind].encode(text, add_special_tokens=False)) == text


@given(parts=st.lists(st.sampled_from([*NAMES, "the ", " cat", "[", "<", "好"]), min_size=1))
@pytest.mark.parametrize("kind", KINDS)
def test_names_of_specials_in_plain_text_are_text(kind: str, parts: list[str]) -> None:
    tokenizer = _trained(kind)
    ids, _ = tokenizer.offsets("".join(parts))
    assert not (tokenizer.special_tokens.ids - {tokenizer.special_tokens.unk}) & set(ids)


def test_specials_are_told_from_other_ids() -> None:
    special_tokens = BYTES["byte"].special_tokens
    ids = np.arange(BYTES["byte"].vocab_size + 1000)
    assert set(np.flatnonzero(special_tokens.is_special(ids)).tolist()) == special_tokens.ids


@pytest.mark.parametrize("kind", KINDS)
def test_specials_come_first_and_pad_is_zero(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    s = tokenizer.special_tokens
    assert tokenizer.kind == kind
    assert (s.pad, s.unk, s.cls, s.sep, s.mask, s.eos, s.bos) == (0, 1, 2, 3, 4, 5, 5)
    assert s.sentinels == tuple(range(6, 106))
    assert s.ids == frozenset(range(106))
    assert tokenizer.id_to_token(6) == "<extra_id_0>"
    assert tokenizer.token_to_id("<extra_id_99>") == 105
    assert tokenizer.token_to_id("no such token") is None


@pytest.mark.parametrize("kind", ["bpe", "word-bpe", "wordpiece", "unigram", "word"])
def test_vocabulary_has_the_size_asked_for(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    assert tokenizers[kind].vocab_size == SIZES[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_mask_in_a_text_is_one_token(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode("The [MASK] sat")
    assert ids.count(tokenizer.special_tokens.mask or -1) == 1
    apart = kind in ("char", "byte")  # there the space is a token of its own
    before = tokenizer.encode("The " if apart else "The")
    after = tokenizer.encode(" sat")
    assert ids == [*before, tokenizer.special_tokens.mask, *after]


@pytest.mark.parametrize("kind", KINDS)
def test_text_survives_decoding(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    text = "the dog sat ." if kind in ("word-bpe", "wordpiece", "word") else "the dog sat."
    assert tokenizers[kind].decode(tokenizers[kind].encode("the dog sat.")) == text


@pytest.mark.parametrize("kind", KINDS)
def test_two_trainings_on_one_text_agree(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    again = train_tokenizer(iter(TEXT), kind=kind, vocab_size=SIZES[kind])
    assert again.fingerprint == tokenizers[kind].fingerprint


@pytest.mark.parametrize("kind", ["bpe", "word-bpe", "wordpiece", "unigram", "word"])
def test_too_large_a_vocabulary_names_one_that_works(kind: str) -> None:
    with pytest.raises(
        UserError, match=r"yields only [\d,]+ distinct tokens, fewer than vocab_size 50000"
    ) as error:
        train_tokenizer(TEXT, kind=kind, vocab_size=50_000)
    size = int(str(error.value).rsplit("vocab_size ", 1)[1])
    assert train_tokenizer(TEXT, kind=kind, vocab_size=size).vocab_size == size


@pytest.mark.parametrize("kind", ["bpe", "word-bpe", "wordpiece", "unigram", "word", "char"])
def test_too_small_a_vocabulary_names_one_that_works(kind: str) -> None:
    with pytest.raises(UserError, match="too small") as error:
        train_tokenizer(TEXT, kind=kind, vocab_size=50)
    size = int(str(error.value).rsplit("vocab_size ", 1)[1])
    assert train_tokenizer(TEXT, kind=kind, vocab_size=size).vocab_size == size


@pytest.mark.parametrize("kind", ["bpe", "word-bpe", "wordpiece", "unigram", "word", "char"])
@pytest.mark.parametrize("texts", [[], ["", " \n"]])
def test_no_text_is_refused(kind: str, texts: list[str]) -> None:
    with pytest.raises(UserError, match="the text is empty"):
        train_tokenizer(texts, kind=kind, vocab_size=4096)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="unknown tokenizer kind 'sentencepiece'"):
        train_tokenizer(TEXT, kind="sentencepiece", vocab_size=400)


def test_lowercase_folds_case() -> None:
    for kind in KINDS:
        vocab = {"word-bpe": 190, "wordpiece": 190, "unigram": 150, "word": 120}.get(kind, 380)
        tokenizer = train_tokenizer(TEXT, kind=kind, vocab_size=vocab, lowercase=True)
        assert tokenizer.encode("THE CAT") == tokenizer.encode("the cat")


def test_one_endless_line_trains() -> None:
    assert (
        train_tokenizer(
            ["的你我他" * 20_000, "ab " * 20_000], kind="bpe", vocab_size=370
        ).vocab_size
        == 370
    )


def test_rare_characters_do_not_eat_the_vocabulary() -> None:
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 500)))
    text = ["the cat sat on the mat and the dog sat by the cat " * 40] * 1000 + [rare]
    assert train_tokenizer(text, kind="wordpiece", vocab_size=140).encode(
        "一", add_special_tokens=False
    ) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_pickling_keeps_all(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    twin = pickle.loads(pickle.dumps(tokenizers[kind]))
    assert (twin.fingerprint, twin.special_tokens) == (
        tokenizers[kind].fingerprint,
        tokenizers[kind].special_tokens,
    )
    assert twin.encode_batch(TEXT) == tokenizers[kind].encode_batch(TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_point_at_the_characters(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    text = "The cat sat.\nIt's 好 é"
    ids, places = tokenizers[kind].offsets(text)
    assert len(ids) == len(places)
    assert [start for start, _ in places] == sorted(start for start, _ in places)
    assert places[-1][1] == len(text)
    assert any("sat".startswith(text[start:stop].strip()[:3]) for start, stop in places)


def test_word_keeps_marks_of_ready_made_corpora() -> None:
    tokenizer = train_tokenizer(["a <unk> cost @-@ free isn't"], kind="word", vocab_size=112)
    tokens = [tokenizer.id_to_token(i) for i in tokenizer.encode("a <unk> cost @-@ free.")]
    assert tokens == ["a", "<unk>", "cost", "@-@", "free", "[UNK]"]


@pytest.mark.parametrize("kind", KINDS)
def test_saving_with_another_frame_keeps_the_hash(
    tokenizers: dict[str, Tokenizer], kind: str, tmp_path: Path
) -> None:
    plain = tokenizers[kind].encode("the cat")
    for frame, framed in (("bert", [2, *plain, 3]), ("t5", [*plain, 5]), (None, plain)):
        tokenizers[kind].save(tmp_path / str(frame), template=frame, length=128)
        loaded = Tokenizer.load(tmp_path / str(frame))
        assert loaded.encode("the cat") == framed
        assert loaded.encode("the cat", add_special_tokens=False) == plain
        assert loaded.fingerprint == tokenizers[kind].fingerprint
        assert (loaded.kind, loaded.special_tokens) == (kind, tokenizers[kind].special_tokens)
        loaded.save(tmp_path / "again")
        assert Tokenizer.load(tmp_path / "again").encode("the cat") == framed


def test_unknown_frame_is_refused(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown input template 'gpt'"):
        tokenizers["bpe"].save(tmp_path, template="gpt")


def test_missing_and_broken_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no tokenizer\.json"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(UserError, match=r"is not a valid tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_unknown_id_is_refused(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(UserError, match="the ids of this tokenizer are 0 to 361"):
        tokenizers["byte"].id_to_token(362)


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("今天天气很好，我们去公园。", None),
        ("私は学生です。", None),
        ("我有 3 本 Python 书。", None),
        ("the cat 我们", None),
        ("我有3本书", "我有 3 本书"),  # which spaces there were is not known
    ],
)
def test_wordpiece_decodes_chinese_without_spaces_between_characters(
    text: str, decoded: str | None
) -> None:
    tokenizer = train_tokenizer([text, "the cat"] * 5, kind="wordpiece", vocab_size=200, fewer=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == (decoded or text)
    assert "".join(stream_decode(tokenizer, [], ids)) == tokenizer.decode(ids)


def test_a_wordpiece_tokenizer_of_another_program_decodes_chinese_alike(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["我们去公园"] * 5, kind="wordpiece", vocab_size=200, fewer=True)
    tokenizer.save(tmp_path)
    state = tokenizer.to_dict | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    again = Tokenizer.load(tmp_path)
    ids = again.encode("我们去公园", add_special_tokens=False)
    assert again.decode(ids) == "我们去公园"
