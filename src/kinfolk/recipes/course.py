"""A fine-tuning run brought to life: rows, network, optimiser, and where they leave things."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinfolk import hub
from kinfolk.batch import Loss
from kinfolk.data.fingerprint import of_file
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes.pretraining import (
    Watch,
    check_weights,
    checks,
    in_halves,
    learning,
    loader,
    pick,
    remedy,
)
from kinfolk.recipes.teaching import opinions
from kinfolk.recipes.tuning import Say, Tuning, epoch_steps, timed
from kinfolk.tasks.lessons import Lessons, answers, shares
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.scoring import score
from kinfolk.tasks.ways.transformed import Transformed
from kinfolk.tasks.ways.way import Way
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoints
from kinfolk.training.attack import Attack
from kinfolk.training.log import Log
from kinfolk.training.loop import Loop
from kinfolk.training.noise import shake
from kinfolk.training.step import Learner, Step, add
from kinfolk.training.thawing import Thaw

NOTHING = (-math.inf, -math.inf)  # how good a model is that was never scored


class Run:
    """A tuning brought to life.

    What a scoring is worth is the mean of its tasks' main metrics and, of two that are alike there,
    the loss; the best of all scorings is the model to keep.
    """

    def __init__(
        self,
        tuning: Tuning,
        body: nn.Module,
        tokenizer: Tokenizer,
        out: Path,
        say: Say,
        settings: Sequence[str] = (),
    ) -> None:
        self.tokenizer, self.out = tokenizer, out
        seed = tuning.train.seed
        notes = Notes()
        parted = [sheet.parted(notes) for sheet in tuning.sheets]
        self.dev = [dev for _, dev in parted]
        sets = []
        for way, (rows, _), sheet in zip(tuning.ways, parted, tuning.sheets, strict=True):
            found = [way.lessons(row, tokenizer) for row in rows]
            file = Path(sheet.train).name
            if cut := sum(any(one.cut for one in some) for some in found):
                say(f"{cut:,} of {len(rows):,} rows of {file} are cut to {way.length} tokens")
            if tuning.teacher:
                found = opinions(tuning.teacher, way, rows, found, tuning.train.device)
            sets.append([example for some in found for example in some])
        for sentence in notes.sentences():
            say(sentence)
        self.tuning = tuning = timed(tuning, [len(some) for some in sets], settings)
        train, habits = tuning.train, tuning.habits
        self.lessons = Lessons(
            tuning.ways[0],
            sets,
            batch=train.batch // train.accumulate,
            seed=seed,
            weights=shares([len(some) for some in sets], habits.temperature),
        )
        self.device = pick(train.device)
        self.bfloat16 = in_halves(train, self.device)
        self.model = network(tuning, body).to(self.device)
        if habits.noise:
            fresh = {*self.model.parameters()} - {*self.model.pretrained.parameters()}
            shake(self.model, habits.noise, seed=seed, fresh=fresh)
        self.optimiser, self.factor = learning(self.model, train, shrink=habits.shrink)
        files = [(s.train, s.dev, s.target, s.dev_target) for s in tuning.sheets]
        self.files = [of_file(Path(name)) for some in files for name in some if name is not None]
        cuda = self.device.type == "cuda"
        self.compiled = train.compile == "yes" or (train.compile == "auto" and cuda)
        self.captured = cuda and self.compiled and train.capture == "yes"
        if train.capture == "yes" and (habits.thaw or habits.attack):
            raise UserError(
                "train.capture=yes replays one recorded step, and --thaw and --attack change it: "
                "leave one of them out"
            )
        every = epoch_steps(train, [len(some) for some in sets])
        self.thaw = Thaw(self.model, every) if habits.thaw else None
        self.attack = Attack(self.model, habits.attack) if habits.attack else None
        self.best = NOTHING
        self.waited = 0  # scorings since the best
        self.record = False  # the weights are those of the best, and not saved yet

    def restore(self, folder: Path) -> None:
        """Take up the weights and the optimiser of a checkpoint."""
        saved: Any = hub.load_model(folder)
        state = checkpoints.read_state(folder)
        if state["files"] != self.files:
            raise UserError(
                "the labelled files are not what they were when this run began: put them back, or "
                "begin a new run"
            )
        self.model.load_state_dict(saved.state_dict())
        self.optimiser.load_state_dict(state["optimiser"])
        self.best = NOTHING if state["best"] is None else tuple(state["best"])
        self.waited = state["waited"]

    def go(self, start: int, watch: Watch) -> None:
        """Run from update `start` to the end, or until nothing grows better."""
        train = self.tuning.train
        if self.enough():  # it ended before its scores were written
            return
        self.model.train()
        learner: nn.Module = Learner(self.model, self.tuning.ways[0])
        if self.compiled:
            learner.compile(dynamic=True)
        step = Step(
            learner,
            self.optimiser,
            lambda number: train.peak * self.factor(number),
            clip=train.clip,
            seed=train.seed,
            device=self.device,
            bfloat16=self.bfloat16,
            captured=self.captured,
            attack=self.attack,
            thaw=self.thaw,
            checks=checks(train, self.device),
        )
        with Log.open(self.out, start) as log:
            self.log = log
            Loop(
                steps=train.steps,
                step=step,
                log=log,
                log_every=10,
                score=self.score if any(self.dev) else None,
                score_every=train.evaluate_every,
                save=self.save,
                save_every=train.save_every,
                watch=watch,
                enough=self.enough,
                keep=lambda: self.record,
                remedy=lambda: remedy("finetune", self.out, train),
            ).run(start, loader(self.lessons, train, start, pinned=self.device.type == "cuda"))

    def enough(self) -> bool:
        """Say whether the last scorings were all no better than one before them."""
        patience = self.tuning.habits.patience
        return bool(patience) and self.waited >= patience

    def score(self) -> dict[str, float]:
        """Return the loss on dev rows, and every metric of theirs."""
        values = {"held_out": self.loss()}
        mains: list[float] = []
        for number, (way, rows) in enumerate(zip(self.tuning.ways, self.dev, strict=True), 1):
            if not rows:
                continue
            found = score(way.task, rows, answers(way, self.model, rows, self.tokenizer))
            prefix = "" if len(self.dev) == 1 else f"{number}_"
            values |= {f"{prefix}{name}": value for name, value in found.items()}
            mains.append(way.task.worth(found[way.task.main]))
        latest = sum(mains) / len(mains), -values["held_out"]
        # Nothing is greater than NaN: as a best it would stay one.
        known = not any(math.isnan(value) for value in latest)
        self.record = known and (self.best == NOTHING or latest > self.best)
        self.best, self.waited = (latest, 0) if self.record else (self.best, self.waited + 1)
        return values

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss on dev rows, those whose labels can be known."""
        way, size = self.tuning.ways[0], self.lessons.batch
        most = self.tuning.train.evaluate_batches * size
        total = Loss({})
        counts: dict[str, int] = {}
        known = [set(one.task.labels) for one in self.tuning.ways]
        examples = [
            example
            for one, rows, labels in zip(self.tuning.ways, self.dev, known, strict=True)
            for row in rows[:most]
            if seen(one, row, labels)
            for example in one.lessons(row, self.tokenizer)
        ]
        self.model.eval()
        for start in range(0, min(len(examples), most), size):
            batch = way.collate(examples[start : start + size]).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                total = total + way.loss(self.model, batch)
            counts = add([counts, batch.counts])
        self.model.train()
        return float(total.mean(counts)) if counts else math.inf

    def save(self, step: int, held_out: float | None) -> None:
        """Write a checkpoint: a model folder, and what it takes to go on from it."""
        check_weights(self.model, step, lambda: remedy("finetune", self.out, self.tuning.train))
        state = {
            "step": step,
            "optimiser": self.optimiser.state_dict(),
            "best": None if self.best == NOTHING else list(self.best),
            "waited": self.waited,
            "files": self.files,
        }

        def write(folder: Path) -> None:
            frame = "line" if isinstance(self.tuning.ways[0], Transformed) else None
            hub.save(folder, self.model, self.tokenizer, frame=frame)
            self.tuning.write(folder / "kinfolk.json")
            checkpoints.write_state(folder, state)

        self.log.sync()
        best = self.record or self.best == NOTHING  # where nothing can be compared, the newest
        checkpoints.save(self.out, step, write, keep=self.tuning.train.keep, best=best)
        self.record = False


def network(tuning: Tuning, body: nn.Module) -> LanguageModel:
    """Put the head on, drawn from the seed, where the way needs one."""
    torch.manual_seed(tuning.train.seed)
    try:
        if tuning.ways[0].head:
            return ModelWithHead.of(body, tuning.model)
        model: LanguageModel = tuning.model.build()
        model.load_state_dict(body.state_dict())
    except RuntimeError:  # they have other shapes
        raise UserError(
            f"the weights of {tuning.start} do not fit the settings of the model: leave those that "
            "change its size out, or start from fresh weights with --scratch"
        ) from None
    return model


def seen(way: Way, row: Any, labels: set[str]) -> bool:
    """Say whether training has seen the labels of a row, so that there is a loss to speak of."""
    if way.task.kind == "classify":
        return row.label is not None and str(row.label) in labels
    if way.task.kind == "tag":
        return row.tags is not None and labels.issuperset(row.tags)
    return True
