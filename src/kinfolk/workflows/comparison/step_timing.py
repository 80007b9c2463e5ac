"""The seconds of training steps, measured while as many processes train as a comparison will run.

`python -m kinfolk.workflows.comparison.step_timing FOLDER NUMBER` is such a process. It trains the
recipes of FOLDER/recipes.json in turn, from its own number on, until the process that started it
ends it.
"""

import contextlib
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kinfolk.config import from_json, to_json
from kinfolk.errors import UserError
from kinfolk.extensions import import_extensions
from kinfolk.training.first_estimate import WARMUP_STEPS
from kinfolk.training.log import MetricsLog
from kinfolk.training.loop import TrainLoop
from kinfolk.training.run import log_interval
from kinfolk.training.workload import select_device, uses_bfloat16
from kinfolk.workflows.pretrain import PretrainWorkload
from kinfolk.workflows.processes import ERROR_LINES, child_environment
from kinfolk.workflows.recipe import Recipe

ROUND_SECONDS = 0.25  # of one run in a round
MIN_ROUNDS, MAX_ROUNDS = 7, 80
MAX_ROUND_STEPS = 100
MIN_QUICK_STEPS = 2
UNREACHED = 10**9  # steps, more than any measurement does
READY = "ready"  # what a process prints that has begun to train


class TimedRun:
    """The training loop of a recipe, from batch to update, a few steps at a time."""

    def __init__(self, recipe: Recipe, folder: Path, log: contextlib.ExitStack) -> None:
        # Far from the end, where it would evaluate and save.
        train = replace(recipe.train, steps=UNREACHED, save_every=UNREACHED, eval_every=UNREACHED)
        train = replace(train, parallel="ddp")
        self.work = PretrainWorkload(replace(recipe, train=train))
        self.device = select_device(train.device)
        cuda = self.device.type == "cuda"
        bfloat16 = uses_bfloat16(train, self.device)
        self.work.model.train()
        self.loop = TrainLoop(
            train=train,
            step=self.work.make_step(folder, self.device, bfloat16=bfloat16),
            log=log.enter_context(MetricsLog.open(folder, -1)),
            log_every=log_interval(self.device),
            evaluate=None,
            save=lambda step, evaluation: None,
        )
        self.batches: Iterator[Any] = self.work.micro_batches(0, pinned=cuda)
        self.steps_per_round = 1

    def seconds_per_step(self, steps: int) -> float:
        """Run steps and return the seconds of one, with reading, logging and the update."""
        self.wait()
        start = time.perf_counter()
        self.loop.run(self.loop.global_step, itertools.islice(self.batches, steps))
        self.wait()
        return (time.perf_counter() - start) / steps

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def warm_up(self) -> None:
        """Compile the step, and choose how many steps a round has."""
        fastest = min(self.seconds_per_step(1) for _ in range(WARMUP_STEPS))
        steps = min(MAX_ROUND_STEPS, max(1, round(ROUND_SECONDS / fastest)))
        every = log_interval(self.device)  # as many reads of the device as in a run
        self.steps_per_round = every * -(-steps // every)


def time_steps(
    recipes: Mapping[str, Recipe], *, processes: int = 1, seconds: float = 0.0
) -> dict[str, float]:
    """Return the seconds of a step of each recipe: the median of rounds in which all take turns.

    Each recipe is trained for about so many `seconds`, at least for a few rounds.

    The speed of a machine drifts, so that runs measured one after the other would not be equal.
    They are only where the device has not the memory for all. All but one of `processes` train
    meanwhile, as other jobs will while a run is trained.
    """
    rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, round(seconds / ROUND_SECONDS)))
    with background_training([*recipes.values()], processes - 1):
        try:
            return time_in_rounds(recipes, rounds)
        except torch.OutOfMemoryError:
            if len(recipes) == 1:
                raise
        return {n: time_in_rounds({n: recipe}, rounds)[n] for n, recipe in recipes.items()}


