"""The command `finetune`: train a model on labelled data."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk.cli.app import (
    JSON,
    MAX_TOKENS,
    NULL_THRESHOLD,
    RESUME,
    RUN_FOLDER,
    TOKENIZER,
    TRAIN,
    command,
    flag,
    option,
)
from kinfolk.cli.options import (
    OVERRIDES,
    UsageError,
    check_overrides,
    check_resume,
    field_options,
    option_group,
)
from kinfolk.cli.output import note, numbers, print_json, print_line, print_table, table
from kinfolk.config import as_settings, read_type
from kinfolk.errors import UserError
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.workflows.folders import (
    check_input_file,
    check_model_folder,
    check_new_folder,
    model_or_family,
)

if TYPE_CHECKING:
    from kinfolk.cli.run_progress import TerminalProgress
    from kinfolk.tasks.dataset import TaskDataset
    from kinfolk.workflows.finetuning.seeds import SeedResults
    from kinfolk.workflows.finetuning.suites import SuiteResult, TrainFn

T = TypeVar("T")
LM_STAGES = ("general", "target")  # whose settings begin with their names
# Of a recipe.
FINETUNE_RECIPE_KEYS = ("model", "formulations", "datasets", "teacher", "init_from", "name")

# Defaults of training that differ in fine-tuning.
FINETUNE_DEFAULTS = {
    "steps": "from --epochs, at least 400",
    "lr": "by family, hidden size and pretraining",
    "schedule": "linear",
    "min_lr_ratio": "0",
    "warmup": "10% of the steps",
    "betas": "0.9,0.999",
    "eval_every": "once per epoch, 8 times without --epochs",
    "save_every": "after each evaluation",
    "eval_batches": "64",
}
OF_A_FOLDER = (
    "give one of its files (TSV, CSV, JSONL, CoNLL, SQuAD ...); --suite NAME DIR reads a folder "
    "of data sets, such as glue"
)
FINETUNE_HELP = {
    "batch_size": "number of examples in an optimizer step",
    "eval_every": "number of steps between evaluations on the dev rows",
}


@dataclass(frozen=True)
class DataOptions:
    """Options that name the labelled data."""

    train: list[Path] | None = option(
        "FILE", "Training data (TSV, CSV, JSONL, CoNLL, SQuAD ...). Repeatable."
    )
    dev: list[Path] | None = option(
        "FILE", "Data that selects the best checkpoint (default: 10% of rows)."
    )
    target: list[Path] | None = option("FILE", "Target lines aligned with --train.")
    dev_target: list[Path] | None = option("FILE", "Target lines aligned with --dev.")
    unlabelled: list[Path] | None = option(
        "FILE",
        "cvt, --stages: text or rows to learn from without labels; none for no text. Repeatable.",
    )
    task: str = option(
        "NAME",
        "auto, classify, regress, choose, tag, span, write, extract, complete, lm or coref.",
        default="auto",
    )
    columns: list[str] | None = option(
        "LIST", "Text columns and label column, names or numbers: a,b,label."
    )
    suite: tuple[str, Path] | None = option(
        "NAME DIR", "Fine-tune on every dataset in a folder, e.g. of GLUE."
    )
    tasks: str | None = option("LIST", "Only these datasets of --suite: sst2,mrpc.")
    limit: int | None = option("N", "Rows per file of --suite.", max=2**31)

    def check(self, task_options: "TaskOptions") -> None:
        """Refuse wrong combinations of options, and files that do not exist."""
        if (self.train is None) == (self.suite is None):
            raise UsageError("give --train FILE or --suite NAME DIR")
        if self.suite is None and (self.tasks is not None or self.limit is not None):
            raise UsageError("--tasks and --limit require --suite")
        own = (self.dev, self.target, self.dev_target, self.columns)
        own_task = (task_options.metric, task_options.positive_label)
        given = self.task != "auto" or any(value is not None for value in (*own, *own_task))
        if self.suite is not None and given:
            raise UsageError(
                "--suite has its own files, tasks and metrics: it cannot be combined with --dev, "
                "--target, --task, --columns, --metric and --positive-label"
            )
        for files in (self.train, self.dev, self.target, self.dev_target):
            for file in files or []:
                check_input_file(file, OF_A_FOLDER)

    @property
    def unlabelled_files(self) -> list[Path] | None:
        """The files of unlabelled text: an empty list for `none`, None where the option is not."""
        return [] if self.unlabelled == [Path("none")] else self.unlabelled

    def read(self) -> list["TaskDataset"]:
        """Return a dataset for each training file, with the options at the same place."""
        from kinfolk.tasks.dataset import task_dataset
        from kinfolk.tasks.unlabelled import check_text_files

        check_text_files(self.unlabelled_files or ())
        files = self.train or []
        parts = zip(
            files,
            per_file("--dev", self.dev, len(files)),
            per_file("--target", self.target, len(files)),
            per_file("--dev-target", self.dev_target, len(files)),
            per_file("--columns", self.columns, len(files)),
            strict=True,
        )
        return [
            task_dataset(
                train, dev, task=self.task, columns=columns, target=lines, dev_target=dev_lines
            )
            for train, dev, lines, dev_lines, columns in parts
        ]


@dataclass(frozen=True)
class TaskOptions:
    """Options of how the task is solved and scored."""

    formulation: str | None = option(
        "NAME",
        "head, transformed (GPT-1), concat (ULMFiT), text, cloze, features (ELMo) or cross_view "
        "(CVT).",
    )
    metric: str | None = option("NAME", "Metric that selects the best checkpoint.")
    positive_label: str | None = option("LABEL", "Positive class of binary F1.")
    source_prefix: list[str] | None = option("TEXT", "text: prefix of every input.")
    pattern: str | None = option("TEXT", "cloze: '{text} It was {answer}.'")
    verbalizer: str | None = option("LIST", "cloze: one word per class: bad,good.")
    null_score_diff_threshold: float | None = NULL_THRESHOLD
    num_sentences: int | None = option(
        "N", "extract: Sentences of a summary (default: as oracles have).", min=1, max=2**20
    )
    trigram_blocking: bool = flag(
        "--trigram-blocking", "extract: No sentence with a trigram of those chosen before."
    )
    dictionary: list[Path] | None = option(
        "FILE", "extract: One more label set, by replaced words. Repeatable."
    )
    label_weights: str | None = option(
        "LIST", "extract: Weight of each label set, the original first, or search, or learned."
    )
    replace_words: bool = flag(
        "--replace-words", "extract: Train on articles in the words of --dictionary too."
    )
    task_network: str | None = option(
        "NAME", "features: bilstm_tagger, bilstm_classifier, bcn or reader."
    )
    vectors: Path | None = option(
        "FILE", "features, cross_view: Word vectors (GloVe, word2vec) of the words."
    )
    feature_layers: str | None = option("NAME", "features: mixed, last or none (default: mixed).")
    output_features: bool = flag(
        "--output-features", "features: Add them after the task network's layers too."
    )
    train_backbone: bool = flag("--train-backbone", "features: Train the pretrained network too.")
    length: int | None = option("N", "Maximum input length in tokens.", max=MAX_TOKENS)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the formulation that were given; None for the others."""
        return {
            "pattern": self.pattern,
            "verbalizer": None if self.verbalizer is None else tuple(self.verbalizer.split(",")),
            "null_score_diff_threshold": self.null_score_diff_threshold,
            "num_sentences": self.num_sentences,
            "trigram_blocking": self.trigram_blocking or None,
            "dictionary": tuple(map(str, self.dictionary)) if self.dictionary else None,
            "label_weights": None if self.searches else parse_weights(self.label_weights),
            "replace_words": self.replace_words or None,
            "task_network": self.task_network,
            "vectors": None if self.vectors is None else str(self.vectors),
            "feature_layers": self.feature_layers,
            "output_features": self.output_features or None,
            "train_backbone": self.train_backbone or None,
        }

    @property
    def searches(self) -> bool:
        """Whether the weights of label sets are searched."""
        return self.label_weights == "search"


