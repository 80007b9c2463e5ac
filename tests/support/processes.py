"""Processes that train one model together: as `torchrun` starts them, or forked from a server."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinfolk.training.loop import Progress
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import Recipe
from support.crash import server
from support.poison import has_token, poison
from support.runs import OnStep, Said

STANDALONE = ("-m", "torch.distributed.run", "--standalone")


@dataclass(frozen=True)
class Interrupt:
    """Send a signal to a process of the run when process 0 has logged a step."""

    step: int
    rank: int
    signal: int = signal.SIGTERM

    def __call__(self, progress: Progress) -> None:
        if progress.step == self.step:
            os.kill(int(Path(f"pid-{self.rank}").read_text()), self.signal)


@dataclass(frozen=True)
class Tuning:
    """What is fine-tuned on which rows; a token whose batches have a loss of NaN, if any."""

    model: Path
    rows: Any
    fields: Mapping[str, Any]
    bad_token: int | None = None


def train(
    rank: int, count: int, port: int, folder: Path, recipe: Recipe, interrupt: Interrupt | None
) -> None:
    """Start a run as one of several processes, or resume it."""
    set_rank(rank, count, port, folder)
    callbacks = [] if interrupt is None else [OnStep(interrupt)]
    if (folder / "recipe.json").is_file():
        resume(folder, callbacks=callbacks)
    else:
        pretrain(recipe, folder, callbacks=callbacks)


def tune(
    rank: int, count: int, port: int, folder: Path, job: Tuning, interrupt: Interrupt | None
) -> None:
    """Fine-tune as one of several processes, or resume that."""
    from kinfolk.workflows.finetuning.finetune import finetune

    set_rank(rank, count, port, folder)
    callbacks = [] if interrupt is None else [OnStep(interrupt)]
    with pytest.MonkeyPatch.context() as patch:
        if job.bad_token is not None:
            poison(patch, has_token(job.bad_token))
        if (folder / "recipe.json").is_file():
            resume(folder, callbacks=callbacks)
        else:
            finetune(job.model, job.rows, folder, callbacks=callbacks, **job.fields)


def set_rank(rank: int, count: int, port: int, folder: Path) -> None:
    """Become one of several processes, beside the folder of their run."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    folder.parent.mkdir(exist_ok=True)
    os.chdir(folder.parent)
    Path(f"pid-{rank}").write_text(str(os.getpid()))


def train_together(
    count: int, folder: Path, job: Recipe | Tuning, interrupt: Interrupt | None = None
) -> list[int | None]:
    """Train in several processes; return their exit codes."""
    target = tune if isinstance(job, Tuning) else train
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    members = [
        server.Process(target=target, args=(rank, count, port, folder, job, interrupt))
        for rank in range(count)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join(60)
    codes = [member.exitcode for member in members]
    for member in members:
        member.kill()
    return codes


def torchrun(
    count: int, *arguments: object, meanwhile: Callable[[subprocess.Popen[str]], None] | None = None
) -> Said:
    """Run the command in several processes, started by torchrun."""
    command = [sys.executable, *STANDALONE, f"--nproc-per-node={count}", "-m", "kinfolk"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        if meanwhile is not None:
            meanwhile(process)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return Said(process.returncode, out, err)


def wait_for_lines(path: Path, count: int) -> None:
    """Wait until a file has some lines."""
    for _ in range(1200):
        if path.is_file() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} has fewer than {count} lines after a minute")


def pid_of_rank(rank: int, process: subprocess.Popen[str]) -> int:
    """Return the process that torchrun has given a rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in children:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in environment:
            return int(pid)
    raise AssertionError(f"torchrun has no process of rank {rank}")
