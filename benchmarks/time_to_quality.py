r"""How soon the fast recipe of a family reaches the held-out loss of its ordinary one.

For one NVIDIA H200 with 16 cores; the same command continues where it ended:

python benchmarks/time_to_quality.py --corpus corpus --device cuda --jobs 10 --minutes 6 \
    --phases search final -o quality
python benchmarks/time_to_quality.py --corpus corpus --device cuda --phases time -o quality \
    --plot quality/curves.html

After `--minutes` no run starts; the search ends after half of them. Timing takes 10 seconds a
family and should have the device for itself. `--phases` alone reads the results again.

The ordinary recipe is the family's own: AdamW (T5: scaled by the RMS of its tensors) and a cosine
tail. The fast one is that of `kinfolk pretrain --fast`, in `--fraction` of the steps. Neither has
dropout. Both search their learning rates with seed 0: the ordinary one at `--plain` times the
family's own, the fast one at `--fast` (lr:matrix_lr) times `Family.fast_rates`, or times
`CANDIDATES` where the family has no fast recipe. The best of each are run with other seeds.
Families in `LATE`, which predict a few masked tokens and leave the loss of word frequencies late,
have `--late-steps` and search the ordinary rate at `--late-plain`. Runs share the device, because a
loss does not depend on speed; the seconds of a step are measured afterwards, the two recipes in
turn.

The table has, for each seed, the moment at which the fast run first has the last loss of the
ordinary run of this seed, as a share of its steps and of its time; the mean and the range of both.
GPT-2 is compared with nanoGPT's settings too, on the same network, text and steps.
`results.jsonl` has a line for each run, with its curve.
"""

import argparse
import heapq
import itertools
import json
import math
import multiprocessing
import os
import shutil
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError

OBJECTIVES = {
    "gpt2": "clm", "bert": "mlm", "t5": "spans", "glm": "blanks", "xlnet": "permutation",
    "electra": "rtd", "albert": "mlm", "roberta": "mlm", "transformer_xl": "stream",
}  # fmt: skip
# Rates around which a fast recipe is searched where a family has none.
CANDIDATES: dict[str, tuple[float, float]] = {
    "bert": (2e-3, 0.01), "t5": (3.2e-2, 0.005), "xlnet": (4e-3, 0.01), "electra": (1e-3, 0.01),
    "roberta": (2e-3, 0.01), "transformer_xl": (8e-3, 0.01),
}  # fmt: skip
LATE = ("bert", "roberta", "electra", "albert")
# The settings of nanoGPT's small models, on our network and steps.
NANOGPT = ("train.lr=1e-3", "train.betas=0.9,0.99", "train.weight_decay=0.1")
EVALUATIONS = 40  # of a run of the ordinary length
Curve = list[tuple[int, float]]  # held-out loss by step


