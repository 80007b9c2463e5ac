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
from kinfolk.data.corpus import Corpus, corpus_fingerprint
from kinfolk.data.datasets import (
    ContiguousDataset,
    MixtureDataset,
    PackedDataset,
    evaluation_dataset,
)
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.rng import corpus_seed
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoint
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import MetricsLog
from kinfolk.training.loop import Progress, TrainLoop
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.schedules import lr_schedule
from kinfolk.training.step import Learner, TrainStep, sum_counts
from kinfolk.workflows.recipe import Recipe, shared_tokenizer

ProgressCallback = Callable[[Progress], None]


def pretrain(
    recipe: Recipe, out: Path | str, *, watch: ProgressCallback = lambda progress: None
) -> Path:
    """Run a recipe from its start; the run folder must be new."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o, or resume it with --resume")
    run = Run(recipe, out)  # everything that can be wrong with a recipe is found before this line
    with new_run(out) as folder:
        recipe.write(folder / "recipe.json")
    run.fit(0, watch)
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


def resume(out: Path | str, *, watch: ProgressCallback = lambda progress: None) -> Path:
    """Go on with a run from its newest whole checkpoint, or from its start where there is none."""
    out = Path(out)
    recipe = Recipe.read(out / "recipe.json")
    folder = checkpoint.latest_valid(out)
    start = 0 if folder is None else checkpoint.checkpoint_step(folder)
    if start >= recipe.train.steps:
        raise UserError(
            f"{out} is finished: it has done all of its {recipe.train.steps} steps; "
            "to learn for longer, start a new run with more --steps"
        )
    run = Run(recipe, out, fresh=folder is None)
    if folder is not None:
        if Tokenizer.load(folder).fingerprint != run.tokenizer.fingerprint:
            raise foreign(run.corpora[0])
        run.restore(folder)
    run.fit(start, watch)
    return out


class Run:
    """A recipe brought to life: text, network, optimiser, and where they leave things."""

    def __init__(self, recipe: Recipe, out: Path, *, fresh: bool = True) -> None:
        self.recipe, self.out, train = recipe, out, recipe.train
        self.corpora = [share.open() for share in recipe.corpora]
        self.tokenizer = check_tokenizer(self.corpora, recipe)
        self.fingerprints = [corpus_fingerprint(corpus.folder) for corpus in self.corpora]
        self.device = select_device(train.device)
        self.bfloat16 = uses_bf16(train, self.device)
        weights = [share.weight for share in recipe.corpora]
        self.feed = feed(recipe, self.corpora, weights)
        self.held_out = held_out(recipe)
        torch.manual_seed(train.seed)
        # A checkpoint brings all weights along: the folder that the run began from may be gone.
        model = network(recipe) if fresh else recipe.model.build()
        self.model: LanguageModel = model.to(self.device)
        self.optimiser, self.factor = build_optimizer_and_schedule(self.model, train)
        self.learner: nn.Module = Learner(self.model, recipe.objective)
        cuda = self.device.type == "cuda"
        compiled = train.compile == "yes" or (train.compile == "auto" and cuda)
        if compiled:
            self.learner.compile(dynamic=False)
        self.resolved = compiled and cuda
        self.memory: list[SegmentMemory] | None = None
        if carries_memory(recipe):
            blank: Any = self.model.init_memory
            self.memory = [blank(self.feed.batch_size) for _ in range(train.gradient_accumulation)]
        self.best = math.inf

    def restore(self, folder: Path) -> None:
        """Take up the weights and the optimiser of a checkpoint."""
        saved: Any = hub.load_model(folder)
        state = checkpoint.load_training_state(folder)
        self.check_fingerprints(state.get("text", self.fingerprints))
        self.model.load_state_dict(saved.state_dict())
        self.optimiser.load_state_dict(state["optimiser"])
        self.best = math.inf if state["best"] is None else state["best"]
        if self.memory is not None:
            self.memory = [SegmentMemory(**parts).to(self.device) for parts in state["memory"]]

    def check_fingerprints(self, begun: Sequence[str]) -> None:
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

    def fit(self, start: int, watch: ProgressCallback) -> None:
        """Run from update `start` to the end."""
        train = self.recipe.train
        self.model.train()
        step = TrainStep(
            self.learner,
            self.optimiser,
            lambda number: train.lr * self.factor(number),
            clip=train.grad_clip,
            seed=train.seed,
            device=self.device,
            bfloat16=self.bfloat16,
            resolved=self.resolved,
            captured=self.resolved
            and train.replays(
                sum(p.numel() for p in self.model.parameters()), self.recipe.objective.max_length
            ),
            memory=self.memory,
            checks=checks(train, self.device),
        )
        with MetricsLog.open(self.out, start) as log:
            self.log = log
            TrainLoop(
                steps=train.steps,
                step=step,
                log=log,
                log_every=10 if self.device.type == "cuda" else 1,
                evaluate=None if self.held_out is None else self.evaluate,
                eval_every=train.eval_every,
                save=self.save,
                save_every=train.save_every,
                watch=watch,
                remedy=lambda: remedy("pretrain", self.out, train),
            ).run(start, data_loader(self.feed, train, start, pinned=self.device.type == "cuda"))

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        """Return the loss on held-out documents, the same batches every time, and its parts."""
        assert self.held_out is not None
        self.model.eval()
        total = Loss({})
        counts: dict[str, int] = {}
        memory: SegmentMemory | None = None
        for number in range(min(self.held_out.num_batches, self.recipe.train.eval_batches)):
            batch = self.held_out[number].to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                loss = self.recipe.objective.loss(self.model, batch.with_memory(memory))
            total, memory = total + loss, loss.memory
            counts = sum_counts([counts, batch.counts])
        self.model.train()
        found: dict[str, Any] = {"eval_loss": float(total.mean(counts))}
        if len(total.sums) > 1:
            means = {name: float(part) / max(counts[name], 1) for name, part in total.sums.items()}
            found["eval_losses"] = means
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
            checkpoint.save_training_state(folder, state)

        self.log.sync()
        checkpoint.save(self.out, step, write, keep=self.recipe.train.keep_checkpoints, best=best)


def network(recipe: Recipe) -> LanguageModel:
    """Build a run's network, with fresh weights or those that it goes on from."""
    model: LanguageModel = recipe.model.build()
    if recipe.init_from:
        saved: Any = hub.load_model(recipe.init_from)
        try:
            model.load_state_dict(saved.state_dict())
        except RuntimeError:
            raise UserError(
                f"the weights of {recipe.init_from} do not fit the network of this run: leave its "
                "sizes as they are there"
            ) from None
    return model


