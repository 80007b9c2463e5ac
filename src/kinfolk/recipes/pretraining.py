"""From a recipe to a run folder, in one go or in several."""

import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from kinfolk import hub
from kinfolk.batch import Batch, Loss, SegmentMemory
from kinfolk.data.feed import Feed
from kinfolk.data.fingerprint import fingerprint
from kinfolk.data.lanes import Lanes, in_order
from kinfolk.data.mixture import Mixture
from kinfolk.data.shards import Corpus
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.recipes.recipe import Recipe, common
from kinfolk.rng import corpus_seed
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoints
from kinfolk.training.log import Log
from kinfolk.training.loop import Loop, Progress
from kinfolk.training.optimisers import optimiser
from kinfolk.training.schedules import schedule
from kinfolk.training.settings import Train
from kinfolk.training.step import Learner, Step, add

Watch = Callable[[Progress], None]


def pretrain(recipe: Recipe, out: Path | str, *, watch: Watch = lambda progress: None) -> Path:
    """Run a recipe from its start; the run folder must be new."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o, or resume it with --resume")
    run = Run(recipe, out)  # everything that can be wrong with a recipe is found before this line
    with new_run(out) as folder:
        recipe.write(folder / "recipe.json")
    run.go(0, watch)
    return out


@contextmanager
def new_run(out: Path) -> Iterator[Path]:
    """Give a folder to write what a run begins with; it becomes the run folder in one stroke."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        if out.is_dir():  # and empty
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
    run = Run(recipe, out, fresh=folder is None)
    if folder is not None:
        if Tokenizer.load(folder).hash != run.tokenizer.hash:
            raise foreign(run.corpora[0])
        run.restore(folder)
    run.go(start, watch)
    return out


