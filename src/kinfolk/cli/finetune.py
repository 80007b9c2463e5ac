"""The command `finetune`: train a model on labelled data."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk.cli.app import TRAIN, AsJson, Resume, RunFolder, command, note, option, print_json
from kinfolk.cli.options import (
    Overrides,
    UsageError,
    check_overrides,
    check_resume,
    field_options,
)
from kinfolk.cli.predict import NullThreshold
from kinfolk.cli.tables import numbers, print_table, table
from kinfolk.config import as_settings
from kinfolk.errors import UserError
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.workflows.folders import check_model_folder, check_new_folder

if TYPE_CHECKING:
    from kinfolk.cli.run_progress import TerminalProgress
    from kinfolk.tasks.dataset import TaskDataset
    from kinfolk.workflows.seeds import SeedResults
    from kinfolk.workflows.suites import SuiteResult

T = TypeVar("T")
DATASETS, FORMULATION, DISTILLATION = "Labelled data", "Task formulation", "Distillation"
KEYS = ("model", "formulations", "datasets", "teacher", "init_from", "name")  # of a recipe

# Defaults of training that differ in fine-tuning.
DEFAULTS = {
    "steps": "from --epochs",
    "lr": "by family and hidden size",
    "schedule": "linear",
    "min_lr_ratio": "0",
    "warmup": "10% of the steps",
    "betas": "0.9,0.999",
    "eval_every": "once per epoch",
    "save_every": "after each evaluation",
    "eval_batches": "64",
}
HELP = {
    "batch_size": "number of examples in an optimizer step",
    "eval_every": "number of steps between evaluations on the dev rows",
}


@command("kinfolk finetune runs/bert --train train.tsv --dev dev.tsv -o runs/triage", panel=TRAIN)
@field_options("training", TrainConfig, defaults=DEFAULTS, help=HELP)
@field_options("finetuning", FineTuneConfig, panel="Fine-tuning")
def finetune(
    context: typer.Context,
    training: dict[str, Any],
    finetuning: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Pretrained run or model folder, FAMILY[/SIZE] (random weights), or bilstm.",
        ),
    ] = None,
    overrides: Overrides = None,
    train: Annotated[
        list[Path] | None,
        option("FILE", "Training data (TSV, CSV, JSONL, CoNLL, SQuAD ...). Repeatable.", DATASETS),
    ] = None,
    dev: Annotated[
        list[Path] | None,
        option("FILE", "Data that selects the best checkpoint (default: 10% of rows).", DATASETS),
    ] = None,
    target: Annotated[
        list[Path] | None, option("FILE", "Target lines aligned with --train.", DATASETS)
    ] = None,
    dev_target: Annotated[
        list[Path] | None, option("FILE", "Target lines aligned with --dev.", DATASETS)
    ] = None,
    task: Annotated[
        str,
        option(
            "NAME",
            "auto, classify, regress, choose, tag, span, write, complete, lm or coref.",
            DATASETS,
        ),
    ] = "auto",
    columns: Annotated[
        list[str] | None,
        option("LIST", "Text columns and label column, names or numbers: a,b,label.", DATASETS),
    ] = None,
    suite: Annotated[
        tuple[str, Path] | None,
        option("NAME DIR", "Fine-tune on every dataset in a folder, e.g. of GLUE.", DATASETS),
    ] = None,
    tasks: Annotated[
        str | None, option("LIST", "Only these datasets of --suite: sst2,mrpc.", DATASETS)
    ] = None,
    limit: Annotated[int | None, option("N", "Rows per file of --suite.", DATASETS)] = None,
    formulation: Annotated[
        str | None,
        option("NAME", "head, transformed (GPT-1), text (text-to-text) or cloze.", FORMULATION),
    ] = None,
    metric: Annotated[
        str | None, option("NAME", "Metric that selects the best checkpoint.", FORMULATION)
    ] = None,
    positive_label: Annotated[
        str | None, option("LABEL", "Positive class of binary F1.", FORMULATION)
    ] = None,
    source_prefix: Annotated[
        list[str] | None, option("TEXT", "text: prefix of every input.", FORMULATION)
    ] = None,
    pattern: Annotated[
        str | None, option("TEXT", "cloze: '{text} It was {answer}.'", FORMULATION)
    ] = None,
    verbalizer: Annotated[
        str | None, option("LIST", "cloze: one word per class: bad,good.", FORMULATION)
    ] = None,
    null_score_diff_threshold: NullThreshold = None,
    length: Annotated[
        int | None, option("N", "Maximum input length in tokens.", FORMULATION)
    ] = None,
    from_scratch: Annotated[
        bool, option("", "Ignore the pretrained weights.", None, "--from-scratch")
    ] = False,
    tokenizer: Annotated[
        Path | None, option("DIR", "Tokenizer for FAMILY/SIZE (default: trained on the rows).")
    ] = None,
    teacher: Annotated[
        Path | None, option("RUN", "Distill from this fine-tuned model.", DISTILLATION)
    ] = None,
    distillation_weight: Annotated[
        float | None, option("X", "Weight of the distillation loss (default: 0.5).", DISTILLATION)
    ] = None,
    seeds: Annotated[
        int | None, option("N", "Run seeds 0 to N-1; report mean and standard deviation.")
    ] = None,
    out: RunFolder = None,
    resume: Resume = None,
    json: AsJson = False,
) -> None:
    """Fine-tune a model on labelled data and keep the checkpoint with the best dev score.

    The task and the columns are detected from the file and printed; `--task` and `--columns`
    override them.
    """
    if resume is not None:
        first = resume / "seed-0" if (resume / "seed-0").is_dir() else resume
        check_resume(context, first, "finetune")
        print_scores(resume_runs(resume), json=json)
        return
    if model is None:
        raise UsageError("missing MODEL: a model folder, a family (see kinfolk members) or bilstm")
    if out is None:
        raise UsageError("missing -o RUN: the run folder to write")
    if (train is None) == (suite is None):
        raise UsageError("give --train FILE or --suite NAME DIR")
    seed: int | None = training.pop("seed", None)
    if seed is not None and seeds is not None:
        raise UsageError("--seeds runs seeds 0 to N-1: it cannot be combined with --seed")
    if distillation_weight is not None and teacher is None:
        raise UsageError("--distillation-weight requires --teacher")
    if suite is None and (tasks is not None or limit is not None):
        raise UsageError("--tasks and --limit require --suite")
    own_options = (dev, target, dev_target, columns, metric, positive_label)
    if suite is not None and (task != "auto" or any(value is not None for value in own_options)):
        raise UsageError(
            "--suite has its own files, tasks and metrics: it cannot be combined with --dev, "
            "--target, --task, --columns, --metric and --positive-label"
        )
    for file in [*(train or []), *(dev or []), *(target or []), *(dev_target or [])]:
        if not file.is_file():
            raise UserError(f"no such file: {file}")
    from kinfolk.families import check_name

    if Path(model).exists():
        check_model_folder(model)
    else:
        check_name(model)
    if teacher is not None:
        check_model_folder(teacher)
    check_new_folder(out)
    check_overrides(overrides or [], {"train": TrainConfig, "finetune": FineTuneConfig}, KEYS)
    from kinfolk.workflows import finetune as workflow
    from kinfolk.workflows.finetune_recipe import parse_initial_weights
    from kinfolk.workflows.seeds import run_seeds

    weights = parse_initial_weights(
        model, tokenizer=tokenizer, scratch=from_scratch, seed=seed or 0
    )
    options = {
        "pattern": pattern,
        "verbalizer": None if verbalizer is None else tuple(verbalizer.split(",")),
        "distillation_weight": distillation_weight,
        "null_score_diff_threshold": null_score_diff_threshold,
    }

    def train_once(
        datasets: Sequence["TaskDataset"], folder: Path, metric: str | None, seed: int | None
    ) -> Path:
        drawn = [] if seed is None else [f"train.seed={seed}"]
        with progress_of(folder, out) as progress:
            return workflow.finetune(
                replace(weights, seed=seed or 0),
                datasets,
                folder,
                formulation=formulation,
                length=length,
                settings=[*as_settings(training, "train."), *drawn, *(overrides or [])],
                teacher="" if teacher is None else str(teacher.resolve()),
                metric=metric,
                positive_label=positive_label,
                source_prefix=source_prefix or (),
                options=options,
                callbacks=[progress],
                **finetuning,
            )

    def train_all(datasets: Sequence["TaskDataset"], folder: Path, metric: str | None) -> Path:
        if seeds is None:
            return train_once(datasets, folder, metric, seed)
        return run_seeds(seeds, folder, lambda n, inner: train_once(datasets, inner, metric, n))

    if suite is not None:
        from kinfolk.workflows import suites

        chosen = suites.select_tasks(suite[1], tasks)
        skipped = [] if tasks is not None else suites.skipped_folders(suite[1], chosen)
        results = suites.run_suite(
            chosen,
            train_all,
            out,
            limit=limit,
            device=training.get("device", "auto"),
            on_message=note,
            skipped=skipped,
        )
        print_suite(suite[0], results, json=json)
        return
    datasets = read_datasets(train or [], dev, target, dev_target, columns, task)
    for dataset in datasets:
        for message in dataset.messages():
            note(message)
    print_scores(train_all(datasets, out, metric), json=json)


def read_datasets(
    train: Sequence[Path],
    dev: Sequence[Path] | None,
    target: Sequence[Path] | None,
    dev_target: Sequence[Path] | None,
    columns: Sequence[str] | None,
    task: str,
) -> list["TaskDataset"]:
    """Return the datasets that options name, the first of each option belonging together."""
    from kinfolk.tasks.dataset import task_dataset

    parts = zip(
        train,
        per_file("--dev", dev, len(train)),
        per_file("--target", target, len(train)),
        per_file("--dev-target", dev_target, len(train)),
        per_file("--columns", columns, len(train)),
        strict=True,
    )
    return [
        task_dataset(file, dev_file, task=task, columns=names, target=lines, dev_target=dev_lines)
        for file, dev_file, lines, dev_lines, names in parts
    ]


def per_file(option: str, values: Sequence[T] | None, count: int) -> list[T | None]:
    """Return one value of an option for each training file, or None for all of them."""
    if not values:
        return [None] * count
    if len(values) != count:
        raise UsageError(
            f"got {count} --train and {len(values)} {option}: pass one {option} per --train, in "
            "the same order, or none"
        )
    return [*values]


def resume_runs(run: Path) -> Path:
    """Resume a run, or all runs of several seeds."""
    from kinfolk.workflows import seeds
    from kinfolk.workflows.pretrain import resume

    if seeds.is_multi_seed(run):
        return seeds.resume(run, lambda inner: progress_of(inner, run))
    with progress_of(run, run) as progress:
        return resume(run, callbacks=[progress])


def progress_of(run: Path, out: Path) -> AbstractContextManager["TerminalProgress"]:
    """Show the progress of a run, which may be one of several seeds in `out`."""
    from kinfolk.cli.run_progress import run_progress

    name = out.name if run == out else f"{out.name} {run.name}"
    return run_progress(name, f"kinfolk finetune --resume {out}")


def print_scores(run: Path, *, json: bool) -> None:
    """Print the dev scores of a run, and where its best model is."""
    from kinfolk.workflows.folders import find_model_folder
    from kinfolk.workflows.seeds import finite_or_none, read_scores

    results, best = read_scores(run), find_model_folder(run)
    if json:
        means = {name: results.mean(name) for name in results.names}
        values: dict[str, Any] = {
            "run": str(run),
            "model": str(best),
            "metric": results.metric,
            "dev": {name: finite_or_none(mean) for name, (mean, _) in means.items()},
        }
        if len(results.runs) > 1:
            stds = {name: finite_or_none(std) for name, (_, std) in means.items()}
            values |= {"std": stds, "spread": stds}  # "spread" is what programs read
            values["seeds"] = [
                {name: finite_or_none(scores[name]) for name in results.names}
                for scores in results.runs.values()
            ]
        print_json(values)
        return
    if results.names:
        print_table(score_table(results))
    print(f"best model: {best}")
    print(f"next:       kinfolk evaluate {run} --test FILE")


def score_table(results: "SeedResults") -> Table:
    """Return the dev scores, a column per run where there are several, then mean and std."""
    from kinfolk.tasks.task import format_score, metric_title

    several = len(results.runs) > 1
    names = [run.name for run in results.runs] if several else ["dev"]
    scores = table("", *numbers(*names, *(("mean", "std") if several else ())))
    for name in results.names:
        values = [run[name] for run in results.runs.values()]
        values += [*results.mean(name)] if several else []
        scores.add_row(metric_title(name), *(format_score(name, value) for value in values))
    return scores


def print_suite(name: str, results: Sequence["SuiteResult"], *, json: bool) -> None:
    """Print the scores of all datasets of a suite, and their mean."""
    from kinfolk.tasks.task import metric_title
    from kinfolk.workflows.suites import as_percent, suite_mean

    scored = [result for result in results if result.scores]
    if not scored:
        raise UserError(f"no dataset of suite {name} could be run: {results[0].skip_reason}")
    if json:
        sets = [result.to_json() for result in results]
        print_json({"suite": name, "mean": suite_mean(results), "sets": sets})
        return
    rows = table(name, "task", "formulation", *numbers("rows", "evaluated on", "score"), "")
    for result in scored:
        metrics = [
            f"{metric_title(key)} {as_percent(key, value):.1f}"
            + (f" ± {as_percent(key, result.stds[key]):.1f}" if result.stds else "")
            for key, value in result.scores.items()
        ]
        rows.add_row(
            escape(result.name),
            result.task,
            result.formulation,
            f"{result.num_train_rows:,}",
            f"{result.num_eval_rows:,} {result.split}",
            f"{result.score:.1f}",
            ", ".join(metrics),
        )
    rows.add_section()
    rows.add_row("mean", "", "", "", "", f"[bold]{suite_mean(results):.1f}[/]", "")
    print_table(rows)