def build_optimizer_and_schedule(
    model: nn.Module, train: TrainConfig, *, shrink: float = 1.0
) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
    """Make what moves the weights, and the share of the peak rate at each step."""
    mover = build_optimizer(
        model,
        name=train.optimizer,
        lr=train.lr,
        weight_decay=train.weight_decay,
        betas=train.betas,
        eps=train.eps,
        fused=True,
        layer_lr_decay=shrink,
    )
    factor = lr_schedule(
        train.schedule,
        steps=train.steps,
        warmup=train.warmup,
        decay_ratio=train.decay_ratio,
        min_lr_ratio=train.min_lr_ratio,
    )
    return mover, factor


def checks(train: TrainConfig, device: torch.device) -> Callable[[int], bool]:
    """Say before which updates, from 0, loss and gradient norm are read: always on a CPU.

    Reading waits for an accelerator. A step that saves waits anyway; what goes wrong between is
    found when its line of the log is written, before anything is saved.
    """
    return lambda number: device.type == "cpu" or train.saves(number + 1)


def remedy(command: str, out: Path, train: TrainConfig) -> str:
    """Say how to resume a run whose loss or gradient is not finite."""
    folder = checkpoint.latest_valid(out)
    step = 0 if folder is None else checkpoint.checkpoint_step(folder)
    return (
        f"Lower train.lr (now {train.lr:g}) or raise train.warmup (now {train.warmup}) in "
        f"{out / 'recipe.json'}, then resume from step {step}: kinfolk {command} --resume {out}"
    )


