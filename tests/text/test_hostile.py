"""A tokenizer.json of a stranger: patterns and replacements that would run away."""

import json
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, formats, train_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train_tokenizer(["a bird sings"], kind="byte", vocab_size=0).save(tmp_path)
    return tmp_path


def change(folder: Path, **parts: Any) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | parts), encoding="utf-8")


CATASTROPHE = {"Regex": "(a+)+$"}


@pytest.mark.parametrize(
    "parts",
    [
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": CATASTROPHE,
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"normalizer": {"type": "Replace", "pattern": CATASTROPHE, "content": ""}},
    ],
    ids=["pre_tokenizer", "normalizer"],
)
def test_a_catastrophic_pattern_is_one_sentence(parts: dict[str, Any], folder: Path) -> None:
    change(folder, **parts)
    tokenizer, text = Tokenizer.load(folder), "a" * 40 + "b"
    assert tokenizer.encode("bird")
    for use in (tokenizer.encode, tokenizer.offsets, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(UserError, match=r"cannot encode or decode this text .*retry-limit"):
            use(text)


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
