"""BLEU, chrF and ROUGE against sacrebleu, rouge-score and published examples."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.text import (
    BLEU,
    CHRF,
    ROUGE,
    BitsPerByte,
    bleu_tokenizer,
    describe_bleu,
    lcs_length,
)

REFERENCE = "the cat sat on the red mat ."


def test_bleu_of_equal_texts_is_100() -> None:
    texts = [REFERENCE, "a b c d"]
    assert BLEU(texts, texts) == pytest.approx(100.0)
    signature = BLEU.signature(texts, texts)
    assert "tok:13a" in signature and "version:" in signature


def test_texts_without_bytes_have_0_bits_per_byte_in_every_resample() -> None:
    metric = BitsPerByte()
    statistics = metric.statistics([(0.0, 0), (math.log(2), 1)], ["", "a"])
    assert metric.aggregate(statistics[:1]) == 0
    assert metric.aggregate(statistics) == 1
    counts = np.array([[2, 0], [1, 1]])
    assert metric.resampled_scores(statistics, counts).tolist() == [0, 1]


def test_bleu_is_the_geometric_mean_of_precisions() -> None:
    """Papineni et al. 2002: 7 of 8 words match, 5 of 7 bigrams, 3 of 6 trigrams, 1 of 5 4-grams."""
    score = BLEU(["the cat sat on a red mat ."], [REFERENCE])
    expected = 100 * math.exp(sum(map(math.log, (7 / 8, 5 / 7, 3 / 6, 1 / 5))) / 4)
    assert score == pytest.approx(expected, abs=1e-9)
    assert expected == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("text", "precisions"),
    [
        ("a b c x", (3 / 4, 2 / 3, 1 / 2, 1 / (2 * 1))),
        ("a b x d", (3 / 4, 1 / 3, 1 / (2 * 2), 1 / (4 * 1))),
        ("a x c y", (2 / 4, 1 / (2 * 3), 1 / (4 * 2), 1 / (8 * 1))),
    ],
)
def test_bleu_smooths_orders_without_a_match(text: str, precisions: tuple[float, ...]) -> None:
    """Chen and Cherry 2014, technique 3; sacrebleu calls it exponential."""
    score = BLEU([text], ["a b c d"])
    assert score == pytest.approx(100 * math.exp(sum(map(math.log, precisions)) / 4))
    signature = BLEU.signature([text], ["a b c d"])
    assert "smooth:exp" in signature and "nrefs:1" in signature


def test_bleu_has_a_brevity_penalty() -> None:
    score = BLEU(["the cat sat on"], [REFERENCE])
    assert score == pytest.approx(100 * math.exp(1 - 8 / 4))


def test_bleu_of_chinese_counts_characters() -> None:
    texts = ["我今天很高兴。"]
    assert "tok:zh" in BLEU.signature(texts, texts) and BLEU(texts, texts) == pytest.approx(100.0)


JAPANESE = ["私は今日とても嬉しいです。", "猫が赤いマットの上に座っていました。"]
KOREAN = ["나는 오늘 매우 행복합니다.", "고양이가 빨간 매트 위에 앉아 있었다."]


LANGUAGES = {"ja": ("Japanese", JAPANESE, "MeCab"), "ko": ("Korean", KOREAN, "mecab_ko")}
# `make setup-test` puts the packages of sacrebleu's extras there, without changing the environment.
EXTRAS = Path(sys.prefix) / "oracles"


def check_bleu(texts: list[str], used: str) -> str:
    """Compare BLEU with sacrebleu's by a tokenizer, and return what is said about it."""
    bleu_tokenizer.cache_clear()
    assert f"tok:{used}" in BLEU.signature(texts, texts)
    close = [text.replace("赤い", "青い").replace("빨간", "파란") for text in texts]
    expected = sacrebleu.corpus_bleu(close, [texts], tokenize=used).score
    assert BLEU(close, texts) == pytest.approx(expected) and 20 < expected < 100
    said = describe_bleu(texts)
    bleu_tokenizer.cache_clear()
    assert said is not None and used in said
    return said


