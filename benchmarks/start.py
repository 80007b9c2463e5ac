"""How long a pretraining run takes from its start to its first step, and to its end.

    python benchmarks/start.py --corpus corpus --device cuda
    python benchmarks/start.py gpt2/base --corpus corpus --compile auto yes --steps 300
    python benchmarks/start.py gpt2/nano --corpus corpus --device cpu --steps 5

Each run is `kinfolk.pretrain` in a process of its own, with empty caches of the compiler: imports,
reading the corpus, building, the steps, the evaluation, the checkpoint and the report. The command
`kinfolk pretrain` takes a few tenths of a second more, for its options. `first step` is the time at
which the loss of the first step has been read from the device. `--out` appends a line of JSON for
each run when it has ended.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError

MODELS = ("gpt2/base", "bert/base", "t5/base")
HEAD = (
    "model",
    "compile",
    "first step",
    "of it compiling",
    "in total",
    "steps",
    "tokens/s at the end",
)


def run(model: str, compiling: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the command in an empty folder, and read what it wrote."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        environment = {**os.environ, **{key: str(folder / cache) for key, cache in caches.items()}}
        settings = [f"train.steps={options.steps}", f"train.compile={compiling}"]
        settings += [f"train.device={options.device}", *options.setting]
        asked = [model, str(options.corpus), str(folder / "run"), *settings]
        first = folder / "first.txt"
        began = time.time()
        done = subprocess.run(
            [sys.executable, __file__, "--first-step", str(first), *asked],
            env=environment,
            capture_output=True,
            text=True,
        )
        total = time.time() - began
        if done.returncode or not first.is_file():
            raise RuntimeError(
                f"kinfolk.pretrain {' '.join(asked)}: {(done.stderr or done.stdout)[-2000:]}"
            )
        speeds = [*map(json.loads, (folder / "run" / "speed.jsonl").read_text().splitlines())]
        # The lines of steps that were logged together have the mean of their seconds.
        compile_seconds = sum(line.get("compile_seconds", 0.0) for line in speeds)
        said = (line.strip() for line in (done.stdout + done.stderr).splitlines())
        return {
            "model": model,
            "compile": compiling,
            "first_step": round(float(first.read_text()) - began, 2),
            "compile_seconds": round(compile_seconds, 2),
            "total": round(total, 2),
            "steps": options.steps,
            "tokens_per_second": round(speeds[-1]["tokens_per_second"]),
            "compiler": [line for line in said if "compile" in line],
            "device": options.device,
        }


def main_of_run(first: Path, model: str, corpus: str, out: str, *settings: str) -> None:
    """Train in this process, and write down when the first step has ended."""
    import kinfolk
    from kinfolk.training.loop import Callback
    from kinfolk.training.step import TrainStep

    step = TrainStep.__call__

    def first_step(self: TrainStep, *arguments: Any) -> Any:
        TrainStep.__call__ = step  # type: ignore[method-assign]
        output = step(self, *arguments)
        output.loss.item()
        first.write_text(str(time.time()), encoding="utf-8")
        return output

    class Messages(Callback):
        def on_message(self, message: str) -> None:
            print(message)

    TrainStep.__call__ = first_step  # type: ignore[method-assign]
    kinfolk.pretrain(kinfolk.recipe(model, corpus, settings=settings), out, callbacks=[Messages()])


def row(cells: Sequence[str]) -> str:
    """Return a row of the table."""
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, and print a table."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "--first-step":
        main_of_run(Path(arguments[1]), *arguments[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="FAMILY/SIZE")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of kinfolk prepare")
    parser.add_argument("--compile", nargs="+", default=["auto", "on"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--setting", nargs="+", default=[], help="of every run: train.seed=1")
    parser.add_argument("--out", type=Path, help="lines of JSON")
    options = parser.parse_args(arguments)
    from kinfolk.training.workload import select_device

    select_device(options.device)
    print(row(HEAD))
    print(row(["---"] * 2 + ["---:"] * 5), flush=True)
    for compiling in options.compile:
        for model in options.models:
            found = run(model, compiling, options)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
            seconds = [f"{found[key]:.1f} s" for key in ("first_step", "compile_seconds", "total")]
            counts = [str(found["steps"]), f"{found['tokens_per_second']:,}"]
            print(row([model, compiling, *seconds, *counts]), flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
