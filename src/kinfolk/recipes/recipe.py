"""A recipe: one frozen value that describes a whole run."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfolk.config import from_json, override, to_json
from kinfolk.data.shards import Corpus
from kinfolk.errors import UserError
from kinfolk.recipes.catalogue import member
from kinfolk.training.settings import Train


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The network, the way of learning, the text and the settings of a run."""

    name: str  # member/size
    model: Any
    objective: Any
    corpus: str
    train: Train

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        text = json.dumps(to_json(self), indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Recipe":
        """Read what `write` wrote."""
        try:
            recipe = from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UserError(f"{path.parent} is not a run: it has no {path.name}") from None
        except json.JSONDecodeError as error:
            raise UserError(f"{path} is not JSON: {error}") from None
        if not isinstance(recipe, Recipe):
            raise UserError(f"{path} holds no recipe: write it again, or begin a new run")
        return recipe


def recipe(
    name: str,
    corpus: Path | str,
    *,
    objective: str | None = None,
    length: int | None = None,
    settings: Sequence[str] = (),
) -> Recipe:
    """Put a run together: `recipe("bert/tiny", "corpus", settings=["train.steps=500"])`.

    What is not given follows from the size: its settings, and rows as long as its context, but not
    longer than a model of that width makes use of.
    """
    family, _, size = name.partition("/")
    who, size = member(family), size or "tiny"
    text = Corpus.open(Path(corpus))
    tokenizer = text.tokenizer()
    config = who.config(size)
    length = default_length(config) if length is None else length
    if length < 8:
        raise UserError(f"rows of {length} tokens are too short to learn from: use 8 or more")
    if text.tokens < length:
        raise UserError(
            f"the corpus {corpus} has {text.tokens} tokens, fewer than one row of {length}: "
            f"give it more text, or shorter rows with --length"
        )
    # Places that no row reaches would stay as random as they began: the context ends with the row.
    sizes = {"vocab": tokenizer.vocab, "context": length, "start": tokenizer.specials.pad}
    sizes = {name: size for name, size in sizes.items() if hasattr(config, name)}
    way = who.objective(objective)
    base = Recipe(
        name=f"{family}/{size}",
        model=dataclasses.replace(config, **sizes),
        objective=way(specials=tokenizer.specials, vocab=tokenizer.vocab, length=length),
        corpus=str(Path(corpus).resolve()),
        train=who.train(size),
    )
    found = sound(override(base, settings))
    if found.train.warmup > found.train.steps and not any("warmup" in s for s in settings):
        # A short run keeps the shape of a long one.
        train = dataclasses.replace(found.train, warmup=max(1, found.train.steps // 10))
        found = dataclasses.replace(found, train=train)
    return found


def sound(recipe: Recipe) -> Recipe:
    """Return a recipe whose network can be built and can read its rows, or say why not."""
    model, length = recipe.model, recipe.objective.length
    for field in dataclasses.fields(model):
        value, path = getattr(model, field.name), f"model.{field.name}"
        if "dropout" in field.name and not 0 <= value < 1:
            raise UserError(f"{path}={value}: it is a share, from 0 to less than 1")
        if type(value) is int and value < 1 and field.name != "start":
            raise UserError(f"{path}={value}: it must be at least 1")
    if getattr(model, "head_width", None) is None and model.width % model.heads:
        raise UserError(f"model.heads={model.heads} does not divide model.width={model.width}")
    if getattr(model, "context", length) < length:
        raise UserError(
            f"rows of {length} tokens are longer than model.context={model.context}: "
            "choose both with --length"
        )
    return recipe


def default_length(config: Any) -> int:
    """Rows for a network: 128 tokens for a small one, its whole context for a base one."""
    context = getattr(config, "context", 512)
    return min(context, 128 if config.width <= 256 else 512 if config.width <= 512 else context)
