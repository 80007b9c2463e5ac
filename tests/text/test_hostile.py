"""A tokenizer.json of a stranger: patterns and replacements that would run away."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, formats, patterns, train_tokenizer
from kinfolk.text import tokenizer as tokenizer_module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train_tokenizer(["a bird sings"], kind="byte", vocab_size=0).save(tmp_path)
    return tmp_path


def change(folder: Path, **parts: Any) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | parts), encoding="utf-8")


def split(pattern: str) -> dict[str, Any]:
    """Return a pre-tokenizer that splits a text at a pattern."""
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|aa)+$", "((xyz)+)+$", r"(\w+\s?)+$", "a*a*a*a*a*b", r"(\p{L}+)*\d", "(.*)*x$"],
)
def test_a_catastrophic_pattern_is_refused_and_the_terminal_stays_clean(
    pattern: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": [split(pattern)]})
    with pytest.raises(UserError, match=r"the pattern .* of its pre_tokenizer takes too many step"):
        Tokenizer.load(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind", ["bpe", "word-bpe", "wordpiece", "unigram", "word", "char", "byte"]
)
def test_our_own_tokenizers_leave_stderr_open(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["A bird, the king's song and 12 rivers"] * 9
    tokenizer = train_tokenizer(texts, kind=kind, vocab_size=400, fewer=True)
    monkeypatch.setattr(tokenizer_module, "silent_stderr", None)
    assert tokenizer.encode("bird") and tokenizer.offsets("bird")[0]


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_patterns_are_tried_wherever_they_are(part: str, folder: Path) -> None:
    change(folder, **{part: {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}})
    with pytest.raises(UserError, match=f"the pattern .* of its {part} takes too many steps"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]+(?:-[a-z]+)*",
        r"(?=(\d{3})+(?!\d))",
        " ?[^(\\s|[.,!?…。，、।۔،])]+",  # BLOOM
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # Llama 3
    ],
)
def test_patterns_of_published_tokenizers_are_quick(pattern: str, folder: Path) -> None:
    change(folder, pre_tokenizer=split(pattern))
    assert Tokenizer.load(folder).encode("bird")


def test_a_panic_on_a_text_is_one_sentence_and_the_terminal_stays_clean(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "PROBE_LENGTHS", ())  # a pattern that no probe finds out
    change(folder, pre_tokenizer=split("(a+)+$"))
    tokenizer, text = Tokenizer.load(folder), "a" * 40 + "b"
    assert tokenizer.encode("bird")
    for use in (tokenizer.encode, tokenizer.offsets, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(UserError, match=r"cannot encode or decode this text .*retry-limit"):
            use(text)
    os.write(2, b"after")
    assert capfd.readouterr() == ("", "after")


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize("pattern", [{"String": "a"}, {"Regex": "."}])
def test_replacements_that_multiply_a_text_are_refused(
    part: str, pattern: dict[str, str], folder: Path
) -> None:
    step = {"type": "Replace", "pattern": pattern, "content": "aa"}
    for count, allowed in ((6, True), (7, False), (40, False)):
        change(folder, **{part: {"type": "Sequence", f"{part}s": [step] * count}})
        if allowed:
            assert Tokenizer.load(folder).encode("bird")
            continue
        with pytest.raises(UserError, match=f"its {part} can make a text {2**count:,} times"):
            Tokenizer.load(folder)


def test_a_tokenizer_json_that_is_too_large_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "MAX_JSON_BYTES", 1000)
    with pytest.raises(UserError, match=r"tokenizer\.json has [\d,]+ bytes, more than 1,000"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("mask_token", 1, "it must be text"),
        ("mask_token", {"content": []}, "it must be text"),
        ("pad_token", "\ud800", "it must be text"),
        ("model_max_length", "x", "it must be a number"),
        ("model_max_length", -1, "it must be above 0"),
        ("tokenizer_class", 7, "it must be text"),
        ("strip_accents", "x", "it must be true or false"),
        ("extra_ids", 10**12, "it must be from 0 to 65536"),
        ("extra_ids", "x", "it must be a whole number"),
    ],
)
def test_every_setting_that_is_read_has_a_type_and_a_range(
    name: str, value: Any, rule: str, folder: Path
) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({name: value}), encoding="utf-8")
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {name}=.*: {rule}"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("id", [None, "x", 1.5])
def test_the_ids_of_added_tokens_are_whole_numbers(id: Any, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "bird"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    added = tmp_path / "added_tokens.json"
    added.write_text(json.dumps({"[A]": id, "[B]": 6}), encoding="utf-8")
    with pytest.raises(UserError, match=r"added_tokens\.json: \[A\]=.*: it must be a whole number"):
        Tokenizer.load(tmp_path)
