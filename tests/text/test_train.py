"""Kinds of tokenizer: GPT-1's, Chinese words, and what a trainer may see."""

import gzip
import json
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, train, train_tokenizer
from kinfolk.text.segment import word_starts
from kinfolk.text.train import ALL_SPECIAL_TOKENS, LONGEST, UNSPACED, cut, spool_texts

ENGLISH = [
    "The cat sat on the mat, and the dog sat by the cat. “Wait…” said the cat.",
    "It was the best of times; it's the worst of  times.\nIt isn't the age of foolishness!",
] * 3
SIZE = 230
CHINESE = [
    "我们在北京大学学习语言模型，他们在上海学习PyTorch。",
    "北京的天气很好，我们去公园。",
] * 5
TEXT = [*ENGLISH, *CHINESE]


@cache
def learned(kind: str, vocab: int, segmenter: str = "spaces") -> Tokenizer:
    return train_tokenizer(TEXT, kind=kind, vocab_size=vocab, segmenter=segmenter)


@pytest.fixture(scope="module")
def gpt() -> Tokenizer:
    return learned("word-bpe", SIZE)


@pytest.fixture(scope="module")
def chinese() -> Tokenizer:
    return learned("word", 150, "jieba")


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(i) for i in tokenizer.offsets(text)[0]]


