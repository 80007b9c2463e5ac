"""Learning is real: after at most 300 steps, unseen text costs less than its unigram entropy."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kinfolk.metrics.baselines import entropy
from kinfolk.text import Tokenizer
from support.runs import Kinfolk

# Bytes are a vocabulary small enough to be learned in a few steps; BERT, which is asked about few
# tokens of a text, leaves its plateau sooner with pieces, and gets more text. Short rows let it and
# XLNet find the neighbours of a token soon. Longer and more spans than is usual ask T5 for more
# text, and for fewer of the sentinels between spans, which are not scored.
SETTINGS = {
    "gpt2": ("--length", 32, "--batch", 16, "--steps", 120, "train.lr=2e-3"),
    "bert": (
        *("--objective", "mlm", "objective.mask_rate=0.2", "train.warmup=30"),
        *("--length", 32, "--batch", 160, "--steps", 200, "train.lr=2e-3"),
    ),
    "gpt": ("--length", 32, "--batch", 16, "--steps", 300, "train.lr=1e-3"),
    "gpt3": ("--length", 32, "--batch", 16, "--steps", 120, "train.lr=2e-3"),
    "transformer_xl": (
        *("--length", 32, "model.mem_len=32"),
        *("--batch", 16, "--steps", 100, "train.lr=5e-3"),
    ),
    "xlnet": (
        *("--length", 16, "objective.partial_prediction_k=4"),
        *("--batch", 32, "--steps", 120, "train.lr=3e-3"),
    ),
    "t5": (
        *("--length", 32, "objective.mask_rate=0.5", "objective.mean_span_length=8"),
        *("--batch", 16, "--steps", 200, "train.lr=3e-2"),
    ),
}
SCHEDULE = ("train.warmup=20", "train.schedule=trapezoid")
PIECES = {"bert": ("--kind", "bpe", "--vocab", 512)}


@pytest.fixture
def wiki(
    member: str, real: Path, kinfolk: Kinfolk, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Articles to learn from as a corpus, and other articles as a text; made once."""
    chunks = PIECES.get(member, ("--kind", "byte"))
    folder = tmp_path_factory.getbasetemp() / f"wiki-{chunks[1]}"
    if folder.exists():
        return folder
    articles = real / "wiki_en" / "valid.txt.gz"
    kinfolk("tokenizer", "train", articles, *chunks, "-o", folder / "tok")
    kinfolk("prepare", articles, "--tokenizer", folder / "tok", "-o", folder / "corpus")
    with gzip.open(real / "wiki_en" / "test.txt.gz", "rt", encoding="utf-8") as file:
        text = file.read(6_000)
    (folder / "unseen.txt").write_text(text.rpartition("\n\n")[0], encoding="utf-8")
    return folder


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("member", SETTINGS)
def test_300_steps_beat_the_unigram_entropy(member: str, wiki: Path, kinfolk: Kinfolk) -> None:
    run = wiki / member
    said = kinfolk(
        *("pretrain", f"{member}/tiny", "--corpus", wiki / "corpus", "-o", run),
        *(*SCHEDULE, *SETTINGS[member], "--device", "cpu"),
    )
    assert said.code == 0, said.err
    # One token (T5: one span) is hidden at a time, and all the others are shown.
    scores = json.loads(kinfolk("evaluate", run, "--text", wiki / "unseen.txt", "--json").out)
    articles = (wiki / "unseen.txt").read_text(encoding="utf-8").split("\n\n")
    ids = Tokenizer.load(wiki / "tok").encode_batch(articles, add_special_tokens=False)
    unigram = entropy(np.bincount(np.concatenate(ids)))
    print(f"{member}: {scores['loss']:.3f} nats a token never seen, unigram {unigram:.3f}")
    assert scores["loss"] < unigram - 0.1