@dataclass(frozen=True)
class Arm:
    """A recipe of a family: the ordinary or the fast one, by name, with its rates as settings."""

    family: str
    name: str
    fast: bool
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """A run, or the timing of several: the arms, and the seed."""

    phase: str
    arms: tuple[Arm, ...]
    seed: int

    def as_json(self) -> dict[str, Any]:
        """Return what a line of results.jsonl has about it."""
        return json.loads(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Speedup:
    """What the fast recipe needs to reach the last loss of the ordinary one, for each seed.

    A share is None where it does not reach it; `gaps` are the last losses of the fast runs above
    those of the ordinary ones.
    """

    steps: list[float | None]
    gaps: list[float]
    step_ratio: float | None  # seconds of a fast step in those of an ordinary one

    @property
    def time(self) -> list[float | None]:
        """The shares of the time."""
        ratio = math.nan if self.step_ratio is None else self.step_ratio
        return [None if share is None else share * ratio for share in self.steps]


def plain_arms(family: str, lr: float, factors: Iterable[float]) -> list[Arm]:
    """Return the ordinary recipe at several rates."""
    rates = [float(f"{lr * factor:.2g}") for factor in factors]
    return [Arm(family, f"ordinary {rate:g}", False, (f"train.lr={rate}",)) for rate in rates]


def fast_arms(family: Any, size: str, factors: Iterable[tuple[float, float]]) -> list[Arm]:
    """Return the fast recipe at several pairs of rates; without Muon at those of one."""
    from kinfolk.families.base import FAST_FIELDS, FastRates

    rates, arms = family.fast_rates or FastRates(*CANDIDATES[family.name]), {}
    for one, other in factors:
        lr, matrix_lr = float(f"{rates.lr * one:.2g}"), rates.matrix_lr
        if matrix_lr is not None:
            matrix_lr = float(f"{matrix_lr * other:.2g}")
        faster = replace(family, fast_rates=FastRates(lr, matrix_lr))
        train = vars(faster.fast_train(family.train(size)))
        name = f"fast {lr:g}" if matrix_lr is None else f"fast {lr:g} {matrix_lr:g}"
        settings = tuple(f"train.{field}={train[field]}" for field in FAST_FIELDS)
        arms[name] = Arm(family.name, name, True, settings)
    return list(arms.values())


def pair(text: str) -> tuple[float, float]:
    """Return two factors written with a colon between them."""
    one, _, other = text.partition(":")
    return float(one), float(other or one)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder of kinfolk prepare")
    parser.add_argument("--families", nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--size", default="mini")
    parser.add_argument("--steps", type=int, default=1000, help="of the ordinary recipe")
    parser.add_argument("--late-steps", type=int, help="of it, for LATE; twice as many by default")
    parser.add_argument("--fraction", type=float, default=0.5, help="of the steps, for the fast")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--plain", type=float, nargs="*", default=[1, 2, 4], metavar="FACTOR")
    parser.add_argument("--late-plain", type=float, nargs="*", default=[1, 2], metavar="FACTOR")
    parser.add_argument("--fast", type=pair, nargs="*", metavar="FACTOR:FACTOR",
                        default=[(1, 1), (0.5, 1), (1, 2), (1, 0.5)])  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8, help="of timing, at least 7")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="after which no run starts but timing")
    parser.add_argument("--phases", nargs="*", default=["search", "final", "time"])
    parser.add_argument("--setting", nargs="+", default=[], help="of every run, as train.seed=1")
    parser.add_argument("--plot", type=Path, help="page (.html) or data (.json) of the curves")
    parser.add_argument("-o", "--out", type=Path, required=True)
    return parser.parse_args(argv)


def ordinary_steps(options: argparse.Namespace, family: str) -> int:
    """Return the steps of the ordinary recipe of a family."""
    if family not in LATE:
        return options.steps
    return 2 * options.steps if options.late_steps is None else options.late_steps


def recipe_of(options: argparse.Namespace, arm: Arm, seed: int, eval_every: int) -> Any:
    """Return the recipe of a run."""
    import kinfolk
    from kinfolk.families import family

    steps = round(ordinary_steps(options, arm.family) * (options.fraction if arm.fast else 1))
    dropouts = [name for name in vars(family(arm.family).config(options.size)) if "dropout" in name]
    workers = 1 if options.device == "cuda" else 0
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
                ("eval_every", eval_every), ("keep_checkpoints", 1), ("workers", workers),
            )),
            f"train.warmup={max(1, steps // (20 if arm.fast else 10))}",
            *arm.settings,
            *options.setting,
        ],
    )  # fmt: skip


