"""Duplicates and what a test holds are left out of a stream, and nothing else is."""

import gzip
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.data import dedup
from kinfolk.data.dedup import (
    SHINGLE_WORDS,
    DecontaminationFilter,
    DedupFilter,
    Dropped,
    MinHashDeduplicator,
    minhash_signature,
)
from kinfolk.data.documents import Document, read_documents
from kinfolk.errors import UserError

ENGLISH = [f"{a}{b}{c}" for a in "bdfgkl" for b in "aeiou" for c in ("n", "st", "rm", "ck", "")]
CHINESE = [chr(code) for code in range(0x4E00, 0x4E00 + 800)]
# Every rare kind of character: what lower case makes longer, halves of pairs, marks, no letters.
AWKWARD = [
    "",
    " ",
    "\0",
    "\ud800",
    "İİİ",
    "ΣΑΣ",
    "é" * 20,
    "😀" * 30,
    "...!!!",
    "a" * 5000,
    "\ufeff",
]


def stream(texts: Sequence[str]) -> list[Document]:
    return [Document(text, Path("a.txt"), place) for place, text in enumerate(texts)]


def near(texts: Sequence[str]) -> list[str]:
    return [document.text for document in DedupFilter(stream(texts), "near")]


def draw(rng: random.Random, words: Sequence[str], length: int) -> list[str]:
    return [rng.choice(words) for _ in range(length)]


def joined(words: Sequence[str]) -> str:
    return ("" if words[0] in CHINESE else " ").join(words)


def similar(one: Sequence[str], other: Sequence[str]) -> float:
    """The true share of common grams, counted by hand."""
    a, b = (
        {tuple(w[i : i + SHINGLE_WORDS]) for i in range(len(w) - SHINGLE_WORDS + 1)}
        for w in (one, other)
    )
    return len(a & b) / len(a | b)


def plain(text: str) -> list[str]:
    """The words of a text, character by character: what the fast way has to find."""
    kinds = dedup._character_classes()
    found, word = [], ""
    for character in text:
        kind = kinds[ord(character)]
        if word and kind in (dedup.SPACE, dedup.SINGLE):
            found.append(word)
            word = ""
        if kind == dedup.SINGLE:
            found.append(character)
        elif kind == dedup.WORD:
            word += character.lower()[:1]
    return [*found, word] if word else found


def test_words_are_as_in_the_picture() -> None:
    text = "Don't panic, 世界!"
    hashes, places = dedup.hashed_words(text)
    assert dedup.normalized_words(text, places) == "dont panic 世 界"
    assert places.tolist() == [0, 6, 13, 14]
    assert len(set(hashes.tolist())) == 4


