"""What unlabelled text is worth to CVT: the same tagger with it and without it, at few labels.

python benchmarks/cross_view.py --train train.txt.gz --test test.txt.gz --columns 1,3 \\
    --sentences 500 --seeds 3 --steps 600 --out cross_view.jsonl

For each seed, some sentences of the training file keep their tags. The others, and the files of
--unlabelled, are text without labels. Both taggers have the same vocabulary, start from the same
weights and take equally many labelled steps on the same batches. The last model is scored on the
test file; no dev rows are used.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ARMS = ("labels", "labels and text")


@dataclass(frozen=True)
class Job:
    """One run."""

    arm: str
    seed: int


def sentences(path: Path) -> Iterator[list[str]]:
    """Stream the sentences of a CoNLL file, each as its lines."""
    opened = gzip.open if path.suffix == ".gz" else open
    lines: list[str] = []
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("-DOCSTART-"):
                lines.append(line.strip())
            elif lines:
                yield lines
                lines = []
    if lines:
        yield lines


def write(path: Path, found: Sequence[Sequence[str]]) -> Path:
    """Write sentences to a CoNLL file."""
    path.write_text("".join("\n".join(lines) + "\n\n" for lines in found), encoding="utf-8")
    return path


def run(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Train one tagger and score it on the test file."""
    from kinfolk import finetune, load_predictor, task_dataset
    from kinfolk.tasks.formats.base import read_rows
    from kinfolk.tasks.unlabelled import unlabelled_text
    from kinfolk.text.train import train_tokenizer
    from kinfolk.workflows.finetuning.recipe import parse_initial_weights
    from kinfolk.workflows.predict import evaluate_rows

    every = [*sentences(options.train)]
    order = np.random.default_rng(job.seed).permutation(len(every)).tolist()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = [every[i] for i in order[: options.sentences]]
        others = [every[i] for i in order[options.sentences :]]
        rest = write(folder / "rest.txt", others)
        tests = [*sentences(options.test)]
        # A run has dev rows to log; its last model is the result, whatever they say.
        dataset = task_dataset(
            write(folder / "train.txt", kept),
            write(folder / "dev.txt", others[:20]),
            task="tag",
            columns=options.columns,
        )
        files = [rest, *options.unlabelled]
        rows = [*dataset.splits[0], *unlabelled_text(files, [dataset]).rows]
        words = (text for row in rows for text in row.texts_and_labels)
        train_tokenizer(words, kind="word", vocab_size=options.vocab, fewer=True).save(
            folder / "tokenizer"
        )
        text = files if job.arm == ARMS[1] else []
        steps = options.steps * (1 + bool(text))
        result = finetune(
            parse_initial_weights(options.model, tokenizer=folder / "tokenizer"),
            dataset,
            folder / "run",
            unlabelled=text,
            steps=steps,
            eval_every=steps,
            save_every=steps,
            batch_size=options.batch,
            lr=options.lr,
            seed=job.seed,
            device=options.device,
            precision=options.precision,
            workers=options.workers,
            settings=options.settings,
            options={"vectors": str(options.vectors) if options.vectors else None},
        )
        predictor = load_predictor(result / "checkpoints" / "last", device=options.device)
        test = task_dataset(write(folder / "test.txt", tests), task="tag", columns=options.columns)
        rows = [*read_rows(test.files["train"], test.file_spec)]
        scores = evaluate_rows(predictor, rows).scores
    seconds = round(time.perf_counter() - begun, 1)
    return {"task": options.name, "arm": job.arm, "seed": job.seed, **scores, "seconds": seconds}


def show(results: Sequence[dict[str, Any]], metric: str) -> None:
    """Print the mean and the standard deviation of each arm."""
    print(f"\n{'':16} {metric + ' mean':>10} {'std':>7}  seeds")
    for arm in ARMS:
        found = [100 * r[metric] for r in results if r["arm"] == arm]
        if not found:
            continue
        std = statistics.stdev(found) if len(found) > 1 else 0.0
        each = " ".join(f"{value:.2f}" for value in found)
        print(f"{arm:16} {statistics.mean(found):>10.2f} {std:>7.2f}  {each}")


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="tag", help="name of the task in the results")
    parser.add_argument("--train", type=Path, required=True, help="CoNLL file")
    parser.add_argument("--test", type=Path, required=True, help="CoNLL file")
    parser.add_argument("--columns", default="1,2", help="of the word and of its tag")
    parser.add_argument("--unlabelled", type=Path, nargs="*", default=[], help="more text")
    parser.add_argument("--vectors", type=Path, help="file of word vectors")
    parser.add_argument("--sentences", type=int, default=500, help="sentences that keep their tags")
    parser.add_argument("--model", default="cvt/mini")
    parser.add_argument("--vocab", type=int, default=2**15, help="words of the vocabulary")
    parser.add_argument("--steps", type=int, default=600, help="labelled steps")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each a process")
    parser.add_argument("--workers", type=int, default=0, help="data processes of each run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32", help="float32, bfloat16 or auto")
    parser.add_argument("--metric", default="f1")
    parser.add_argument(
        "--settings", nargs="*", default=[], help="such as model.backbone.dropout=0.3"
    )
    parser.add_argument("--out", type=Path, default=Path("cross_view.jsonl"))
    parser.add_argument(
        "--only", nargs=2, metavar=("ARM", "SEED"), help="one run, as a line of JSON"
    )
    return parser.parse_args()


def main() -> None:
    """Run every arm with every seed, and write a line for each as it ends."""
    options = parse()
    if options.only:
        print(json.dumps(run(Job(options.only[0], int(options.only[1])), options)))
        return
    jobs = [Job(arm, seed) for seed in range(options.seeds) for arm in reversed(ARMS)]

    def start(job: Job) -> dict[str, Any] | None:
        command = [sys.executable, *sys.argv, "--only", job.arm, str(job.seed)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{job} failed: {done.stderr[-2000:]}", flush=True)
            return None
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = [result for result in pool.map(start, jobs) if result is not None]
    show(results, options.metric)


if __name__ == "__main__":
    main()
