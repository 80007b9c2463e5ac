"""Learning is real: 300 steps on a CPU, and text never seen costs less than its unigram entropy."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kinfolk.metrics.baselines import entropy
from kinfolk.text import Tokenizer
from little import Kinfolk

# A vocabulary small enough to be learned in 300 steps. An encoder is asked about fewer tokens of a
# text than a decoder, so it gets more text; T5 is asked for more of its text than is usual.
SETTINGS = {
    "gpt2": ("--length", 64, "--batch", 16, "--steps", 100),
    "bert": (
        *("--objective", "mlm", "--length", 32, "--batch", 160, "objective.rate=0.2"),
        *("--steps", 200),
        *("train.peak=2e-3", "train.warmup=30", "train.schedule=trapezoid"),
    ),
    "gpt": ("--length", 64, "--batch", 16, "--steps", 200),
    "gpt3": ("--length", 64, "--batch", 16, "--steps", 100),
    "transformer_xl": ("--length", 64, "--batch", 12, "model.memory=64", "--steps", 200),
    "xlnet": (
        *("--length", 32, "--batch", 32, "objective.share=4", "train.peak=3e-3"),
        *("train.warmup=30", "train.schedule=trapezoid", "--steps", 200),
    ),
    "t5": (
        *("--length", 64, "--batch", 20),
        *("objective.rate=0.5", "train.schedule=trapezoid"),
    ),
}


@pytest.fixture
def wiki(real: Path, kinfolk: Kinfolk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Articles to learn from as a corpus, and other articles as a text; made once."""
    folder = tmp_path_factory.getbasetemp() / "wiki"
    if folder.exists():
        return folder
    articles = real / "wiki_en" / "valid.txt.gz"
    kinfolk("tokenizer", "train", articles, "--vocab", 512, "-o", folder / "tok")
    kinfolk("prepare", articles, "--tokenizer", folder / "tok", "-o", folder / "corpus")
    with gzip.open(real / "wiki_en" / "test.txt.gz", "rt", encoding="utf-8") as file:
        text = file.read(8_000)
    (folder / "unseen.txt").write_text(text.rpartition("\n\n")[0], encoding="utf-8")
    return folder


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("member", SETTINGS)
def test_300_steps_beat_the_unigram_entropy(member: str, wiki: Path, kinfolk: Kinfolk) -> None:
    run = wiki / member
    said = kinfolk(
        *("pretrain", f"{member}/tiny", "--corpus", wiki / "corpus", "-o", run),
        *("--steps", 300, *SETTINGS[member], "--device", "cpu"),  # or fewer, where they suffice
    )
    assert said.code == 0, said.err
    # One token (T5: one span) is hidden at a time, and all the others are shown.
    scores = json.loads(kinfolk("evaluate", run, "--text", wiki / "unseen.txt", "--json").out)
    articles = (wiki / "unseen.txt").read_text(encoding="utf-8").split("\n\n")
    ids = Tokenizer.load(wiki / "tok").encode_all(articles, specials=False)
    unigram = entropy(np.bincount(np.concatenate(ids)))
    print(f"{member}: {scores['loss']:.3f} nats a token never seen, unigram {unigram:.3f}")
    assert scores["loss"] < unigram - 0.1
