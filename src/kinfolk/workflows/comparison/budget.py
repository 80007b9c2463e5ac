"""Equal budgets of pretraining runs: what a step of each costs, and how many steps it may do.

A step costs input tokens, FLOPs and seconds. All three are measured on the real batches of a run.
"""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from kinfolk.batch import Batch
from kinfolk.data.datasets import ContiguousDataset
from kinfolk.errors import UserError
from kinfolk.nn.language_model import has_static_shapes
from kinfolk.training.capture import batch_key
from kinfolk.training.config import MAX_STEPS
from kinfolk.training.flops import FlopCounter
from kinfolk.training.step import input_tokens
from kinfolk.training.workload import optimizer_step, uses_bfloat16
from kinfolk.workflows.comparison.options import check_amount
from kinfolk.workflows.comparison.step_timing import time_steps
from kinfolk.workflows.pretrain import PretrainWorkload, training_batches
from kinfolk.workflows.recipe import Recipe

Kind = Literal["minutes", "flops", "tokens"]

BUDGET_TOLERANCE = 0.02  # largest difference between two runs, as a share of the budget
RACE_TIMED_SHARE = 0.05  # of the seconds of all runs of an entrant, for timing its steps
# Rounding to whole steps is half a step up, and half a step down.
MIN_RACE_STEPS = round(1 / BUDGET_TOLERANCE)

SEARCH_SHARE = 1 / 3  # of the budget, for all learning rates of a search together
MIN_SEARCH_STEPS = 10  # of each of them

READ_STEPS = 256  # steps whose tokens are counted, where an epoch has more
COUNTED_SHAPES = 4  # the most common shapes of a micro-batch, whose FLOPs are counted
BATCHES_OF_SHAPE = 2  # micro-batches counted of a single shape, where FLOPs depend on the texts

BUDGET_COUNTING: dict[Kind, str] = {
    "tokens": (
        "Every run reads as many input tokens: those of the encoder and of the decoder, without "
        "padding, repeated ones included. Steps are the budget divided by the mean tokens of a "
        "step, over real batches; where rows have random lengths, the tokens of the batches of "
        "each seed are added up until the budget is reached."
    ),
    "flops": (
        "Every run does as many FLOPs in its forward and backward passes. They are counted by "
        "torch's flop counter on real batches of the run, uncompiled: products of matrices, "
        "convolutions, attention and LSTM layers, two for a multiplication and an addition. The "
        "count has ELECTRA's generator, both streams of XLNet, encoder and decoder, the memory of "
        "Transformer-XL and the output layer. Attention counts all pairs of tokens of a row, "
        "masked ones too, and no score twice. Element-wise operations, the optimizer and "
        "evaluations are not counted."
    ),
    "minutes": (
        "Every run trains for as many seconds: those of its steps, from reading the batch to the "
        "update of the weights, without starting, compiling, evaluations and checkpoints. A run "
        "ends by its clock. How many steps it is to have, which its learning rates follow from, "
        "was first estimated from steps that were timed before the runs (for a twentieth of the "
        "budget, up to 20 seconds each, while as many other processes trained as run at a time), "
        "and is estimated anew whenever a tenth of what was left is done. A step that is done "
        "again after an interruption counts with its first seconds. The table of costs has the "
        "steps and the seconds of the runs."
    ),
}


@dataclass(frozen=True)
class Budget:
    """What each run may spend on its steps."""

    kind: Kind
    amount: float

    def __post_init__(self) -> None:
        check_amount(self.kind, self.amount)

    @property
    def words(self) -> str:
        """The budget in words: `3 minutes each`."""
        if self.kind == "minutes":
            return f"{self.amount:g} {'minute' if self.amount == 1 else 'minutes'} each"
        if self.kind == "flops":
            return f"{self.amount:.3g} FLOPs each"
        return f"{self.amount:,.0f} tokens each"

    @property
    def per_run(self) -> float:
        """The amount in the unit of a cost: seconds, FLOPs or tokens."""
        return self.amount * 60 if self.kind == "minutes" else self.amount


@dataclass(frozen=True)
class Cost:
    """What one step costs on average."""

    tokens: float  # input tokens, those of the encoder too, without padding
    flops: float  # of forward and backward
    seconds: float  # with reading the batch and the update; 0 where it was not measured

    def of(self, kind: Kind) -> float:
        """Return the cost that a budget of this kind limits."""
        return self.seconds if kind == "minutes" else self.flops if kind == "flops" else self.tokens