def check_weights(model: nn.Module, step: int, remedy: Callable[[], str]) -> None:
    """Refuse weights that are not finite: a finite gradient and a high rate can make them so."""
    if not torch.stack([p.detach().isfinite().all() for p in model.parameters()]).all():
        raise UserError(f"weights are not finite after step {step}. {remedy()}")


def uses_bf16(train: TrainConfig, device: torch.device) -> bool:
    """Say whether a run multiplies in bfloat16: by itself on CUDA."""
    return train.precision == "bfloat16" or (train.precision == "auto" and device.type == "cuda")


def carries_memory(recipe: Recipe) -> bool:
    """Say whether the rows of a run go on from batch to batch."""
    return recipe.objective.recurrent


def feed(
    recipe: Recipe, corpora: Sequence[Corpus], weights: Sequence[float]
) -> PackedDataset | MixtureDataset | ContiguousDataset:
    """Return the batches of a run on its corpora, or on what they hold out."""
    parts, seed = recipe.train.gradient_accumulation, recipe.train.seed
    rows = recipe.train.batch_size // parts
    if carries_memory(recipe):
        if len(corpora) > 1:
            raise UserError(
                f"rows that go on come from one corpus, not from {len(corpora)}: prepare the texts "
                "as one corpus, or learn by --objective clm"
            )
        return ContiguousDataset(
            recipe.objective, corpora[0], batch_size=rows, parts=parts, seed=seed
        )
    feeds = [
        PackedDataset(recipe.objective, corpus, batch_size=rows, seed=corpus_seed(seed, number))
        for number, corpus in enumerate(corpora)
    ]
    return feeds[0] if len(feeds) == 1 else MixtureDataset(feeds, weights)


def held_out(recipe: Recipe) -> PackedDataset | MixtureDataset | ContiguousDataset | None:
    """Return the held-out batches, if any: of a mixture in the shares that it is learned in.

    So the held-out loss is an estimate of what the training loss estimates, and the two curves can
    be held against each other. A corpus that holds nothing out has no part in it.
    """
    found = [(share.held_out(), share.weight) for share in recipe.corpora]
    scored = [(corpus, weight) for corpus, weight in found if corpus is not None]
    if scored and carries_memory(recipe):
        rows = recipe.train.batch_size // recipe.train.gradient_accumulation
        return evaluation_dataset(recipe.objective, scored[0][0], rows=rows)
    try:
        return feed(recipe, *zip(*scored, strict=True)) if scored else None
    except UserError as error:  # too little text to ask anything about, which stops no run
        warnings.warn(f"nothing held out can be scored, and nothing is: {error}", stacklevel=2)
        return None


def data_loader(
    feed: Dataset[Batch[Any]], train: TrainConfig, start: int, *, pinned: bool
) -> Iterator[Sequence[Batch[Any]]]:
    """Yield the micro-batches of each step from `start` on."""
    numbers = range(start * train.gradient_accumulation, train.steps * train.gradient_accumulation)
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
        if len(group) == train.gradient_accumulation:
            yield group
            group = []


def check_tokenizer(corpora: Sequence[Corpus], recipe: Recipe) -> Tokenizer:
    """Return the tokenizer of the corpora, if it is the one the recipe was written for."""
    tokenizer = shared_tokenizer(corpora)
    if (
        tokenizer.vocab_size != recipe.objective.vocab_size
        or tokenizer.special_tokens != recipe.objective.special_tokens
    ):
        raise foreign(corpora[0])
    return tokenizer


def foreign(corpus: Corpus) -> UserError:
    """Return the complaint about a corpus that speaks in other ids than the run."""
    return UserError(
        f"{corpus.folder} was made with another tokenizer than this run: prepare the text again "
        "with the run's own tokenizer"
    )


def select_device(device: str) -> torch.device:
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
