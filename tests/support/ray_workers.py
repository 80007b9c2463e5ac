"""Shards of a corpus that go wrong in workers of Ray; run as a script, in a process of its own."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kinfolk.data import cluster
from kinfolk.errors import UserError
from kinfolk.text import train_tokenizer

OPTIONS: dict[str, Any] = {"holdout": 0.3, "dedup": "near", "word_boundaries": "spaces"}

ray_shard = cluster.prepare_shard


def dies_once(task: Any, number: int, *others: Any) -> None:
    """Kill the worker of shard 2 when it begins for the first time."""
    flag = task.home.parent / "died"
    if number == 2 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    ray_shard(task, number, *others)


def dies(task: Any, number: int, *others: Any) -> None:
    """Kill the worker of shard 2 whenever it begins."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    ray_shard(task, number, *others)


def waits(task: Any, number: int, *others: Any) -> None:
    """Prepare shard 1 alone; the others never end."""
    if number > 1:
        time.sleep(600)
    ray_shard(task, number, *others)


def main(kind: str, text: str, out: str) -> None:
    """Prepare a text on two workers; print the stages of the progress and the end."""
    kinds = {"dies_once": dies_once, "dies": dies, "waits": waits, "well": ray_shard}
    cluster.prepare_shard = kinds[kind]
    seen = []
    try:
        cluster.prepare_on_ray(
            [Path(text)],
            train_tokenizer([], kind="byte", vocab_size=0),
            out,
            num_shards=3,
            workers=2,
            progress=lambda *values: seen.append(values),
            on_message=print,
            **OPTIONS,
        )
    except UserError as error:
        sys.exit(f"error: {error}")
    last = {stage: (done, total) for stage, done, total in seen}
    print(f"progress: {last}")


if __name__ == "__main__":
    main(*sys.argv[1:])