def train(recipe: Any, folder: Path, callbacks: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Run a recipe without baselines, samples and pages; return the lines of its log."""
    from kinfolk.training.run import Run
    from kinfolk.workflows.pretrain import PretrainWorkload

    class Bare(PretrainWorkload):
        """What a run computes beside its steps and evaluations is left out."""

        def loss_baselines(self) -> Any:
            return ()

        def duplicates(self) -> Any:
            return {}

        def samples(self) -> Any:
            return ()

        def write_report(self, folder: Path, *, finished: bool) -> None:
            pass

    shutil.rmtree(folder, ignore_errors=True)
    Run.start(Bare(recipe), folder, callbacks).fit()
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    shutil.rmtree(folder)
    return rows


def curve_of(options: argparse.Namespace, task: Task) -> dict[str, Any]:
    """Train once; return the held-out losses by step: in a search the last one alone."""
    (arm,) = task.arms
    steps = ordinary_steps(options, arm.family)
    eval_every = steps if task.phase == "search" else max(1, steps // EVALUATIONS)
    folder = options.out / "runs" / f"{arm.family}-{arm.name}-{task.seed}".replace(" ", "-")
    rows = train(recipe_of(options, arm, task.seed, eval_every), folder)
    return {"curve": [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row]}


def seconds_of_steps(options: argparse.Namespace, task: Task) -> dict[str, Any]:
    """Return the seconds of a step, of rounds that take the recipes in turn."""
    from kinfolk.workflows.comparison.step_timing import ROUND_SECONDS, time_steps

    recipes = {arm.name: recipe_of(options, arm, 0, options.steps) for arm in task.arms}
    return {"seconds": time_steps(recipes, seconds=options.rounds * ROUND_SECONDS)}


def do(options: argparse.Namespace, task: Task) -> dict[str, Any] | str:
    """Do one task in a process of the pool; return its result or an error."""
    work = seconds_of_steps if task.phase == "time" else curve_of
    try:
        return {**task.as_json(), **work(options, task)}
    except Exception:
        return traceback.format_exc()


def do_all(
    options: argparse.Namespace,
    tasks: Sequence[Task],
    jobs: int,
    deadlines: dict[str, float],
    then: Callable[[Task], Sequence[Task]] = lambda task: (),
) -> None:
    """Do the tasks that have no result yet, several at a time, and those that follow from one.

    Searches come first, then runs by their seeds; no task starts after the deadline of its phase.
    """
    file, numbers, late = options.out / "results.jsonl", itertools.count(), 0
    waiting: list[tuple[int, int, Task]] = []
    running: dict[Future[dict[str, Any] | str], Task] = {}

    def add(some: Iterable[Task]) -> None:
        for task in some:
            heapq.heappush(waiting, (task.seed, next(numbers), task))

    add(tasks)
    known = {key(row) for row in read(file)}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = heapq.heappop(waiting)[-1]
                if key(task.as_json()) in known:
                    add(then(task))
                elif time.time() > deadlines.get(task.phase, math.inf):
                    late += 1
                    add(then(task))
                else:
                    running[pool.submit(do, options, task)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, error = running.pop(future), future.exception()
                found = str(error) if error else future.result()
                if isinstance(found, str):
                    print(f"failed: {task}\n{found[-600:]}", flush=True)
                    if error:  # a process was killed: the pool has ended with it
                        waiting.clear()
                        continue
                else:
                    with file.open("a") as out:
                        out.write(json.dumps(found) + "\n")
                add(then(task))
    if late:
        print(f"{late} runs were left out at --minutes {options.minutes:g}", flush=True)


def key(row: dict[str, Any]) -> str:
    """Return what a result is recognized by."""
    return json.dumps([row["phase"], row["arms"], row["seed"]])


def read(file: Path) -> list[dict[str, Any]]:
    """Return the results so far."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def best(results: list[dict[str, Any]], family: str, *, fast: bool) -> Arm | None:
    """Return the arm of a recipe with the lowest last loss in the search."""
    found = [
        (row["curve"][-1][1], row["arms"][0])
        for row in results
        if row["phase"] == "search"
        and (row["arms"][0]["family"], row["arms"][0]["fast"]) == (family, fast)
        and row["curve"]
        and math.isfinite(row["curve"][-1][1])
    ]
    if not found:
        return None
    _, arm = min(found, key=lambda pair: pair[0])
    return Arm(**{**arm, "settings": tuple(arm["settings"])})


def main(argv: list[str]) -> None:
    """Search, run the best with other seeds, time their steps, print a table."""
    options = parse(argv)
    from kinfolk.families import family
    from kinfolk.training.workload import select_device

    select_device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    deadlines = {}
    if options.minutes is not None:
        ends = time.time() + 60 * options.minutes
        deadlines = {"search": ends - 30 * options.minutes, "final": ends}
    file, known = options.out / "results.jsonl", {name: family(name) for name in options.families}
    searched: dict[str, list[Task]] = {name: [] for name in known}
    for name, who in known.items() if "search" in options.phases else ():
        factors = options.late_plain if name in LATE else options.plain
        arms = (
            plain_arms(name, who.train(options.size).lr, factors),
            fast_arms(who, options.size, options.fast),
        )
        both = (arm for pair in zip_longest(*arms) for arm in pair if arm is not None)
        searched[name] = [Task("search", (arm,), 0) for arm in both]
    left = {name: len(tasks) for name, tasks in searched.items()}

    def chosen(name: str) -> list[Arm]:
        arms = [best(read(file), name, fast=fast) for fast in (False, True)]
        return [arm for arm in arms if arm is not None]

    def finals(name: str) -> list[Task]:
        arms = chosen(name)
        if name == "gpt2":
            arms.append(Arm("gpt2", "nanoGPT", False, NANOGPT))
        return [Task("final", (arm,), seed + 1) for seed in range(options.seeds) for arm in arms]

    def then(task: Task) -> list[Task]:
        """Return the last runs of a family when its search has ended."""
        name = task.arms[0].family
        left[name] -= task.phase == "search"
        if task.phase == "search" and not left[name] and "final" in options.phases:
            return finals(name)
        return []

    # Families with the longest runs come first, and of each the first rates: searches may be cut.
    rounds = zip_longest(*(searched[name] for name in sorted(known, key=lambda n: n not in LATE)))
    tasks = [task for same in rounds for task in same if task is not None]
    if "final" in options.phases and not tasks:
        tasks = [task for name in known for task in finals(name)]
    if tasks:
        do_all(options, tasks, options.jobs, deadlines, then)
    if "time" in options.phases:
        pairs = [tuple(chosen(name)) for name in known]
        do_all(options, [Task("time", arms, 0) for arms in pairs if len(arms) == 2], 1, {})
    results = read(file)
    show(results, options)
    if options.plot is not None:
        plot(results, options)


def curves(results: list[dict[str, Any]], family: str) -> dict[str, dict[int, Curve]]:
    """Return the curves of the last phase by recipe and seed: of the fast and the ordinary one."""
    found: dict[str, dict[int, Curve]] = {}
    for row in results:
        arm = row["arms"][0]
        if row["phase"] == "final" and arm["family"] == family and row["curve"]:
            found.setdefault(arm["name"], {})[row["seed"]] = [(x, y) for x, y in row["curve"]]
    return found


def first_reached(curve: Curve, loss: float) -> int | None:
    """Return the first evaluated step at which a curve is at a loss or below."""
    return next((step for step, value in curve if value <= loss), None)


def compare(
    ordinary: dict[int, Curve], fast: dict[int, Curve], step_ratio: float | None
) -> Speedup:
    """Return what the fast runs need to reach the last loss of the ordinary runs of their seeds."""
    seeds = sorted(ordinary.keys() & fast.keys())
    reached = [first_reached(fast[seed], ordinary[seed][-1][1]) for seed in seeds]
    steps = [
        None if step is None else step / ordinary[seed][-1][0]
        for seed, step in zip(seeds, reached, strict=True)
    ]
    gaps = [fast[seed][-1][1] - ordinary[seed][-1][1] for seed in seeds]
    return Speedup(steps, gaps, step_ratio)


def span(values: Sequence[float], form: str) -> str:
    """Return the mean of values and their range."""
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{statistics.mean(values):{form}} ({low:{form}} to {high:{form}})"


def shares(values: Sequence[float | None]) -> str:
    """Return the mean and the range of shares, or how many there are where some are missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} runs reach it"
    return span(known, ".0%")


def pick(found: dict[str, Any], start: str) -> str | None:
    """Return the name of the recipe that starts so, the last one that was run."""
    return next((name for name in reversed(found) if name.startswith(start)), None)


def show(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the last losses, then the table of shares."""
    seconds = {r["arms"][0]["family"]: r["seconds"] for r in results if r["phase"] == "time"}
    rows = []
    for family in options.families:
        found, step = curves(results, family), seconds.get(family, {})
        for name, by_seed in found.items():
            last = [curve[-1][1] for curve in by_seed.values()]
            steps = next(iter(by_seed.values()))[-1][0]
            cost = f", {1e3 * step[name]:.1f} ms a step" if name in step else ""
            print(f"{family}: {name}: {span(last, '.3f')} after {steps} steps{cost}")
        ordinary, fast = pick(found, "ordinary"), pick(found, "fast")
        if ordinary is None or fast is None:
            continue
        # A step of nanoGPT's settings is an ordinary one.
        ratio = step[fast] / step[ordinary] if {ordinary, fast} <= step.keys() else None
        for plain in (ordinary, *({"nanoGPT"} & found.keys())):
            speedup = compare(found[plain], found[fast], ratio)
            rows.append(
                f"| {family} | {plain.removeprefix('ordinary ')} | {fast.partition(' ')[2]} "
                f"| {span([c[-1][1] for c in found[plain].values()], '.3f')} "
                f"| {span(speedup.gaps, '+.3f')} | {shares(speedup.steps)} "
                f"| {'-' if ratio is None else f'{ratio:.2f}'} "
                f"| {'-' if ratio is None else shares(speedup.time)} |"
            )
    print("\n| family | ordinary lr | fast lr, matrix_lr | ordinary loss | fast loss, difference "
          "| share of steps | seconds of a step, ratio | share of time |")  # fmt: skip
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(rows))