@dataclass(frozen=True)
class ModelOptions:
    """Options of the initial weights, of a teacher and of several seeds."""

    from_scratch: bool = flag("--from-scratch", "Ignore the pretrained weights.")
    tokenizer: Path | None = TOKENIZER
    teacher: Path | None = option(
        "RUN", "Distill from this fine-tuned model.", panel="Distillation"
    )
    distillation_weight: float | None = option(
        "X", "Weight of the distillation loss (default: 0.5).", panel="Distillation"
    )
    seeds: int | None = option(
        "N", "Run seeds 0 to N-1; report mean and standard deviation.", min=1, max=1000
    )


@dataclass(frozen=True)
class StageOptions:
    """Options of fine-tuning in stages."""

    stages: str | None = option(
        "LIST", "Train on general text, the task's text and its labels: general,target,task."
    )
    corpus: Path | None = option("DIR", "Corpus of the stage general.")

    def check_list(self) -> None:
        """Refuse an option in the place of the list, which would be read as its value."""
        if self.stages is not None and self.stages.startswith("-"):
            raise UsageError(
                f"--stages needs a list before {self.stages}: --stages general,target,task"
            )

    def check(self, data: DataOptions, start: ModelOptions, task: TaskOptions) -> None:
        """Refuse options that do not apply to stages."""
        if self.stages is None:
            if self.corpus is not None:
                raise UsageError("--corpus is read by the stage general: add --stages")
            return
        others = {
            "--suite": data.suite is not None,
            "several --train": len(data.train or ()) > 1,
            "--seeds": start.seeds is not None,
            "--teacher": start.teacher is not None,
            "--from-scratch": start.from_scratch,
            "--tokenizer": start.tokenizer is not None,
        }
        if given := [name for name, is_given in others.items() if is_given]:
            raise UsageError(f"--stages cannot be combined with {', '.join(given)}")


