"""The languages of a translation model, and the tags by which a text reaches one of them."""

from pathlib import Path

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.recipe import recipe_of

Route = list[tuple[int, ...]]  # the tags before the sources of each pass


def target_languages(path: Path | str, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the languages that a model translates into; none where it has one pair alone.

    A folder without a recipe has those of its vocabulary.
    """
    recipe = recipe_of(find_model_folder(path).resolve())
    if recipe is None:
        return tuple(sorted(tokenizer.language_tags))
    return tuple(sorted({direction.partition("-")[2] for direction in recipe.directions}))


def find_route(
    path: Path | str, tokenizer: Tokenizer, to: str | None, pivot: str | None = None
) -> Route:
    """Return the tags of each pass: one into a language, two through a pivot."""
    known = target_languages(path, tokenizer)
    if not known:
        for option, value in (("--to", to), ("--pivot", pivot)):
            if value is not None:
                raise UserError(
                    f"{option} {value} does not apply to {path}, which was not trained with "
                    "--pair and has one direction: remove it"
                )
        return [()]
    if to is None:
        raise UserError(f"{path} translates into {', '.join(known)}: choose one with --to")
    if pivot == to:
        raise UserError(f"--pivot {pivot} is the language of --to: remove it, or name another")
    for name in (to, pivot):
        if name is not None and name not in known:
            raise UserError(f"unknown language {name!r}: {path} translates into {', '.join(known)}")
    return [(tokenizer.language_tags[name],) for name in (pivot, to) if name is not None]
