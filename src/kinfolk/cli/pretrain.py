"""The command `pretrain`: train a model on a corpus or on sentence pairs, or resume a run."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinfolk.cli.app import (
    TRAIN,
    AsJson,
    Resume,
    RunFolder,
    TokenizerPath,
    command,
    note,
    option,
    print_json,
)
from kinfolk.cli.members import parameter_count
from kinfolk.cli.options import (
    Overrides,
    UsageError,
    check_overrides,
    check_resume,
    field_options,
)
from kinfolk.cli.progress import duration
from kinfolk.cli.tables import print_table, table
from kinfolk.config import as_settings
from kinfolk.errors import UserError
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.folders import check_new_folder

if TYPE_CHECKING:
    from kinfolk.workflows.recipe import CorpusShare, Recipe

KEYS = ("model", "objective", "corpus", "init_from", "name")  # of a recipe, beside train
PAIRS = "Sentence pairs (translation)"
Source = Annotated[Path | None, option("FILE", "Source sentences, one per line.", PAIRS)]
Target = Annotated[Path | None, option("FILE", "Target sentences, aligned line by line.", PAIRS)]
Pairs = Annotated[Path | None, option("FILE", "Source and target in one TSV file.", PAIRS)]
SourcePrefix = Annotated[str | None, option("TEXT", "Text put before every source.", PAIRS)]


@command("kinfolk pretrain gpt2/tiny --corpus corpus -o runs/gpt2 --lr 2e-3", panel=TRAIN)
@field_options("train", TrainConfig)
def pretrain(
    context: typer.Context,
    train: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="FAMILY[/SIZE] to train from scratch (see kinfolk members), or a model folder to "
            "continue from.",
        ),
    ] = None,
    overrides: Overrides = None,
    corpus: Annotated[
        list[str] | None,
        option("DIR[=WEIGHT]", "Corpus from kinfolk prepare. Repeat to mix: news=0.7, law=0.3."),
    ] = None,
    out: RunFolder = None,
    recipe: Annotated[
        Path | None,
        option("FILE", "Recipe (JSON or YAML) in place of MODEL; options and KEY=VALUE override."),
    ] = None,
    resume: Resume = None,
    objective: Annotated[str | None, option("NAME", "Training objective (see members).")] = None,
    length: Annotated[int | None, option("N", "Sequence length in tokens.")] = None,
    help_fields: Annotated[
        bool, option("", "List model.* and objective.* fields of MODEL.", None, "--help-fields")
    ] = False,
    source: Source = None,
    target: Target = None,
    pairs: Pairs = None,
    dev_source: Annotated[
        Path | None, option("FILE", "Development sources; BLEU is reported.", PAIRS)
    ] = None,
    dev_target: Annotated[Path | None, option("FILE", "Development targets.", PAIRS)] = None,
    dev_pairs: Annotated[Path | None, option("FILE", "Both in one TSV file.", PAIRS)] = None,
    vocab_size: Annotated[
        int | None,
        option("N", "Size of the joint BPE vocabulary (default: 8192, or what fits).", PAIRS),
    ] = None,
    tokenizer: TokenizerPath = None,
    source_prefix: SourcePrefix = None,
    json: AsJson = False,
) -> None:
    """Pretrain a model on a corpus.

    MODEL is FAMILY[/SIZE] for random weights (gpt2/tiny), or a run, checkpoint or Hugging Face
    folder for continued pretraining on a corpus that was prepared with its tokenizer. The defaults
    shown below are replaced by those of the family and the size; RUN/recipe.json holds all values.
    Every training option is also a field of the recipe: `--lr 1e-3` is `train.lr=1e-3`.

    With sentence pairs an encoder-decoder is trained to translate: the tokenizer and the corpus are
    made in the run folder.
    """
    if help_fields:
        print_fields(model)
        return
    if resume is not None:
        check_resume(context, resume, "pretrain")
        finish(resume, recipe_of_run(resume), json=json)
        return
    from kinfolk.families import check_name
    from kinfolk.workflows.recipe import parse_corpora

    pair_options: dict[str, Any] = {
        "source": source,
        "target": target,
        "pairs": pairs,
        "dev_source": dev_source,
        "dev_target": dev_target,
        "dev_pairs": dev_pairs,
        "vocab_size": vocab_size,
        "prefix": source_prefix,
    }
    texts = None
    if any(value is not None for value in pair_options.values()):
        from kinfolk.workflows.parallel import parallel_data

        texts = parallel_data(**pair_options, tokenizer=tokenizer)
    if model is None and recipe is None:
        raise UsageError("missing MODEL: a family (see kinfolk members), a folder or --recipe FILE")
    if recipe is not None:
        if not recipe.is_file():
            raise UserError(f"no such file: {recipe}")
        model, overrides = None, [*([] if model is None else [model]), *(overrides or [])]
        if any(value is not None for value in (objective, length, texts, tokenizer)):
            raise UsageError(
                "--recipe excludes --objective, --length, --tokenizer and sentence pairs"
            )
    if model is not None and not Path(model).exists():
        check_name(model)
    if out is None:
        raise UsageError("missing -o RUN: the run folder to write")
    if not (corpus or texts or recipe):
        raise UsageError("missing --corpus DIR: a corpus from kinfolk prepare")
    if corpus and texts:
        raise UsageError("--corpus cannot be combined with sentence pairs")
    if texts is not None:
        texts.check()
    mixture = parse_corpora(corpus or [])
    for share in mixture:
        share.open()
    check_new_folder(out)
    check_overrides(overrides or [], {"train": TrainConfig}, KEYS)
    changes = [*as_settings(train, "train."), *(overrides or [])]
    from kinfolk.workflows import translate
    from kinfolk.workflows.recipe import recipe as make_recipe

    chosen: Recipe
    if recipe is not None:
        chosen = read_recipe(recipe, mixture, changes)
    elif texts is not None:
        assert model is not None
        chosen = translate.prepare_translation_run(
            model, texts, out, objective=objective, length=length, settings=changes, on_message=note
        )
        finish(out, chosen, json=json)
        return
    else:
        assert model is not None
        chosen = make_recipe(
            model,
            mixture,
            objective=objective,
            length=length,
            tokenizer=tokenizer,
            settings=changes,
        )
    finish(out, chosen, json=json, is_new=True)


def read_recipe(path: Path, corpora: Sequence["CorpusShare"], changes: Sequence[str]) -> "Recipe":
    """Return the recipe in a file, with another corpus and other settings where they are given."""
    from dataclasses import replace

    from kinfolk.workflows.recipe import Recipe, finalize, open_corpora

    recipe = Recipe.read(path)
    if corpora:
        recipe = replace(recipe, corpus=open_corpora(corpora)[0])
    return finalize(recipe, changes)


def recipe_of_run(run: Path) -> "Recipe":
    """Return the recipe of a run."""
    from kinfolk.workflows.recipe import Recipe

    return Recipe.read(run / "recipe.json")


def finish(run: Path, recipe: "Recipe", *, json: bool, is_new: bool = False) -> None:
    """Train to the end, from the start or from the last checkpoint, and print what was made."""
    from kinfolk.cli.run_progress import run_progress
    from kinfolk.training.log import read, speed
    from kinfolk.workflows import pretrain as workflow
    from kinfolk.workflows import translate

    began, resume = time.monotonic(), f"kinfolk pretrain --resume {run}"
    with run_progress(recipe.name, resume, header(recipe)) as progress:
        if is_new:
            workflow.pretrain(recipe, run, callbacks=[progress])
        else:
            workflow.resume(run, callbacks=[progress])
    page, score = run / "report.html", translate.score(run)
    if json:
        values = {"run": str(run), "report": str(page), "tokens_per_second": speed(run)}
        print_json({**values, **(score or {})})
        return
    losses = [line["eval_loss"] for line in read(run) if "eval_loss" in line]
    loss = f", eval_loss {losses[-1]:.3f}" if losses else ""
    print(f"done: {recipe.train.steps:,} steps in {duration(time.monotonic() - began)}{loss}")
    if score is not None:
        print(f"BLEU {score['bleu']:.1f} on {score['pairs']:,} pairs ({score['signature']})")
    print(f"model:  {run}/checkpoints/last")
    print(f"report: {page}")
    print(f"next:   kinfolk evaluate {run} --text FILE")


def header(recipe: "Recipe") -> list[str]:
    """Return three lines about a run: the model, the data, the training settings."""
    from kinfolk.config import type_name
    from kinfolk.training.run import select_device

    train, length = recipe.train, recipe.objective.max_length
    device = select_device(train.device)
    automatic = "bf16" if device.type == "cuda" else "fp32"
    precision = {"float32": "fp32", "bfloat16": "bf16"}.get(train.precision, automatic)
    corpora = [share.open() for share in recipe.corpora]
    tokens = sum(corpus.tokens for corpus in corpora)
    documents = sum(corpus.documents for corpus in corpora)
    epochs = train.steps * train.batch_size * length / max(tokens, 1)
    return [
        f"{recipe.name}: {parameter_count(recipe.model) / 1e6:.1f}M parameters, objective "
        f"{type_name(recipe.objective)}, {device.type} {precision}",
        f"corpus: {tokens:,} tokens, {documents:,} documents; {train.steps:,} steps of "
        f"{train.batch_size} sequences of {length} tokens: about {epochs:.1f} epochs",
        f"lr {train.lr:g} {train.schedule}, warmup {train.warmup:,}, weight decay "
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
        for field in describe(cls):
            default = values.get(field.name, field.default)
            shown = default if isinstance(default, int | float | str | tuple) else ""
            rows.add_row(f"{title.split()[0]}.{field.name}", str(shown), field.rule, field.help)
        print_table(rows, title)