def plot(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write the mean curves with the range over the seeds, over time where steps were timed."""
    from kinfolk.reports import page
    from kinfolk.reports.charts import Series, line_chart

    seconds = {r["arms"][0]["family"]: r["seconds"] for r in results if r["phase"] == "time"}
    charts, data = [], {}
    for family in options.families:
        found, step, lines = curves(results, family), seconds.get(family, {}), []
        for name, by_seed in found.items():
            alike = pick(found, "ordinary") if name == "nanoGPT" else name
            if step and alike not in step:
                continue
            points = list(zip(*by_seed.values(), strict=True))  # of all seeds at one step
            losses = [[loss for _, loss in point] for point in points]
            lines.append(
                Series(
                    name,
                    [point[0][0] * step.get(alike, 1) for point in points],
                    [statistics.mean(values) for values in losses],
                    low=[min(values) for values in losses],
                    high=[max(values) for values in losses],
                )
            )
        if lines:
            data[family] = [asdict(line) for line in lines]
            x = "seconds" if step else "steps"
            charts.append((family, line_chart(lines, x=x, y="held-out loss", smooth=False)))
    if options.plot.suffix == ".json":
        options.plot.write_text(json.dumps(data))
        return
    template = page.environment().from_string(
        '{% extends "page.html" %}{% block title %}Time to quality{% endblock %}'
        "{% block content %}<h1>Time to quality</h1>{% for name, chart in charts %}"
        "<section><h2>{{ name }}</h2>{{ chart }}</section>{% endfor %}{% endblock %}"
    )
    page.write(template.render(charts=charts), options.plot)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
