"""How soon the fast recipe of a family reaches the held-out loss of its ordinary one.

python benchmarks/time_to_quality.py --corpus corpus --device cuda --jobs 14 -o quality

The ordinary run is the family's own: AdamW (T5: scaled by the RMS of its tensors) and a cosine
tail. The fast one has Muon for the matrices of layers, AdamW for the rest, and a trapezoid schedule
that ends at 0, in FRACTION of the steps. Neither has dropout. Both search their rates with seed 0;
the best are run with other seeds. Runs share the device, because a loss does not depend on
speed; the seconds of a step are measured afterwards, one run at a time, the two recipes in turn.
`results.jsonl` has a line for each run, with its curve; the same command continues.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FRACTION = 0.6
OBJECTIVES = {
    "gpt2": "clm", "bert": "mlm", "albert": "mlm", "t5": "spans",
    "xlnet": "permutation", "glm": "blanks", "transformer_xl": "stream",
}  # fmt: skip
TRAPEZOID = ("train.schedule=trapezoid", "train.decay_ratio=0.5", "train.min_lr_ratio=0")
MUON = (*TRAPEZOID, "train.optimizer=muon", "train.weight_decay=0")
SCHEDULE_ALONE = ("t5", "transformer_xl")  # where Muon was behind: the family's optimizer too
# Rates of the embeddings, norms and biases, and of the matrices.
BEFORE = ((2e-3, 0.01), (4e-3, 0.01), (2e-3, 0.02), (4e-3, 0.02), (8e-3, 0.04))
AFTER = ((1e-3, 0.005), (1e-3, 0.01), (2e-3, 0.01), (2e-3, 0.02))  # norms after each sublayer
MUON_RATES = {
    "gpt2": BEFORE, "glm": BEFORE,
    "t5": (
        *BEFORE[1:], (8e-3, 0.02), (4e-3, 0.005), (8e-3, 0.005), (4e-3, 0.0025),
        (8e-3, 0.0025), (1.6e-2, 0.0025), (1.6e-2, 0.005), (3.2e-2, 0.005),
    ),
    "bert": AFTER, "albert": AFTER, "xlnet": AFTER,
    "transformer_xl": (
        *AFTER, (4e-3, 0.005), (4e-3, 0.01), (4e-3, 0.02),
        (8e-3, 0.005), (8e-3, 0.01), (1.6e-2, 0.01),
    ),
}  # fmt: skip
FACTORS = (0.5, 1, 2, 4, 8)  # on the rate of the ordinary recipe
# The settings of nanoGPT's small models, on our network and steps.
NANOGPT = ("train.lr=1e-3", "train.betas=0.9,0.99", "train.weight_decay=0.1")


@dataclass(frozen=True)
class Arm:
    """A recipe of a family: its name, its share of the steps, its settings."""

    family: str
    name: str
    fraction: float
    settings: tuple[str, ...]


def arms(family: str, lr: float) -> list[Arm]:
    """Return what is searched: the ordinary recipe and the fast one, at several rates."""
    plain = [Arm(family, f"adamw {f * lr:g}", 1.0, (f"train.lr={f * lr}",)) for f in FACTORS]
    fast = [
        Arm(family, f"fast {a:g} {b:g}", FRACTION, (*MUON, f"train.lr={a}", f"train.matrix_lr={b}"))
        for a, b in MUON_RATES[family]
    ]
    if family in SCHEDULE_ALONE:
        fast += [
            Arm(family, f"fast schedule {f * lr:g}", FRACTION, (*TRAPEZOID, f"train.lr={f * lr}"))
            for f in (1, 2)
        ]
    return [*plain, *fast]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of kinfolk prepare")
    parser.add_argument("--families", nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--size", default="mini")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="of timing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--phases", nargs="+", default=["search", "final", "time"])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def recipe_of(options: argparse.Namespace, arm: Arm, seed: int, steps: int) -> Any:
    """Return the recipe of a run."""
    import kinfolk
    from kinfolk.families import family

    config = family(arm.family).config(options.size)
    warmup = steps // (10 if arm.fraction == 1 else 20)
    dropouts = [name for name in vars(config) if "dropout" in name]
    return kinfolk.recipe(
        f"{arm.family}/{options.size}",
        options.corpus,
        objective=OBJECTIVES[arm.family],
        length=options.length,
        settings=[
            *(f"model.{name}=0" for name in dropouts),
            *(f"train.{name}={value}" for name, value in (
                ("steps", steps), ("batch_size", options.rows), ("seed", seed),
                ("device", options.device), ("compile", "no"), ("save_every", steps),
                ("eval_every", max(1, options.steps // 20)), ("keep_checkpoints", 1),
                ("warmup", max(1, warmup)), ("workers", 1 if options.device == "cuda" else 0),
            )),
            *arm.settings,
        ],
    )  # fmt: skip


def run(options: argparse.Namespace, arm: Arm, seed: int) -> dict[str, Any]:
    """Train once; return the held-out losses by step."""
    import kinfolk

    folder = options.out / "runs" / f"{arm.family}-{arm.name}-{seed}".replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    steps = round(arm.fraction * options.steps)
    kinfolk.pretrain(recipe_of(options, arm, seed, steps), folder)
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    shutil.rmtree(folder)
    return {"curve": [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row]}


def seconds_of_steps(options: argparse.Namespace, compared: list[Arm]) -> dict[str, Any]:
    """Return the seconds of a step, of rounds that take the recipes in turn."""
    import torch

    import kinfolk
    from kinfolk.training.loop import Callback

    steps = max(8, options.steps // 10)
    first = steps // 4  # graphs are recorded by then
    found: dict[str, list[float]] = {arm.name: [] for arm in compared}

    class Clock(Callback):
        """Keep the moments at which steps are logged."""

        def __init__(self) -> None:
            self.moments = list[tuple[int, float]]()

        def on_step(self, progress: Any) -> None:
            if first <= progress.step < steps:
                if options.device == "cuda":
                    torch.cuda.synchronize()
                self.moments.append((progress.step, time.perf_counter()))

    for _ in range(options.rounds):
        for arm in compared:
            clock, folder = Clock(), options.out / "runs" / "time"
            shutil.rmtree(folder, ignore_errors=True)
            timed = replace(arm, settings=(*arm.settings, f"train.eval_every={steps}"))
            kinfolk.pretrain(recipe_of(options, timed, 0, steps), folder, callbacks=[clock])
            (begun, begin), (ended, end) = clock.moments[0], clock.moments[-1]
            found[arm.name].append((end - begin) / (ended - begun))
    return {"seconds": {name: min(values) for name, values in found.items()}}


def job(options: argparse.Namespace, task: dict[str, Any]) -> None:
    """Do one task and print its result; a process of its own."""
    chosen = [Arm(**{**a, "settings": tuple(a["settings"])}) for a in task["arms"]]
    if task["phase"] == "time":
        result = seconds_of_steps(options, chosen)
    else:
        result = run(options, chosen[0], task["seed"])
    print("RESULT " + json.dumps({**task, **result}))


def do(options: argparse.Namespace, argv: list[str], tasks: list[dict[str, Any]]) -> None:
    """Run the tasks that have no result yet, several at a time."""
    file = options.out / "results.jsonl"
    done = {json.dumps([r["phase"], r["arms"], r["seed"]]) for r in read(file)}
    left = [t for t in tasks if json.dumps([t["phase"], t["arms"], t["seed"]]) not in done]

    def one(task: dict[str, Any]) -> None:
        command = [sys.executable, __file__, *argv, "--job", json.dumps(task)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        line = next((x for x in ended.stdout.splitlines() if x.startswith("RESULT ")), None)
        if line is None:
            print(f"failed: {task}\n{ended.stderr[-300:]}", flush=True)
            return
        with file.open("a") as out:
            out.write(line.removeprefix("RESULT ") + "\n")

    serial = bool(tasks) and tasks[0]["phase"] == "time"
    with ThreadPoolExecutor(1 if serial else options.jobs) as pool:
        list(pool.map(one, left))


def read(file: Path) -> list[dict[str, Any]]:
    """Return the results so far."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def best(results: list[dict[str, Any]], family: str, kind: str) -> Arm | None:
    """Return the arm of a kind with the lowest last loss in the search."""
    found = [
        (row["curve"][-1][1], row["arms"][0])
        for row in results
        if row["phase"] == "search" and row["arms"][0]["family"] == family
        and row["arms"][0]["name"].startswith(kind) and row["curve"]
        and row["curve"][-1][1] == row["curve"][-1][1]
    ]  # fmt: skip
    if not found:
        return None
    arm = min(found, key=lambda pair: pair[0])[1]
    return Arm(**{**arm, "settings": tuple(arm["settings"])})