@given(st.text(st.sampled_from("aAbZé世界ก ñ\n\t.,'\0-😀́"), max_size=60), st.integers(3, 100))
def test_words_have_one_number_each_however_the_text_is_cut(text: str, size: int) -> None:
    words = plain(text)
    hashes, places = dedup.hashed_words(text)
    assert [dedup.normalized_words(text, places[i : i + 1]) for i in range(len(places))] == words
    assert len(set(zip(words, hashes.tolist(), strict=True))) == len(set(words))
    assert len(set(hashes.tolist())) == len(set(words))
    spaced = text.replace("\t", " ")
    if max(map(len, spaced.replace("\n", " ").split(" ")), default=0) < size:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dedup, "MAX_SLICE_CHARS", size)
            cut = dedup.hashed_words(text)
        assert "\t" in text or (cut[0].tolist(), cut[1].tolist()) == (
            hashes.tolist(),
            places.tolist(),
        )


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 4))
def test_grams_are_equal_where_their_words_are(words: list[str], length: int) -> None:
    found = dedup.hash_ngrams(dedup.hashed_words(" ".join(words))[0], length).tolist()
    runs = [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
    assert len(found) == len(runs)
    assert len(set(zip(runs, found, strict=True))) == len(set(runs)) == len(set(found))


def test_the_first_of_equal_documents_stays() -> None:
    kept = DedupFilter(stream(["a b", "c", " a b\n", "A b", "c", "a  b"]), "exact")
    assert [document.bytes_read for document in kept] == [0, 1, 3, 5]
    assert kept.left_out == {"exact duplicate": 2}


def test_duplicates_name_the_first_document_and_the_most_similar_one() -> None:
    rng = random.Random(7)
    words = draw(rng, ENGLISH, 400)
    texts = [
        joined(draw(rng, ENGLISH, 400)),
        joined(words),
        joined(words[:395]),
        f" {joined(words)}",
    ]
    documents = [Document(t, Path(f"{n}.txt"), 0, line=10 + n) for n, t in enumerate(texts)]
    dropped: list[Dropped] = []
    list(DedupFilter(documents, "near", dropped.append))
    first = {"source": "1.txt", "source_line": 11}
    assert [(d["reason"], d["source"], d["source_line"], d["same_as"]) for d in dropped] == [
        ("near duplicate", "2.txt", 12, first),
        ("exact duplicate", "3.txt", 13, first),
    ]
    assert [d["excerpt"] for d in dropped] == [texts[1][:80]] * 2


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_EVALUATION_FILES", 3, "has more than 3 files: name the files"),
        ("MAX_EVALUATION_BYTES", 99, "4 evaluation files of 308 bytes are more than the 99"),
    ],
)
def test_a_folder_that_is_no_evaluation_set_is_refused_before_it_is_read(
    limit: str, value: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(TEST)
    monkeypatch.setattr(dedup, limit, value)
    monkeypatch.setattr(dedup, "read_leniently", None)
    with pytest.raises(UserError, match=message):
        DecontaminationFilter([], [tmp_path])


def test_the_text_of_compressed_evaluation_files_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(f"{TEST}\n\n".encode() * 100))
    monkeypatch.setattr(dedup, "MAX_EVALUATION_BYTES", 2 * 100 * len(TEST))
    DecontaminationFilter([], [tmp_path])
    monkeypatch.setattr(dedup, "MAX_EVALUATION_BYTES", 2 * 100 * len(TEST) - 1)
    with pytest.raises(UserError, match=r"15,400 bytes of text are more than the 15,399 whose n-"):
        DecontaminationFilter([], [tmp_path])


