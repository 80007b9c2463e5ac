"""Sentences end where a reader would end them."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.text import sentence_ends


def sentences(text: str) -> list[str]:
    ends = sentence_ends(text)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    "expected",
    [
        ["Hi there.", " It is 3.14."],
        ["Dr. Smith met J. K. Rowling in the U.S. Senate.", ' "Why?" she asked.', " He left!"],
        ["He said no.", " See no. 5 and vol. 3, e.g. Monday."],
        ["1. Flour.", " 2. Eggs"],
        ["See Prof. A, Messrs. B and figs. 3.", " Also sept. 5.", " It ends.", " So"],
        ["It ends. a", " \n  \nb \t"],
        ["Wait… what?", " Oh…", " My."],
        ['He said "Stop."', " Then he left."],
        ["他说：“好。”", "然后走了！", "真的……", "是吗？", "是；", "不是。"],
        ["「走吧。」", "他说，3.5元。", "OK"],
        ["『真的？！』", "他问：“走吧……”", "她点头。", "〈书。〉", "好｡", "是"],
        ["你好吗?", "我很好!!!", "用Python3.5写。", "Yahoo!奇摩？!", "哈哈。。。", "走……", "好"],
        ["= Title =", "\nFirst line", "\n\n  second. \n"],
        [" "],
        [],
    ],
)
def test_sentences_end_where_a_reader_ends_them(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected


@given(text=st.text(st.sampled_from(list("aB1 \n.!?。…”\"')；好\t"))))
def test_boundaries_rise_to_the_end_and_no_sentence_is_blank(text: str) -> None:
    ends = sentence_ends(text)
    assert ends == sorted(set(ends))
    assert not text or ends[-1] == len(text)
    assert not text.strip() or all(sentence.strip() for sentence in sentences(text))
    assert all("\n" not in sentence.strip() for sentence in sentences(text))


def test_long_runs_take_linear_time() -> None:
    for run in (".", " ", "\n", "。", "…", '."', ". "):
        text = "a" + run * 50_000 + "b"
        assert sentence_ends(text)[-1] == len(text)


@pytest.mark.real
def test_real_articles_have_sentences_of_usual_length(real: Path) -> None:
    for name, low, high in (("wiki_en", 80, 160), ("wiki_zh", 20, 60)):
        with gzip.open(real / name / "valid.txt.gz", "rt", encoding="utf-8") as file:
            text = file.read(300_000)
        assert low < len(text) / len(sentence_ends(text)) < high