def quick_seconds(recipe: Recipe, seconds: float) -> float | None:
    """Return the seconds of a step, from a few that are not compiled, for an estimate.

    At least two are timed after a first one. None where the device has not the memory.
    """
    train = replace(recipe.train, compile="no", cuda_graph="no")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as log:
        try:
            run = TimedRun(replace(recipe, train=train), Path(folder), log)
            run.seconds_per_step(1)
            timed: list[float] = []
            while len(timed) < MIN_QUICK_STEPS or sum(timed) < seconds:
                timed.append(run.seconds_per_step(1))
        except torch.OutOfMemoryError:
            return None
    return statistics.median(timed)


def time_in_rounds(recipes: Mapping[str, Recipe], rounds: int) -> dict[str, float]:
    """Return the seconds of a step of each recipe, with all runs in memory."""
    runs: dict[str, TimedRun] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as log, many_compiled():
        try:
            for name, recipe in recipes.items():
                runs[name] = TimedRun(recipe, Path(folder, str(len(runs))), log)
                runs[name].warm_up()
            timed = [
                {name: run.seconds_per_step(run.steps_per_round) for name, run in runs.items()}
                for _ in range(rounds)
            ]
        finally:
            runs.clear()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # the runs that follow may be other processes
    return {name: statistics.median(each[name] for each in timed) for name in recipes}


@contextlib.contextmanager
def many_compiled() -> Iterator[None]:
    """Let each of many runs be compiled: after eight, torch runs the others uncompiled."""
    if not torch.cuda.is_available():  # the CPU compiles only on demand, and importing it is slow
        yield
        return
    from torch._dynamo import config

    limits: Any = config
    with limits.patch(recompile_limit=1024, accumulated_recompile_limit=1024):
        yield


@contextlib.contextmanager
def background_training(recipes: Sequence[Recipe], processes: int) -> Iterator[None]:
    """Let other processes train these recipes during the block."""
    if processes < 1 or not recipes:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        values = [to_json(recipe) for recipe in recipes]
        Path(folder, "recipes.json").write_text(json.dumps(values), encoding="utf-8")
        started = [
            stack.enter_context(background_process(Path(folder), number))
            for number in range(1, processes + 1)
        ]
        for number, process in enumerate(started, 1):
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                log = Path(folder, f"{number}.txt").read_text(encoding="utf-8", errors="replace")
                raise UserError(
                    f"a process that trains while steps are timed ended with code {process.wait()} "
                    f"({' '.join(log.strip().splitlines()[-ERROR_LINES:])}): use fewer --jobs"
                )
        yield


@contextlib.contextmanager
def background_process(folder: Path, number: int) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that trains, with as many threads as this one, until the end of the block."""
    environment = child_environment(OMP_NUM_THREADS=str(torch.get_num_threads()))
    module = "kinfolk.workflows.comparison.step_timing"
    command = [sys.executable, "-m", module, str(folder), str(number)]
    with (
        (folder / f"{number}.txt").open("wb") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def train_in_turn(folder: Path, number: int) -> None:
    """Train the recipes of a folder in turn, for ever; one of them where memory has no more."""
    values = json.loads((folder / "recipes.json").read_text(encoding="utf-8"))
    recipes = [from_json(value, group="recipe") for value in values]
    first = number % len(recipes)
    runs: list[TimedRun] = []
    with contextlib.ExitStack() as log, many_compiled():
        for recipe in recipes[first:] + recipes[:first]:
            try:
                run = TimedRun(recipe, folder / f"{number}-{len(runs)}", log)
                run.warm_up()
                runs.append(run)
            except torch.OutOfMemoryError:
                if not runs:
                    raise
        print(READY, flush=True)
        for run in itertools.cycle(runs):
            run.seconds_per_step(run.steps_per_round)


def end_with_parent() -> None:
    """End this process when the other end of its input is closed: its parent has ended."""
    while os.read(0, 1):  # without the lock of sys.stdin, which the end of the process needs
        pass
    os._exit(1)


def main(folder: str, number: str) -> None:
    """Train until this process is ended."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    import_extensions()
    train_in_turn(Path(folder), int(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