@command("kinfolk finetune runs/bert --train train.tsv --dev dev.tsv -o runs/triage", panel=TRAIN)
@option_group("data", DataOptions, panel="Labelled data")
@option_group("task_options", TaskOptions, panel="Task formulation")
@option_group("model_options", ModelOptions)
@option_group("stage_options", StageOptions, panel="Stages (ULMFiT)")
@field_options("finetuning", FineTuneConfig, panel="Fine-tuning")
@field_options(
    "training", TrainConfig, without=("minutes",), defaults=FINETUNE_DEFAULTS, help=FINETUNE_HELP
)
def finetune_command(
    context: typer.Context,
    model: str | None = typer.Argument(
        None,
        metavar="MODEL",
        help="Pretrained run or model folder, FAMILY[/SIZE] (random weights), or bilstm.",
    ),
    overrides: list[str] | None = OVERRIDES,
    *,
    data: DataOptions,
    task_options: TaskOptions,
    model_options: ModelOptions,
    stage_options: StageOptions,
    out: Path | None = RUN_FOLDER,
    resume: Path | None = RESUME,
    json: bool = JSON,
    finetuning: dict[str, Any],
    training: dict[str, Any],
) -> None:
    """Fine-tune a model on labelled data and keep the checkpoint with the best dev score.

    The task and the columns are detected from the file and printed; `--task` and `--columns`
    override them.
    """
    if resume is not None:
        first = resume / "seed-0" if (resume / "seed-0").is_dir() else resume
        check_resume(context, first, "finetune")
        finish_run(resume_runs(resume), json=json)
        return
    if model is None:
        raise UsageError("missing MODEL: a model folder, a family (see kinfolk members) or bilstm")
    if out is None:
        raise UsageError("missing -o RUN: the run folder to write")
    if model_options.seeds is not None and "seed" in training:
        raise UsageError("--seeds runs seeds 0 to N-1: it cannot be combined with --seed")
    if task_options.searches and (model_options.seeds is not None or data.suite is not None):
        raise UsageError("--label-weights search cannot be combined with --seeds and --suite")
    if task_options.label_weights in ("search", "learned") and not task_options.dictionary:
        raise UsageError(
            f"--label-weights {task_options.label_weights} needs a --dictionary, which makes a "
            "second label set"
        )
    if model_options.distillation_weight is not None and model_options.teacher is None:
        raise UsageError("--distillation-weight requires --teacher")
    stage_options.check_list()
    data.check(task_options)
    stage_options.check(data, model_options, task_options)
    model = model_or_family(model)
    if Path(model).exists():
        check_model_folder(model)
    if model_options.teacher is not None:
        check_model_folder(model_options.teacher)
    check_new_folder(out)
    keys = (
        FINETUNE_RECIPE_KEYS
        if stage_options.stages is None
        else (*FINETUNE_RECIPE_KEYS, *LM_STAGES)
    )
    check_overrides(overrides or [], {"train": TrainConfig, "finetune": FineTuneConfig}, keys)
    settings = [*as_settings(training, "train."), *as_settings(finetuning, "finetune.")]
    settings += overrides or []
    if stage_options.stages is not None:
        run = run_in_stages(model, data, task_options, stage_options, out, settings)
        print_scores(run / "task", json=json)
        return
    datasets = [] if data.suite is not None else data.read()  # before torch is imported
    messages = [message for dataset in datasets for message in dataset.messages()]
    train = training_function(
        model,
        model_options,
        task_options,
        out,
        unlabelled=data.unlabelled_files,
        settings=settings,
        seed=training.get("seed", 0),
    )
    if data.suite is not None:
        finetune_suite(data, train, out, device=training.get("device", "auto"), json=json)
        return
    for message in messages:
        note(message)
    finish_run(train(datasets, out, task_options.metric), json=json)


