"""What pretraining is worth: the same networks with learned and with fresh weights, on real sets.

python benchmarks/finetuning.py --data DATA --model bert-en=runs/bert --sets sst2,mrpc -o runs/worth

Every set is learned from both starts with several rates and seeds. The rate is chosen on the dev
rows, for each start by itself; the test rows are scored once, by the best epoch on the dev rows.
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
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Set:
    """A labelled set: its files in the data folder, and how long it is learned."""

    name: str
    train: str
    dev: str
    test: str
    epochs: int = 3
    metric: str = "accuracy"
    split: str = ""  # one file that is split in ten parts: eight to learn from, one dev, one test


SETS = {
    one.name: one
    for one in (
        Set("sst2", "sst2/train.tsv.gz", "sst2/dev.tsv", "sst2/test.tsv", 2),
        Set("mrpc", "mrpc/train.tsv", "mrpc/dev.tsv", "mrpc/test.tsv", 6),
        Set("qqp", "", "", "", 3, split="qqp_subset/data.tsv.gz"),
        Set("conll2003", *(f"conll2003/{n}.txt.gz" for n in ("train", "valid", "test")), 4, "f1"),
        Set("chnsenticorp", "", "", "", 4, split="chnsenticorp_htl/ChnSentiCorp_htl_all.csv.gz"),
        Set(
            "tnews",
            "fewclue/tnews/train_few_all.json",
            "fewclue/tnews/dev_few_all.json",
            "fewclue/tnews/test_public.json",
            10,
        ),
    )
}
LANGUAGES = {"chnsenticorp": "zh", "tnews": "zh"}  # English else


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str  # of the model
    model: str
    set: str
    scratch: bool
    rate: float
    seed: int


def split(source: Path, out: Path) -> None:
    """Part a table at random: eight tenths, one and one."""
    with gzip.open(source, "rt", encoding="utf-8", newline="") as stream:
        if ".csv" in source.name:
            header, *rows = csv.reader(stream)
        else:
            header, *rows = (line.rstrip("\r\n").split("\t") for line in stream)
    order = np.random.default_rng(0).permutation(len(rows))
    tenth = len(rows) // 10
    parts = {"dev": order[:tenth], "test": order[tenth : 2 * tenth], "train": order[2 * tenth :]}
    out.mkdir(parents=True, exist_ok=True)
    for name, places in parts.items():
        lines = [header, *(rows[i] for i in places)]
        text = "\n".join(
            "\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in line) for line in lines
        )
        (out / f"{name}.tsv").write_text(text + "\n", encoding="utf-8")


def files(one: Set, data: Path, out: Path) -> tuple[Path, Path, Path]:
    """Return the three files of a set."""
    if not one.split:
        return data / one.train, data / one.dev, data / one.test
    folder = out / "data" / one.name
    return folder / "train.tsv", folder / "dev.tsv", folder / "test.tsv"


def run(job: Job, data: Path, out: Path, device: str) -> dict[str, object]:
    """Fine-tune once, and score the test rows."""
    from kinfolk.tasks.dataset import task_dataset
    from kinfolk.workflows.finetuning.finetune import finetune
    from kinfolk.workflows.finetuning.recipe import parse_initial_weights
    from kinfolk.workflows.predict import load_predictor, read_test_file

    one = SETS[job.set]
    train, dev, test = files(one, data, out)
    weights = "fresh" if job.scratch else "learned"
    folder = out / f"{job.name}-{job.set}-{weights}-{job.rate:g}-{job.seed}"
    begun = time.perf_counter()
    finetune(
        parse_initial_weights(job.model, scratch=job.scratch, seed=job.seed),
        [task_dataset(train, dev)],
        folder,
        length=128,
        epochs=one.epochs,
        settings=[
            f"train.lr={job.rate}",
            f"train.seed={job.seed}",
            f"train.device={device}",
            "train.keep_checkpoints=1",
        ],
    )
    found = load_predictor(folder, device=device)
    rows, _ = read_test_file(found, test)
    scores = found.task.evaluate(rows, found.predict(rows))
    chosen = json.loads((folder / "scores.json").read_text())["dev"]
    for file in folder.rglob("training.safetensors"):
        file.unlink()
    seconds = time.perf_counter() - begun
    return {**asdict(job), "dev": chosen[one.metric], "test": scores, "seconds": seconds}


def table(lines: list[dict[str, object]]) -> str:
    """Write a row for each model and set: each start by the rate that was best on its dev rows."""
    rows = [
        "| model | set | metric | fresh weights | pretrained |",
        "| --- | --- | --- | --- | --- |",
    ]
    pairs = sorted({(str(line["name"]), str(line["set"])) for line in lines})
    for name, set_name in pairs:
        metric, cells = SETS[set_name].metric, []
        for scratch in (True, False):
            own = [
                x for x in lines if (x["name"], x["set"], x["scratch"]) == (name, set_name, scratch)
            ]
            rates = sorted({float(str(x["rate"])) for x in own})
            dev = {
                r: statistics.mean(float(str(x["dev"])) for x in own if x["rate"] == r)
                for r in rates
            }
            best = max(rates, key=lambda rate: dev[rate])
            some = [100 * x["test"][metric] for x in own if x["rate"] == best]  # type: ignore[index]
            apart = statistics.stdev(some) if len(some) > 1 else 0.0
            cells.append(f"{statistics.mean(some):.1f} ± {apart:.1f} ({best:g})")
        rows.append(f"| {name} | {set_name} | {metric} | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], metavar="NAME-LANGUAGE=FOLDER")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--rates", default="2e-4,1e-3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one thread each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", help="a single job, as JSON: how the others are run")
    parser.add_argument("-o", "--out", type=Path, required=True)
    said = parser.parse_args()
    if said.one:
        print(json.dumps(run(Job(**json.loads(said.one)), said.data, said.out, said.device)))
        return
    said.out.mkdir(parents=True, exist_ok=True)
    names = said.sets.split(",")
    for name in names:
        if SETS[name].split:
            split(said.data / SETS[name].split, said.out / "data" / name)
    models = [one.split("=") for one in said.model]
    jobs = [
        Job(name.rpartition("-")[0], folder, set_name, scratch, float(rate), seed)
        for set_name in names
        for name, folder in models
        if name.endswith("-" + LANGUAGES.get(set_name, "en"))
        for rate in said.rates.split(",")
        for scratch in (True, False)
        for seed in range(said.seeds)
    ]
    results = said.out / "results.jsonl"
    lines: list[dict[str, object]] = []

    def start(job: Job) -> None:
        command = [sys.executable, __file__, "--data", str(said.data), "-o", str(said.out)]
        command += ["--device", said.device, "--one", json.dumps(asdict(job))]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
        if done.returncode:
            print(f"failed: {job}\n{done.stderr[-2000:]}", flush=True)
            return
        lines.append(json.loads(done.stdout.splitlines()[-1]))
        with results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(lines[-1]) + "\n")

    with ThreadPoolExecutor(said.jobs) as pool:
        list(pool.map(start, jobs))
    print(table(lines))


if __name__ == "__main__":
    main()
