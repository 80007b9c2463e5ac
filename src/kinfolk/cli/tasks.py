"""The command `finetune`: a model and a labelled file in, a model that solves the task out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from kinfolk.cli import learning as asked
from kinfolk.cli.app import AsJson, app, errors, example
from kinfolk.cli.scores import show, show_suite
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.tasks.dataset import TaskDataset
    from kinfolk.training.config import FineTuneConfig

T = TypeVar("T")


@app.command(
    epilog=example("kinfolk finetune runs/bert --train train.tsv --dev dev.tsv -o runs/triage")
)
def finetune(
    context: typer.Context,
    model: asked.Model = None,
    settings: asked.Settings = None,
    train: asked.Train = None,
    dev: asked.Dev = None,
    target: asked.Target = None,
    dev_target: asked.DevTarget = None,
    task: asked.Kind = "auto",
    columns: asked.Columns = None,
    suite: asked.Suite = None,
    only: asked.Only = None,
    limit: asked.Limit = None,
    way: asked.WayName = None,
    metric: asked.Metric = None,
    positive: asked.Positive = None,
    prefix: asked.Prefix = None,
    pattern: asked.Pattern = None,
    words: asked.Words = None,
    length: asked.Length = None,
    scratch: asked.Scratch = False,
    tokenizer: asked.TokenizerPath = None,
    epochs: asked.Epochs = 3.0,
    batch: asked.Batch = None,
    rate: asked.Rate = None,
    schedule: asked.Schedule = None,
    accumulate: asked.Accumulate = None,
    patience: asked.Patience = 0,
    class_weights: asked.ClassWeights = "none",
    layer_decay: asked.LayerDecay = 1.0,
    gradual_unfreezing: asked.Thawing = False,
    dropout: asked.Dropout = None,
    noise: asked.Noise = 0.0,
    attack: asked.Attack = 0.0,
    teacher: asked.Teacher = None,
    teaching: asked.Teaching = None,
    temperature: asked.Temperature = 1.0,
    seed: asked.Seed = None,
    seeds: asked.Seeds = None,
    out: asked.Out = None,
    resume: asked.Resume = None,
    device: asked.DeviceName = None,
    json: AsJson = False,
) -> None:
    """Fine-tune a model on labelled examples; the best on dev rows is kept.

    What a file is for, and where its texts and labels are, is guessed and said. Several `--train`
    files are learned together by a member that writes, like t5. `--seeds 3` runs three times, for a
    mean and a spread. `--suite glue DIR` fine-tunes on every set of a folder, and makes a table.
    """
    from kinfolk.families import check_name

    if model is not None and not Path(model).exists():
        check_name(model)  # before torch is imported
    from kinfolk.workflows import finetune as finetune_module
    from kinfolk.workflows.finetune_recipe import parse_initial_weights
    from kinfolk.workflows.seeds import run_seeds

    if resume is not None:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = {name for name, source in sources.items() if source and source.name != "DEFAULT"}
        if given - {"resume", "json"}:
            raise UserError("--resume goes on with a run as it was begun: give it alone")
        show(go_on(resume), json=json)
        return
    if model is None or out is None or (train is None) == (suite is None):
        raise UserError("give MODEL, --train FILE (or --suite NAME DIR) and -o, or --resume RUN")
    if seed is not None and seeds is not None:
        raise UserError("--seeds runs seeds 0, 1, 2 ...: leave --seed out")
    if teaching is not None and teacher is None:
        raise UserError("--teaching is a teacher's share: give --teacher, too")
    if suite is None and (only is not None or limit is not None):
        raise UserError("--only and --limit belong to --suite: leave them out")
    told = {
        "batch_size": batch,
        "lr": rate,
        "schedule": schedule,
        "gradient_accumulation": accumulate,
        "device": device,
    }
    chosen = [f"train.{name}={value}" for name, value in told.items() if value is not None]
    own = {
        "pattern": pattern,
        "verbalizer": None if words is None else tuple(words.split(",")),
        "distillation_weight": teaching,
    }
    start = parse_initial_weights(model, tokenizer=tokenizer, scratch=scratch, seed=seed or 0)
    learned = finetune_config(
        epochs=epochs,
        layer_lr_decay=layer_decay,
        gradual_unfreezing=gradual_unfreezing,
        dropout=dropout,
        noisy_tune=noise,
        adversarial_epsilon=attack,
        early_stopping_patience=patience,
        class_weights=class_weights,
        mixing_temperature=temperature,
    )

    def tune(
        sheets: Sequence["TaskDataset"], folder: Path, metric: str | None, seed: int | None
    ) -> Path:
        drawn = [] if seed is None else [f"train.seed={seed}"]
        with watched(folder, out) as progress:
            return finetune_module.finetune(
                replace(start, seed=seed or 0),
                sheets,
                folder,
                formulation=way,
                length=length,
                finetune_config=learned,
                settings=[*chosen, *drawn, *(settings or [])],
                teacher="" if teacher is None else str(teacher.resolve()),
                metric=metric,
                positive=positive,
                prefixes=prefix or (),
                options=own,
                callbacks=[progress],
            )

    def tuned(sheets: Sequence["TaskDataset"], folder: Path, metric: str | None) -> Path:
        if seeds is None:
            return tune(sheets, folder, metric, seed)
        return run_seeds(seeds, folder, lambda number, inner: tune(sheets, inner, metric, number))

    if suite is not None:
        others = (dev, target, dev_target, columns, metric, positive)
        if task != "auto" or any(other is not None for other in others):
            raise UserError(
                "a suite has its own files, tasks and metrics: leave --dev, --target, --task, "
                "--columns, --metric and --positive out"
            )
        from kinfolk.workflows import suites

        sets = suites.select_tasks(suite[1], only)
        left = [] if only is not None else suites.skipped_folders(suite[1], sets)
        results = suites.run_suite(
            sets, tuned, out, limit=limit, device=device or "auto", on_message=say, skipped=left
        )
        show_suite(suite[0], results, json=json)
        return
    sheets = read_sheets(train or [], dev, target, dev_target, columns, task)
    for dataset in sheets:
        for message in dataset.messages():
            say(message)
    show(tuned(sheets, out, metric), json=json)


def read_sheets(
    train: Sequence[Path],
    dev: Sequence[Path] | None,
    target: Sequence[Path] | None,
    dev_target: Sequence[Path] | None,
    columns: Sequence[str] | None,
    task: str,
) -> list["TaskDataset"]:
    """Put the files together that belong together, the first of each kind and so on."""
    from kinfolk.tasks.dataset import task_dataset

    size = len(train)
    parts = zip(
        train,
        each("--dev", dev, size),
        each("--target", target, size),
        each("--dev-target", dev_target, size),
        each("--columns", columns, size),
        strict=True,
    )
    return [
        task_dataset(file, chosen_by, task=task, columns=named, target=written, dev_target=wanted)
        for file, chosen_by, written, wanted, named in parts
    ]


def each(option: str, values: Sequence[T] | None, size: int) -> list[T | None]:
    """Return one value for each training file, or none for all of them."""
    if not values:
        return [None] * size
    if len(values) != size:
        raise UserError(
            f"{option} is given {len(values)} times for {size} --train: give one for each, in the "
            "same order, or none"
        )
    return [*values]


def finetune_config(**wanted: Any) -> "FineTuneConfig":
    """Check what is told about learning."""
    from kinfolk.config import apply_overrides
    from kinfolk.training.config import FineTuneConfig

    return apply_overrides(FineTuneConfig(), [f"{name}={value}" for name, value in wanted.items()])


def go_on(run: Path) -> Path:
    """Go on with a run, or with all runs of several seeds."""
    from kinfolk.workflows import seeds
    from kinfolk.workflows.finetune_recipe import FineTuneRecipe
    from kinfolk.workflows.pretrain import resume

    if seeds.is_multi_seed(run):
        return seeds.resume(run, lambda inner: watched(inner, run))
    FineTuneRecipe.read(run / "recipe.json")  # refuses a pretraining run
    with watched(run, run) as progress:
        return resume(run, callbacks=[progress])


def watched(run: Path, out: Path) -> Any:
    """Show the progress of a run, with its score on dev rows."""
    from kinfolk.cli.run_progress import run_progress

    name = out.name if run == out else f"{out.name} {run.name}"
    return run_progress(name, f"kinfolk finetune --resume {out}")


def say(sentence: str) -> None:
    """Tell the user something beside what is printed."""
    errors.print(sentence, highlight=False, markup=False, soft_wrap=True)