@pytest.mark.parametrize("words", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_documents_with_a_rewritten_passage_are_found_and_others_stay(words: list[str]) -> None:
    rng = random.Random(1)
    texts = [draw(rng, words, 400) for _ in range(50)]
    copies = []
    for text in texts:
        start = rng.randrange(380)
        copies.append([*text[:start], *draw(rng, words, 20), *text[start + 20 :]])  # 5 % of it
    kept = DedupFilter(stream([joined(text) for text in [*texts, *copies]]), "near")
    assert [document.bytes_read for document in kept] == list(range(50))
    assert kept.left_out == {"exact duplicate": 0, "near duplicate": 50}


@pytest.mark.parametrize("words", [ENGLISH, CHINESE], ids=["English", "Chinese"])
@pytest.mark.parametrize(("share", "least", "most"), [(0.01, 46, 50), (0.05, 0, 1)])
def test_scattered_edits_count_five_times(
    words: list[str], share: float, least: int, most: int
) -> None:
    """An edited word spoils five grams: of 1 % edited, 0.91 are common; of 5 %, 0.63."""
    rng = random.Random(2)
    texts = [draw(rng, words, 400) for _ in range(50)]
    copies = [[rng.choice(words) if rng.random() < share else w for w in text] for text in texts]
    whole = [joined(text) for text in [*texts, *copies]]
    assert least <= 100 - len(near(whole)) <= most
    true = [similar(a, b) for a, b in zip(texts, copies, strict=True)]
    assert np.mean(true) == pytest.approx({0.01: 0.91, 0.05: 0.63}[share], abs=0.03)


def test_sketches_agree_as_often_as_texts_do() -> None:
    rng = random.Random(3)
    for length in (200, 5000):  # the longer one is sketched in parts
        text = draw(rng, ENGLISH, length)
        for start in (0.1, 0.5, 0.9):
            other = [*text[: int(start * length)], *draw(rng, ENGLISH, length)]
            one, two = minhash_signature(joined(text)), minhash_signature(joined(other))
            assert one is not None
            assert two is not None
            true = similar(text, other)
            assert (one == two).mean() == pytest.approx(true, abs=0.12)  # three deviations


def test_short_and_awkward_documents_are_kept_apart() -> None:
    kept = near([*AWKWARD, "two words", "two others", "Two words!", "世界", "界世"])
    assert kept == [*(t for t in AWKWARD if t != " "), "two words", "two others", "世界", "界世"]


@given(st.lists(st.text(st.sampled_from("ab c世.\n"), max_size=6)))
def test_what_is_kept_is_in_order_and_all_is_counted(texts: list[str]) -> None:
    for how in ("exact", "near"):
        kept = DedupFilter(stream(texts), how)
        places = [document.bytes_read for document in kept]
        assert places == sorted(set(places))
        assert len(places) + sum(kept.left_out.values()) == len(texts)
    assert {t.strip() for t in texts} == {
        d.text.strip() for d in DedupFilter(stream(texts), "exact")
    }


def test_another_process_drops_the_same() -> None:
    code = (
        "import random; from pathlib import Path; from kinfolk.data.dedup import DedupFilter;"
        "from kinfolk.data.dedup import minhash_signature;"
        "from kinfolk.data.documents import Document;"
        "r = random.Random(4); w = [str(i) for i in range(6)];"
        "t = [' '.join(r.choice(w) for _ in range(12)) for _ in range(300)];"
        "k = DedupFilter([Document(x, Path('a'), i) for i, x in enumerate(t)], 'near');"
        "print([d.bytes_read for d in k], minhash_signature(t[0]).sum())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_memory_follows_the_number_of_documents_only() -> None:
    rng = random.Random(5)
    costs = []
    for length in (20, 200):
        texts = [joined(draw(rng, ENGLISH, length)) for _ in range(512)]
        index = MinHashDeduplicator()
        index.find_or_add("first", 0)
        tracemalloc.start()
        for number, text in enumerate(texts):
            index.find_or_add(text, number)
        costs.append(tracemalloc.get_traced_memory()[0] / len(texts))
        tracemalloc.stop()
    assert max(costs) < 2500
    assert costs[1] == pytest.approx(costs[0], rel=0.05)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(UserError, match="dedup fuzzy: choose exact or near"):
        DedupFilter([], "fuzzy")


TEST = "The quick brown fox jumps over the lazy dog, and then it sleeps under a tree."
QUESTION = "北京大学是中国的一所著名的综合性大学，位于北京市海淀区。"
FILES = {
    "blocks.txt": f"one\n\ntwo\n{TEST[:30]}\n{TEST[30:]}\n\n{QUESTION}",
    "rows.tsv": f'id\ttext\n1\t"{TEST}\n2\t{QUESTION}\n',
    "rows.csv": f'id,text\n1,"he said: ""{TEST}"""\n2,"{QUESTION}"\n',
    "lines.jsonl": f"{json.dumps({'a': {'b': ['x', TEST]}})}\n{json.dumps({'q': QUESTION})}\n",
    "squad.json": json.dumps(
        {"data": [{"paragraphs": [{"context": TEST, "qas": [{"question": QUESTION}]}]}]}
    ),
    "pretty.json": json.dumps({"data": [{"context": TEST, "q": QUESTION}]}, indent=1),
    "cut.json": json.dumps({"data": [{"context": TEST, "q": QUESTION}]}, ensure_ascii=False)[:-2],
}
LINES = {
    "blocks.txt": (4, 7),
    "rows.tsv": (2, 3),
    "rows.csv": (2, 3),
    "lines.jsonl": (1, 2),
    "pretty.json": (4, 5),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_planted_tests_are_found_in_every_kind_of_file(
    name: str, zipped: bool, tmp_path: Path
) -> None:
    file = tmp_path / (name + ".gz" if zipped else name)
    file.write_bytes(gzip.compress(FILES[name].encode()) if zipped else FILES[name].encode())
    rng = random.Random(6)
    texts = [joined(draw(rng, words, 100)) for words in (ENGLISH, CHINESE) for _ in range(5)]
    texts[2] += " THE QUICK BROWN FOX -- jumps over the 'lazy' dog; and then it sleeps"
    texts[7] = texts[7][:50] + QUESTION[3:20].replace("，", "") + texts[7][50:]
    dropped: list[Dropped] = []
    kept = DecontaminationFilter(stream(texts), [file], dropped.append)
    assert [document.bytes_read for document in kept] == [0, 1, 3, 4, 5, 6, 8, 9]
    assert kept.left_out == {"contaminated": 2}
    assert dropped[0] == {
        "reason": "contaminated",
        "source": "a.txt",
        "source_line": 1,
        "evaluation_file": str(file),
        "evaluation_line": LINES.get(name, (1, 1))[0],
        "ngram": "the quick brown fox jumps over the lazy dog and then it sleeps",
        "excerpt": texts[2][:80],
    }
    assert dropped[1]["ngram"] == " ".join(QUESTION[3:16])
    assert dropped[1]["evaluation_line"] == LINES.get(name, (1, 1))[1]


def test_twelve_words_are_no_proof(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(TEST)
    words = TEST.split()
    texts = [" ".join([*words[:12], "and", *words[13:]]), " ".join(words[:13])]
    kept = DecontaminationFilter(stream(texts), [tmp_path / "test.txt"])
    assert [document.bytes_read for document in kept] == [0]


def test_test_files_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        DecontaminationFilter([], [tmp_path / "nowhere"])
    (tmp_path / "short.txt").write_text("too short\n\n" * 20)
    with pytest.raises(UserError, match=r"nothing in .*short\.txt has 13 words in a row"):
        DecontaminationFilter([], [tmp_path / "short.txt"])
    (tmp_path / "bad.txt.gz").write_bytes(gzip.compress(TEST.encode())[:-9])
    with pytest.raises(UserError, match=r"bad\.txt\.gz is corrupt"):
        DecontaminationFilter([], [tmp_path / "bad.txt.gz"])


def test_awkward_documents_pass_and_awkward_tests_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        json.dumps({"a": "\ud800 " + TEST}).encode() + b'\n{"b": 1e999, "c": [null, "\xff x"]}\n[['
    )
    texts = [*AWKWARD, TEST + "\ud800"]
    kept = DecontaminationFilter(stream(texts), [tmp_path / "a.jsonl"])
    assert [document.text for document in kept] == AWKWARD


@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "test"),
    [
        ("wiki_en/valid.txt.gz", "squad/dev-v1.1.json.gz"),
        ("wiki_zh/valid.txt.gz", "xquad/xquad.zh.json.gz"),
    ],
)
def test_real_tests_are_found_where_they_were_put(real: Path, text: str, test: str) -> None:
    articles = list(read_documents([real / text]))[:300]
    before = DecontaminationFilter(articles, [real / test])
    clean = list(before)
    assert (
        before.left_out["contaminated"] <= 6
    )  # real articles share a phrase with a test now and then
    data = json.loads(gzip.decompress((real / test).read_bytes()))["data"]
    planted = [p["context"] for article in data[:20] for p in article["paragraphs"][:1]]
    mixed = [
        Document(f"{one.text}\n{planted[i]}", one.source, i) if i < len(planted) else one
        for i, one in enumerate(clean)
    ]
    after = DecontaminationFilter(mixed, [real / test])
    assert list(after) == clean[len(planted) :]
    assert after.left_out["contaminated"] == len(planted) == 20


@pytest.mark.real
def test_real_articles_are_no_duplicates_but_their_copies_are(real: Path) -> None:
    for name in ("wiki_en", "wiki_zh"):
        articles = list(read_documents([real / name / "valid.txt.gz"]))[:300]
        kept = list(DedupFilter(articles, "near"))
        assert len(kept) >= 0.99 * len(articles)
        copies = [Document(f"{a.text}\n{a.text[:20]}", a.source, 0) for a in articles]
        twice = DedupFilter([*articles, *copies], "near")
        assert sum(1 for _ in twice) <= 1.02 * len(kept)