def opened(tokenizer: Tokenizer, folder: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Save it, and open it here and in transformers."""
    from transformers import AutoTokenizer

    tokenizer.save(folder)
    return Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


def test_words_end_with_a_suffix_as_in_gpt1(gpt: Tokenizer) -> None:
    assert tokens(gpt, "the cat's dog") == ["the</w>", "cat</w>", "'</w>", "s</w>", "dog</w>"]
    assert tokens(gpt, "thecat") == ["the", "cat</w>"] or "the</w>" not in tokens(gpt, "thecat")
    assert gpt.decode(gpt.encode("The dog sat by the cat.")) == "The dog sat by the cat ."


def test_no_id_is_spent_on_a_piece_that_no_text_can_give(gpt: Tokenizer) -> None:
    """Punctuation and Chinese characters are words, so they always bear the suffix."""
    assert gpt.vocab_size == SIZE
    alone = [gpt.token_to_id(c) for c in "，。.!我学"]
    assert alone == [None] * len(alone)
    assert all(gpt.token_to_id(f"{c}</w>") for c in "，。.!我学")
    chunks = train_tokenizer(TEXT, kind="wordpiece", vocab_size=230)
    assert all(chunks.token_to_id(c) and chunks.token_to_id(f"##{c}") is None for c in "，。.!我学")


def test_every_known_character_can_be_written_anywhere(gpt: Tokenizer) -> None:
    for word in ("zzz", "x", "qq"):
        assert "[UNK]" in tokens(gpt, word)
    letters = "".join(sorted({c for text in ENGLISH for c in text if c.isalpha()}))
    assert "[UNK]" not in tokens(gpt, letters) + tokens(gpt, letters[::-1])


def test_gpt1_pieces_are_the_same_in_every_process(gpt: Tokenizer) -> None:
    code = f"print(train_tokenizer({TEXT!r}, kind='word-bpe', vocab_size={SIZE}).fingerprint)"
    command = [sys.executable, "-c", f"from kinfolk.text import train_tokenizer; {code}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == gpt.fingerprint


def test_gpt1_can_read_all_in_lower_case() -> None:
    lower = train_tokenizer(TEXT, kind="word-bpe", vocab_size=220, lowercase=True)
    assert lower.encode("THE CAT") == lower.encode("the cat")


@pytest.mark.parity
def test_transformers_gives_our_ids(gpt: Tokenizer, chinese: Tokenizer, tmp_path: Path) -> None:
    probes = [*TEXT, "The [MASK] sat", "我们学习cat，catalog 好 <extra_id_3>", "", "  x ▁cat▁ "]
    for name, tokenizer in (("gpt", gpt), ("chinese", chinese)):
        ours, theirs = opened(tokenizer, tmp_path / name)
        for text in probes:
            ids = tokenizer.encode(text)
            assert ours.encode(text) == theirs(text)["input_ids"] == ids  # type: ignore[operator]
            assert theirs.decode(ids) == tokenizer.decode(ids, add_special_tokens=True)
        assert ours.fingerprint == tokenizer.fingerprint


def test_chinese_words_are_pieces_and_others_whole_or_unknown(chinese: Tokenizer) -> None:
    assert tokens(chinese, "我们去北京大学，学习模型。") == [
        *["我们", "去", "北京大学", "，"],
        *["学习", "模型", "。"],
    ]
    assert tokens(chinese, "the cat's") == ["▁the▁", "[UNK]"]
    assert tokens(chinese, "cat catalog bobcat cats") == ["▁cat▁", *["[UNK]"] * 3]
    assert tokens(chinese, "学习PyTorch吧") == ["学习", "▁PyTorch▁", "[UNK]"]
    assert chinese.decode(chinese.encode("我们学习PyTorch")) == "我们学习 PyTorch"


@given(text=st.text(st.sampled_from(list("acth'’ ▁_.，我们学习北京大吧\u3000１Ａ"))))
def test_chinese_words_stand_where_they_were(text: str) -> None:
    tokenizer = learned("word", 150, "jieba")
    ids, places = tokenizer.offsets(text)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(places))
    for id, (start, stop) in zip(ids, places, strict=True):
        written = text[start:stop]
        assert written and not written.isspace()
        if id != tokenizer.special_tokens.unk:
            assert tokenizer.id_to_token(id).strip("▁") == written


def test_two_trainings_of_chinese_words_agree(chinese: Tokenizer) -> None:
    again = train_tokenizer(iter(TEXT), kind="word", vocab_size=150, segmenter="jieba")
    assert again.fingerprint == chinese.fingerprint and again.vocab_size == 150
    with pytest.raises(UserError, match=r"yields only [\d,]+ distinct tokens") as error:
        train_tokenizer(TEXT, kind="word", vocab_size=9000, segmenter="jieba")
    size = int(str(error.value).rsplit("vocab_size ", 1)[1])
    assert train_tokenizer(TEXT, kind="word", vocab_size=size, segmenter="jieba").vocab_size == size


def test_chinese_words_can_be_read_in_lower_case() -> None:
    lower = train_tokenizer(TEXT, kind="word", vocab_size=150, segmenter="jieba", lowercase=True)
    assert lower.encode("学习PYTORCH") == lower.encode("学习pytorch")
    assert lower.special_tokens.unk not in lower.encode("学习pytorch")


def test_tokenized_text_is_split_at_white_space_alone() -> None:
    lines = ["mr. vinken is n't <unk> N years old", "the u.s. N said"] * 3
    tokenizer = train_tokenizer(lines, kind="word", vocab_size=117, segmenter="whitespace")
    assert tokenizer.kind == "word"
    for line in lines:
        ids = tokenizer.encode(line)
        assert [tokenizer.id_to_token(id) for id in ids] == line.split()
        assert tokenizer.decode(ids) == line
    assert tokenizer.encode("Mr. N") == [tokenizer.special_tokens.unk, tokenizer.token_to_id("N")]
    lower = train_tokenizer(
        lines, kind="word", vocab_size=117, segmenter="whitespace", lowercase=True
    )
    assert lower.token_to_id("n") is not None and lower.token_to_id("N") is None


@pytest.mark.parametrize(("kind", "by"), [("bpe", "jieba"), ("word", "mecab")])
def test_segmenters_that_do_not_fit_are_refused(kind: str, by: str) -> None:
    with pytest.raises(UserError, match=r"does not apply to kind .*: choose one of spaces, jieba"):
        train_tokenizer(TEXT, kind=kind, vocab_size=300, segmenter=by)


@pytest.mark.parametrize("kind", ["word", "char", "wordpiece", "word-bpe"])
def test_chinese_characters_and_full_width_forms_keep_apart(kind: str) -> None:
    text = ["好的ＡＢ，１２。好的 ab"] * 5
    size = {"word": 113, "char": 200, "wordpiece": 122, "word-bpe": 122}[kind]
    tokenizer = train_tokenizer(text, kind=kind, vocab_size=size)
    assert tokenizer.special_tokens.unk not in tokenizer.encode(text[0])
    parts = [text[0][a:b] for a, b in tokenizer.offsets("好的ＡＢ，１２。")[1]]
    assert parts[:2] == ["好", "的"] and "，" in parts and parts[-1] == "。"
    assert "".join(parts) == "好的ＡＢ，１２。"


def test_names_of_specials_in_a_text_are_words_like_others() -> None:
    tokenizer = train_tokenizer(["a <extra_id_0> <unk> b"] * 3, kind="word", vocab_size=112)
    assert tokens(tokenizer, "<extra_id_0> <unk>") == ["<", "extra_id_0", ">", "<unk>"]


def test_english_bpe_is_what_the_library_learns_by_itself() -> None:
    """Cutting runs for the trainer changes nothing where words have spaces."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        min_frequency=2,
        special_tokens=list(ALL_SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(ENGLISH, trainer)
    ours = train_tokenizer(ENGLISH, kind="bpe", vocab_size=420)
    assert {ours.id_to_token(i): i for i in range(420)} == backend.get_vocab()


def test_long_texts_are_cut_after_sentences_where_there_are_no_spaces() -> None:
    text = "我们学习语言模型，" * 3000 + "好。" + "他们也学习" * 3000
    parts = list(cut([text]))
    assert "".join(parts) == text and max(map(len, parts)) <= LONGEST
    assert [part for part in parts if part.endswith("好。")]


def test_of_too_much_unspaced_text_a_share_is_read() -> None:
    texts = [f"{chr(0x4E00 + i)}" * 10 for i in range(100)] + [
        f"plain words {i}" for i in range(20)
    ]
    with spool_texts(texts, UNSPACED, 1000) as kept:
        assert list(kept) == texts
    with (
        pytest.warns(UserWarning, match=r"has 1,000 characters without spaces .* one part in 4"),
        spool_texts(texts, UNSPACED, 300) as kept,
    ):
        share = list(kept)
        assert share == list(kept) and [text for text in texts if text in share] == share
        assert len(share) == 31
        assert 4 <= sum(text.startswith("plain") for text in share) <= 6


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_share_is_enough_to_learn_from(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(train.MAX_UNSPACED_CHARS, kind, 500)
    size = {"bpe": 400, "unigram": 143}[kind]
    with pytest.warns(UserWarning, match="is trained on one part in"):
        first = train_tokenizer(CHINESE * 10, kind=kind, vocab_size=size)
    with pytest.warns(UserWarning, match="is trained on one part in"):
        assert (
            train_tokenizer(CHINESE * 10, kind=kind, vocab_size=size).fingerprint
            == first.fingerprint
        )


GROWTH = """
import json, random, resource, sys, warnings
from kinfolk.text import train
warnings.simplefilter("ignore")
train.MAX_UNSPACED_CHARS = {"bpe": 300_000, "unigram": 40_000}
draws = random.Random(0)
common = [chr(0x4E00 + i) for i in range(2000)]
def parts(megabytes):
    for _ in range(megabytes):
        yield "the cat sat on the mat " * 2000 + "".join(draws.choices(common, k=340_000))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
kind, size = sys.argv[1], int(sys.argv[2])
train.train_tokenizer(parts(1), kind=kind, vocab_size=size)
before = peak()
train.train_tokenizer(parts(15), kind=kind, vocab_size=size)
print(json.dumps([before, peak()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "size"), [("bpe", 600), ("wordpiece", 2125), ("unigram", 2125)])
def test_memory_does_not_grow_with_a_text_without_spaces(kind: str, size: int) -> None:
    """15 MB in one line, where 1 MB has been learned from before; BPE alone would take 1 GB."""
    command = [sys.executable, "-c", GROWTH, kind, str(size)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = json.loads(said.stdout)
    assert after - before < 100, (before, after)


@pytest.mark.real
def test_known_chinese_words_are_found_where_jieba_finds_them(real: Path) -> None:
    """A unigram search over nearly all the words of a text: starts agree by an F1 over 0.98."""
    with gzip.open(real / "wiki_zh" / "valid.txt.gz", "rt", encoding="utf-8") as file:
        text = file.read(100_000)
    tokenizer = train_tokenizer([text], kind="word", vocab_size=11_000, segmenter="jieba")
    ours = {start for start, _ in tokenizer.offsets(text)[1]}
    jieba = set(word_starts(text, "jieba"))
    assert 2 * len(ours & jieba) / (len(ours) + len(jieba)) > 0.98
