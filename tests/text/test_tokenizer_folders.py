"""Our folders open in transformers, and theirs here, with the same ids."""

import json
from pathlib import Path

import pytest

from kinfolk.text import KINDS, Tokenizer, train_tokenizer

pytestmark = pytest.mark.parity

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
PROBES = ["The [MASK] sat", " the  cat\n好 <extra_id_3> x", "it's <|endoftext|>the age", ""]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("frame", "model"), [("bert", "bert"), ("roberta", "roberta"), ("t5", "t5"), (None, "gpt2")]
)
def test_auto_tokenizer_gives_our_ids(
    kind: str, frame: str | None, model: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    train_tokenizer(TEXT, kind=kind, vocab_size=SIZES[kind]).save(
        tmp_path, template=frame, length=64
    )
    ours = Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in PROBES:
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == ours.decode(
            ours.encode(text), add_special_tokens=True
        )
    s = ours.special_tokens
    assert theirs.model_max_length == 64
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.eos_token_id) == (s.pad, s.unk, s.eos)
    assert (theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id) == (
        s.cls,
        s.sep,
        s.mask,
    )
    assert len(theirs) == ours.vocab_size
    assert ("token_type_ids" in theirs("a")) == (frame == "bert")
    if frame == "bert":
        pair = theirs("the cat", "the dog")
        cat, dog = (ours.encode(text, add_special_tokens=False) for text in ("the cat", "the dog"))
        assert pair["input_ids"] == [s.cls, *cat, s.sep, *dog, s.sep]
        assert pair["token_type_ids"] == [0] * (len(cat) + 2) + [1] * (len(dog) + 1)


def test_a_gpt2_of_transformers_opens(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    letters = ["<|endoftext|>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "th", "the", "Ġthe"]
    vocab = {token: i for i, token in enumerate(letters)}
    theirs = GPT2Tokenizer(vocab=vocab, merges=[("t", "h"), ("th", "e"), ("Ġ", "the")])
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("the the cat") == theirs("the the cat")["input_ids"]
    assert ours.kind == "bpe"
    assert (
        ours.special_tokens.eos == ours.special_tokens.bos == ours.special_tokens.pad == 0
    )  # it has no pad
    assert (ours.special_tokens.cls, ours.special_tokens.mask) == (None, None)


def test_a_bert_of_transformers_opens(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"]
    theirs = BertTokenizer(vocab={token: i for i, token in enumerate(tokens)})
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("The cats [MASK]") == theirs("The cats [MASK]")["input_ids"]
    assert ours.kind == "wordpiece"
    s = ours.special_tokens
    assert (s.pad, s.unk, s.cls, s.sep, s.mask, s.eos, s.bos) == (0, 1, 2, 3, 4, None, None)
    ours.save(tmp_path / "copy")
    assert Tokenizer.load(tmp_path / "copy").fingerprint == ours.fingerprint


def test_a_t5_of_transformers_opens(tmp_path: Path) -> None:
    from transformers import T5Tokenizer

    chunks = ["<pad>", "</s>", "<unk>", "▁the", "▁cat", "▁", "s"]
    theirs = T5Tokenizer(vocab=[(chunk, -float(i)) for i, chunk in enumerate(chunks)], extra_ids=3)
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    text = "the cats <extra_id_1> the"
    assert ours.encode(text) == theirs(text)["input_ids"]
    s = ours.special_tokens
    assert (s.pad, s.eos, s.unk) == (0, 1, 2)
    assert [ours.id_to_token(i) for i in s.sentinels] == [f"<extra_id_{i}>" for i in range(3)]
    assert ours.vocab_size == len(theirs)