def task(phase: str, compared: list[Arm], seed: int) -> dict[str, Any]:
    """Return a task as JSON has it."""
    return {"phase": phase, "seed": seed, "arms": [
        {**vars(arm), "settings": list(arm.settings)} for arm in compared
    ]}  # fmt: skip


def main(argv: list[str]) -> None:
    """Search, run the best with other seeds, time their steps, print a table."""
    options = parse(argv)
    if options.job:
        job(options, json.loads(options.job))
        return
    from kinfolk.families import family

    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    file = options.out / "results.jsonl"
    lr = {name: family(name).train(options.size).lr for name in options.families}
    if "search" in options.phases:
        do(
            options,
            argv,
            [task("search", [arm], 0) for f in options.families for arm in arms(f, lr[f])],
        )
    pairs = {f: [best(read(file), f, kind) for kind in ("adamw", "fast")] for f in options.families}
    chosen = {f: [arm for arm in pair if arm is not None] for f, pair in pairs.items()}
    if "final" in options.phases:
        final = [arm for pair in chosen.values() for arm in pair]
        if "gpt2" in options.families:
            final.append(Arm("gpt2", "nanoGPT", 1.0, NANOGPT))
        do(
            options,
            argv,
            [task("final", [a], s) for s in range(1, options.seeds + 1) for a in final],
        )
    if "time" in options.phases:
        do(options, argv, [task("time", pair, 0) for pair in chosen.values() if len(pair) == 2])
    show(read(file), options)


def show(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print, for each family, both recipes and the share of the time that the fast one needs."""
    seconds = {r["arms"][0]["family"]: r["seconds"] for r in results if r["phase"] == "time"}
    for name in options.families:
        runs: dict[str, list[list[tuple[int, float]]]] = {}
        for row in results:
            if row["phase"] == "final" and row["arms"][0]["family"] == name and row["curve"]:
                runs.setdefault(row["arms"][0]["name"], []).append(row["curve"])
        for arm, curves in runs.items():
            last = [curve[-1][1] for curve in curves]
            step = seconds.get(name, {}).get(arm)
            cost = f", {1e3 * step:.2f} ms a step, {step * curves[0][-1][0]:.1f} s" if step else ""
            print(f"{name}: {arm}: {statistics.mean(last):.4f} ({min(last):.4f} to {max(last):.4f})"
                  f" after {curves[0][-1][0]} steps{cost}")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
