"""Going on from weights that are there: one's own model, or one from elsewhere, meets new text."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.families import check_name, family_of, index
from kinfolk.families.base import Family
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load, recipe_of
from kinfolk.workflows.recipe import (
    CorpusShare,
    Recipe,
    check_corpus_size,
    default_length,
    finalize,
    opened,
    recipe,
    shared_tokenizer,
)


def begun(
    start: Path | str,
    corpus: Path | str | Sequence[CorpusShare],
    *,
    objective: str | None = None,
    length: int | None = None,
    settings: Sequence[str] = (),
) -> Recipe:
    """Put a run together that begins with fresh weights, by MEMBER/SIZE, or with those of a folder.

    A member's name is never a folder: write `./bert` for one that is called so.
    """
    asked: dict[str, Any] = {"objective": objective, "length": length, "settings": settings}
    family, _, _ = str(start).partition("/")
    if family in index() or not Path(start).exists():
        check_name(str(start))
        return recipe(str(start), corpus, **asked)
    return continue_from(start, corpus, **asked)


def continue_from(
    folder: Path | str,
    corpus: Path | str | Sequence[CorpusShare],
    *,
    objective: str | None = None,
    length: int | None = None,
    settings: Sequence[str] = (),
) -> Recipe:
    """Put a run together that goes on from a run, a checkpoint or a model folder.

    The corpus must speak in the model's own tokens. What is not said of rows and of the way of
    learning is as it was in the run that made the model, else the member's own; the settings are
    those of its size, and for a model from elsewhere ours at the rate of the paper.
    """
    path = find_model_folder(folder)
    model, tokenizer = load(path)
    if isinstance(model, ModelWithHead):
        raise UserError(
            f"{folder} was fine-tuned for a task and has no words left to predict: go on from the "
            "model that it was made from"
        )
    named, corpora = opened(corpus)
    if shared_tokenizer(corpora).fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{corpora[0].folder} was made with another tokenizer than {folder}: prepare the text "
            f"with --tokenizer {folder}"
        )
    who, before = family_of(model), recipe_of(path)
    if length is None:
        length = before.objective.max_length if before is not None else default_length(model.config)
    check_corpus_size(corpora, length)
    words = {
        "special_tokens": tokenizer.special_tokens,
        "vocab_size": tokenizer.vocab_size,
        "max_length": length,
    }
    base = Recipe(
        name=before.name if before is not None else f"{who.name}/{foreign(who, path.name)}",
        model=model.config,
        objective=dataclasses.replace(before.objective, **words)
        if before is not None and objective is None
        else who.objective(objective)(**words),
        corpus=named,
        train=default_train_config(who, before),
        init_from=str(path.resolve()),
    )
    return finalize(base, settings)


def foreign(who: Family, folder: str) -> str:
    """Return what a model from elsewhere is called: never as a size, whose settings it has not."""
    return f"{folder}-continued" if folder in who.sizes else folder


def default_train_config(who: Family, before: Recipe | None) -> TrainConfig:
    """Return the settings of a family's run: those of its size, where that is known."""
    size = "" if before is None else before.name.partition("/")[2]
    if size in who.sizes:
        return who.train(size)
    paper = next(iter(who.paper_training.values()), who.training)
    return dataclasses.replace(who.training, lr=paper.lr)
