"""What decides how a file is read, and what is said about one that cannot be."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, train_tokenizer

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "e", "é", "我", "##你"]
TEXT = ["The cat sat on the mat, and the dog sat by the cat. It was a café."] * 9


def write(file: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    file.write_text(text, encoding="utf-8")
    return file


def vocab(folder: Path, tokens: list[str]) -> Path:
    return write(folder / "vocab.txt", "".join(f"{token}\n" for token in tokens))


def pairs(
    folder: Path, tokens: list[str], merges: str, names: str = "vocab.json merges.txt"
) -> None:
    first, second = names.split()
    write(folder / first, {token: i for i, token in enumerate(tokens)})
    write(folder / second, f"#version: 0.2\n{merges}")


def model(folder: Path, name: str = "spiece.model", **settings: Any) -> Path:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_prefix=str(folder / Path(name).stem),
        vocab_size=40,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    return folder / name


def tokens(path: Path, text: str) -> list[str]:
    tokenizer = Tokenizer.load(path)
    return [tokenizer.id_to_token(id) for id in tokenizer.encode(text, add_special_tokens=False)]


def test_the_settings_of_bert_are_followed(tmp_path: Path) -> None:
    vocab(tmp_path, [*BERT, "The"])
    assert tokens(tmp_path, "The é 我你") == ["The", "é", "我", "[UNK]"]  # cased by its capitals
    config = tmp_path / "tokenizer_config.json"
    write(config, {"do_lower_case": True})
    assert tokens(tmp_path, "The é") == ["the", "e"]
    write(config, {"do_lower_case": True, "strip_accents": False})
    assert tokens(tmp_path, "The é") == ["the", "é"]
    write(config, {"tokenize_chinese_chars": False})
    assert tokens(tmp_path, "我你") == ["我", "##你"]
    write(config, {"cls_token": "the", "sep_token": {"content": "cat"}, "model_max_length": 77})
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("é") == [5, 9, 6]


def test_a_vocabulary_without_capitals_is_uncased(tmp_path: Path) -> None:
    assert tokens(vocab(tmp_path, [*BERT, "<S>"]), "The É") == ["the", "e"]


def test_the_space_before_a_text_is_added_where_the_settings_say_so(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs(tmp_path, [*alphabet, "<|endoftext|>", "Ġa"], "Ġ a\n")
    assert tokens(tmp_path, "a") == ["a"]
    write(tmp_path / "tokenizer_config.json", {"add_prefix_space": True})
    assert tokens(tmp_path, "a") == ["Ġa"]


@pytest.mark.parametrize(
    "names", ["vocab.json merges.txt", "encoder_bpe_40000.json vocab_40000.bpe"]
)
def test_gpt_is_known_by_the_ends_of_words(tmp_path: Path, names: str) -> None:
    pairs(tmp_path, ["<unk>", "a", "b</w>", "ab</w>"], "a b</w>\n", names)
    assert tokens(tmp_path, "AB abc") == ["ab</w>", "a", "<unk>", "<unk>"]
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.kind, tokenizer.decode([3, 3])) == ("word-bpe", "ab ab")


def test_gpt2_of_a_class_stays_gpt2_with_any_tokens(tmp_path: Path) -> None:
    pairs(tmp_path, ["<s>", "</s>", "<mask>", "a"], "")
    assert Tokenizer.load(tmp_path).encode("a") == [0, 3, 1]
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "GPT2TokenizerFast"})
    assert Tokenizer.load(tmp_path).encode("a") == [3]


def test_a_file_stands_for_its_folder(tmp_path: Path) -> None:
    pairs(tmp_path, ["a", "b", "ab"], "a b\n", "gpt2-vocab.json gpt2-merges.txt")
    for name in ("gpt2-vocab.json", "gpt2-merges.txt"):
        assert tokens(tmp_path / name, "ab") == ["ab"]
    assert tokens(vocab(tmp_path, BERT), "cats") == ["cat", "##s"]


def test_tokenizer_json_wins_over_older_files(tmp_path: Path) -> None:
    train_tokenizer(TEXT, kind="byte", vocab_size=0).save(tmp_path)
    vocab(tmp_path, BERT)
    assert Tokenizer.load(tmp_path).kind == "byte"
    assert Tokenizer.load(tmp_path / "vocab.txt").kind == "wordpiece"
    assert Tokenizer.load(tmp_path / "tokenizer.json").kind == "byte"


def test_tokens_added_later_keep_their_ids(tmp_path: Path) -> None:
    vocab(tmp_path, BERT)
    added = write(tmp_path / "added_tokens.json", {"<b>": 13, "<a>": 12})
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the<b>cat <a>", add_special_tokens=False) == [5, 13, 6, 12]
    assert tokenizer.vocab_size == 14
    write(added, {"<b>": 13})
    with pytest.raises(UserError, match="'<b>' has the id 13 instead of 12"):
        Tokenizer.load(tmp_path)


def test_the_settings_of_albert_and_t5_are_followed(tmp_path: Path) -> None:
    controls = ["[CLS]", "[SEP]", "[MASK]"]
    model(tmp_path, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=controls)
    assert tokens(tmp_path, "É") == tokens(tmp_path, "e")
    config = tmp_path / "tokenizer_config.json"
    write(config, {"tokenizer_class": "AlbertTokenizer", "keep_accents": True})
    assert tokens(tmp_path, "É") == ["▁", "é"]
    write(config, {"do_lower_case": False, "keep_accents": True})
    assert tokens(tmp_path, "É") == ["▁", "<unk>"]
    model(tmp_path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    chunks = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    write(config, {"tokenizer_class": "T5Tokenizer", "extra_ids": 3})
    tokenizer = Tokenizer.load(tmp_path)
    first = chunks.get_piece_size()
    assert tokenizer.special_tokens.sentinels == (first + 2, first + 1, first)
    assert tokenizer.vocab_size == first + 3


def test_symbols_of_the_user_stay_whole(tmp_path: Path) -> None:
    """A symbol that the normaliser would change is found before it is changed."""
    path = model(tmp_path, user_defined_symbols=["<sep>", "①"])
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in ("the<sep>cat", "<sep> cat", "the①", "the① cat"):
        ids = Tokenizer.load(path).encode(text, add_special_tokens=False)
        assert ids == original.encode(text)
        assert original.piece_to_id("①" if "①" in text else "<sep>") in ids


def test_pair_of_xlnet_ends_with_cls_of_type_two(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model(tmp_path, control_symbols=["<cls>", "<sep>", "<pad>", "<mask>"])
    Tokenizer.load(tmp_path).save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    pair = theirs("a", "cat")
    sep, cls = theirs.sep_token_id, theirs.cls_token_id
    a, cat = (theirs(text)["input_ids"][:-2] for text in ("a", "cat"))
    assert pair["input_ids"] == [*a, sep, *cat, sep, cls]
    assert pair["token_type_ids"] == [0] * (len(a) + 1) + [1] * (len(cat) + 1) + [2]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"vocab.txt": ""}, "vocab.txt is empty"),
        ({"vocab.txt": "[PAD]\na\n\nb\n"}, "vocab.txt, line 3 is empty"),
        ({"vocab.txt": "a\nb\na\n"}, "vocab.txt, line 3: 'a' is already on line 1"),
        ({"vocab.txt": "a\nb\n"}, "vocab.txt has no [PAD]"),
        ({"vocab.json": '{"a": 0}'}, "vocab.json needs merges.txt in the same folder"),
        ({"merges.txt": "a b"}, "holds no tokenizer.json, vocab.txt"),
        ({"vocab.json": '{"a": 0', "merges.txt": "a b"}, "vocab.json is not JSON"),
        ({"vocab.json": "[1]", "merges.txt": "a b"}, "vocab.json must hold a JSON object"),
        ({"vocab.json": '{"a": "b"}', "merges.txt": "a b"}, "every token must have an integer id"),
        (
            {"vocab.json": '{"a": 0, "b": 2}', "merges.txt": "a b"},
            "the ids of its 2 tokens must be 0, 1, 2",
        ),
        (
            {"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "#version: 0.2\na b\n"},
            "merges.txt, line 2: 'ab' is not in vocab.json",
        ),
        (
            {"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "a b c\n"},
            "merges.txt, line 1: 'a b c' is not two tokens",
        ),
        ({"spiece.model": "no model at all"}, "spiece.model is not a valid SentencePiece model"),
        ({"a.model": "", "b.model": ""}, "holds no tokenizer.json"),
        (
            {"vocab.txt": "a\n", "tokenizer_config.json": '{"tokenizer_class": "FooTokenizer"}'},
            "belongs to a FooTokenizer",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    files: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(UserError, match=re.escape(complaint)):
        Tokenizer.load(tmp_path)


def test_other_bytes_than_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(UserError, match=r"is not UTF-8 \(byte 6\)"):
        Tokenizer.load(tmp_path)


def test_every_cut_of_a_model_is_noticed(tmp_path: Path) -> None:
    whole = model(tmp_path).read_bytes()
    file = tmp_path / "cut.model"
    for length in [*range(1500), *range(1500, len(whole), 4001), len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut\.model is not a valid SentencePiece model"):
            Tokenizer.load(file)


@given(data=st.binary(max_size=60))
def test_any_bytes_get_a_sentence(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.model"
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"bytes\.model"):
        Tokenizer.load(file)


@pytest.mark.parametrize("kind", ["char", "word"])
def test_models_of_words_and_characters_are_refused(kind: str, tmp_path: Path) -> None:
    path = model(tmp_path, model_type=kind, use_all_vocab=kind == "word")
    with pytest.raises(UserError, match="only unigram and BPE SentencePiece models are supported"):
        Tokenizer.load(path)
