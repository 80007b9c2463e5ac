"""A process of a comparison: `python -m kinfolk.workflows.comparison.worker RACE GROUP`.

It runs the jobs of one group, reports what it does on stdout, and ends when the process that
started it does.
"""

import contextlib
import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kinfolk.extensions import import_extensions
from kinfolk.files import folder_lock
from kinfolk.workflows.comparison.jobs import (
    JobContext,
    OnProgress,
    read_result,
    result_path,
    run_job,
)
from kinfolk.workflows.comparison.plan import Job, Plan, write_finite_json
from kinfolk.workflows.comparison.step_timing import end_with_parent


def run_group(race: Path, plan: Plan, group: str, emit: Callable[..., None]) -> None:
    """Run the jobs of a group that have no result yet; those of a failed pretraining fail too."""
    failed: str | None = None
    for job in plan.groups()[group]:
        result = read_result(race, job)
        if result is None and failed is not None:
            result = {"job": job.name, "failed": failed, "total_seconds": 0.0}
            write_finite_json(result, result_path(race, job))
            emit(event="done", job=job.name, failed=failed)
        elif result is None:
            emit(event="start", job=job.name)
            report = _progress_of(emit, job)
            result = run_job(JobContext(race, plan, job, report))
            emit(event="done", job=job.name, failed=result["failed"])
        if job.kind in ("pretrain", "search") and result["failed"]:
            failed = result["failed"] if job.kind == "pretrain" else None


def _progress_of(emit: Callable[..., None], job: Job) -> OnProgress:
    return lambda share: emit(event="progress", job=job.name, share=share)


def main(race: str, group: str) -> None:
    """Run a group in this process, and report every event as a line of JSON."""
    folder = Path(race)
    threading.Thread(target=end_with_parent, daemon=True).start()
    import_extensions()
    plan = Plan.read(folder / "plan.json")
    torch.set_num_threads(plan.threads)

    def emit(**event: Any) -> None:
        print(json.dumps(event), flush=True)

    with _alone(folder, group), warnings.catch_warnings():
        warnings.simplefilter("default")
        run_group(folder, plan, group, emit)


@contextlib.contextmanager
def _alone(race: Path, group: str) -> Iterator[None]:
    """Wait until a process of an earlier start of the comparison has ended."""
    with folder_lock(race / "logs" / f"{group}.txt"):
        yield


if __name__ == "__main__":
    main(*sys.argv[1:])
