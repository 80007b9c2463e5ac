"""From a pretrained model and a labelled file to a run folder, in one go or in several."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from kinfolk import hub
from kinfolk.config import override
from kinfolk.errors import UserError
from kinfolk.nn.headed import Headed
from kinfolk.recipes import ways
from kinfolk.recipes.pretraining import Watch, pick
from kinfolk.recipes.starting import Start
from kinfolk.recipes.tuning import (
    Habits,
    Say,
    Sheet,
    Tuning,
    asked,
    timed,
    usual,
    weighty,
)
from kinfolk.tasks.examples import Example
from kinfolk.tasks.lessons import Lessons, answers, learned, shares
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.scoring import score
from kinfolk.tasks.ways.way import Way
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoints
from kinfolk.training.attack import Attack
from kinfolk.training.log import Log, read
from kinfolk.training.loop import Loop
from kinfolk.training.noise import shake
from kinfolk.training.optimisers import optimiser
from kinfolk.training.schedules import schedule
from kinfolk.training.step import Learner, Step, add
from kinfolk.training.thawing import Thaw
from kinfolk.types import Batch, Loss

SAMPLE = 1000  # rows that show how long answers are
ASKED = 64  # batches of dev examples that the loss is taken on, at most
OF_STEPS = ("step", "loss", "rate", "norm", "counts", "parts")  # in every line of the log
SHARE = 0.5  # of a teacher in the loss
KNOWN = ("train.steps", "train.evaluate_every", "train.warmup")  # once a run has begun


def finetune(
    start: Start,
    sheets: Sequence[Sheet],
    out: Path | str,
    *,
    way: str | None = None,
    length: int | None = None,
    habits: Habits = Habits(),
    settings: Sequence[str] = (),
    teacher: str = "",
    metric: str | None = None,
    positive: str | None = None,
    prefixes: Sequence[str] = (),
    said: dict[str, Any] | None = None,
    say: Say = lambda sentence: None,
    watch: Watch = lambda progress: None,
) -> Path:
    """Fine-tune a network on labelled files; the run folder must be new."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o, or resume it with --resume")
    if len(sheets) > 1 and (metric or positive):
        raise UserError("several files have several tasks: leave --metric and --positive out")
    own = {name: value for name, value in (said or {}).items() if value is not None}
    if teacher:
        own = {"teaching": SHARE, **own}
    notes = Notes()
    rows = [sheet.known(sheet.learned(notes), notes) for sheet in sheets]
    for sheet, some in zip(sheets, rows, strict=True):
        if not some:
            raise UserError(f"{sheet.train} has no labelled row: there is nothing to learn from")
    body, tokenizer = start.open(rows)
    found = []
    for number, (sheet, some) in enumerate(zip(sheets, rows, strict=True)):
        prefix = prefixes[number] if number < len(prefixes) else None
        task = asked(sheet, some, metric=metric, positive=positive, prefix=prefix)
        kind = ways.choose(body.config, task.kind, way)
        made = ways.build(kind, task, body.config, tokenizer, length=length, **own)
        made = fitted(made, some, tokenizer)
        found.append(weighty(made, some, habits))
    if len(found) > 1 and any(one.name != "text" for one in found):
        raise UserError(
            "several files are learned together as text: choose --way text and a member that "
            "writes, like t5"
        )
    config = ways.network(found[0], body.config)
    tuning = Tuning(
        name=type(body.config).__module__.rpartition(".")[2],
        start="" if start.fresh else start.folder,
        model=config,
        ways=tuple(found),
        sheets=tuple(sheets),
        train=usual(config, fresh=start.fresh),
        habits=habits,
        teacher=teacher,
    )
    tuning = override(tuning, settings)
    if start.fresh:
        body = fresh(tuning)
    run = Run(tuning, body, tokenizer, out, say, settings)
    out.mkdir(parents=True, exist_ok=True)
    run.tuning.write(out / "recipe.json")
    tokenizer.save(out / "tokenizer")
    run.go(0, watch)
    return finish(run)


