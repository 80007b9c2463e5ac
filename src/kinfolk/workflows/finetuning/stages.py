"""Fine-tuning in stages (Howard and Ruder 2018): general text, the text of the task, the task.

RUN/recipe.json    what the stages are made from
RUN/general/       a run of pretraining on a corpus of general text
RUN/corpus/        the texts of the training rows, and other text of the task, tokenized
RUN/target/        a run of pretraining on that corpus, from the weights of the stage before
RUN/task/          a run of fine-tuning on the labelled rows, from the weights of the stage before
RUN/scores.json    those of the last stage, to which RUN/best is a link

A stage that is complete is skipped, one that was interrupted is resumed.
"""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from kinfolk.config import apply_overrides, config, did_you_mean, field, read_json, write_json
from kinfolk.data.corpus import Corpus
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.files import new_file, new_folder, replace_link
from kinfolk.tasks.dataset import RowSource, TaskDataset, as_datasets
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.unlabelled import UnlabelledText, unlabelled_text
from kinfolk.training import checkpoint
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.loop import Callback
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights
from kinfolk.workflows.finetuning.setup import fit_formulations, make_recipe
from kinfolk.workflows.folders import (
    RESUME_ADVICE,
    check_new_folder,
    exclusive_run,
    find_model_folder,
    load_tokenizer,
    model_or_family,
)
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import Settings, keyword_settings, settings_list
from kinfolk.workflows.recipe import recipe as pretraining_recipe

STAGES = ("general", "target", "task")
# Settings of the task that hold for the stages before it too.
SHARED_SETTINGS = ("train.seed", "train.device", "train.precision", "train.workers")
TARGET_EPOCHS = 5  # over the text of the task
TARGET_HOLDOUT = 0.05  # of the texts of the task, for the loss in the log
MIN_TEXTS = 200  # from which some are held out

RunProgress = Callable[[Path], AbstractContextManager[Callback]]


def quiet(folder: Path) -> AbstractContextManager[Callback]:
    """Show no progress."""
    return nullcontext(Callback())


@config("stages")
class StagesRecipe:
    """The model, the texts and the settings from which the stages of a run are made."""

    model: str = field(help="folder of the initial weights, or FAMILY/SIZE")
    stages: tuple[str, ...] = field(help="names of the stages, in their order")
    dataset: TaskDataset = field(group="file", help="labelled files")
    corpus: str = field(default="", help="folder of the corpus of general text")
    unlabelled: UnlabelledText | None = field(default=None, help="more text of the task")
    settings: tuple[str, ...] = field(
        default=(), help="settings of the task; those of other stages begin with their names"
    )
    formulation: str | None = field(default=None, help="formulation of the task; None: default")
    length: int | None = field(default=None, ge=1, help="longest input of the task in tokens")
    metric: str | None = field(default=None, help="metric that selects the best checkpoint")

    def settings_of(self, stage: str) -> list[str]:
        """Return the settings of one stage."""
        if stage == "task":
            return [text for text in self.settings if not text.startswith(LM_PREFIXES)]
        shared = [text for text in self.settings if text.partition("=")[0] in SHARED_SETTINGS]
        own = [text for text in self.settings if text.startswith(f"{stage}.")]
        return [*shared, *(text.removeprefix(f"{stage}.") for text in own)]


LM_PREFIXES = tuple(f"{stage}." for stage in STAGES[:-1])


