"""`kinfolk pretrain`: a run, stopped and gone on with; and real text is learned."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import kinfolk as package
from kinfolk.data.feed import Feed
from kinfolk.data.shards import Corpus
from kinfolk.metrics.baselines import entropy
from kinfolk.recipes.recipe import Recipe
from kinfolk.training.log import read
from little import MEMBERS, Home, Kinfolk, tree

VOCAB = 512  # pieces of real text
FEW = ("--length", 32, "--batch", 4, "--device", "cpu")


@pytest.mark.parametrize("member", MEMBERS)
def test_a_run_is_what_was_asked_for(
    member: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = kinfolk(
        *("pretrain", f"{member}/nano", "--corpus", home.corpus, "-o", out, "--steps", 3, *FEW),
        *("--seed", 7, "--workers", 0, "train.peak=2e-3", "model.dropout=0.2", "--json"),
    )
    assert said.code == 0
    assert json.loads(said.out) == {"run": str(out), "report": str(out / "report.html")}
    assert f"{member}/nano  step 3 of 3  loss " in said.err
    recipe = Recipe.read(out / "recipe.json")
    train = recipe.train
    assert (train.steps, train.batch, train.seed, train.peak) == (3, 4, 7, 2e-3)
    assert (recipe.model.dropout, recipe.objective.length) == (0.2, 32)
    assert len(read(out)) == 3
    assert (out / "report.html").stat().st_size > 1000
    assert list((out / "tensorboard").iterdir())


def test_bert_can_learn_by_hidden_words_alone(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    out = tmp_path / "run"
    kinfolk(
        *("pretrain", "bert/nano", "--corpus", home.corpus, "-o", out, "--steps", 2, *FEW),
        *("--objective", "mlm"),
    )
    assert [list(entry["counts"]) for entry in read(out)] == [["tokens"]] * 2


def test_an_interrupt_ends_with_130_and_resume_arrives(
    home: Home, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    asked = ("pretrain", "gpt2/nano", "--corpus", home.corpus, "--steps", 150, *FEW)
    asked = (*asked, "train.save_every=100", "train.keep=1", "train.evaluate_every=1000")
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfolk", *map(str, asked), "-o", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    log = run / "log.jsonl"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (log.exists() and log.stat().st_size > 2000):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    done = len(read(run))
    assert 0 < done < 150
    assert (run / "checkpoints" / "last").readlink().name == f"step-{done:08d}"
    assert kinfolk("pretrain", "--resume", run).code == 0
    kinfolk(*asked, "-o", whole)
    assert (run / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()
    assert tree(run / "checkpoints" / "last") == tree(whole / "checkpoints" / "last")


# Vocabularies small enough to be learned in 300 steps: BERT's loss stays at the unigram line
# until it has found out where to look, and finds out later the more words there are. It is asked
# about fewer tokens of a text than the others, and so gets more of them. Its loss here is that of
# its own task, where a tenth of the tokens it predicts are shown; hidden one at a time, they cost
# it as much as the unigram line after 300 steps, and less later.
SETTINGS = {
    "gpt2": ("--batch", 16),
    "bert": ("--batch", 64, "--objective", "mlm", "train.peak=3e-3", "train.warmup=60"),
    "t5": ("--batch", 16),
}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("member", "margin"), [("gpt2", 0.3), ("bert", 0.1), ("t5", 0.3)])
def test_real_text_is_learned_in_300_steps(
    member: str,
    margin: float,
    real: Path,
    kinfolk: Kinfolk,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "wiki"
    text, tok, corpus = real / "wiki_en" / "valid.txt.gz", folder / "tok", folder / "corpus"
    if not corpus.exists():
        folder.mkdir()
        kinfolk("tokenizer", "train", text, "--vocab", VOCAB, "-o", tok)
        kinfolk("prepare", text, "--tokenizer", tok, "--holdout", 0.05, "-o", corpus)
    run = folder / member
    said = kinfolk(
        *("pretrain", f"{member}/tiny", "--corpus", corpus, "-o", run, "--steps", 300),
        *("--length", 64, *SETTINGS[member], "--device", "cpu"),
    )
    assert said.code == 0, said.err
    loss, unigram = held_out(run)
    print(f"{member}: {loss:.3f} nats a held-out token, unigram {unigram:.3f}")
    assert loss < unigram - margin


@torch.no_grad()
def held_out(run: Path) -> tuple[float, float]:
    """Return what held-out tokens cost a model, and what their frequencies alone would."""
    recipe = Recipe.read(run / "recipe.json")
    corpus = Corpus.open(Path(recipe.corpus) / "holdout")
    unigram = entropy(corpus.counts())
    if recipe.name.startswith("gpt2"):
        return package.evaluate(run, corpus=corpus.folder, device="cpu")[0].loss, unigram
    feed, (model, _) = Feed(recipe.objective, corpus, rows=16), package.load(run)
    batches = [feed[number] for number in range(min(20, feed.batches))]
    total = sum(recipe.objective.loss(model, b).sums["tokens"].item() for b in batches)
    loss = total / sum(batch.counts["tokens"] for batch in batches)
    if recipe.name.startswith("bert"):
        return loss, unigram
    # T5 also writes sentinels, which are easy: its line is the entropy of all that it writes.
    written = torch.cat([batch.targets.ids for batch in batches])
    return loss, entropy(written[written >= 0].bincount().numpy())