def describe_budget(budget: Budget) -> str:
    """Return how a budget is counted, in sentences."""
    return BUDGET_COUNTING[budget.kind]


def budget_steps(budget: Budget, costs: Mapping[str, Cost], *, search: int = 0) -> dict[str, int]:
    """Return the steps of each run: two runs differ by at most 2 % of the budget.

    Whole steps do so from 50 steps on, and a search of learning rates needs some of each; a smaller
    budget is refused, with the smallest that works.
    """
    steps = {name: round(budget.per_run / cost.of(budget.kind)) for name, cost in costs.items()}
    of_search = math.ceil(search * MIN_SEARCH_STEPS / SEARCH_SHARE)
    least = max(MIN_RACE_STEPS, of_search)
    smallest = smallest_budget(budget.kind, costs, least)
    if budget.amount < smallest.amount:
        name = min(steps, key=lambda name: steps[name])
        need = f"budgets that are equal within {BUDGET_TOLERANCE:.0%} need {MIN_RACE_STEPS}"
        if of_search > MIN_RACE_STEPS:
            need = f"--search {search} needs {of_search}, {MIN_SEARCH_STEPS} for each learning rate"
        raise UserError(
            f"--{budget.kind} {format_amount(budget)} is enough for {steps[name]} steps of {name}, "
            f"and {need}: use --{budget.kind} {format_amount(smallest)} or more"
        )
    most = max(steps, key=lambda name: steps[name])
    if steps[most] > MAX_STEPS:
        raise UserError(
            f"--{budget.kind} {budget.amount:g} is enough for {steps[most]:.3g} steps of {most}, "
            f"and a run has {MAX_STEPS:.3g} at most: use a smaller budget"
        )
    return steps


def smallest_budget(kind: Kind, costs: Mapping[str, Cost], steps: int = MIN_RACE_STEPS) -> Budget:
    """Return the smallest budget for so many steps of each run, rounded up to three digits."""
    unit = 60 if kind == "minutes" else 1
    amount = steps * max(cost.of(kind) for cost in costs.values()) / unit
    assert amount > 0, f"{kind} were not measured"
    digits = 2 - math.floor(math.log10(amount))
    return Budget(kind, float(f"{math.ceil(amount * 10.0**digits) / 10.0**digits:.3g}"))


def budget_spread(budget: Budget, costs: Mapping[str, Cost], steps: Mapping[str, int]) -> float:
    """Return the difference between the dearest and the cheapest run, as a share of the budget."""
    return spread_of([steps[n] * cost.of(budget.kind) for n, cost in costs.items()], budget)


def spread_of(spent: Sequence[float], budget: Budget) -> float:
    """Return how far apart runs are in what they spend, as a share of the budget."""
    return (max(spent) - min(spent)) / budget.per_run


@dataclass(frozen=True)
class RunSteps:
    """The steps of all runs of an entrant."""

    search: int  # of each learning rate
    seeds: tuple[int, ...]
    spent: tuple[float, ...]  # by seed, with the search, in the unit of the budget


def run_steps(
    budget: Budget, recipe: Recipe, cost: Cost, steps: int, *, search: int, seeds: int
) -> RunSteps:
    """Divide the steps of an entrant between the search of a learning rate and the runs.

    Where batches differ in size, a run has the steps whose tokens come nearest to the budget.
    """
    of_search = max(1, round(steps * SEARCH_SHARE / search)) if search else 0
    if budget.kind == "minutes" or not recipe.objective.recurrent:
        left, spent = steps - search * of_search, steps * cost.of(budget.kind)
        return RunSteps(of_search, (left,) * seeds, (spent,) * seeds)
    per_token = cost.of(budget.kind) / cost.tokens
    batches = [contiguous_batches(recipe, seed) for seed in range(seeds)]
    searched = search * batches[0].tokens_of(of_search)
    found = [max(1, each.steps_for(budget.per_run / per_token - searched)) for each in batches]
    read = [each.tokens_of(count) for each, count in zip(batches, found, strict=True)]
    spent_each = [per_token * (searched + tokens) for tokens in read]
    return RunSteps(of_search, tuple(found), tuple(spent_each))


