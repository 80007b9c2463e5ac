"""Coreference documents are read from CoNLL-2012 columns, JSON lines and GAP."""

import json
from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.rows import CorefDocument


def read(path: Path, format: str) -> list[CorefDocument]:
    return list(read_rows(path, FileSpec("coref", format, "")))


def conll(*words: tuple[str, str]) -> str:
    lines = [
        f"bc/a 0 {n} {word} NN * - - - Ann * {mark}" if word else ""
        for n, (word, mark) in enumerate(words)
    ]
    return "\n".join(["#begin document (bc/a); part 000", *lines, "#end document", ""])


def test_brackets_in_the_last_column_are_spans(tmp_path: Path) -> None:
    path = tmp_path / "a.v4_gold_conll"
    path.write_text(
        conll(
            ("The", "(1"), ("old", "-"), ("king", "(2)|1)"), ("", ""), ("He", "(1)"), ("it", "(2)")
        )
    )
    (document,) = read(path, "conll2012")
    assert document.sentences == (("The", "old", "king"), ("He", "it"))
    assert set(document.clusters or ()) == {((0, 3), (3, 4)), ((2, 3), (4, 5))}
    assert (document.id, document.number) == ("(bc/a); part 000", 1)
    assert document.speakers == (("Ann",) * 3, ("Ann",) * 2)


def test_spans_of_one_cluster_may_lie_in_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(conll(("a", "(1"), ("b", "(1"), ("c", "1)"), ("d", "1)")))
    assert read(path, "conll2012")[0].clusters == (((0, 4), (1, 3)),)


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ("1)", "closes 1 at word 1 before opening it"),
        ("(1", "never closes 1"),
        ("x", "has 'x' at word 1"),
    ],
)
def test_brackets_that_do_not_close_are_refused(tmp_path: Path, marks: str, said: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(conll(("a", marks)))
    with pytest.raises(UserError, match=said):
        read(path, "conll2012")


def test_a_document_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(conll(("a", "-")).partition("#end")[0])
    with pytest.raises(UserError, match="no '#end document' for line 1"):
        read(path, "conll2012")
    path.write_text("a b\n")
    with pytest.raises(UserError, match=r"line 1 of .* CoNLL-2012 has words between"):
        read(path, "conll2012")


def test_spans_of_json_have_their_last_word_in(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    record = {"doc_key": "d", "sentences": [["王", "老师"], ["他"]], "clusters": [[[0, 1], [2, 2]]]}
    path.write_text(json.dumps(record))
    assert read(path, "objects") == [
        CorefDocument("d", (("王", "老师"), ("他",)), (((0, 2), (2, 3)),), 1)
    ]
    for bad in ([2, 3], [1, 0], [0], "x"):
        path.write_text(json.dumps({**record, "clusters": [[bad]]}))
        with pytest.raises(
            UserError, match=r"line 1 of .* has the span .* word indices from 0 to 2"
        ):
            read(path, "objects")


TITLES = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"


def test_the_pronoun_and_two_names_of_gap_are_given_mentions(tmp_path: Path) -> None:
    path = tmp_path / "gap.tsv"
    row = "t-1\tAnn Lee met Bea's aunt; she ran.\tshe\t24\tAnn Lee\t0\tTRUE\tBea\t12\tFALSE\thttp"
    path.write_text(TITLES + row + "\n")
    (document,) = read(path, "gap")
    words = document.words
    assert document.mentions is not None
    spans = [" ".join(words[a:b]) for a, b in document.mentions]
    assert spans == ["Ann Lee", "Bea", "she"]
    assert document.clusters == ((document.mentions[0], document.mentions[2]),)
    path.write_text(TITLES + row.replace("\t24\t", "\t25\t") + "\n")
    with pytest.raises(UserError, match=r"line 2 of .* has no 'she' at character 25"):
        read(path, "gap")


def test_where_neither_name_is_meant_there_is_no_cluster(tmp_path: Path) -> None:
    path = tmp_path / "gap.tsv"
    row = "t-1\tAnn met Bea; she ran.\tshe\t13\tAnn\t0\tFALSE\tBea\t8\tFALSE\thttp"
    path.write_text(TITLES + row + "\n")
    assert read(path, "gap")[0].clusters == ()


@pytest.mark.real
def test_every_span_of_gap_is_its_words(real: Path) -> None:
    documents = read(real / "gap_coref" / "gap-validation.tsv", "gap")
    assert len(documents) == 454
    for document in documents:
        assert document.mentions is not None and len(document.mentions) == 3
        assert all(0 <= a < b <= len(document.words) for a, b in document.mentions)
        assert all(document.words)


def test_clusters_that_are_no_list_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"sentences": [["ann", "ran"]], "clusters": 5}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"'clusters' in line 1 of .*must be a list of lists"):
        read(path, "objects")
