"""The command `pretrain`: train a model on a corpus or on sentence pairs, or resume a run."""

import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from kinfolk.cli.app import (
    JSON,
    MAX_TOKENS,
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
from kinfolk.cli.output import duration, note, print_json, print_line, print_table, table
from kinfolk.cli.pair_options import PAIRS, TranslationOptions
from kinfolk.config import apply_overrides, as_settings
from kinfolk.errors import UserError
from kinfolk.families import check_objective
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.folders import check_model_folder, check_new_folder, model_or_family

if TYPE_CHECKING:
    from kinfolk.workflows.recipe import CorpusShare, Recipe
    from kinfolk.workflows.translation.parallel import SentencePairs

# Of a recipe, beside train.
PRETRAIN_RECIPE_KEYS = ("model", "objective", "corpus", "init_from", "vectors", "name")


@command("kinfolk pretrain gpt2/tiny --corpus corpus -o runs/gpt2 --lr 2e-3", panel=TRAIN)
@option_group("translation", TranslationOptions, panel=PAIRS)
@field_options("train", TrainConfig)
def pretrain_command(
    context: typer.Context,
    model: str | None = typer.Argument(
        None,
        metavar="MODEL",
        help="FAMILY[/SIZE] to train from scratch (see kinfolk members), or a model folder to "
        "continue from.",
    ),
    overrides: list[str] | None = OVERRIDES,
    corpus: list[str] | None = option(
        "DIR[=WEIGHT]", "Corpus from kinfolk prepare. Repeat to mix: news=0.7, law=0.3."
    ),
    out: Path | None = RUN_FOLDER,
    recipe: Path | None = option(
        "FILE", "Recipe (JSON or YAML) in place of MODEL; options and KEY=VALUE override."
    ),
    resume: Path | None = RESUME,
    objective: str | None = option("NAME", "Training objective (see members)."),
    length: int | None = option("N", "Sequence length in tokens.", max=MAX_TOKENS),
    tokenizer: Path | None = TOKENIZER,
    vectors: Path | None = option(
        "FILE", "Word vectors (GloVe, word2vec) that token embeddings start from."
    ),
    fast: bool = flag(
        "--fast",
        "Set the family's fast recipe: optimizer, learning rates, weight decay and schedule.",
    ),
    help_fields: bool = flag("--help-fields", "List model.* and objective.* fields of MODEL."),
    *,
    translation: TranslationOptions,
    json: bool = JSON,
    train: dict[str, Any],
) -> None:
    """Pretrain a model on a corpus.

    MODEL is FAMILY[/SIZE] for random weights (gpt2/tiny), or a run, checkpoint or Hugging Face
    folder for continued pretraining on a corpus that was prepared with its tokenizer. The defaults
    shown below are replaced by those of the family and the size, and some of these with --fast;
    RUN/recipe.json holds all values.
    Every training option is also a field of the recipe: `--lr 1e-3` is `train.lr=1e-3`.

    With sentence pairs an encoder-decoder is trained to translate: the tokenizer and the corpus are
    made in the run folder; a model folder keeps its tokenizer. With --pair it learns several
    languages, in both directions, and translates from any of them into any other.
    """
    if help_fields:
        print_fields(model)
        return
    if resume is not None:
        check_resume(context, resume, "pretrain")
        from kinfolk.workflows.recipe import Recipe

        finish(resume, Recipe.read(resume / "recipe.json"), json=json)
        return
    pairs = translation.sentence_pairs(tokenizer)
    if recipe is not None:
        if not recipe.is_file():
            raise UserError(f"no such file: {recipe}")
        made = (objective, length, tokenizer, vectors, pairs)
        if fast or any(value is not None for value in made):
            raise UsageError(
                "--recipe excludes --objective, --length, --tokenizer, --vectors, --fast and "
                "sentence pairs"
            )
        if model is not None:  # the first KEY=VALUE stands in the place of MODEL
            overrides, model = [model, *(overrides or [])], None
    elif model is None:
        raise UsageError("missing MODEL: a family (see kinfolk members), a folder or --recipe FILE")
    else:
        model = model_or_family(model)
        check_objective(model, objective)
        if Path(model).exists():
            check_model_folder(model)
    if out is None:
        raise UsageError("missing -o RUN: the run folder to write")
    mixture = check_data(corpus or [], pairs, required=recipe is None)
    check_new_folder(out)
    check_overrides(overrides or [], {"train": TrainConfig}, PRETRAIN_RECIPE_KEYS)
    settings = [*as_settings(train, "train."), *(overrides or [])]
    check_one_length(settings)
    chosen: Recipe
    if model is None:
        assert recipe is not None
        chosen = read_recipe(recipe, mixture, settings)
    elif pairs is None:
        from kinfolk.workflows.recipe import recipe as make_recipe

        chosen = make_recipe(
            model,
            mixture,
            objective=objective,
            length=length,
            tokenizer=tokenizer,
            vectors=vectors,
            fast=fast,
            settings=settings,
        )
    else:
        chosen = translation_recipe(
            model,
            pairs,
            out,
            objective=objective,
            length=length,
            vectors=vectors,
            fast=fast,
            settings=settings,
        )
    finish(out, chosen, json=json, is_new=pairs is None)


def translation_recipe(
    model: str, pairs: "SentencePairs", out: Path, *, settings: Sequence[str], **options: Any
) -> "Recipe":
    """Make the tokenizer and the corpus of a translation model in `out`; return its recipe.

    Of several processes the first does it.
    """
    from kinfolk.training.distributed import Processes
    from kinfolk.training.workload import select_device
    from kinfolk.workflows.translation.translate import prepare_translation_run

    processes = Processes.from_environment()
    processes.connect(
        select_device(apply_overrides(TrainConfig(), train_settings(settings)).device)
    )
    return processes.from_first(
        lambda: prepare_translation_run(
            model, pairs, out, settings=settings, on_message=note, **options
        )
    )


def train_settings(settings: Sequence[str]) -> list[str]:
    """Return the settings of training, without their group."""
    return [text.removeprefix("train.") for text in settings if text.startswith("train.")]


def check_one_length(settings: Sequence[str]) -> None:
    """Refuse both steps and minutes, before torch is imported."""
    from kinfolk.workflows.recipe import with_one_length

    with_one_length(apply_overrides(TrainConfig(), train_settings(settings)), settings)


def check_data(
    corpora: Sequence[str], pairs: "SentencePairs | None", *, required: bool
) -> list["CorpusShare"]:
    """Return the corpora with their weights; refuse folders and pairs that cannot be read."""
    if required and not corpora and pairs is None:
        raise UsageError("missing --corpus DIR: a corpus from kinfolk prepare")
    if corpora and pairs is not None:
        raise UsageError("--corpus cannot be combined with sentence pairs")
    if pairs is not None:
        pairs.check()
    from kinfolk.workflows.recipe import parse_corpora

    mixture = parse_corpora(corpora)
    for share in mixture:
        share.open()
    return mixture


def read_recipe(path: Path, corpora: Sequence["CorpusShare"], changes: Sequence[str]) -> "Recipe":
    """Return the recipe in a file, with another corpus and other settings where they are given."""
    from dataclasses import replace

    from kinfolk.workflows.recipe import Recipe, finalize, open_corpora

    recipe = Recipe.read(path)
    if corpora:
        recipe = replace(recipe, corpus=open_corpora(corpora)[0])
    return finalize(recipe, changes)


def finish(run: Path, recipe: "Recipe", *, json: bool, is_new: bool = False) -> None:
    """Train to the end, from the start or from the last checkpoint, and print what was made."""
    from kinfolk.cli.run_progress import format_loss, run_progress
    from kinfolk.training.distributed import Processes
    from kinfolk.training.log import read, speed
    from kinfolk.workflows import pretrain as workflow
    from kinfolk.workflows.translation import translate

    began, processes = time.monotonic(), Processes.from_environment()
    resume = processes.command(f"pretrain --resume {quote(str(run))}")

    def settings_in_use() -> list[str]:
        return header(type(recipe).read(run / "recipe.json"))  # is there by the first step

    with run_progress(recipe.name, resume, settings_in_use) as progress:
        if is_new:
            workflow.pretrain(recipe, run, callbacks=[progress])
        else:
            # A run without its score is not complete, even if it has its report.
            if processes.is_first and translate.is_unscored(run):
                (run / "report.html").unlink(missing_ok=True)
            workflow.resume(run, callbacks=[progress])
    processes.disconnect()
    if not processes.is_first:
        return
    page, score = run / "report.html", translate.score(run)
    if json:
        values = {"run": run, "report": page, "tokens_per_second": speed(run)}
        print_json({**values, **(score or {})})
        return
    scored = [line for line in read(run) if line.get("eval_loss") is not None]
    loss = ""
    if scored:
        parts = scored[-1].get("eval_losses") or {}
        loss = f", eval_loss {format_loss(scored[-1]['eval_loss'], parts)}"
    steps = recipe.train.steps if recipe.train.minutes is None else read(run)[-1]["step"]
    print(f"done: {steps:,} steps in {duration(time.monotonic() - began)}{loss}")
    if score is not None:
        for line in translate.score_lines(score):
            print_line(line)
    print_line(f"model:  {run}/checkpoints/last")
    print_line(f"report: {page}")
    for heading, line in zip(("next:", ""), next_commands(run, recipe), strict=False):
        print_line(f"{heading:7} {line}")


def next_commands(run: Path, recipe: "Recipe") -> list[str]:
    """Return commands that use the model of a run."""
    from kinfolk.config import type_name

    folder = quote(str(run))
    if type_name(recipe.objective) != "pairs":
        return [f"kinfolk evaluate {folder} --text FILE"]
    if recipe.directions:
        return [f"kinfolk translate {folder} FILE --to LANGUAGE"]
    return [
        f"kinfolk translate {folder} FILE",
        f"kinfolk evaluate {folder} --source FILE --target FILE",
    ]


def header(recipe: "Recipe") -> list[str]:
    """Return lines about a run: the objective, the data, the training settings.

    The estimate before them has the size of the model, and the epochs.
    """
    from kinfolk.config import type_name
    from kinfolk.training.workload import select_device

    train, length = recipe.train, recipe.objective.max_length
    corpora = [share.open() for share in recipe.corpora]
    tokens = sum(corpus.tokens for corpus in corpora)
    documents = sum(corpus.documents for corpus in corpora)
    if (orders := recipe.model.counting_steps) is not None:
        return [
            f"{recipe.name}: n-grams of 1 to {orders} tokens, counted, without gradients",
            f"corpus: {tokens:,} tokens, {documents:,} documents",
        ]
    device = select_device(train.device)
    automatic = "bf16" if device.type == "cuda" else "fp32"
    count = f"{train.steps:,} steps"
    if train.minutes is not None:  # by the clock
        count = f"{train.minutes:g} {'minute' if train.minutes == 1 else 'minutes'} of steps"
    matrices = ""
    if train.optimizer == "muon":
        matrices = f" (matrices of layers: muon, {train.matrix_lr:g})"
    precision = {"float32": "fp32", "bfloat16": "bf16"}.get(train.precision, automatic)
    return [
        f"objective {type_name(recipe.objective)}, {device.type} {precision}",
        f"corpus: {tokens:,} tokens, {documents:,} documents; {count} of "
        f"{train.batch_size} sequences of {length} tokens",
        f"lr {train.lr:g}{matrices} {train.schedule}, warmup {train.warmup:,}, weight decay "
        f"{train.weight_decay:g}; checkpoint every {train.save_every:,} steps",
    ]


def print_fields(model: str | None) -> None:
    """Print the fields of the network and of the objectives of a family."""
    if model is None:
        raise UsageError("--help-fields needs MODEL, such as gpt2")
    from kinfolk.config import describe
    from kinfolk.families import family

    name, _, size = model.partition("/")
    chosen = family(name)
    config = chosen.config(size or "tiny")
    classes = {"model": type(config)}
    classes |= {f"objective ({name})": chosen.objective(name) for name in chosen.objectives}
    for title, cls in classes.items():
        rows = table("field", "default", "value", "meaning")
        values = vars(config) if title == "model" else {}
        for field in describe(cls).values():
            default = values.get(field.name, field.default)
            shown = default if isinstance(default, int | float | str | tuple) else ""
            rows.add_row(f"{title.split()[0]}.{field.name}", str(shown), field.rule, field.help)
        print_table(rows, title)