class Run:
    """A recipe brought to life: text, network, optimiser, and where they leave things."""

    def __init__(self, recipe: Recipe, out: Path, *, fresh: bool = True) -> None:
        self.recipe, self.out, train = recipe, out, recipe.train
        self.corpora = [share.open() for share in recipe.shares]
        self.tokenizer = matching(self.corpora, recipe)
        self.fingerprints = [fingerprint(corpus.folder) for corpus in self.corpora]
        self.device = pick(train.device)
        self.bfloat16 = in_halves(train, self.device)
        weights = [share.weight for share in recipe.shares]
        self.feed = feed(recipe, self.corpora, weights)
        self.held_out = held_out(recipe)
        torch.manual_seed(train.seed)
        # A checkpoint brings all weights along: the folder that the run began from may be gone.
        model = network(recipe) if fresh else recipe.model.build()
        self.model: LanguageModel = model.to(self.device)
        self.optimiser, self.factor = learning(self.model, train)
        self.learner: nn.Module = Learner(self.model, recipe.objective)
        cuda = self.device.type == "cuda"
        compiled = train.compile == "yes" or (train.compile == "auto" and cuda)
        if compiled:
            self.learner.compile(dynamic=False)
        self.resolved = compiled and cuda
        self.memory: list[SegmentMemory] | None = None
        if goes_on(recipe):
            blank: Any = self.model.init_memory
            self.memory = [blank(self.feed.rows) for _ in range(train.accumulate)]
        self.best = math.inf

    def restore(self, folder: Path) -> None:
        """Take up the weights and the optimiser of a checkpoint."""
        saved: Any = hub.load_model(folder)
        state = checkpoints.read_state(folder)
        self.check(state.get("text", self.fingerprints))
        self.model.load_state_dict(saved.state_dict())
        self.optimiser.load_state_dict(state["optimiser"])
        self.best = math.inf if state["best"] is None else state["best"]
        if self.memory is not None:
            self.memory = [SegmentMemory(**parts).to(self.device) for parts in state["memory"]]

    def check(self, begun: Sequence[str]) -> None:
        """See that the text is that of the fingerprints a checkpoint was saved with."""
        if list(begun) == self.fingerprints:
            return
        # A recipe changed by hand may name more corpora than before, or fewer.
        pairs = zip(self.corpora, self.fingerprints, begun, strict=False)
        changed = [corpus for corpus, now, then in pairs if now != then] or self.corpora[-1:]
        raise UserError(
            f"{changed[0].folder} holds other text than when this run began: put that text back, "
            "or begin a new run"
        )

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
            captured=self.resolved and train.capture == "yes",
            memory=self.memory,
            checks=checks(train, self.device),
        )
        with Log.open(self.out, start) as log:
            self.log = log
            Loop(
                steps=train.steps,
                step=step,
                log=log,
                log_every=10 if self.device.type == "cuda" else 1,
                score=None if self.held_out is None else self.score,
                score_every=train.evaluate_every,
                save=self.save,
                save_every=train.save_every,
                watch=watch,
                remedy=lambda: remedy("pretrain", self.out, train),
            ).run(start, loader(self.feed, train, start, pinned=self.device.type == "cuda"))

    @torch.no_grad()
    def score(self) -> dict[str, Any]:
        """Return the loss on held-out documents, the same batches every time, and its parts."""
        assert self.held_out is not None
        self.model.eval()
        total = Loss({})
        counts: dict[str, int] = {}
        memory: SegmentMemory | None = None
        for number in range(min(self.held_out.batches, self.recipe.train.evaluate_batches)):
            batch = self.held_out[number].to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                loss = self.recipe.objective.loss(self.model, batch.with_memory(memory))
            total, memory = total + loss, loss.memory
            counts = add([counts, batch.counts])
        self.model.train()
        found: dict[str, Any] = {"held_out": float(total.mean(counts))}
        if len(total.sums) > 1:
            means = {name: float(part) / max(counts[name], 1) for name, part in total.sums.items()}
            found["held_out_parts"] = means
        return found

    def save(self, step: int, score: float | None) -> None:
        """Write a checkpoint: a model folder, and what it takes to go on from it."""
        check_weights(self.model, step, lambda: remedy("pretrain", self.out, self.recipe.train))
        best = score is not None and score < self.best
        if best:
            assert score is not None
            self.best = score
        state = {
            "step": step,
            "optimiser": self.optimiser.state_dict(),
            "best": None if self.best == math.inf else self.best,
            "text": self.fingerprints,
        }
        if self.memory is not None:
            state["memory"] = [vars(memory) for memory in self.memory]

        def write(folder: Path) -> None:
            hub.save(folder, self.model, self.tokenizer, length=self.recipe.model.max_length)
            self.recipe.write(folder / "kinfolk.json")
            checkpoints.write_state(folder, state)

        self.log.sync()
        checkpoints.save(self.out, step, write, keep=self.recipe.train.keep, best=best)


def network(recipe: Recipe) -> LanguageModel:
    """Build a run's network, with fresh weights or those that it goes on from."""
    model: LanguageModel = recipe.model.build()
    if recipe.weights:
        saved: Any = hub.load_model(recipe.weights)
        try:
            model.load_state_dict(saved.state_dict())
        except RuntimeError:
            raise UserError(
                f"the weights of {recipe.weights} do not fit the network of this run: leave its "
                "sizes as they are there"
            ) from None
    return model


def learning(
    model: nn.Module, train: Train, *, shrink: float = 1.0
) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
    """Make what moves the weights, and the share of the peak rate at each step."""
    mover = optimiser(
        model,
        name=train.optimiser,
        peak=train.peak,
        decay=train.decay,
        betas=train.betas,
        eps=train.epsilon,
        fused=True,
        shrink=shrink,
    )
    factor = schedule(
        train.schedule,
        steps=train.steps,
        warmup=train.warmup,
        cooldown=train.cooldown,
        floor=train.floor,
    )
    return mover, factor


