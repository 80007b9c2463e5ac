"""The page of a run shows its curve, and the lines under it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kinfolk.data.corpus import Corpus
from kinfolk.metrics.baselines import entropy
from kinfolk.tasks.task import format_score
from kinfolk.training.log import read
from kinfolk.training.loop import Progress
from kinfolk.workflows.baselines import Baselines
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import CorpusShare
from kinfolk.workflows.report import baseline_rows, curves, loss_title
from support.learnable import dev, opinions, tune
from support.runs import MEMBERS, Home, OnStep


@pytest.mark.parametrize("member", MEMBERS)
def test_the_page_says_what_was_run(member: str, home: Home, runs: dict[str, Path]) -> None:
    text = (runs[member] / "report.html").read_text(encoding="utf-8")
    corpus = Corpus.open(home.corpus)
    for said in (
        f"{member}/nano",
        f"{corpus.tokens:,}",
        "unigram entropy",
        "Kneser-Ney",
        "<figure",
    ):
        assert said in text
    found = Baselines([(corpus, Corpus.open(home.corpus / "holdout"), 1.0)])
    assert f"{found.unigram:.2f}" in text
    assert f"<h3>{loss_title(home.recipe(member).objective.loss_name)}</h3>" in text


def test_the_curve_is_the_loss_of_tokens(runs: dict[str, Path]) -> None:
    gpt2, held_out = curves(runs["gpt2"], "gpt2")
    log = read(runs["gpt2"])
    assert gpt2.ys == [entry["loss"] for entry in log]
    assert held_out.ys == [entry["eval_loss"] for entry in log if "eval_loss" in entry]
    # BERT's loss is a sum: only its token part can stand above the baselines.
    bert, held_out = curves(runs["bert"], "bert")
    log = read(runs["bert"])
    assert bert.ys == [entry["losses"]["mlm"] for entry in log]
    scored = [entry for entry in log if "eval_loss" in entry]
    assert held_out.ys == [entry["eval_losses"]["mlm"] for entry in scored]
    for entry in scored:
        assert entry["eval_loss"] == pytest.approx(sum(entry["eval_losses"].values()))


@pytest.mark.parametrize("member", ["gpt2", "bert", "electra"])
def test_progress_and_page_show_the_same_losses(member: str, home: Home, tmp_path: Path) -> None:
    seen: list[Progress] = []
    run = pretrain(home.recipe(member), tmp_path / "run", callbacks=[OnStep(seen.append)])
    learned, held_out = curves(run, member)
    assert [(p.step, p.loss) for p in seen] == list(zip(learned.xs, learned.ys, strict=True))
    scored = [(p.step, p.eval_loss) for p in seen if p.eval_loss is not None]
    assert scored == list(zip(held_out.xs, held_out.ys, strict=True))


def interrupt(progress: Progress) -> None:
    if progress.step == 5:
        raise KeyboardInterrupt


def test_an_interrupted_run_has_a_page(home: Home, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretrain(home.recipe("albert"), tmp_path / "run", callbacks=[OnStep(interrupt)])
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "albert/nano, held out" in page and "Kneser-Ney" in page


def test_the_page_of_fine_tuning_has_its_curves_and_the_scores_of_the_best(tmp_path: Path) -> None:
    found, settings = opinions(tmp_path, 64, 24), ("train.batch_size=8", "train.lr=2e-3")
    run = tune("bert/nano", found, tmp_path / "run", *settings, epochs=3)
    page = (run / "report.html").read_text(encoding="utf-8")
    for text in ("bert: train.tsv", "bert, dev", "classify", "accuracy", "accuracy by step"):
        assert text in page
    for name, value in dev(run).items():
        assert f"<td>{format_score(name, value)}</td>" in page
    with pytest.raises(KeyboardInterrupt):
        tune("bert/nano", found, tmp_path / "cut", *settings, callbacks=[OnStep(interrupt)])
    page = (tmp_path / "cut" / "report.html").read_text(encoding="utf-8")
    assert "<figure" in page and "Dev rows" not in page  # nothing was scored yet
    assert not (tmp_path / "cut" / "scores.json").exists()


def test_baselines_are_priced_by_byte_where_text_was_held_out(home: Home) -> None:
    corpus, held_out = Corpus.open(home.corpus), Corpus.open(home.corpus / "holdout")
    unigram, trigram = baseline_rows(Baselines([(corpus, held_out, 1.0)]))
    assert unigram.bits_per_byte is not None and trigram.bits_per_byte is not None
    assert trigram.bits_per_byte < unigram.bits_per_byte
    (alone,) = baseline_rows(Baselines([(corpus, None, 1.0)]))
    assert alone.bits_per_byte is None


def test_the_page_of_a_mixture_names_every_corpus(home: Home, second: Path, tmp_path: Path) -> None:
    mixture = (CorpusShare(str(home.corpus), 3), CorpusShare(str(second), 1))
    recipe = dataclasses.replace(home.recipe("gpt2", "train.steps=3"), corpus=mixture)
    run = pretrain(recipe, tmp_path / "run")
    page = (run / "report.html").read_text(encoding="utf-8")
    for share, said in zip(
        mixture, ("corpus, 75.0% of rows", "second, 25.0% of rows"), strict=True
    ):
        assert f"{said}: {share.open().tokens:,} tokens" in page
    assert "Kneser-Ney" in page and "held out" in page


def test_the_lines_of_a_mixture_weigh_a_token_as_its_rows_do(home: Home, second: Path) -> None:
    first, other = Corpus.open(home.corpus), Corpus.open(second)
    held = [Corpus.open(c.folder / "holdout") for c in (first, other)]
    found = Baselines([(first, held[0], 3.0), (other, held[1], 1.0)])
    shares = [text.token_counts() / text.tokens for text in held]
    mixed = 0.75 * shares[0] + 0.25 * shares[1]
    mixed = mixed[mixed > 0]
    assert found.unigram == pytest.approx(-(mixed * np.log(mixed)).sum(), abs=1e-9)
    # Nearly all weight on one side: that side's own line.
    nearly = Baselines([(first, held[0], 1.0), (other, held[1], 1e-9)])
    assert nearly.unigram == pytest.approx(entropy(held[0].token_counts()), abs=1e-6)
    assert found.trigram is not None and nearly.trigram is not None
    assert found.trigram.tokens == sum(text.tokens + text.documents for text in held)
    # The 3-gram model is the same for any weights, and each text is priced by itself.
    sides = [
        Baselines([(first, a, 1.0), (other, b, 1.0)]).trigram
        for a, b in ((held[0], None), (None, held[1]))
    ]
    assert sides[0] is not None and sides[1] is not None
    assert found.trigram.loss == pytest.approx(0.75 * sides[0].loss + 0.25 * sides[1].loss)
    assert nearly.trigram.loss == pytest.approx(sides[0].loss, rel=1e-6)
    assert nearly.trigram.bits_per_byte == pytest.approx(sides[0].bits_per_byte, rel=1e-3)
    alone = Baselines([(first, None, 3.0), (other, None, 1.0)])
    assert alone.trigram is None and baseline_rows(alone)[0].bits_per_byte is None
