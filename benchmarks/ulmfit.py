"""What pretraining and each trick of ULMFiT are worth, on a labelled set with few labels.

python benchmarks/ulmfit.py --text wiki.txt.xz --train train.tsv --test test.tsv -o runs/ulmfit

A language model is trained once on general text, then, for each seed, on all texts of the training
file, without their labels. For each seed, 500 labelled rows are drawn; every variant is trained on
the same rows and scored once on the test rows, after its last step: no checkpoint is selected.
"""

import argparse
import gzip
import json
import lzma
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

# Each by the weights it starts from, and its settings; those of the family hold otherwise.
PLAIN = ("finetune.gradual_unfreezing=false", "finetune.layer_lr_decay=1.0")
CONSTANT = ("train.schedule=constant", "train.warmup=0")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "new weights": ("scratch", ()),
    "ULMFiT": ("target", ()),
    "new weights, lr 5e-3": ("scratch", ("train.lr=5e-3",)),
    "without LM on the task's text": ("general", ()),
    "without gradual unfreezing": ("target", PLAIN[:1]),
    "without discriminative rates": ("target", PLAIN[1:]),
    "without slanted rates (constant)": ("target", CONSTANT),
    "without all three": ("target", (*PLAIN, *CONSTANT)),
}
# Of the language models, and of the classifiers: half of fastai's rates.
LM_DROPOUT = {"embedding": 0.01, "input": 0.12, "": 0.07, "weight": 0.1, "output": 0.05}
CLASSIFIER_DROPOUT = {"embedding": 0.05, "input": 0.3, "": 0.15, "weight": 0.25, "output": 0.2}


@dataclass(frozen=True)
class Job:
    """One run: a language model on the task's text (no variant), or a classifier."""

    variant: str
    seed: int


def rates(prefix: str, dropout: dict[str, float]) -> list[str]:
    """Return the dropout rates as settings."""
    names = {kind: f"{kind}_dropout" if kind else "dropout" for kind in dropout}
    return [f"{prefix}{names[kind]}={rate}" for kind, rate in dropout.items()]


def sample(options: argparse.Namespace, seed: int) -> tuple[list[dict[str, Any]], ...]:
    """Draw the labelled rows of a seed, and as many others that are only logged."""
    rows = read_rows(options.train)
    order = np.random.default_rng(seed).permutation(len(rows))
    drawn = [rows[i] for i in order[: 2 * options.labels]]
    return drawn[: options.labels], drawn[options.labels :]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a labelled file."""
    from kinfolk.tasks.dataset import task_dataset

    train, dev = task_dataset(file).splits
    return [{"text": row.texts[0], "label": str(row.label)} for row in (*train, *dev)]


def lines_of(file: Path) -> Iterator[str]:
    """Yield the lines of a text, which may be compressed."""
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(file.suffix, open)
    with opened(file, "rt", encoding="utf-8") as stream:
        yield from stream


def prepare_general(options: argparse.Namespace) -> None:
    """Train the tokenizer and the language model on general text; write the task's text."""
    from kinfolk.data.prepare import prepare
    from kinfolk.text.train import train_tokenizer
    from kinfolk.workflows.pretrain import pretrain
    from kinfolk.workflows.recipe import recipe

    out = options.out
    texts = out / "texts.jsonl"
    rows = read_rows(options.train)
    texts.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows), "utf-8")
    both = chain(lines_of(options.text), (row["text"] for row in rows))
    tokenizer = train_tokenizer(
        both, kind="wordpiece", vocab_size=options.vocab, lowercase=True, fewer=True
    )
    tokenizer.save(out / "tokenizer")
    prepare(options.text, tokenizer, out / "corpus", holdout=0.01, workers=None)
    prepare(texts, tokenizer, out / "task-corpus", field="text", holdout=0.05)
    settings = [*common(options, 0), *rates("model.", LM_DROPOUT), f"train.lr={options.lm_lr}"]
    settings += [f"train.steps={options.steps}", f"train.eval_every={max(1, options.steps // 4)}"]
    made = recipe(
        f"ulmfit/{options.size}", out / "corpus", length=70, batch_size=64, settings=settings
    )
    pretrain(made, out / "general")
    write(options, {"run": "general", **last_line(out / "general")})


def common(options: argparse.Namespace, seed: int) -> list[str]:
    """Return the settings of every run."""
    return [f"train.seed={seed}", f"train.device={options.device}", "train.keep_checkpoints=1"]