def checks(train: Train, device: torch.device) -> Callable[[int], bool]:
    """Say before which updates, from 0, loss and gradient norm are read: always on a CPU.

    Reading waits for an accelerator. A step that saves waits anyway; what goes wrong between is
    found when its line of the log is written, before anything is saved.
    """
    return lambda number: device.type == "cpu" or train.saves(number + 1)


def remedy(command: str, out: Path, train: Train) -> str:
    """Say how to resume a run whose loss or gradient is not finite."""
    folder = checkpoints.newest(out)
    step = 0 if folder is None else checkpoints.step_of(folder)
    return (
        f"Lower train.peak (now {train.peak:g}) or raise train.warmup (now {train.warmup}) in "
        f"{out / 'recipe.json'}, then resume from step {step}: kinfolk {command} --resume {out}"
    )


def check_weights(model: nn.Module, step: int, remedy: Callable[[], str]) -> None:
    """Refuse weights that are not finite: a finite gradient and a high rate can make them so."""
    if not torch.stack([p.detach().isfinite().all() for p in model.parameters()]).all():
        raise UserError(f"weights are not finite after step {step}. {remedy()}")


def in_halves(train: Train, device: torch.device) -> bool:
    """Say whether a run multiplies in bfloat16: by itself on CUDA."""
    return train.precision == "bfloat16" or (train.precision == "auto" and device.type == "cuda")


def goes_on(recipe: Recipe) -> bool:
    """Say whether the rows of a run go on from batch to batch."""
    return hasattr(recipe.objective, "join")


def feed(
    recipe: Recipe, corpora: Sequence[Corpus], weights: Sequence[float]
) -> Feed | Mixture | Lanes:
    """Return the batches of a run on its corpora, or on what they hold out."""
    parts, seed = recipe.train.accumulate, recipe.train.seed
    rows = recipe.train.batch // parts
    if goes_on(recipe):
        if len(corpora) > 1:
            raise UserError(
                f"rows that go on come from one corpus, not from {len(corpora)}: prepare the texts "
                "as one corpus, or learn by --objective clm"
            )
        return Lanes(recipe.objective, corpora[0], rows=rows, parts=parts, seed=seed)
    feeds = [
        Feed(recipe.objective, corpus, rows=rows, seed=corpus_seed(seed, number))
        for number, corpus in enumerate(corpora)
    ]
    return feeds[0] if len(feeds) == 1 else Mixture(feeds, weights)


def held_out(recipe: Recipe) -> Feed | Mixture | Lanes | None:
    """Return the held-out batches, if any: of a mixture in the shares that it is learned in.

    So the held-out loss is an estimate of what the training loss estimates, and the two curves can
    be held against each other. A corpus that holds nothing out has no part in it.
    """
    found = [(share.held_out(), share.weight) for share in recipe.shares]
    scored = [(corpus, weight) for corpus, weight in found if corpus is not None]
    if scored and goes_on(recipe):
        rows = recipe.train.batch // recipe.train.accumulate
        return in_order(recipe.objective, scored[0][0], rows=rows)
    try:
        return feed(recipe, *zip(*scored, strict=True)) if scored else None
    except UserError as error:  # too little text to ask anything about, which stops no run
        warnings.warn(f"nothing held out can be scored, and nothing is: {error}", stacklevel=2)
        return None


def loader(
    feed: Dataset[Batch[Any]], train: Train, start: int, *, pinned: bool
) -> Iterator[Sequence[Batch[Any]]]:
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


def matching(corpora: Sequence[Corpus], recipe: Recipe) -> Tokenizer:
    """Return the tokenizer of the corpora, if it is the one the recipe was written for."""
    tokenizer = common(corpora)
    if tokenizer.vocab != recipe.objective.vocab or tokenizer.specials != recipe.objective.specials:
        raise foreign(corpora[0])
    return tokenizer


def foreign(corpus: Corpus) -> UserError:
    """Return the complaint about a corpus that speaks in other ids than the run."""
    return UserError(
        f"{corpus.folder} was made with another tokenizer than this run: prepare the text again "
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