def resume(out: Path | str, *, say: Say = print, watch: Watch = lambda progress: None) -> Path:
    """Go on with a run from its newest whole checkpoint, or from its start where there is none."""
    out = Path(out)
    tuning = Tuning.read(out / "recipe.json")
    folder = checkpoints.newest(out)
    tokenizer = Tokenizer.load(out / "tokenizer")
    if (out / "scores.json").is_file():
        raise UserError(f"{out} is finished: to learn for longer, start a new run with more epochs")
    if folder is None and tuning.start:
        body: Any = hub.load_model(Path(tuning.start))
        body = body.body if isinstance(body, Headed) else body
    else:
        body = fresh(tuning)
    run = Run(tuning, body, tokenizer, out, say, KNOWN)
    if folder is not None:
        run.restore(folder)
    run.go(0 if folder is None else checkpoints.step_of(folder), watch)
    return finish(run)


class Run:
    """A tuning brought to life: rows, network, optimiser, and where they leave things."""

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
        parted = [sheet.parted(seed, notes) for sheet in tuning.sheets]
        self.dev = [dev for _, dev in parted]
        sets = []
        for way, (rows, _), sheet in zip(tuning.ways, parted, tuning.sheets, strict=True):
            found, cut = learned(way, rows, tokenizer)
            sets.append(taught(tuning.teacher, way, rows, tokenizer, tuning.train.device, found))
            file = Path(sheet.train).name
            if cut:
                say(f"{cut:,} of {len(rows):,} rows of {file} are cut to {way.length} tokens")
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
        self.bfloat16 = train.precision == "bfloat16" or (
            train.precision == "auto" and self.device.type == "cuda"
        )
        self.model = network(tuning, body).to(self.device)
        if habits.noise:
            topped = isinstance(self.model, Headed)  # T5 has learned what it calls its head
            fresh = lambda name: topped and name.startswith("head.")  # noqa: E731
            shake(self.model, habits.noise, seed=seed, fresh=fresh)
        self.optimiser = optimiser(
            self.model,
            name=train.optimiser,
            peak=train.peak,
            decay=train.decay,
            betas=train.betas,
            eps=train.epsilon,
            fused=True,
            shrink=habits.shrink,
        )
        self.factor = schedule(
            train.schedule,
            steps=train.steps,
            warmup=train.warmup,
            cooldown=train.cooldown,
            floor=train.floor,
        )
        self.best = math.nan
        self.latest = math.nan
        self.waited = 0  # scorings since the best
        self.record = False  # the weights are those of the best, and not saved yet

    def restore(self, folder: Path) -> None:
        """Take up the weights and the optimiser of a checkpoint."""
        saved: Any = hub.load_model(folder)
        state = checkpoints.read_state(folder)
        self.model.load_state_dict(saved.state_dict())
        self.optimiser.load_state_dict(state["optimiser"])
        self.best = math.nan if state["best"] is None else state["best"]
        self.waited = state["waited"]

    def go(self, start: int, watch: Watch) -> None:
        """Run from update `start` to the end, or until nothing grows better."""
        train, habits = self.tuning.train, self.tuning.habits
        if self.enough():  # it ended before its scores were written
            return
        self.model.train()
        learner: nn.Module = Learner(self.model, self.tuning.ways[0])
        if train.compile == "yes":
            learner.compile(dynamic=True)
        step = Step(
            learner,
            self.optimiser,
            lambda number: train.peak * self.factor(number),
            clip=train.clip,
            seed=train.seed,
            device=self.device,
            bfloat16=self.bfloat16,
            attack=Attack(self.model, habits.attack) if habits.attack else None,
            thaw=Thaw(self.model, train.evaluate_every * habits.scores) if habits.thaw else None,
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
            ).run(start, batches(self.lessons, train, start))

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
            mains.append(found[way.task.main])
        self.latest = sum(mains) / len(mains)
        task = self.tuning.ways[0].task
        self.record = math.isnan(self.best) or task.better(self.latest, self.best)
        if self.record:
            self.best, self.waited = self.latest, 0
        else:
            self.waited += 1
        return values

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss on dev rows, those whose labels can be known."""
        way, size = self.tuning.ways[0], self.lessons.batch
        total = Loss({})
        counts: dict[str, int] = {}
        known = [set(one.task.labels) for one in self.tuning.ways]
        examples = [
            example
            for one, rows, labels in zip(self.tuning.ways, self.dev, known, strict=True)
            for row in rows[: ASKED * size]
            if seen(one, row, labels)
            for example in one.lessons(row, self.tokenizer)
        ]
        self.model.eval()
        for start in range(0, min(len(examples), ASKED * size), size):
            batch = way.collate(examples[start : start + size]).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                total = total + way.loss(self.model, batch)
            counts = add([counts, batch.counts])
        self.model.train()
        return float(total.mean(counts)) if counts else math.nan

    def save(self, step: int, held_out: float | None) -> None:
        """Write a checkpoint: a model folder, and what it takes to go on from it."""
        state = {
            "step": step,
            "optimiser": self.optimiser.state_dict(),
            "best": None if math.isnan(self.best) else self.best,
            "waited": self.waited,
        }

        def write(folder: Path) -> None:
            hub.save(folder, self.model, self.tokenizer)
            self.tuning.write(folder / "kinfolk.json")
            checkpoints.write_state(folder, state)

        self.log.sync()
        best = self.record or not any(self.dev)
        checkpoints.save(self.out, step, write, keep=self.tuning.train.keep, best=best)
        self.record = False


def network(tuning: Tuning, body: nn.Module) -> nn.Module:
    """Put the head on, drawn from the seed, where the way needs one."""
    torch.manual_seed(tuning.train.seed)
    try:
        if tuning.ways[0].head:
            return Headed.of(body, tuning.model)
        model: nn.Module = tuning.model.build()
        model.load_state_dict(body.state_dict())
    except RuntimeError:  # they have other shapes
        raise UserError(
            f"the weights of {tuning.start} do not fit the settings of the model: leave those that "
            "change its size out, or start from fresh weights with --scratch"
        ) from None
    return model


def finish(run: Run) -> Path:
    """Keep the scores of the best checkpoint beside the run."""
    step = checkpoints.step_of(run.out / "checkpoints" / "best")
    scored = [line for line in read(run.out) if line["step"] == step and "held_out" in line]
    best = scored[0] if scored else {}  # no rows to choose by, no scores
    values = {name: value for name, value in best.items() if name not in OF_STEPS}
    main = run.tuning.ways[0].task.main
    text = json.dumps({"metric": main, "dev": values}, indent=2)
    (run.out / "scores.json").write_text(text + "\n", encoding="utf-8")
    return run.out


def fitted(way: Way, rows: Sequence[Any], tokenizer: Tokenizer) -> Way:
    """Set what follows from the rows: whether answers may be refused, how much is written."""
    if hasattr(way, "refuses"):
        return replace(way, refuses=any(not row.possible for row in rows))  # type: ignore[call-arg]
    if hasattr(way, "average") and way.task.kind == "regress":
        return replace(way, average=sum(float(r.label) for r in rows) / len(rows), tokens=8)  # type: ignore[call-arg]
    if hasattr(way, "told") and way.task.kind in ("write", "tag", "span"):
        sizes = [len(tokenizer.offsets(way.told(row) or "")[0]) for row in rows[:SAMPLE]]
        most = max(way.tokens, min(way.length, max(sizes) + 1))  # type: ignore[attr-defined]
        return replace(way, tokens=most)  # type: ignore[call-arg]
    if hasattr(way, "both") and way.task.kind == "regress" and way.task.pair:
        return replace(way, both=True)  # type: ignore[call-arg]
    return way


def fresh(tuning: Tuning) -> Any:
    """Build the network with weights drawn from the seed."""
    torch.manual_seed(tuning.train.seed)
    return getattr(tuning.model, "body", tuning.model).build()


def taught(
    teacher: str,
    way: Way,
    rows: Sequence[Any],
    tokenizer: Tokenizer,
    device: str,
    examples: list[Example],
) -> list[Example]:
    """Add to examples what a teacher thinks of their rows, where there is a teacher."""
    if not teacher:
        return examples
    from kinfolk.recipes.teaching import opinions

    return opinions(teacher, way, rows, tokenizer, device)


def seen(way: Way, row: Any, labels: set[str]) -> bool:
    """Say whether training has seen the labels of a row, so that there is a loss to speak of."""
    if way.task.kind == "classify":
        return row.label is not None and str(row.label) in labels
    if way.task.kind == "tag":
        return row.tags is not None and labels.issuperset(row.tags)
    return True


def batches(lessons: Lessons, train: Any, start: int) -> Iterator[Sequence[Batch[Any]]]:
    """Yield the micro-batches of each step from `start` on."""
    numbers = range(start * train.accumulate, train.steps * train.accumulate)
    loader = DataLoader(lessons, batch_size=None, sampler=numbers, num_workers=train.workers)
    group: list[Batch[Any]] = []
    for batch in loader:
        group.append(batch)
        if len(group) == train.accumulate:
            yield group
            group = []