def finetune_in_stages(
    model: Path | str,
    train: RowSource | TaskDataset,
    out: Path | str,
    *,
    stages: Sequence[str] = ("target", "task"),
    corpus: Path | str | None = None,
    unlabelled: Sequence[Path | str] = (),
    dev: RowSource | None = None,
    task: str | None = None,
    columns: str | None = None,
    formulation: str | None = None,
    length: int | None = None,
    metric: str | None = None,
    settings: Settings = (),
    progress: RunProgress = quiet,
    **fields: Any,
) -> Path:
    """Train a language model on the text of a task, then on its labels; return the run folder.

    `finetune_in_stages("runs/ulmfit", "train.tsv", "runs/reviews", dev="dev.tsv")`

    With the stage "general", the model is first trained on a corpus of general text. The stage
    "target" reads the texts of the training rows, and `unlabelled` files. Settings and keywords are
    those of the task; "target.train.steps=500" is one of the stage "target".
    """
    overrides = keyword_settings(fields, {"train": TrainConfig, "finetune": FineTuneConfig})
    overrides += settings_list(settings)
    out = Path(out)
    refuse_several()
    check_new_folder(out, RESUME_ADVICE)
    name = check_stages(str(model), stages, corpus, unlabelled)
    datasets = as_datasets(train, out, dev=dev, task=task, columns=columns)
    if len(datasets) > 1:
        raise UserError(f"stages take one training file, not {len(datasets)}: train on one task")
    recipe = StagesRecipe(
        model=name,
        stages=tuple(stages),
        dataset=datasets[0],
        corpus="" if corpus is None else str(Path(corpus).resolve()),
        unlabelled=unlabelled_text(unlabelled, datasets) if unlabelled else None,
        settings=tuple(overrides),
        formulation=formulation,
        length=length,
        metric=metric,
    )
    check_stage_settings(recipe)
    with new_folder(out) as folder:
        recipe.dataset.write_rows(folder)
        write_json(recipe, folder / "recipe.json")
    try:
        return run_stages(recipe, out, progress)
    except BaseException:
        if not any((out / stage).exists() for stage in stages):
            shutil.rmtree(out)  # nothing was started
        raise


def refuse_several() -> None:
    """Refuse the processes of torchrun: a stage prepares the text of the next one."""
    if Processes.from_environment().several:
        raise UserError(
            "stages run in one process: start them without torchrun, or each by its own kinfolk "
            "pretrain and kinfolk finetune with torchrun"
        )


def check_stages(
    model: str,
    stages: Sequence[str],
    corpus: Path | str | None,
    unlabelled: Sequence[Path | str],
) -> str:
    """Refuse stages that do not fit together; return the model, as a path if it is a folder."""
    for stage in stages:
        if stage not in STAGES:
            raise UserError(f"unknown stage {stage!r}: {did_you_mean(stage, STAGES)}")
    given = ",".join(stages)
    if [*stages] != [stage for stage in STAGES if stage in stages]:
        raise UserError(f"--stages {given}: their order is {', '.join(STAGES)}, each at most once")
    if "task" not in stages:
        raise UserError(
            f"--stages {given} does not end with the task: add it, or train on text alone with "
            "kinfolk pretrain"
        )
    if ("general" in stages) != (corpus is not None):
        raise UserError(
            "the stage general and its --corpus DIR belong together: give both, or neither"
        )
    if unlabelled and "target" not in stages:
        raise UserError("--unlabelled text is read by the stage target: add it to --stages")
    if corpus is not None:
        Corpus.open(Path(corpus))
    model = model_or_family(model)
    if Path(model).exists():
        return str(find_model_folder(model).resolve())
    if "general" not in stages and "target" in stages:
        raise UserError(
            f"{model} has new weights, and the stage target continues pretrained ones: give the "
            "folder of a model, or add the stage general with --corpus"
        )
    return model


def check_stage_settings(recipe: StagesRecipe) -> None:
    """Refuse settings that a later stage would refuse, before the first one starts."""
    for stage in STAGES[:-1]:
        own = recipe.settings_of(stage)
        train_settings = [text.removeprefix("train.") for text in own if text.startswith("train.")]
        apply_overrides(TrainConfig(), train_settings)
    start, settings = parse_initial_weights(recipe.model), recipe.settings_of("task")
    datasets = [recipe.dataset]
    backbone, tokenizer = start.open([recipe.dataset.splits[0]])
    formulations = fit_formulations(
        *(datasets, backbone, tokenizer, recipe.formulation, settings),
        metric=recipe.metric or "",
        length=recipe.length,
    )
    make_recipe(start, backbone, formulations, datasets, "", settings, None)


