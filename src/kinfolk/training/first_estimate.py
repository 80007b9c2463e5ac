"""The seconds of a step of a workload: the first estimate of a run that ends by the clock."""

import itertools
import statistics
import tempfile
import time
from pathlib import Path

from kinfolk.training.workload import Workload, select_device, uses_bfloat16

WARMUP_STEPS = 3  # that are not timed: the first compiles, the next records a CUDA graph
TIMED_SHARE = 0.05  # of the budget
MIN_SECONDS, MAX_SECONDS = 1.0, 20.0
MIN_BUDGET_STEPS = 10  # that a budget must be enough for
FIRST_STEP = 3  # times a later step that the first may take, which allocates


def seconds_per_step(work: Workload, budget: float) -> float:
    """Return the median of the seconds of some steps, with reading the batch and the update.

    The workload is trained by them; `budget` is in seconds. The last is one that clearly takes
    more than the budget has for each of the fewest steps.
    """
    device, timed = select_device(work.train.device), list[float]()
    enough = min(MAX_SECONDS, max(MIN_SECONDS, TIMED_SHARE * budget))
    work.model.train()
    with tempfile.TemporaryDirectory() as folder:
        half = uses_bfloat16(work.train, device)
        step = work.make_step(Path(folder), device, bfloat16=half)
        eager = device.type == "cpu" and work.compile_plan.mode == "no"
        settled = 0 if eager else WARMUP_STEPS
        slow = budget / (MIN_BUDGET_STEPS - 0.5)
        batches = work.micro_batches(0, pinned=device.type == "cuda")
        for number in itertools.count():
            began = time.perf_counter()
            step(number, next(batches)).loss.item()  # waits for the device
            taken = time.perf_counter() - began
            if number >= settled and taken > slow * (1 if number else FIRST_STEP):
                return taken
            if number >= WARMUP_STEPS:
                timed.append(taken)
            if sum(timed) >= enough:
                return statistics.median(timed)
    raise AssertionError("batches have an end")