def finish_run(run: Path, *, json: bool) -> None:
    """Print the scores of a run that is complete, in one of its processes."""
    from kinfolk.training.distributed import Processes

    processes = Processes.from_environment()
    processes.disconnect()
    if processes.is_first:
        print_scores(run, json=json)


def run_in_stages(
    model: str,
    data: DataOptions,
    task: TaskOptions,
    options: StageOptions,
    out: Path,
    settings: Sequence[str],
) -> Path:
    """Train on text and then on labels, each stage in a folder of the run."""
    from kinfolk.workflows.finetuning.stages import check_stages, finetune_in_stages

    assert options.stages is not None
    stages = [name.strip() for name in options.stages.split(",")]
    unlabelled = data.unlabelled_files or ()
    check_stages(model, stages, options.corpus, unlabelled)
    for stage in LM_STAGES:
        own = [text.removeprefix(f"{stage}.") for text in settings if text.startswith(f"{stage}.")]
        check_overrides(own, {"train": TrainConfig}, ("model", "objective", "layer_lr_decay"))
    datasets = data.read()
    for message in datasets[0].messages():
        note(message)
    return finetune_in_stages(
        model,
        datasets[0],
        out,
        stages=stages,
        corpus=options.corpus,
        unlabelled=unlabelled,
        formulation=task.formulation,
        length=task.length,
        metric=task.metric,
        settings=settings,
        progress=lambda folder: progress_of(folder, out),
    )


def training_function(
    model: str,
    start: ModelOptions,
    task: TaskOptions,
    out: Path,
    *,
    unlabelled: Sequence[Path] | None,
    settings: Sequence[str],
    seed: int,
) -> "TrainFn":
    """Return the function that fine-tunes on datasets, with one seed or with several."""
    from kinfolk.workflows.finetuning import finetune as workflow
    from kinfolk.workflows.finetuning.label_search import search_label_weights
    from kinfolk.workflows.finetuning.recipe import parse_initial_weights
    from kinfolk.workflows.finetuning.seeds import run_seeds

    weights = parse_initial_weights(
        model, tokenizer=start.tokenizer, from_scratch=start.from_scratch
    )
    options = {**task.fields, "distillation_weight": start.distillation_weight}

    def train_once(
        datasets: Sequence["TaskDataset"],
        folder: Path,
        metric: str | None,
        seed: int,
        **more: Any,
    ) -> Path:
        with progress_of(folder, out) as progress:
            return workflow.finetune(
                replace(weights, seed=seed),
                datasets,
                folder,
                formulation=task.formulation,
                length=task.length,
                settings=[f"train.seed={seed}", *settings],
                teacher="" if start.teacher is None else str(start.teacher.resolve()),
                unlabelled=unlabelled,
                metric=metric,
                positive_label=task.positive_label,
                source_prefix=task.source_prefix or (),
                options=options | more,
                callbacks=[progress],
            )

    def train(datasets: Sequence["TaskDataset"], folder: Path, metric: str | None) -> Path:
        if task.searches:
            return search_label_weights(
                1 + len(task.dictionary or ()),
                folder,
                lambda weights, run: train_once(datasets, run, metric, seed, label_weights=weights),
            )
        if start.seeds is None:
            return train_once(datasets, folder, metric, seed)
        return run_seeds(
            start.seeds, folder, lambda seed, run: train_once(datasets, run, metric, seed)
        )

    return train


def parse_weights(text: str | None) -> tuple[float, ...] | str | None:
    """Parse numbers between commas; `learned` stays as it is."""
    if text is None or text == "learned":
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(
            f"--label-weights {text}: give a number for each label set, such as 0.5,0.5, or "
            "search or learned"
        ) from None


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
    """Resume a run, all runs of several seeds, or the stages of a run; return the scored run."""
    from kinfolk.workflows.finetuning import seeds
    from kinfolk.workflows.finetuning.stages import resume_stages
    from kinfolk.workflows.pretrain import resume

    if seeds.is_multi_seed(run):
        return seeds.resume_seeds(run, lambda inner: progress_of(inner, run))
    if read_type(run / "recipe.json") == "stages":
        return resume_stages(run, lambda inner: progress_of(inner, run)) / "task"
    with progress_of(run, run) as progress:
        return resume(run, callbacks=[progress])


