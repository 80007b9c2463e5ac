"""One fine-tuning recipe with several seeds: mean and standard deviation of the scores.

RUN/seed-0/, RUN/seed-1/ ...   a run each
RUN/scores.json                mean and standard deviation
RUN/best                       a link to the best of them
"""

import json
import math
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.files import new_file, new_folder, replace_link
from kinfolk.training.distributed import Processes
from kinfolk.training.loop import Callback
from kinfolk.training.provenance import Provenance
from kinfolk.training.workload import select_device
from kinfolk.workflows import pretrain
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe, mean_and_std
from kinfolk.workflows.folders import RESUME_ADVICE, check_new_folder, exclusive_run

TrainSeedFn = Callable[[int, Path], Path]  # of a seed and a run folder


@dataclass(frozen=True)
class SeedResults:
    """The dev scores of a run, or of a run for each seed."""

    metric: str  # the main one
    runs: dict[Path, dict[str, float]]  # every metric of each
    best: Path
    baselines: dict[str, dict[str, float]]  # every metric of each baseline, on the same dev rows

    @property
    def names(self) -> list[str]:
        """The metrics, the loss last."""
        every = dict.fromkeys(name for values in self.runs.values() for name in values)
        names = [name for name in every if name != "step"]
        return sorted(names, key=lambda name: (name == "eval_loss", names.index(name)))

    def mean(self, name: str) -> tuple[float, float]:
        """Return the mean of a metric over the runs, and its standard deviation."""
        return mean_and_std([values[name] for values in self.runs.values()])


def run_seeds(seeds: int, out: Path, train: TrainSeedFn) -> Path:
    """Run seeds 0, 1, 2 ... and summarize their scores."""
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1 (got {seeds})")
    folders = [out / f"seed-{number}" for number in range(seeds)]
    if not Processes.from_environment().is_first:  # the first makes and keeps the folder
        for number, folder in enumerate(folders):
            train(number, folder)
        return out
    check_new_folder(out, RESUME_ADVICE)
    try:
        with new_folder(out) as partial:
            for folder in folders:  # all at once, so that a resume knows the number of seeds
                (partial / folder.name).mkdir()
    except (BlockingIOError, FileExistsError) as error:
        raise UserError(f"{out} exists by now: another run was started in it") from error
    with exclusive_run(out):
        try:
            for number, folder in enumerate(folders):
                train(number, folder)
        except BaseException:
            if not any(folders[0].iterdir()):
                shutil.rmtree(out)  # nothing was started
            raise
        return summarize_seeds(out)


def is_multi_seed(out: Path) -> bool:
    """Return whether a folder has the runs of several seeds."""
    return (out / "seed-0").is_dir()


def resume_seeds(out: Path, progress: Callable[[Path], AbstractContextManager[Callback]]) -> Path:
    """Resume the runs that are not finished, and start those that were not started."""
    folders = seed_folders(out)
    if (out / "scores.json").is_file():
        raise UserError(
            f"run {out} is complete: start a new run with more --epochs to train longer"
        )
    first = FineTuneRecipe.read(folders[0] / "recipe.json")
    unfinished = [folder for folder in folders if not (folder / "scores.json").is_file()]
    processes = Processes.from_environment()
    processes.connect(select_device(first.train.device))
    with exclusive_run(out) if processes.is_first else nullcontext():
        for seed, folder in enumerate(folders if processes.is_first else ()):
            if not (folder / "recipe.json").is_file():
                shutil.copytree(folders[0] / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
                write_provenance(folder, folders[0], processes)
                replace(first, train=replace(first.train, seed=seed)).write(folder / "recipe.json")
        processes.wait()
        for folder in unfinished:
            with progress(folder) as callback:
                pretrain.resume(folder, callbacks=[callback])
        return summarize_seeds(out) if processes.is_first else out


def write_provenance(folder: Path, first: Path, processes: Processes) -> None:
    """Write the command of the first seed, which asked for this one too, and today's versions."""
    now, asked = Provenance.of_this_process(processes), Provenance.read(first)
    if asked is not None:
        now = replace(now, command=asked.command, folder=asked.folder)
    now.write(folder)


def summarize_seeds(out: Path) -> Path:
    """Write the scores of all seeds, and link the best run."""
    results = read_scores(out)
    replace_link(out / "best", results.best.name)
    means = {
        name: dict(zip(("mean", "spread"), map(finite_or_none, results.mean(name)), strict=True))
        for name in results.names
    }
    main = means.get(results.metric, {"mean": None, "spread": None})
    text = json.dumps(
        {
            "metric": results.metric,
            "dev": main["mean"],
            "spread": main["spread"],
            "metrics": means,
            "baselines": results.baselines,
            "best": results.best.name,
            "seeds": [
                {
                    "run": run.name,
                    "dev": {name: finite_or_none(value) for name, value in values.items()},
                }
                for run, values in results.runs.items()
            ],
        },
        indent=2,
    )
    with new_file(out / "scores.json") as file:
        file.write(text + "\n")
    return out


def read_scores(out: Path) -> SeedResults:
    """Read the dev scores of a run, or of the runs of all seeds."""
    runs = seed_folders(out) if is_multi_seed(out) else [out]
    recipe = FineTuneRecipe.read(runs[0] / "recipe.json")
    read: list[Any] = [json.loads((run / "scores.json").read_text("utf-8")) for run in runs]
    dev = {
        run: {name: math.nan if v is None else v for name, v in scores["dev"].items()}
        for run, scores in zip(runs, read, strict=True)
    }
    best = runs[0]
    for run in runs if dev[best] else ():
        if recipe.selection_score(dev[run]) > recipe.selection_score(dev[best]):
            best = run
    metric = recipe.formulations[0].task.main_metric
    return SeedResults(metric, dev, best, read[0].get("baselines", {}))


def finite_or_none(value: float) -> float | None:
    """Return the number, or None for infinity and NaN, which JSON lacks."""
    return value if math.isfinite(value) else None


def seed_folders(out: Path) -> list[Path]:
    """List the runs of all seeds."""
    return sorted(out.glob("seed-*"), key=lambda path: int(path.name.partition("-")[2]))
