"""From a recipe to a run folder, in one go or in several."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from kinfolk import hub
from kinfolk.data.feed import Feed
from kinfolk.data.shards import Corpus
from kinfolk.errors import UserError
from kinfolk.recipes.recipe import Recipe
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoints
from kinfolk.training.log import Log
from kinfolk.training.loop import Loop, Progress
from kinfolk.training.optimisers import optimiser
from kinfolk.training.schedules import schedule
from kinfolk.training.settings import Train
from kinfolk.training.step import Learner, Step, add
from kinfolk.types import Batch, Loss

Watch = Callable[[Progress], None]


def pretrain(recipe: Recipe, out: Path | str, *, watch: Watch = lambda progress: None) -> Path:
    """Run a recipe from its start; the run folder must be new."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o, or resume it with --resume")
    run = Run(recipe, out)  # everything that can be wrong with a recipe is found before this line
    out.mkdir(parents=True, exist_ok=True)
    recipe.write(out / "recipe.json")
    run.go(0, watch)
    return out


def resume(out: Path | str, *, watch: Watch = lambda progress: None) -> Path:
    """Go on with a run from its newest whole checkpoint, or from its start where there is none."""
    out = Path(out)
    recipe = Recipe.read(out / "recipe.json")
    folder = checkpoints.newest(out)
    start = 0 if folder is None else checkpoints.step_of(folder)
    if start >= recipe.train.steps:
        raise UserError(
            f"{out} is finished: it has done all of its {recipe.train.steps} steps; "
            "to learn for longer, start a new run with more --steps"
        )
    run = Run(recipe, out)
    if folder is not None:
        if Tokenizer.load(folder).hash != run.tokenizer.hash:
            raise foreign(recipe)
        run.restore(folder)
    run.go(start, watch)
    return out


class Run:
    """A recipe brought to life: text, network, optimiser, and where they leave things."""

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe, self.out, train = recipe, out, recipe.train
        corpus = Corpus.open(Path(recipe.corpus))
        self.tokenizer = matching(corpus, recipe)
        self.device = pick(train.device)
        self.bfloat16 = train.precision == "bfloat16" or (
            train.precision == "auto" and self.device.type == "cuda"
        )
        rows = train.batch // train.accumulate
        self.feed = Feed(recipe.objective, corpus, rows=rows, seed=train.seed)
        held_out = Path(recipe.corpus) / "holdout"
        self.held_out = (
            Feed(recipe.objective, Corpus.open(held_out), rows=rows, seed=train.seed)
            if held_out.is_dir()
            else None
        )
        torch.manual_seed(train.seed)
        self.model: nn.Module = recipe.model.build().to(self.device)
        self.optimiser = optimiser(
            self.model,
            name=train.optimiser,
            peak=train.peak,
            decay=train.decay,
            betas=train.betas,
            eps=train.epsilon,
            fused=True,
        )
        self.factor = schedule(
            train.schedule,
            steps=train.steps,
            warmup=train.warmup,
            cooldown=train.cooldown,
            floor=train.floor,
        )
        self.learner: nn.Module = Learner(self.model, recipe.objective)
        cuda = self.device.type == "cuda"
        compiled = train.compile == "yes" or (train.compile == "auto" and cuda)
        if compiled:
            self.learner.compile(dynamic=False)
        self.resolved = compiled and cuda
        self.best = math.inf

    def restore(self, folder: Path) -> None:
        """Take up the weights and the optimiser of a checkpoint."""
        saved: Any = hub.load_model(folder)
        state = checkpoints.read_state(folder)
        self.model.load_state_dict(saved.state_dict())
        self.optimiser.load_state_dict(state["optimiser"])
        self.best = math.inf if state["best"] is None else state["best"]

    def go(self, start: int, watch: Watch) -> None:
        """Run from update `start` to the end."""
        train = self.recipe.train
        self.model.train()
        step = Step(
            self.learner,
            self.optimiser,
            lambda number: train.peak * self.factor(number),
            clip=train.clip,
            seed=train.seed,
            device=self.device,
            bfloat16=self.bfloat16,
            resolved=self.resolved,
        )
        with Log.open(self.out, start) as log:
            self.log = log
            Loop(
                steps=train.steps,
                step=step,
                log=log,
                log_every=10 if self.device.type == "cuda" else 1,
                score=self.score if self.held_out is not None else None,
                score_every=train.evaluate_every,
                save=self.save,
                save_every=train.save_every,
                watch=watch,
            ).run(start, loader(self.feed, train, start, pinned=self.device.type == "cuda"))

    @torch.no_grad()
    def score(self) -> float:
        """Return the loss on held-out documents, the same batches every time."""
        assert self.held_out is not None
        self.model.eval()
        total = Loss({})
        counts: dict[str, int] = {}
        for number in range(min(self.held_out.batches, self.recipe.train.evaluate_batches)):
            batch = self.held_out[number].to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                total += self.recipe.objective.loss(self.model, batch)
            counts = add([counts, batch.counts])
        self.model.train()
        return float(total.mean(counts))

    def save(self, step: int, score: float | None) -> None:
        """Write a checkpoint: a model folder, and what it takes to go on from it."""
        best = score is not None and score < self.best
        if best:
            assert score is not None
            self.best = score
        state = {
            "step": step,
            "optimiser": self.optimiser.state_dict(),
            "best": None if self.best == math.inf else self.best,
        }

        def write(folder: Path) -> None:
            length = getattr(self.recipe.model, "context", None)
            hub.save(folder, self.model, self.tokenizer, length=length)
            self.recipe.write(folder / "kinfolk.json")
            checkpoints.write_state(folder, state)

        self.log.sync()
        checkpoints.save(self.out, step, write, keep=self.recipe.train.keep, best=best)


def loader(feed: Feed, train: Train, start: int, *, pinned: bool) -> Iterator[Sequence[Batch[Any]]]:
    """Yield the micro-batches of each step from `start` on."""
    numbers = range(start * train.accumulate, train.steps * train.accumulate)
    batches = DataLoader(
        feed,
        batch_size=None,
        sampler=numbers,
        num_workers=train.workers,
        pin_memory=pinned,
    )
    group: list[Batch[Any]] = []
    for batch in batches:
        group.append(batch)
        if len(group) == train.accumulate:
            yield group
            group = []


def matching(corpus: Corpus, recipe: Recipe) -> Tokenizer:
    """Return the corpus's tokenizer, if it is the one the recipe was written for."""
    tokenizer = corpus.tokenizer()
    if tokenizer.vocab != recipe.model.vocab or tokenizer.specials != recipe.objective.specials:
        raise foreign(recipe)
    return tokenizer


def foreign(recipe: Recipe) -> UserError:
    """Return the complaint about a corpus that speaks in other ids than the run."""
    return UserError(
        f"{recipe.corpus} was made with another tokenizer than this run: prepare the text again "
        "with the run's own tokenizer"
    )


def pick(device: str) -> torch.device:
    """Return the device to run on; `auto` is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise UserError(f"no device {device!r}: use auto, cpu or cuda") from None
    if found.type not in ("cpu", "cuda"):
        raise UserError(f"kinfolk does not run on {device!r}: use auto, cpu or cuda")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UserError("this machine has no CUDA device that torch can use: use --device cpu")
    return found
