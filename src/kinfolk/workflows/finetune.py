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
from kinfolk.tasks.formats.base import ReadReport
from kinfolk.tasks.task import task_class
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training import checkpoint
from kinfolk.training.config import FineTuneConfig
from kinfolk.training.log import read
from kinfolk.workflows import formulations
from kinfolk.workflows.finetune_recipe import (
    FineTuneRecipe,
    InitialWeights,
    OnMessage,
    TaskDataset,
    default_train_config,
    parse_initial_weights,
    with_dropout,
)
from kinfolk.workflows.finetune_run import Run
from kinfolk.workflows.pretrain import ProgressCallback, new_run

STEP_LOG_KEYS = ("step", "loss", "lr", "grad_norm", "counts", "losses")  # in every line of the log
DISTILLATION_WEIGHT = 0.5  # of a teacher in the loss
RESOLVED_FIELDS = (
    "train.steps",
    "train.eval_every",
    "train.save_every",
    "train.warmup",
)  # once a run has begun


def finetune(
    start: InitialWeights | Path | str,
    sheets: Sequence[TaskDataset],
    out: Path | str,
    *,
    way: str | None = None,
    length: int | None = None,
    finetune_config: FineTuneConfig = FineTuneConfig(),
    settings: Sequence[str] = (),
    teacher: str = "",
    metric: str | None = None,
    positive: str | None = None,
    prefixes: Sequence[str] = (),
    said: dict[str, Any] | None = None,
    say: OnMessage = lambda sentence: None,
    watch: ProgressCallback = lambda progress: None,
) -> Path:
    """Fine-tune a network on labelled files; the run folder must be new.

    `finetune("runs/bert", [task_dataset("train.tsv", "dev.tsv")], "runs/triage")`
    """
    start = start if isinstance(start, InitialWeights) else parse_initial_weights(str(start))
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o, or resume it with --resume")
    if len(sheets) > 1 and (metric or positive):
        raise UserError("several files have several tasks: leave --metric and --positive out")
    own = {name: value for name, value in (said or {}).items() if value is not None}
    if teacher:
        own = {"distillation_weight": DISTILLATION_WEIGHT, **own}
    notes = ReadReport()
    rows = [sheet.with_labels(sheet.train_rows(notes), notes) for sheet in sheets]
    for sheet, some in zip(sheets, rows, strict=True):
        if not some:
            raise UserError(f"{sheet.train} has no labelled row: there is nothing to learn from")
    body, tokenizer = start.open(rows)
    found = []
    for number, (sheet, some) in enumerate(zip(sheets, rows, strict=True)):
        prefix = prefixes[number] if number < len(prefixes) else None
        task = task_class(sheet.guess.task).from_rows(
            some,
            file=sheet.train,
            metric=metric or "",
            positive_label=positive,
            prefix=prefix or "",
        )
        kind = formulations.choose_formulation(body.config, type(task), way)
        made = formulations.build_formulation(
            kind, task, body.config, tokenizer, length=length, **own
        )
        balanced = finetune_config.class_weights == "balanced"
        found.append(made.fit(some, tokenizer, balanced=balanced))
    if len(found) > 1 and any(one.name != "text" for one in found):
        raise UserError(
            "several files are learned together as text: choose --way text and a member that "
            "writes, like t5"
        )
    config = formulations.model_config(found[0], body.config)
    tuning = FineTuneRecipe(
        name=body.family_name,
        init_from="" if start.fresh else start.folder,
        model=config,
        formulations=tuple(found),
        datasets=tuple(sheets),
        train=default_train_config(config, fresh=start.fresh),
        finetune=finetune_config,
        teacher=teacher,
    )
    tuning = apply_overrides(tuning, settings)
    if tuning.finetune.dropout is not None:
        tuning = replace(tuning, model=with_dropout(tuning.model, tuning.finetune.dropout))
    if start.fresh:
        body = build_fresh_model(tuning)
    run = Run(tuning, body, tokenizer, out, say, settings)
    with new_run(out) as folder:
        tokenizer.save(folder / "tokenizer")
        run.tuning.write(folder / "recipe.json")
    run.fit(0, watch)
    return write_scores(run)


def resume(
    out: Path | str, *, say: OnMessage = print, watch: ProgressCallback = lambda progress: None
) -> Path:
    """Go on with a run from its newest whole checkpoint, or from its start where there is none."""
    out = Path(out)
    tuning = FineTuneRecipe.read(out / "recipe.json")
    folder = checkpoint.latest_valid(out)
    tokenizer = Tokenizer.load(out / "tokenizer")
    if (out / "scores.json").is_file():
        raise UserError(f"{out} is finished: to learn for longer, start a new run with more epochs")
    if folder is None and tuning.init_from:
        body: Any = hub.load_model(Path(tuning.init_from))
        body = body.backbone if isinstance(body, ModelWithHead) else body
    else:
        body = build_fresh_model(tuning)
    run = Run(tuning, body, tokenizer, out, say, RESOLVED_FIELDS)
    if folder is not None:
        run.restore(folder)
    run.fit(0 if folder is None else checkpoint.checkpoint_step(folder), watch)
    return write_scores(run)


def write_scores(run: Run) -> Path:
    """Keep the scores of the best checkpoint beside the run."""
    step = checkpoint.checkpoint_step(run.out / "checkpoints" / "best")
    scored = [line for line in read(run.out) if line["step"] == step and "eval_loss" in line]
    best = scored[0] if scored else {}  # no rows to choose by, no scores
    values = {name: value for name, value in best.items() if name not in STEP_LOG_KEYS}
    main = run.tuning.formulations[0].task.main_metric
    text = json.dumps({"metric": main, "dev": values}, indent=2)
    (run.out / "scores.json").write_text(text + "\n", encoding="utf-8")
    return run.out


def build_fresh_model(tuning: FineTuneRecipe) -> Any:
    """Build the network with weights drawn from the seed."""
    torch.manual_seed(tuning.train.seed)
    return tuning.model.pretrained.build()
