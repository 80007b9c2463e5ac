"""The command `prefixes`: learn prefixes of attributes for a frozen decoder."""

from pathlib import Path
from typing import Any

import typer

from kinfolk.cli.app import JSON, RESUME, RUN_FOLDER, TRAIN, command, option
from kinfolk.cli.options import (
    OVERRIDES,
    UsageError,
    check_overrides,
    check_resume,
    field_options,
)
from kinfolk.cli.output import print_json, print_line
from kinfolk.config import as_settings
from kinfolk.tasks.prefix_config import MAX_ATTRIBUTES, PrefixConfig
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.folders import check_input_file, check_model_folder, check_new_folder

# Defaults and settings of this command, where they differ from those of pretraining.
PREFIX_DEFAULTS = {
    "steps": "1,000",
    "lr": "0.001",
    "schedule": "linear",
    "min_lr_ratio": "0",
    "warmup": "100",
    "weight_decay": "0",
    "betas": "0.9,0.999",
    "eval_every": "200",
    "save_every": "200",
    "eval_batches": "32",
}
PREFIX_HELP = {
    "batch_size": "number of texts in an optimizer step",
    "eval_every": "number of steps between evaluations on the dev texts",
}
ABSENT = (
    "parallel",
    "compile",
    "cuda_graph",
    "checkpoint_activations",
    "tensor",
    "pipeline",
    "minutes",
)


@command("kinfolk prefixes runs/gpt2 --train reviews.tsv -o runs/sentiment", panel=TRAIN)
@field_options("prefixes", PrefixConfig, panel="Prefixes")
@field_options("training", TrainConfig, without=ABSENT, defaults=PREFIX_DEFAULTS, help=PREFIX_HELP)
def prefixes_command(
    context: typer.Context,
    model: str | None = typer.Argument(
        None, metavar="MODEL", help="Run or model folder of a GPT, GPT-2 or GPT-3."
    ),
    overrides: list[str] | None = OVERRIDES,
    train: Path | None = option("FILE", "Texts labelled with their attributes."),
    dev: Path | None = option("FILE", "Dev rows (default: a tenth of --train)."),
    columns: str | None = option("MAP", "Columns of the text and the label: text=2,label=1."),
    text: Path | None = option("FILE", "Text without labels instead, one text on each line."),
    attributes: int | None = option(
        "N", "With --text: number of attributes (default: 2).", max=MAX_ATTRIBUTES
    ),
    out: Path | None = RUN_FOLDER,
    resume: Path | None = RESUME,
    json: bool = JSON,
    *,
    prefixes: dict[str, Any],
    training: dict[str, Any],
) -> None:
    """Learn a prefix for each attribute of texts; the model itself is not changed.

    A prefix is a few key and value states that every layer attends to before a text (Qian et al.
    2022). `kinfolk generate MODEL PROMPT --prefix-from RUN --attribute NAME` generates with one.
    """
    if resume is not None:
        check_resume(context, resume, "prefixes")
        finish_prefixes(resume, json=json)
        return
    if model is None:
        raise UsageError("missing MODEL: the folder of a GPT, GPT-2 or GPT-3")
    if out is None:
        raise UsageError("missing -o RUN: the run folder to write")
    if (train is None) == (text is None):
        raise UsageError("pass either --train FILE with labels or --text FILE without")
    check_model_folder(model)
    check_new_folder(out)
    for file in filter(None, (train, dev, text)):
        check_input_file(file)
    check_overrides(overrides or [], {"train": TrainConfig, "prefixes": PrefixConfig}, ())
    settings = [*as_settings(training, "train."), *as_settings(prefixes, "prefixes.")]

    from kinfolk.cli.run_progress import run_progress
    from kinfolk.workflows.prefix_tuning.prefixes import learn_prefixes

    with run_progress(out.name, f"kinfolk prefixes --resume {out}") as progress:
        learn_prefixes(
            model,
            train,
            out,
            text=text,
            attributes=attributes,
            dev=dev,
            columns=columns,
            settings=[*settings, *(overrides or [])],
            callbacks=[progress],
        )
    show_prefixes(out, json=json)


def finish_prefixes(run: Path, *, json: bool) -> None:
    """Resume a run and print what it made."""
    from kinfolk.cli.run_progress import run_progress
    from kinfolk.workflows.pretrain import resume

    with run_progress(run.name, f"kinfolk prefixes --resume {run}") as progress:
        resume(run, callbacks=[progress])
    show_prefixes(run, json=json)


def show_prefixes(run: Path, *, json: bool) -> None:
    """Print the attributes of a run, its dev metrics and how to use it."""
    from kinfolk.config import read_json
    from kinfolk.workflows.prefix_tuning.files import PREFIXES_FILE
    from kinfolk.workflows.report import best_metrics

    recipe: Any = read_json(run / "recipe.json")
    metrics = best_metrics(run)
    if json:
        values = {"run": run, "prefixes": run / PREFIXES_FILE, "model": recipe.init_from}
        print_json(values | {"attributes": recipe.attributes, "dev": metrics})
        return
    if "accuracy" in metrics:
        share = f"{metrics['accuracy']:.1%} of the dev texts are likeliest after their own prefix"
        print_line(share)
    print_line(f"attributes: {', '.join(recipe.attributes)}")
    print_line(f"prefixes:   {run / PREFIXES_FILE}")
    print_line(
        f"next:       kinfolk generate {recipe.init_from} PROMPT --prefix-from {run} "
        f"--attribute {recipe.attributes[-1]}"
    )
