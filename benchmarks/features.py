"""What ELMo's features are worth: a tagger with word vectors alone, and with the features beside.

    python benchmarks/features.py --text wiki.txt.xz --vectors glove.txt.xz --data conll2003 \
        --folder runs/features --out results.jsonl

A small ELMo is pretrained on the text. The same tagger, a BiLSTM with a CRF, then learns named
entities from a few sentences with each seed: from the word vectors alone, from the vectors and an
ELMo that was not trained (what its reader of characters is worth), and from the vectors and ELMo.
The words of all labelled files are in the vocabulary, so that the vectors serve every word that
they have.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import kinfolk
from kinfolk.data.documents import read_documents
from kinfolk.text import train_tokenizer

ARMS = {
    "vectors": "word vectors alone",
    "untrained": "word vectors and an untrained ELMo",
    "elmo": "word vectors and ELMo",
}
EVALUATIONS = 6  # on dev sentences, of a tagger
REPEATS = 5  # of labelled words in the text of the tokenizer, so that they are frequent enough


def sentences(file: Path) -> list[str]:
    """Return the sentences of a CoNLL file, a block of lines each."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        blocks = stream.read().split("\n\n")
    return [block for block in blocks if block.strip() and not block.startswith("-DOCSTART-")]


def words_of(file: Path) -> Iterator[str]:
    """Yield the words of each sentence as a text."""
    for block in sentences(file):
        yield " ".join(line.split()[0] for line in block.split("\n") if line.strip())


def prepare(given: argparse.Namespace) -> None:
    """Write the labelled files, train the tokenizer and make the corpus."""
    given.folder.mkdir(parents=True, exist_ok=True)
    data = {name: given.data / f"{name}.txt.gz" for name in ("train", "valid", "test")}
    for name, count in (("train", given.sentences), ("valid", given.dev_sentences)):
        blocks = sentences(data[name])
        chosen = np.random.default_rng(0).permutation(len(blocks))[:count]
        text = "\n\n".join(blocks[i] for i in chosen) + "\n"
        (given.folder / f"{name}.txt").write_text(text, encoding="utf-8")
    (given.folder / "test.txt").write_text(
        "\n\n".join(sentences(data["test"])) + "\n", encoding="utf-8"
    )
    texts = [document.text for document in read_documents([given.text])]
    labelled = [text for file in data.values() for text in words_of(file)] * REPEATS
    tokenizer = train_tokenizer(
        [*texts, *labelled], kind="word", vocab_size=given.vocab, fewer=True
    )
    kinfolk.prepare([given.text], tokenizer, given.folder / "corpus", holdout="1%")


def pretrain(given: argparse.Namespace) -> dict[str, Any]:
    """Pretrain ELMo, and score both directions on held-out documents."""
    begun = time.perf_counter()
    recipe = kinfolk.recipe(
        f"elmo/{given.size}",
        given.folder / "corpus",
        length=given.length,
        steps=given.steps,
        batch_size=given.batch,
        lr=given.lr,
        warmup=min(100, given.steps),
        eval_every=given.steps,
        save_every=given.steps,
        device=given.device,
    )
    run = kinfolk.pretrain(recipe, given.folder / "elmo")
    scores = kinfolk.evaluate(run, corpus=given.folder / "corpus" / "holdout", device=given.device)
    assert scores.backward is not None
    return {
        "arm": "pretrain",
        "steps": given.steps,
        "seconds": time.perf_counter() - begun,
        "bits_per_byte": [scores.bits_per_byte, scores.backward.bits_per_byte],
        "perplexity": [scores.perplexity, scores.backward.perplexity],
    }


def tag(given: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """Train the tagger of one arm with one seed, and score the test sentences."""
    begun = time.perf_counter()
    model: Any = str(given.folder / "elmo")
    if arm == "untrained":
        from kinfolk.workflows.finetuning.recipe import parse_initial_weights

        model = parse_initial_weights(model, from_scratch=True)
    run = kinfolk.finetune(
        model,
        given.folder / "train.txt",
        given.folder / f"{arm}-{seed}",
        dev=given.folder / "valid.txt",
        formulation="features",
        options={
            "vectors": str(given.vectors),
            "feature_layers": "none" if arm == "vectors" else "mixed",
        },
        epochs=given.epochs,
        eval_every=max(1, int(given.epochs * given.sentences / 32 / EVALUATIONS)),
        seed=seed,
        lr=given.tagger_lr,
        device=given.device,
        keep_checkpoints=1,
    )
    scores = kinfolk.evaluate(run, test=given.folder / "test.txt", device=given.device).scores
    return {
        "arm": arm,
        "seed": seed,
        "f1": scores["f1"],
        "accuracy": scores["accuracy"],
        "seconds": time.perf_counter() - begun,
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Write a row for each arm: mean and standard deviation over the seeds."""
    rows = ["| features | test F1 | accuracy | seeds |", "| --- | --- | --- | --- |"]
    for arm, title in ARMS.items():
        cells = []
        for metric in ("f1", "accuracy"):
            some = [100 * line[metric] for line in lines if line["arm"] == arm]
            apart = statistics.stdev(some) if len(some) > 1 else 0.0
            cells.append(f"{statistics.mean(some):.2f} ± {apart:.2f}" if some else "-")
        count = sum(line["arm"] == arm for line in lines)
        rows.append(f"| {title} | {cells[0]} | {cells[1]} | {count} |")
    return "\n".join(rows)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="text to pretrain on")
    parser.add_argument("--vectors", type=Path, required=True, help="file of word vectors")
    parser.add_argument("--data", type=Path, required=True, help="train, valid, test .txt.gz")
    parser.add_argument("--folder", type=Path, required=True, help="where runs are written")
    parser.add_argument("--out", type=Path, required=True, help="results, a line of JSON each")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--vocab", type=int, default=40_000)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--dev-sentences", type=int, default=500)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--tagger-lr", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=9, help="taggers side by side")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--one", default="", help="ARM:SEED, one tagger: how the others are run")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run what is not there yet, write each result as it comes, and print the table."""
    given = parse(arguments)
    if given.one:
        arm, seed = given.one.split(":")
        print(json.dumps(tag(given, arm, int(seed))))
        return
    lines: list[dict[str, Any]] = []

    def add(line: dict[str, Any]) -> None:
        lines.append(line)
        with given.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        print(line, flush=True)

    prepare(given)
    add(pretrain(given))
    options = [*(sys.argv[1:] if arguments is None else arguments)]

    def start(job: str) -> None:
        command = [sys.executable, __file__, *options, "--one", job]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
        if done.returncode:
            print(f"failed: {job}\n{done.stderr[-2000:]}", flush=True)
            return
        add(json.loads(done.stdout.splitlines()[-1]))

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(start, [f"{arm}:{seed}" for seed in range(given.seeds) for arm in ARMS]))
    print(table(lines))


if __name__ == "__main__":
    main()