def forget_tokenizer(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sacrebleu look for MeCab anew: its module remembers that a package was missing."""
    for module in [name for name in sys.modules if name.endswith(f"tokenizer_{extra}_mecab")]:
        monkeypatch.delitem(sys.modules, module)


@pytest.mark.parametrize("extra", LANGUAGES)
def test_bleu_counts_words_where_mecab_is_installed(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    language, texts, package = LANGUAGES[extra]
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXTRAS)])
    pytest.importorskip(package, reason=f"pip install 'sacrebleu[{extra}]'")
    forget_tokenizer(extra, monkeypatch)
    expected = f"BLEU of {language} uses sacrebleu's tokenizer {extra}-mecab"
    assert check_bleu(texts, f"{extra}-mecab") == expected


@pytest.mark.parametrize("extra", LANGUAGES)
def test_bleu_counts_characters_without_mecab(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, texts, package = LANGUAGES[extra]
    forget_tokenizer(extra, monkeypatch)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    assert f"pip install 'sacrebleu[{extra}]'" in check_bleu(texts, "char")


def test_the_tokenizer_of_bleu_is_said_where_it_is_not_the_usual_one() -> None:
    assert describe_bleu([REFERENCE]) is None
    assert describe_bleu(["我今天很高兴。"]) == "BLEU of Chinese uses sacrebleu's tokenizer zh"


def test_rouge_counts_japanese_and_korean() -> None:
    for texts in (JAPANESE, KOREAN):
        assert [metric(texts, texts) for metric in ROUGE] == pytest.approx([1.0, 1.0, 1.0])


def test_bleu_needs_a_reference_for_each_text() -> None:
    with pytest.raises(UserError, match="got 2 texts for 1 references"):
        BLEU(["a", "b"], ["a"])
    with pytest.raises(UserError, match="0 texts"):
        BLEU([], [])


def test_bleu_of_several_references_equals_sacrebleu() -> None:
    written = ["the cat sat on a red mat .", "so be it", "that was all"]
    references = [[REFERENCE, "a cat sat on a red mat"], ["so it was"], "this was all"]
    first, second = (
        [REFERENCE, "so it was", "this was all"],
        ["a cat sat on a red mat", None, None],
    )
    expected = sacrebleu.corpus_bleu(written, [first, second]).score  # type: ignore[list-item]
    assert BLEU(written, references) == pytest.approx(expected, rel=1e-12)
    assert BLEU(written, first) < expected
    with pytest.raises(UserError, match="text 2 has no reference"):
        BLEU(["a", "b"], ["a", []])


def test_chrf_equals_golden_values_of_sacrebleu() -> None:
    """Written down from sacrebleu 2.6.0."""
    texts = ["the cat sat on a red mat ."], ["the cat sat on the red mat ."]
    assert CHRF(*texts) == pytest.approx(70.66543891509554, abs=1e-6)
    assert "nc:6|nw:0" in CHRF.signature(*texts)
    assert CHRF(["我今天很高兴"], ["我今天非常高兴"]) == pytest.approx(24.34979544, abs=1e-6)


def test_chrf_of_equal_texts_is_100_and_of_different_ones_0() -> None:
    assert CHRF(["a cat"], ["a cat"]) == pytest.approx(100)
    assert CHRF(["xyz"], ["abc"]) == 0


def test_chrf_needs_a_reference_for_each_text() -> None:
    with pytest.raises(UserError, match="got 1 texts for 2 references"):
        CHRF(["a"], ["a", "b"])


def rouge(predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L."""
    return [metric(predictions, references) for metric in ROUGE]


@pytest.mark.parametrize(
    ("reference", "written", "expected"),
    [
        # Lin 2004, section 3: the same words in another order.
        ("police killed the gunman", "police kill the gunman", (3 / 4, 1 / 3, 3 / 4)),
        ("police killed the gunman", "the gunman kill police", (3 / 4, 1 / 3, 1 / 2)),
        # The tests of rouge-score.
        ("testing one two", "testing", (1 / 2, 0, 1 / 2)),
        ("testing one two", "testing one", (4 / 5, 2 / 3, 4 / 5)),
        ("testing one two", "testing two", (4 / 5, 0, 4 / 5)),
        ("testing one two", "", (0, 0, 0)),
        ("The cat sat on the mat.", "the cat lay on a mat", (2 / 3, 1 / 5, 2 / 3)),
    ],
)
def test_rouge_of_published_examples(
    reference: str, written: str, expected: tuple[float, ...]
) -> None:
    assert rouge([written], [reference]) == pytest.approx(expected)


def test_rouge_is_the_mean_over_summaries() -> None:
    written, references = ["a b", "c d", "x"], ["a b", "c e", "y"]
    each = [metric.values(written, references) for metric in ROUGE]
    assert each == [[1, 0.5, 0], [1, 0, 0], [1, 0.5, 0]]
    assert rouge(written, references) == [0.5, 1 / 3, 0.5]


def test_rouge_of_chinese_counts_characters() -> None:
    found = rouge(["中国发布 iPhone 6 新规"], ["中国发布新规：支持iPhone"])
    # 8 words and 9, of which 7 match; 4 pairs of 7 and 8; 中国发布新规 in this order
    assert found == pytest.approx([2 * 7 / 17, 2 * 4 / 15, 2 * 6 / 17])


def test_rouge_ignores_other_letters_in_english() -> None:
    """As in rouge-score, which knows a to z and digits."""
    assert rouge(["a 中 b"], ["a b"]) == [1, 1, 1]


def test_rouge_equals_rouge_score() -> None:
    """`golden/make.py` wrote them."""
    file = Path(__file__).parent / "golden" / "rouge.json"
    cases, wrong = json.loads(file.read_text("utf-8"))["cases"], []
    for case in cases:
        found = rouge([case["written"]], [case["reference"]])
        expected = [case[kind] for kind in ("rouge1", "rouge2", "rougeL")]
        if found != pytest.approx(expected, abs=1e-8):
            wrong.append((case, found))
    assert len(cases) == 100
    assert not wrong, wrong


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_lcs_length_equals_that_of_the_full_table(first: list[str], second: list[str]) -> None:
    row = [0] * (len(second) + 1)
    for word in first:
        before, row = row, [0]
        for index, other in enumerate(second):
            longest = max(before[index + 1], row[-1])
            row.append(before[index] + 1 if word == other else longest)
    assert lcs_length(first, second) == row[-1]


def test_rouge_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(UserError, match="got 2 summaries for 1 references"):
        rouge(["a", "b"], ["a"])
    with pytest.raises(UserError, match="no summaries"):
        rouge([], [])
