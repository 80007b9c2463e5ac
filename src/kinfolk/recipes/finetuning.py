"""From a pretrained model and a labelled file to a run folder, in one go or in several."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kinfolk import hub
from kinfolk.config import apply_overrides
from kinfolk.errors import UserError
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes import ways
from kinfolk.recipes.course import Run
from kinfolk.recipes.pretraining import Watch, new_run
from kinfolk.recipes.starting import Start, started
from kinfolk.recipes.tuning import (
    Habits,
    Say,
    Sheet,
    Tuning,
    asked,
    dropping,
    usual,
    weighty,
)
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.ways.text import grain
from kinfolk.tasks.ways.way import Way
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoints
from kinfolk.training.log import read

SAMPLE = 1000  # rows that show how long answers are
OF_STEPS = ("step", "loss", "rate", "norm", "counts", "parts")  # in every line of the log
SHARE = 0.5  # of a teacher in the loss
KNOWN = (
    "train.steps",
    "train.evaluate_every",
    "train.save_every",
    "train.warmup",
)  # once a run has begun


def finetune(
    start: Start | Path | str,
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
    """Fine-tune a network on labelled files; the run folder must be new.

    `finetune("runs/bert", [sheet("train.tsv", "dev.tsv")], "runs/triage")`
    """
    start = start if isinstance(start, Start) else started(str(start))
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
    tuning = apply_overrides(tuning, settings)
    if tuning.habits.dropout is not None:
        tuning = replace(tuning, model=dropping(tuning.model, tuning.habits.dropout))
    if start.fresh:
        body = fresh(tuning)
    run = Run(tuning, body, tokenizer, out, say, settings)
    with new_run(out) as folder:
        tokenizer.save(folder / "tokenizer")
        run.tuning.write(folder / "recipe.json")
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
        body = body.backbone if isinstance(body, ModelWithHead) else body
    else:
        body = fresh(tuning)
    run = Run(tuning, body, tokenizer, out, say, KNOWN)
    if folder is not None:
        run.restore(folder)
    run.go(0 if folder is None else checkpoints.step_of(folder), watch)
    return finish(run)


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
        numbers = [float(row.label) for row in rows]
        average = sum(numbers) / len(rows)
        return replace(way, average=average, grain=grain(numbers), tokens=8)  # type: ignore[call-arg]
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
    return tuning.model.pretrained.build()
