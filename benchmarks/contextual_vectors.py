"""What contextual word vectors are worth: CoVe beside word vectors, against word vectors alone.

python benchmarks/contextual_vectors.py --data DATA --out runs/cove/results.jsonl --device cuda

For each seed CoVe is trained to translate English into German (Multi30k), with frozen word vectors
(GloVe). Then a biattentive classification network learns each labelled set from word vectors alone,
from [word vectors; CoVe], and from [word vectors; an encoder that was not trained]. The best epoch
on the dev rows is scored once on the test rows. Lines are appended as they come; at the end the
table of all lines is printed.
"""

import argparse
import csv
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

GLOVE = "glove_6b_50d_top40k/glove.6B.50d.top40k.txt.xz"
VECTOR_SIZE = 50
VARIANTS = {"word vectors": "none", "with CoVe": "last", "with an untrained encoder": "last"}
ROWS = {"sick": (4500, 500, 4927), "sst2": (2000, 1000, 872)}  # train, dev, test


@dataclass(frozen=True)
class Job:
    """One run: a translation model, or a classifier over its features."""

    seed: int
    set: str = ""  # of a classifier
    variant: str = ""

    @property
    def translator(self) -> str:
        """The name of the translation run."""
        trained = self.variant != "with an untrained encoder"
        return f"cove-{self.seed}" if trained else f"untrained-{self.seed}"


def lines_of(path: Path) -> list[str]:
    """Read a text file, compressed or not."""
    packed = path.with_name(path.name + ".gz")
    if not path.exists() and packed.exists():
        path = packed
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as stream:
        return stream.read().splitlines()