def progress_of(run: Path, out: Path) -> AbstractContextManager["TerminalProgress"]:
    """Show the progress of a run, which may be one of several seeds in `out`."""
    from kinfolk.cli.run_progress import run_progress
    from kinfolk.training.distributed import Processes

    resume = Processes.from_environment().command(f"finetune --resume {quote(str(out))}")
    name = out.name if run == out else f"{out.name} {run.name}"
    return run_progress(name, resume)


def print_scores(run: Path, *, json: bool) -> None:
    """Print the dev scores of a run, and where its best model is."""
    from kinfolk.workflows.finetuning.label_search import is_label_search
    from kinfolk.workflows.finetuning.seeds import finite_or_none, read_scores
    from kinfolk.workflows.folders import find_model_folder

    best = find_model_folder(run)
    if is_label_search(run):
        print_label_search(run, best, json=json)
        return
    results = read_scores(run)
    if json:
        means = {name: results.mean(name) for name in results.names}
        values: dict[str, Any] = {
            "run": run,
            "model": best,
            "metric": results.metric,
            "dev": {name: finite_or_none(mean) for name, (mean, _) in means.items()},
            "baselines": results.baselines,
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
    print_line(f"best model: {path_from(run, best)}")
    print_line(f"next:       kinfolk evaluate {run} --test FILE")


def path_from(run: Path, best: Path) -> Path:
    """Return the best checkpoint as a path that begins with that of the run, by its link."""
    if not best.is_relative_to(run.resolve()):
        return best
    path = run / best.relative_to(run.resolve())
    link = path.with_name("best")
    return link if link.resolve() == best else path


def print_label_search(run: Path, best: Path, *, json: bool) -> None:
    """Print the dev score of each tried weighting of label sets, and the best model."""
    from kinfolk.tasks.task import format_score, metric_title
    from kinfolk.workflows.finetuning.label_search import read_search

    found = read_search(run)
    if json:
        print_json({"run": run, "model": best, **found})
        return
    metric = found["metric"]
    rows = table("label weights", *numbers(f"dev {metric_title(metric)}"))
    for candidate in found["candidates"]:
        weights = ", ".join(f"{weight:g}" for weight in candidate["label_weights"])
        rows.add_row(weights, format_score(metric, candidate["dev"][metric]))
    print_table(rows)
    print_line(f"best model: {path_from(run, best)}")
    print_line(f"next:       kinfolk evaluate {run} --test FILE")


def score_table(results: "SeedResults") -> Table:
    """Return the dev scores: a column per run, mean and std of several, then the baselines."""
    from kinfolk.tasks.baselines import BASELINE_TITLES
    from kinfolk.tasks.task import format_score, metric_title

    several = len(results.runs) > 1
    names = [run.name for run in results.runs] if several else ["dev"]
    names += ["mean", "std"] if several else []
    scores = table("", *numbers(*names, *(BASELINE_TITLES[name] for name in results.baselines)))
    for name in results.names:
        values = [run[name] for run in results.runs.values()]
        values += [*results.mean(name)] if several else []
        values += [baseline.get(name, math.nan) for baseline in results.baselines.values()]
        scores.add_row(metric_title(name), *(format_score(name, value) for value in values))
    return scores


def finetune_suite(
    data: DataOptions, train: "TrainFn", out: Path, *, device: str, json: bool
) -> None:
    """Fine-tune on every dataset of a suite, and print the scores."""
    from kinfolk.workflows.finetuning import suites

    assert data.suite is not None
    name, folder = data.suite
    chosen = suites.select_tasks(folder, data.tasks)
    skipped = [] if data.tasks is not None else suites.skipped_folders(folder, chosen)
    results = suites.run_suite(
        chosen, train, out, limit=data.limit, device=device, on_message=note, skipped=skipped
    )
    print_suite(name, results, json=json)


def print_suite(name: str, results: Sequence["SuiteResult"], *, json: bool) -> None:
    """Print the scores of all datasets of a suite, and their mean."""
    from kinfolk.tasks.task import metric_title
    from kinfolk.workflows.finetuning.suites import as_percent, suite_mean

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
