"""BLEU: what sacrebleu says, and how it was counted."""

import math

import pytest
import sacrebleu

from kinfolk.errors import UserError
from kinfolk.metrics.text import BLEU

REFERENCE = "the cat sat on the red mat ."


def test_the_same_text_has_a_hundred() -> None:
    texts = [REFERENCE, "a b c d"]
    assert BLEU(texts, texts) == pytest.approx(100.0)
    signature = BLEU.signature(texts, texts)
    assert "tok:13a" in signature and "version:" in signature


def test_a_score_is_the_geometric_mean_counted_by_hand() -> None:
    """Papineni et al. 2002: 7 of 8 words, 5 of 7 pairs, 3 of 6 triples, 1 of 5 quadruples."""
    found = BLEU(["the cat sat on a red mat ."], [REFERENCE])
    expected = 100 * math.exp(sum(map(math.log, (7 / 8, 5 / 7, 3 / 6, 1 / 5))) / 4)
    assert found == pytest.approx(expected, abs=1e-9)
    assert expected == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("a b c x", (3 / 4, 2 / 3, 1 / 2, 1 / (2 * 1))),
        ("a b x d", (3 / 4, 1 / 3, 1 / (2 * 2), 1 / (4 * 1))),
        ("a x c y", (2 / 4, 1 / (2 * 3), 1 / (4 * 2), 1 / (8 * 1))),
    ],
)
def test_without_a_hit_of_some_length_half_as_much_counts_each_time(
    text: str, shares: tuple[float, ...]
) -> None:
    """Chen and Cherry 2014, the third technique, which sacrebleu calls exponential."""
    found = BLEU([text], ["a b c d"])
    assert found == pytest.approx(100 * math.exp(sum(map(math.log, shares)) / 4))
    signature = BLEU.signature([text], ["a b c d"])
    assert "smooth:exp" in signature and "nrefs:1" in signature


def test_a_short_text_pays_for_it() -> None:
    found = BLEU(["the cat sat on"], [REFERENCE])
    assert found == pytest.approx(100 * math.exp(1 - 8 / 4))


def test_chinese_is_counted_by_its_characters() -> None:
    texts = ["我今天很高兴。"]
    assert "tok:zh" in BLEU.signature(texts, texts) and BLEU(texts, texts) == pytest.approx(100.0)


def test_each_text_needs_a_reference() -> None:
    with pytest.raises(UserError, match="got 2 texts for 1 references"):
        BLEU(["a", "b"], ["a"])
    with pytest.raises(UserError, match="0 texts"):
        BLEU([], [])


def test_several_references_count_as_in_sacrebleu() -> None:
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
