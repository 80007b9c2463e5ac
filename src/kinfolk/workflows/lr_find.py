"""The learning-rate range test (Smith 2017): the loss while the rate rises at every step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfolk.config import type_name
from kinfolk.errors import UserError
from kinfolk.families import family, index
from kinfolk.reports.lr_find_page import LRFindPage
from kinfolk.training.lr_range import (
    check_range,
    divergence,
    exponential_rates,
    is_over,
    running_losses,
    steepest_descent,
)
from kinfolk.training.workload import optimizer_step, select_device, uses_bfloat16
from kinfolk.workflows.pretrain import PretrainWorkload
from kinfolk.workflows.recipe import CorpusSource, Recipe, Settings, recipe, settings_list

STEPS, LOWEST, HIGHEST = 100, 1e-6, 1.0  # defaults of the test


@dataclass(frozen=True, kw_only=True)
class LRFindResult:
    """The losses of a range test, and the rates that follow from them."""

    name: str  # family and size
    objective: str
    steps: int  # of the whole range
    seed: int
    lowest: float
    highest: float
    rates: tuple[float, ...]  # of the steps that were done
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    default: float  # the rate of the recipe
    default_matrix: float | None  # with Muon its train.matrix_lr, which rises in proportion
    steepest: float | None  # rate at which the loss falls fastest; None where it does not fall
    diverged: float | None  # rate at which it is above its first value again, or not finite

    @property
    def tenth(self) -> float | None:
        """One tenth of the rate at which the loss diverges."""
        return None if self.diverged is None else self.diverged / 10

    @property
    def suggestions(self) -> list[tuple[str, float | None]]:
        """The suggested rates, each with its reason."""
        return [
            ("steepest descent", self.steepest),
            ("one tenth of where it diverges", self.tenth),
        ]

    @property
    def notes(self) -> list[str]:
        """What the test could not find, and what would."""
        notes = []
        if self.steepest is None:
            notes.append(f"the loss does not fall from {self.lowest:g} on: use a lower --from")
        if self.diverged is None:
            notes.append(f"the loss does not diverge up to {self.highest:g}: use a higher --to")
        if self.default_matrix is not None:
            ratio = self.default_matrix / self.default
            notes.append(
                f"the rates are those of train.lr; train.matrix_lr, of the matrices in layers, was "
                f"{ratio:.3g} times as high at every step: set both"
                + "".join(
                    f", train.lr={rate:.3g} train.matrix_lr={rate * ratio:.3g} ({reason})"
                    for reason, rate in self.suggestions
                    if rate is not None
                )
            )
        return notes

    @property
    def default_rates(self) -> str:
        """The rates of the recipe, in words."""
        if self.default_matrix is None:
            return f"{self.default:.3g}"
        return f"train.lr {self.default:.3g}, train.matrix_lr {self.default_matrix:.3g}"


def lr_find(
    model: Path | str,
    corpus: CorpusSource,
    *,
    steps: int = STEPS,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    objective: str | None = None,
    length: int | None = None,
    settings: Settings = (),
    on_step: Callable[[int], None] = lambda step: None,
) -> LRFindResult:
    """Train with a rate that rises exponentially, and suggest rates for a run.

    `lr_find("gpt2/tiny", "corpus").steepest`

    The model is FAMILY/SIZE or a model folder to continue from; settings are fields of its recipe
    by their paths, such as "train.batch_size=16". No run is written or changed.
    """
    check_range(steps, lowest, highest)
    check_learns_by_gradients(str(model))
    for own in ("train.steps", "train.minutes", "train.warmup"):
        if any(setting.partition("=")[0] == own for setting in settings_list(settings)):
            raise UserError(f"{own} is set by the range test: remove it (--steps has its steps)")
    chosen = recipe(
        model,
        corpus,
        objective=objective,
        length=length,
        settings=[
            *settings_list(settings),
            *(f"train.steps={steps}", "train.warmup=0", "train.parallel=ddp"),
        ],
    )
    rates = exponential_rates(steps, lowest, highest)
    losses, finite = rising_losses(chosen, rates, on_step)
    if not losses:
        raise UserError(f"the first loss of {chosen.name} is not finite: there is no rate to find")
    diverged = divergence(rates, losses)
    if diverged is None and not finite:
        diverged = rates[len(losses)]
    return LRFindResult(
        name=chosen.name,
        objective=type_name(chosen.objective),
        steps=steps,
        seed=chosen.train.seed,
        lowest=lowest,
        highest=highest,
        rates=tuple(rates[: len(losses)]),
        losses=tuple(losses),
        smoothed=tuple(running_losses(losses)),
        default=chosen.train.lr,
        default_matrix=chosen.train.matrix_lr if chosen.train.optimizer == "muon" else None,
        steepest=steepest_descent(rates, losses, steps),
        diverged=diverged,
    )


def check_learns_by_gradients(model: str) -> None:
    """Refuse a family without a learning rate."""
    name, _, size = model.partition("/")
    if name in index() and family(name).config(size or "tiny").counting_steps is not None:
        raise UserError(f"{model} is counted, without a learning rate: choose another family")


def rising_losses(
    chosen: Recipe, rates: Sequence[float], on_step: Callable[[int], None]
) -> tuple[list[float], bool]:
    """Train at these rates; return the losses until one diverges, and whether all are finite."""
    work = PretrainWorkload(chosen)
    device = select_device(chosen.train.device)
    step = optimizer_step(work, device, bfloat16=uses_bfloat16(chosen.train, device))
    step.lr = rates.__getitem__
    work.model.train()
    losses: list[float] = []
    for number, batches in enumerate(work.micro_batches(0, pinned=device.type == "cuda")):
        output = step(number, batches)
        loss = output.loss.item()
        if not math.isfinite(loss) or not output.updated:
            return losses, False
        losses.append(loss)
        on_step(number + 1)
        if is_over(running_losses(losses)):
            break
    return losses, True


def lr_find_page(result: LRFindResult) -> LRFindPage:
    """Gather the values of the page."""
    facts = [
        ("model", f"{result.name}, {result.objective}"),
        ("range", f"{result.lowest:g} to {result.highest:g} in {result.steps} steps"),
        ("seed", str(result.seed)),
        ("default of this size", result.default_rates),
    ]
    return LRFindPage(
        title=f"Learning rates of {result.name}",
        rates=result.rates,
        losses=result.losses,
        smoothed=result.smoothed,
        suggestions=result.suggestions,
        facts=facts,
        notes=result.notes,
    )
