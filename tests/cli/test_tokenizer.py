"""`kinfolk tokenizer train` writes a tokenizer that transformers opens."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kinfolk.text import KINDS, Tokenizer
from little import Home, Kinfolk

SENTENCE = "The old man found a song near the house."
SIZES = {"bpe": 420, "wordpiece": 180, "unigram": 150, "word": 130, "char": 150, "byte": 362}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_learned_and_opens(
    kind: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "tok"
    said = kinfolk(
        *("tokenizer", "train", home.text, "--kind", kind, "--vocab", SIZES[kind]),
        *("-o", out, "--json"),
    )
    assert (said.code, said.err) == (0, "")
    tokenizer = Tokenizer.load(out)
    assert json.loads(said.out) == {"folder": str(out), "kind": kind, "vocab": tokenizer.vocab}
    assert tokenizer.kind == kind
    theirs = AutoTokenizer.from_pretrained(out)
    assert theirs(SENTENCE)["input_ids"] == tokenizer.encode(SENTENCE)
    assert tokenizer.specials.unk not in tokenizer.encode(SENTENCE)


def test_capitals_can_be_given_up(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    out = tmp_path / "tok"
    said = kinfolk("tokenizer", "train", home.text, "--vocab", 400, "--lowercase", "-o", out)
    assert said.out == f"400 ids in {out}\n"
    tokenizer = Tokenizer.load(out)
    assert tokenizer.encode("The Cat") == tokenizer.encode("the cat")
