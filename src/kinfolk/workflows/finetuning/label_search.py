"""Weights of label sets: a search with a fine-tuning run for each point of a grid; learned ones.

RUN/weights-1-0/, RUN/weights-0.75-0.25/ ...   a run each
RUN/scores.json                                the dev scores of all
RUN/best                                       a link to the best of them

Jia et al. (2022) learn a weight for each label set and sentence together with the model, as
`--label-weights learned` does. In a search each set has one weight, and dev rows decide: with two
sets these are five runs.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kinfolk.errors import UserError
from kinfolk.files import new_file, new_folder, replace_link
from kinfolk.nn.label_weights import weights_of
from kinfolk.tasks.formulations.base import Instance
from kinfolk.tasks.formulations.sentence_selection import SentenceSelection
from kinfolk.tasks.instances import TOKENS_PER_BATCH, length_buckets
from kinfolk.training.distributed import Processes
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.folders import RESUME_ADVICE, check_new_folder, exclusive_run

GRID_STEPS = 4  # weights are multiples of a quarter
RUN_PREFIX = "weights-"

Weights = tuple[float, ...]
TrainWithWeights = Callable[[Weights, Path], Path]  # of the weights and a run folder


def search_label_weights(label_sets: int, out: Path, train: TrainWithWeights) -> Path:
    """Fine-tune with each weighting of label sets into a folder of runs; link the best of them.

    The best has the highest main metric on the dev rows; of equal ones, the first: that with the
    largest weight of the original labels.
    """
    if Processes.from_environment().count > 1:
        raise UserError(
            "--label-weights search runs in one process: start it without torchrun, or give the "
            "weights"
        )
    check_new_folder(out, RESUME_ADVICE)
    runs = {weights: out / weights_folder_name(weights) for weights in grid(label_sets)}
    with new_folder(out) as partial:
        for folder in runs.values():
            (partial / folder.name).mkdir()
    with exclusive_run(out):
        for weights, folder in runs.items():
            train(weights, folder)
        write_search(out, runs)
    return out


def grid(label_sets: int, steps: int = GRID_STEPS) -> list[Weights]:
    """Return all weights that are multiples of 1 / steps and sum to 1, large first ones first."""

    def parts(left: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield (left,)
            return
        for first in range(left, -1, -1):
            for rest in parts(left - first, count - 1):
                yield first, *rest

    return [tuple(part / steps for part in some) for some in parts(steps, label_sets)]


def weights_folder_name(weights: Weights) -> str:
    """Return the name of the run with these weights."""
    return RUN_PREFIX + "-".join(f"{weight:g}" for weight in weights)


def write_search(out: Path, runs: dict[Weights, Path]) -> None:
    """Write the dev scores of all runs, and link the best one."""
    recipe = FineTuneRecipe.read(next(iter(runs.values())) / "recipe.json")
    scores: dict[Weights, Any] = {
        weights: json.loads((run / "scores.json").read_text("utf-8"))
        for weights, run in runs.items()
    }
    best = max(runs, key=lambda weights: recipe.selection_score(scores[weights]["dev"]))
    replace_link(out / "best", runs[best].name)
    found = {
        "metric": recipe.formulations[0].task.main_metric,
        "label_weights": best,
        "baselines": scores[best]["baselines"],
        "candidates": [
            {"run": runs[weights].name, "label_weights": weights, "dev": values["dev"]}
            for weights, values in scores.items()
        ],
        "best": runs[best].name,
    }
    with new_file(out / "scores.json") as file:
        file.write(json.dumps(found, indent=2) + "\n")


def is_label_search(run: Path) -> bool:
    """Return whether a folder has the runs of a search."""
    return any(run.glob(f"{RUN_PREFIX}*/recipe.json"))


def read_search(run: Path) -> dict[str, Any]:
    """Return the results of a search."""
    found: dict[str, Any] = json.loads((run / "scores.json").read_text("utf-8"))
    return found


@torch.no_grad()
def learned_label_weights(
    formulation: SentenceSelection, model: Any, instances: Sequence[Instance]
) -> dict[str, Any]:
    """Return the learned weights of label sets, and those of the sentences of labelled documents.

    The sets are the original one and those of dictionaries, in this order.
    """
    model = model.eval()
    device = next(model.parameters()).device
    found = []
    for group in length_buckets([instance.tokens for instance in instances], TOKENS_PER_BATCH):
        batch = formulation.make_batch([instances[index] for index in group]).to(device)
        found.append(formulation.sentence_weights(model, batch).double().cpu())
    weights: dict[str, Any] = {
        "sets": ["original", *formulation.dictionary],
        "set_weights": weights_of(model.label_weights.of_sets).tolist(),
    }
    if found:
        sentences = torch.cat(found)
        weights["sentence_mean"] = sentences.mean(0).tolist()
        weights["sentence_std"] = sentences.std(0, correction=0).tolist()
    return weights


def weight_messages(learned: Mapping[str, Any]) -> list[str]:
    """Return the learned weights of label sets as a sentence; none where none are learned."""
    if not learned:
        return []
    names = [Path(name).name for name in learned["sets"]]
    weights = learned.get("sentence_mean", learned["set_weights"])
    parts = (f"{name} {weight:.2f}" for name, weight in zip(names, weights, strict=True))
    return [f"learned weights of label sets: {', '.join(parts)}"]
