"""Going on from weights that are there: one's own model, or one from elsewhere, meets new text."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes.catalogue import Member, member_of, members
from kinfolk.recipes.opening import load, model_folder, pretrained
from kinfolk.recipes.recipe import (
    Recipe,
    Share,
    common,
    default_length,
    opened,
    recipe,
    roomy,
    settled,
)
from kinfolk.training.settings import Train


def begun(
    start: Path | str,
    corpus: Path | str | Sequence[Share],
    *,
    objective: str | None = None,
    length: int | None = None,
    settings: Sequence[str] = (),
) -> Recipe:
    """Put a run together that begins with fresh weights, by MEMBER/SIZE, or with those of a folder.

    A member's name is never a folder: write `./bert` for one that is called so.
    """
    asked: dict[str, Any] = {"objective": objective, "length": length, "settings": settings}
    family, slash, _ = str(start).partition("/")
    if family in members() or not (slash or Path(start).exists()):
        return recipe(str(start), corpus, **asked)
    if not Path(start).exists():
        close = did_you_mean(family, [*members()])
        raise UserError(f"{start} is neither a folder nor a member of the family: {close}")
    return continued(start, corpus, **asked)


def continued(
    folder: Path | str,
    corpus: Path | str | Sequence[Share],
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
    path = model_folder(folder)
    model, tokenizer = load(path)
    if isinstance(model, ModelWithHead):
        raise UserError(
            f"{folder} was fine-tuned for a task and has no words left to predict: go on from the "
            "model that it was made from"
        )
    named, corpora = opened(corpus)
    if common(corpora).hash != tokenizer.hash:
        raise UserError(
            f"{corpora[0].folder} was made with another tokenizer than {folder}: prepare the text "
            f"with --tokenizer {folder}"
        )
    who, before = member_of(model), pretrained(path)
    if length is None:
        length = before.objective.length if before is not None else default_length(model.config)
    roomy(corpora, length)
    words = {"specials": tokenizer.specials, "vocab": tokenizer.vocab, "length": length}
    base = Recipe(
        name=before.name if before is not None else f"{who.name}/{foreign(who, path.name)}",
        model=model.config,
        objective=dataclasses.replace(before.objective, **words)
        if before is not None and objective is None
        else who.objective(objective)(**words),
        corpus=named,
        train=habits(who, before),
        weights=str(path.resolve()),
    )
    return settled(base, settings)


def foreign(who: Member, folder: str) -> str:
    """Return what a model from elsewhere is called: never as a size, whose settings it has not."""
    return f"{folder}-continued" if folder in who.sizes else folder


def habits(who: Member, before: Recipe | None) -> Train:
    """Return the settings of a member's run: those of its size, where that is known."""
    size = "" if before is None else before.name.partition("/")[2]
    if size in who.sizes:
        return who.train(size)
    ours: Train = who.recipe.TRAIN
    return dataclasses.replace(ours, peak=who.recipe.PAPER.peak)