def resume_stages(out: Path, progress: RunProgress = quiet) -> Path:
    """Continue a run with its first stage that is not complete."""
    if (out / "scores.json").is_file():
        raise UserError(f"run {out} is complete: start a new run to train longer")
    recipe: Any = read_json(out / "recipe.json")
    return run_stages(recipe, out, progress)


def run_stages(recipe: StagesRecipe, out: Path, progress: RunProgress) -> Path:
    """Run the stages that are not complete, each from the weights of the one before."""
    weights = recipe.model
    refuse_several()
    with exclusive_run(out):
        for stage in recipe.stages:
            folder = out / stage
            if not is_stage_complete(folder):
                with progress(folder) as callback:
                    run_stage(stage, recipe, weights, folder, callback)
            weights = str(folder)
    shutil.copyfile(out / "task" / "scores.json", out / "scores.json")
    replace_link(out / "best", "task")
    return out


def run_stage(
    stage: str, recipe: StagesRecipe, weights: str, folder: Path, callback: Callback
) -> None:
    """Start a stage, or resume it where it was interrupted."""
    if (folder / "recipe.json").is_file():
        resume(folder, callbacks=[callback])
        return
    settings = recipe.settings_of(stage)
    if stage == "task":
        finetune(
            weights,
            [recipe.dataset],
            folder,
            formulation=recipe.formulation,
            length=recipe.length,
            metric=recipe.metric,
            settings=settings,
            callbacks=[callback],
        )
        return
    corpus = Path(recipe.corpus)
    if stage == "target":
        corpus = target_corpus(recipe, weights, folder.parent)
        settings = target_settings(weights, corpus, settings)
    pretrain(pretraining_recipe(weights, corpus, settings=settings), folder, callbacks=[callback])


def is_stage_complete(folder: Path) -> bool:
    """Return whether a run has ended and has its report."""
    newest = checkpoint.latest_valid(folder) if folder.is_dir() else None
    if newest is None or not (folder / "report.html").is_file():
        return False
    return bool(checkpoint.load_training_state(newest)["finished"])


def target_corpus(recipe: StagesRecipe, weights: str, out: Path) -> Path:
    """Tokenize the texts of the training rows, and other text of the task."""
    corpus = out / "corpus"
    if not (corpus / "corpus.json").is_file():
        more = () if recipe.unlabelled is None else recipe.unlabelled.rows
        rows = [*recipe.dataset.splits[0], *more]
        texts = [" ".join(r.texts) if isinstance(r, LabelledText) else r.text for r in rows]
        with new_file(out / "texts.jsonl") as file:
            for text in texts:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        holdout = TARGET_HOLDOUT if len({*texts}) >= MIN_TEXTS else 0.0
        tokenizer = load_tokenizer(weights)
        prepare(out / "texts.jsonl", tokenizer, corpus, field="text", holdout=holdout)
    return corpus


def target_settings(weights: str, corpus: Path, settings: Sequence[str]) -> list[str]:
    """Return the settings of training on the text of a task, the given ones last."""
    base = pretraining_recipe(weights, corpus, settings=settings)
    known, rows = family_of(base.model), base.train.batch_size * base.objective.max_length
    steps = max(1, math.ceil(TARGET_EPOCHS * Corpus.open(corpus).tokens / rows))
    given = [text for text in settings if text.startswith("train.steps=")]
    if given:
        steps = base.train.steps
    defaults = {
        "train.steps": steps,
        "train.warmup": max(1, steps // 10),
        "train.eval_every": max(1, steps // 4),
        "layer_lr_decay": known.finetuning.layer_lr_decay,
    }
    if known.finetune_training is not None:
        defaults["train.schedule"] = known.finetune_training.schedule
    return [*(f"{path}={value}" for path, value in defaults.items()), *settings]