def train_target(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train the language model on the text of the task."""
    from kinfolk.workflows.finetuning.stages import target_settings
    from kinfolk.workflows.pretrain import pretrain
    from kinfolk.workflows.recipe import recipe

    start, corpus = options.out / "general", options.out / "task-corpus"
    given = [*common(options, seed), "train.batch_size=64", f"train.lr={options.lm_lr}"]
    if options.target_steps:
        given.append(f"train.steps={options.target_steps}")
    settings = target_settings(str(start), corpus, given)
    pretrain(recipe(start, corpus, settings=settings), options.out / f"target-{seed}")
    return {"run": "target", "seed": seed, **last_line(options.out / f"target-{seed}")}


def train_classifier(options: argparse.Namespace, job: Job) -> dict[str, Any]:
    """Train a classifier, and score the test rows after its last step."""
    from kinfolk.workflows.finetuning.finetune import finetune
    from kinfolk.workflows.finetuning.recipe import parse_initial_weights
    from kinfolk.workflows.predict import load_predictor

    weights, settings = VARIANTS[job.variant]
    folder = "general" if weights != "target" else f"target-{job.seed}"
    start = parse_initial_weights(str(options.out / folder), from_scratch=weights == "scratch")
    train, dev = sample(options, job.seed)
    run = options.out / f"{job.variant.replace(' ', '-')}-{job.seed}"
    begun = time.perf_counter()
    finetune(
        start,
        train,
        run,
        dev=dev,
        length=options.length,
        steps=options.task_steps,
        eval_every=options.task_steps,
        settings=[
            *common(options, job.seed),
            *rates("model.backbone.", CLASSIFIER_DROPOUT),
            "model.dropout=0.2",
            *settings,
        ],
    )
    predictor = load_predictor(run / "checkpoints" / "last", device=options.device)
    rows = predictor.read(read_rows(options.test), labelled=True)
    scores = predictor.task.evaluate(rows, predictor.predict(rows))
    baselines = json.loads((run / "scores.json").read_text())["baselines"]
    return {
        "run": "classifier",
        **asdict(job),
        "test": scores["accuracy"],
        "tfidf_dev": baselines.get("tfidf", {}).get("accuracy"),
        "seconds": time.perf_counter() - begun,
    }


def last_line(run: Path) -> dict[str, Any]:
    """Return the end of a run's log, and its speed."""
    from kinfolk.training.log import read, speed

    last = read(run)[-1]
    return {name: last.get(name) for name in ("step", "loss", "eval_loss")} | {"speed": speed(run)}


def write(options: argparse.Namespace, line: dict[str, Any]) -> None:
    """Append a result as it comes."""
    print(json.dumps(line), flush=True)
    with options.results.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def run_jobs(options: argparse.Namespace, jobs: list[Job], deadline: float) -> None:
    """Run jobs side by side, each in a process; none is started after the deadline."""

    def start(job: Job) -> None:
        if time.monotonic() > deadline:
            print(f"not started: {job}", flush=True)
            return
        command = [sys.executable, __file__, *sys.argv[1:], "--one", json.dumps(asdict(job))]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
        if done.returncode:
            print(f"failed: {job}\n{done.stderr[-2000:]}", flush=True)
            return
        write(options, json.loads(done.stdout.splitlines()[-1]))

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(start, jobs))


def table(lines: list[dict[str, Any]]) -> str:
    """Write a row for each variant: mean and standard deviation of the test accuracy."""
    rows = ["| variant | test accuracy | seeds |", "| --- | --- | --- |"]
    for variant in VARIANTS:
        scores = [100 * line["test"] for line in lines if line.get("variant") == variant]
        if scores:
            apart = statistics.stdev(scores) if len(scores) > 1 else 0.0
            each = ", ".join(f"{score:.1f}" for score in scores)
            rows.append(f"| {variant} | {statistics.mean(scores):.1f} ± {apart:.1f} | {each} |")
    return "\n".join(rows)


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="general text")
    parser.add_argument("--train", type=Path, required=True, help="labelled rows of the task")
    parser.add_argument("--test", type=Path, required=True, help="test rows of the task")
    parser.add_argument("--labels", type=int, default=500, help="labelled rows that are used")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--vocab", type=int, default=12_000)
    parser.add_argument("--steps", type=int, default=4000, help="of the general language model")
    parser.add_argument("--target-steps", type=int, default=0, help="0: five epochs")
    parser.add_argument("--task-steps", type=int, default=320)
    parser.add_argument("--lm-lr", type=float, default=4e-3)
    parser.add_argument("--length", type=int, default=256, help="tokens of a text, at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="classifiers trained side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after these")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", help="a single job, as JSON: how the others are run")
    parser.add_argument("--results", type=Path, help="file of lines; default: OUT/results.jsonl")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    options.results = options.results or options.out / "results.jsonl"
    return options


def main() -> None:
    options = parse()
    deadline = time.monotonic() + options.seconds
    if options.one:
        job = Job(**json.loads(options.one))
        found = train_classifier(options, job) if job.variant else train_target(options, job.seed)
        print(json.dumps(found))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "general").exists():
        prepare_general(options)
    seeds = range(options.seeds)
    run_jobs(options, [Job("", seed) for seed in seeds], deadline)
    run_jobs(options, [Job(variant, seed) for variant in VARIANTS for seed in seeds], deadline)
    lines = [json.loads(line) for line in options.results.read_text("utf-8").splitlines()]
    print(table(lines))


if __name__ == "__main__":
    main()