def contiguous_batches(recipe: Recipe, seed: int) -> ContiguousDataset:
    """Return the batches of a run whose rows continue from batch to batch."""
    train = dataclasses.replace(recipe.train, seed=seed)
    corpora = [share.open() for share in recipe.corpora]
    batches = training_batches(dataclasses.replace(recipe, train=train), corpora, [1.0])
    assert isinstance(batches, ContiguousDataset)
    return batches


def format_amount(budget: Budget) -> str:
    """Return the amount as an option accepts it."""
    return f"{budget.amount:.0f}" if budget.kind == "tokens" else f"{budget.amount:g}"


def measure_costs(
    recipes: Mapping[str, Recipe], *, timing: float | None, processes: int = 1
) -> dict[str, Cost]:
    """Measure what a step of each recipe costs, on the device of the recipe.

    Models that count are left out: they read the text once and have no steps to spend. `timing`
    is for how many seconds each recipe is timed, None not at all; the seconds of a step hold for
    the number of threads of this process, and for `processes` that train at a time.
    """
    trained = {name: r for name, r in recipes.items() if r.model.counting_steps is None}
    costs = {name: count_step(recipe) for name, recipe in trained.items()}
    if timing is not None:
        timed = time_steps(trained, processes=processes, seconds=timing)
        costs = {n: dataclasses.replace(cost, seconds=timed[n]) for n, cost in costs.items()}
    return costs


def count_step(recipe: Recipe) -> Cost:
    """Count the input tokens and the FLOPs of a step, on real batches of the recipe."""
    # Uncompiled, because compiled kernels cannot be counted.
    train = dataclasses.replace(recipe.train, compile="no", cuda_graph="no", parallel="ddp")
    work = PretrainWorkload(dataclasses.replace(recipe, train=train))
    parts, batches = train.gradient_accumulation, work.batches
    steps = min(READ_STEPS, -(-len(batches) // parts))
    read = [BatchSize.of(batches[number]) for number in range(parts * steps)]
    try:
        flops = flops_per_position(work, read)
    except torch.OutOfMemoryError:  # a compiled step needs less memory
        work.model.cpu()
        flops = flops_per_position(work, read)
    tokens = statistics.fmean(size.tokens for size in read)
    return Cost(parts * tokens, parts * flops * statistics.fmean(s.positions for s in read), 0.0)


@dataclass(frozen=True)
class BatchSize:
    """What the cost of a micro-batch depends on."""

    tokens: int  # without padding
    positions: int  # with padding; of the encoder too
    shape: Hashable  # of all tensors

    @classmethod
    def of(cls, batch: Batch[Any]) -> "BatchSize":
        """Return the size of a micro-batch."""
        positions, inputs = batch.inputs.input_ids.numel(), batch.inputs.encoder_inputs
        if inputs is not None:
            positions += inputs.input_ids.numel()
        return cls(int(input_tokens(batch.inputs)), positions, batch_key(batch))


def flops_per_position(work: PretrainWorkload, read: Sequence[BatchSize]) -> float:
    """Return the mean FLOPs of forward and backward for a position of the batches.

    Batches of one shape have equal FLOPs, except in networks whose inner shapes depend on the
    texts. The most common shapes are counted, weighted by how often they occur.
    """
    common = Counter(size.shape for size in read).most_common(COUNTED_SHAPES)
    each = 1 if has_static_shapes(work.model) or len(common) > 1 else BATCHES_OF_SHAPE
    flops = positions = 0.0
    for shape, occurrences in common:
        numbers = [n for n, size in enumerate(read) if size.shape == shape][:each]
        counted = statistics.fmean(batch_flops(work, work.batches[n]) for n in numbers)
        flops += occurrences * counted
        positions += occurrences * read[numbers[0]].positions
    return flops / positions


def batch_flops(work: PretrainWorkload, batch: Batch[Any]) -> int:
    """Count the FLOPs of forward and backward on a micro-batch."""
    device = next(work.model.parameters()).device
    step = optimizer_step(work, device, bfloat16=uses_bfloat16(work.train, device))
    if work.memory is not None:
        batch = batch.with_memory(work.memory[0])
    batch = batch.to(device)
    work.model.train()
    if device.type == "cuda":  # the first pass of an LSTM checks the kernel of the device
        with torch.no_grad():
            step.forward(batch)
    with FlopCounter() as counter:
        loss = step.forward(batch)
        torch.autograd.backward(loss.mean(batch.counts))
    work.model.zero_grad(set_to_none=True)
    return counter.total
