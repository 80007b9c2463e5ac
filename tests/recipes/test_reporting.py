"""The page of a run shows its curve, and the lines under it."""

from pathlib import Path

import pytest

from kinfolk.data.shards import Corpus
from kinfolk.recipes.evaluation import baselines
from kinfolk.recipes.reporting import curves, lines, report
from kinfolk.training.log import read
from little import MEMBERS, Home


@pytest.mark.parametrize("member", MEMBERS)
def test_the_page_says_what_was_run(member: str, home: Home, runs: dict[str, Path]) -> None:
    page = report(runs[member])
    assert page == runs[member] / "report.html"
    text = page.read_text(encoding="utf-8")
    corpus = Corpus.open(home.corpus)
    for said in (f"{member}/nano", f"{corpus.tokens:,}", "unigram entropy", "Kneser-Ney", "<svg"):
        assert said in text
    found = baselines(corpus, Corpus.open(home.corpus / "holdout"))
    assert f"{found.unigram:.2f}" in text


def test_the_curve_is_the_loss_of_tokens(runs: dict[str, Path]) -> None:
    gpt2, held_out = curves(runs["gpt2"], "gpt2")
    log = read(runs["gpt2"])
    assert gpt2.ys == [entry["loss"] for entry in log]
    assert held_out.ys == [entry["held_out"] for entry in log if "held_out" in entry]
    # BERT's loss is a sum: only its token part can stand above the baselines.
    (bert,) = curves(runs["bert"], "bert")
    assert bert.ys == [entry["parts"]["tokens"] for entry in read(runs["bert"])]


def test_baselines_are_priced_by_byte_where_text_was_held_out(home: Home) -> None:
    corpus, held_out = Corpus.open(home.corpus), Corpus.open(home.corpus / "holdout")
    unigram, trigram = lines(baselines(corpus, held_out))
    assert unigram.bits_per_byte is not None and trigram.bits_per_byte is not None
    assert trigram.bits_per_byte < unigram.bits_per_byte
    (alone,) = lines(baselines(corpus, None))
    assert alone.bits_per_byte is None
