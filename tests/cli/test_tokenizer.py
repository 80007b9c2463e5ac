"""`kinfolk tokenizer`: what it writes transformers opens; what it shows and compares is true."""

import io
import json
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kinfolk.text import KINDS, Tokenizer
from kinfolk.text.tokenizer_stats import held_out
from support.runs import Home, Kinfolk

SENTENCE = "The old man found a song near the house."
SIZES = {
    "bpe": 420,
    "word-bpe": 180,
    "wordpiece": 180,
    "unigram": 150,
    "word": 130,
    "char": 150,
    "byte": 362,
}


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
    assert json.loads(said.out) == {"folder": str(out), "kind": kind, "vocab": tokenizer.vocab_size}
    assert tokenizer.kind == kind
    theirs = AutoTokenizer.from_pretrained(out)
    assert theirs(SENTENCE)["input_ids"] == tokenizer.encode(SENTENCE)
    assert tokenizer.special_tokens.unk not in tokenizer.encode(SENTENCE)


def test_capitals_can_be_given_up(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    out = tmp_path / "tok"
    said = kinfolk("tokenizer", "train", home.text, "--vocab", 400, "--lowercase", "-o", out)
    assert said.out == f"trained bpe tokenizer, vocabulary size 400: {out}\n"
    tokenizer = Tokenizer.load(out)
    assert tokenizer.encode("The Cat") == tokenizer.encode("the cat")


def test_tables_are_learned_from_by_column_and_field(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    lines = home.text.read_text(encoding="utf-8").split("\n\n")
    table, rows = tmp_path / "t.tsv", tmp_path / "t.jsonl"
    table.write_text("".join(f"9\t{' '.join(line.split())}\n" for line in lines), encoding="utf-8")
    rows.write_text("".join(json.dumps({"said": x}) + "\n" for x in lines), encoding="utf-8")
    for number, asked in enumerate([(table, "--column", 2), (rows, "--field", "said")]):
        out = tmp_path / str(number)
        said = kinfolk("tokenizer", "train", *asked, "--kind", "word", "--vocab", 130, "-o", out)
        assert said.code == 0, said.err
        assert Tokenizer.load(out).token_to_id("garden") is not None
        assert Tokenizer.load(out).token_to_id("9") is None


def test_a_text_is_shown_in_pieces_above_their_ids(
    kinfolk: Kinfolk, home: Home, runs: dict[str, Path]
) -> None:
    said = kinfolk("tokenizer", "show", home.tokenizer, "The cat\né")
    assert (said.code, said.err) == (0, "")
    above, below, summary = said.out.splitlines()
    tokenizer = Tokenizer.load(home.tokenizer)
    assert [int(id) for id in below.split()] == tokenizer.encode("The cat\né")
    chunks = above.split()
    assert "".join(chunks[:-2]) == "The␣cat⏎" and chunks[-2:] == ["é⟨c3⟩", "é⟨a9⟩"]
    # Each id stands under the start of its piece.
    starts = [
        [i for i, c in enumerate(f" {x}") if c != " " and f" {x}"[i - 1] == " "]
        for x in (above, below)
    ]
    assert starts[0] == starts[1]
    assert summary == f"{len(chunks)} tokens for 3 words in 10 bytes"
    framed = kinfolk("tokenizer", "show", runs["bert"], "A dog.").out.split()
    assert framed[0] == "[CLS]" and "[SEP]" in framed


def test_pieces_never_pass_the_width(
    kinfolk: Kinfolk, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kinfolk.cli.tokenizer import console

    monkeypatch.setattr(console, "_width", 40)
    said = kinfolk("tokenizer", "show", home.tokenizer, "中文 the old man " * 20)
    *lines, _ = said.out.splitlines()
    assert len(lines) > 10 and len(lines) % 2 == 0
    assert all(len(line) <= 40 for line in lines)
    ids = [int(id) for line in lines[1::2] for id in line.split()]
    assert ids == Tokenizer.load(home.tokenizer).encode("中文 the old man " * 20)


def test_a_piped_text_is_shown_and_json_tells_all(
    kinfolk: Kinfolk, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    for asked in (("-",), ()):
        pipe(b"The cat\n")
        said = kinfolk("tokenizer", "show", home.tokenizer, *asked, "--json")
        found = json.loads(said.out)
        assert found["text"] == "The cat"
        ids = [chunk["id"] for chunk in found["pieces"]]
        assert ids == Tokenizer.load(home.tokenizer).encode("The cat")
        assert found["pieces"][0].keys() == {"id", "token", "text", "special", "unknown"}
    pipe(b"ca\xe9")
    said = kinfolk("tokenizer", "show", home.tokenizer)
    assert said.code == 2 and "not UTF-8 at byte 2" in said.err
    said = kinfolk("tokenizer", "show", home.tokenizer, "\udce9")
    assert said.code == 2 and "the text is not UTF-8" in said.err


def test_no_text_is_no_tokens(kinfolk: Kinfolk, home: Home) -> None:
    assert kinfolk("tokenizer", "show", home.tokenizer, "").out == "0 tokens\n"


def test_tokenizers_are_measured_side_by_side(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ("tokenizer", "compare", home.text, "--tokenizer", home.tokenizer)
    asked = (*asked, "--train", "word:130", "--train", "byte")
    said = kinfolk(*asked, "-o", page, "--json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    documents = home.text.read_text(encoding="utf-8").strip().split("\n\n")
    measured = [document for document in documents if held_out(document)]
    assert found["bytes"] == sum(len(one.encode()) for one in measured)
    assert found["held_out"] is True and found["page"] == str(page)
    loaded, word, byte = found["tokenizers"]
    assert [one["name"] for one in found["tokenizers"]] == ["tokenizer", "word:130", "byte"]
    tokenizer = Tokenizer.load(home.tokenizer)
    assert loaded["tokens"] == sum(len(tokenizer.encode(one)) for one in measured)
    assert loaded["tokens_per_word"] == loaded["tokens"] / found["words"]
    assert (byte["tokens"], byte["bytes_per_token"]) == (found["bytes"], 1.0)
    assert word["tokens_per_word"] == word["tokens_per_word_by_script"]["Latin"] == 1.0
    assert "<figure" in page.read_text(encoding="utf-8")
    shown = kinfolk(*asked, "-o", page, "--force").out
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == [
        "tokenizer",
        "word:130",
        "byte",
    ]
    assert f"{loaded['tokens_per_word']:.2f}" in shown and f"report: {page}" in shown


def test_nothing_is_kept_aside_where_nothing_is_learned(kinfolk: Kinfolk, home: Home) -> None:
    said = kinfolk("tokenizer", "compare", home.text, "--tokenizer", home.tokenizer, "--json")
    found = json.loads(said.out)
    whole = home.text.read_text(encoding="utf-8").strip().split("\n\n")
    assert found["bytes"] == sum(len(one.encode()) for one in whole)
    assert (found["held_out"], found["page"]) == (False, None)


def test_two_folders_of_one_name_are_told_apart(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    other = tmp_path / "tokenizer"
    kinfolk("tokenizer", "train", home.text, "--kind", "char", "--vocab", 150, "-o", other)
    asked = ("--tokenizer", home.tokenizer, "--tokenizer", other)
    said = kinfolk("tokenizer", "compare", home.text, *asked, "--json")
    names = [one["name"] for one in json.loads(said.out)["tokenizers"]]
    assert names == [str(home.tokenizer), str(other)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), "no tokenizers to compare"),
        (("--train", "bep:300"), "(got bep:300)"),
        (("--train", "bpe:many"), "(got bpe:many)"),
        (("--train", "bpe:"), "(got bpe:)"),
        (("--train", "bpe:10"), "vocab_size 10 is too small"),
        (("--tokenizer", "/nowhere"), "/nowhere"),
    ],
)
def test_a_comparison_that_cannot_be_is_one_sentence(
    asked: tuple[str, ...], expected: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    said = kinfolk("tokenizer", "compare", home.text, *asked, "-o", tmp_path / "page.html")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert expected in said.err
    assert list(tmp_path.iterdir()) == []


def test_too_few_documents_to_keep_some_aside_is_told(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    (tmp_path / "one.txt").write_text("the cat saw the cat again\n", encoding="utf-8")
    said = kinfolk("tokenizer", "compare", tmp_path / "one.txt", "--train", "byte")
    assert said.code == 2 and "no document is in the held-out 10%" in said.err
    said = kinfolk("tokenizer", "compare", "-", "--train", "byte")
    assert said.code == 2 and "can be read only once" in said.err


def test_chinese_words_are_found_by_jieba(kinfolk: Kinfolk, tmp_path: Path) -> None:
    text, out = tmp_path / "zh.txt", tmp_path / "tok"
    sentences = [f"我们{verb}北京大学。" for verb in ("喜欢", "知道", "离开", "看见")]
    text.write_text("\n\n".join(sentences * 30), encoding="utf-8")
    asked = ("tokenizer", "train", text, "--kind", "word", "--vocab", 113)
    said = kinfolk(*asked, "--words", "jieba", "-o", out)
    assert said.code == 0, said.err
    found = kinfolk("tokenizer", "show", out, "我们喜欢北京大学。").out.split()
    assert found[:3] == ["我们", "喜欢", "北京大学"]
    said = kinfolk(*asked, "--words", "juba", "-o", tmp_path / "new")
    assert said.code == 2 and "'juba'" in said.err