def labelled(data: Path, name: str) -> dict[str, list[list[str]]]:
    """Return the rows of a labelled set by split, the label last."""
    parts = {}
    for split, count in zip(("train", "dev", "test"), ROWS[name], strict=True):
        suffix = "txt" if name == "sick" else "tsv"
        lines = lines_of(data / name / f"{split}.{suffix}")[1:]
        rows = [*csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
        kept = [[r[1], r[2], r[4]] for r in rows] if name == "sick" else [r[:2] for r in rows]
        parts[split] = kept[:count]
    return parts


def prepare(data: Path, work: Path, sets: list[str], pairs: int, vocab: int) -> None:
    """Write the files of all runs, and the tokenizer of words."""
    from kinfolk.text import train_tokenizer

    work.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            lines = lines_of(data / "multi30k_en_de" / f"{split}.{language}")[:pairs]
            (work / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
            texts += lines if split == "train" else []
    for name in sets:
        header = "text\tlabel" if name == "sst2" else "first\tsecond\tlabel"
        for split, rows in labelled(data, name).items():
            table = "\n".join([header, *("\t".join(row) for row in rows)])
            (work / f"{name}-{split}.tsv").write_text(table + "\n", encoding="utf-8")
            texts += [" ".join(row[:-1]) for row in rows] if split == "train" else []
    texts += vector_words(data / GLOVE)
    tokenizer = train_tokenizer(texts, kind="word", vocab_size=vocab, fewer=True)
    tokenizer.save(work / "tokenizer")


def vector_words(path: Path) -> list[str]:
    """Return the words of a file of vectors: a classifier may meet any of them."""
    import lzma

    with lzma.open(path, "rt", encoding="utf-8") as stream:
        return [line.partition(" ")[0] for line in stream]


def translate(job: Job, said: argparse.Namespace) -> dict[str, Any]:
    """Train a translation model and score it by BLEU; also save an encoder after one step."""
    from kinfolk.data.parallel_text import ParallelText
    from kinfolk.workflows.pretrain import resume
    from kinfolk.workflows.translation.parallel import ParallelData
    from kinfolk.workflows.translation.translate import (
        evaluate_translation,
        prepare_translation_run,
    )

    work, begun = said.work, time.perf_counter()

    def files(split: str) -> ParallelText:
        return ParallelText(work / f"{split}.en", work / f"{split}.de")

    def train(name: str, steps: int) -> Path:
        prepare_translation_run(
            "cove/mt-lstm",
            ParallelData(train=files("train"), dev=files("val"), tokenizer=work / "tokenizer"),
            work / name,
            length=128,
            vectors=said.data / GLOVE,
            settings=[
                f"model.embedding_size={VECTOR_SIZE}",
                f"model.hidden_size={said.hidden}",
                f"train.steps={steps}",
                f"train.seed={job.seed}",
                f"train.device={said.device}",
                "train.batch_size=32",
                "train.lr=2e-3",
                f"train.warmup={min(100, steps)}",
                "train.eval_every=500",
            ],
        )
        return resume(work / name)

    train(f"untrained-{job.seed}", 1)
    run = train(f"cove-{job.seed}", said.steps)
    seconds = time.perf_counter() - begun
    test = ParallelData(train=files("test_2016_flickr"))
    scores = evaluate_translation(run, test, device=said.device)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = [line["eval_loss"] for line in log if line.get("eval_loss") is not None]
    return {**asdict(job), **scores, "eval_loss": losses[-1], "seconds": seconds}


def classify(job: Job, said: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune a classifier over frozen features, and score the test rows."""
    from kinfolk.tasks.dataset import task_dataset
    from kinfolk.workflows.evaluate import evaluate
    from kinfolk.workflows.finetuning.finetune import finetune
    from kinfolk.workflows.finetuning.recipe import parse_initial_weights

    work, begun = said.work, time.perf_counter()
    device = said.task_device or said.device
    out = work / f"{job.set}-{job.variant.replace(' ', '-')}-{job.seed}"
    finetune(
        replace(parse_initial_weights(str(work / job.translator)), seed=job.seed),
        [task_dataset(work / f"{job.set}-train.tsv", work / f"{job.set}-dev.tsv")],
        out,
        length=128,
        epochs=said.epochs,
        formulation="features",
        options={
            "task_network": "bcn",
            "vectors": str(said.data / GLOVE),
            "feature_layers": VARIANTS[job.variant],
        },
        settings=[
            f"model.task_network.hidden_size={said.classifier}",
            "model.dropout=0.2",
            "train.lr=2e-3",
            f"train.seed={job.seed}",
            f"train.device={device}",
            "train.precision=float32",  # cuDNN's LSTMs would run in float16
            "train.keep_checkpoints=1",
        ],
    )
    test = evaluate(str(out), test=work / f"{job.set}-test.tsv", device=device)
    dev = json.loads((out / "scores.json").read_text())["dev"]
    seconds = time.perf_counter() - begun
    return {**asdict(job), "dev": dev, "test": test.scores["accuracy"], "seconds": seconds}


def table(lines: list[dict[str, Any]]) -> str:
    """Write BLEU and a row for each set: the mean and the standard deviation over seeds."""

    def cell(values: list[float]) -> str:
        apart = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.mean(values):.1f} ± {apart:.1f}" if values else "-"

    bleu = [line["bleu"] for line in lines if "bleu" in line]
    rows = [f"BLEU of the translations: {cell(bleu)} ({len(bleu)} seeds)", ""]
    rows += [f"| accuracy | {' | '.join(VARIANTS)} |", "| --- |" + " ---: |" * len(VARIANTS)]
    for name in ROWS:
        cells = [
            cell([100 * x["test"] for x in lines if (x["set"], x["variant"]) == (name, variant)])
            for variant in VARIANTS
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def run_all(jobs: list[Job], said: argparse.Namespace) -> None:
    """Run jobs side by side, each in a process of its own, and append their lines."""
    threads = str(max(1, (os.cpu_count() or 1) // said.jobs))

    def start(job: Job) -> None:
        command = [sys.executable, *sys.argv, "--one", json.dumps(asdict(job))]
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"failed: {job}\n{done.stderr[-2000:]}", flush=True)
            return
        with said.out.open("a", encoding="utf-8") as stream:
            stream.write(done.stdout.splitlines()[-1] + "\n")
        print(done.stdout.splitlines()[-1], flush=True)

    with ThreadPoolExecutor(said.jobs) as pool:
        list(pool.map(start, jobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--out", type=Path, required=True, help="file of result lines (JSON)")
    parser.add_argument("--work", type=Path, help="folder of runs (default: beside --out)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--task-device", help="of classification (default: --device)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", default=",".join(ROWS))
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--steps", type=int, default=2000, help="of translation")
    parser.add_argument("--pairs", type=int, default=29_000, help="sentence pairs")
    parser.add_argument("--vocab", type=int, default=100_000, help="words, the most frequent first")
    parser.add_argument("--hidden", type=int, default=600, help="hidden size of CoVe")
    parser.add_argument("--classifier", type=int, default=100, help="hidden size of the classifier")
    parser.add_argument("--epochs", type=float, default=10.0, help="of classification")
    parser.add_argument("--one", help="a single job, as JSON: how the others are run")
    said = parser.parse_args()
    said.work = said.work or said.out.parent / "runs"
    if said.one:
        job = Job(**json.loads(said.one))
        print(json.dumps(classify(job, said) if job.set else translate(job, said)))
        return
    sets = said.sets.split(",")
    said.out.parent.mkdir(parents=True, exist_ok=True)
    prepare(said.data, said.work, sets, said.pairs, said.vocab)
    seeds = range(said.seeds)
    run_all([Job(seed) for seed in seeds], said)
    *compared, control = VARIANTS
    for variants in (compared, [control]):
        run_all([Job(s, name, v) for name in sets for v in variants for s in seeds], said)
    print(table([json.loads(line) for line in said.out.read_text().splitlines()]))


if __name__ == "__main__":
    main()
