"""What a model can be used for: by its recipe, before torch is imported, and by its family.

A folder without a recipe of kinfolk is not judged before it is loaded.
"""

import json
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.families import index

RECIPES = ("recipe.json", "kinfolk.json")  # of a run, and of a checkpoint


def check_ability(folder: Path, ability: str) -> None:
    """Refuse a folder of a family without this capability."""
    name = recipe_family(folder)
    if name is not None and ability not in index()[name].capabilities:
        raise no_ability(name, ability)


def check_seq2seq(folder: Path, verb: str) -> None:
    """Refuse a pretraining run of a family that is no encoder-decoder."""
    name = recipe_family(folder) if is_pretrained(folder) else None
    if name is not None and index()[name].architecture != "encoder-decoder":
        raise no_seq2seq(name, verb)


def check_finetuned(folder: Path) -> None:
    """Refuse the folder of a pretraining run."""
    if is_pretrained(folder):
        raise not_finetuned(folder)


def no_ability(family_name: str, ability: str) -> UserError:
    """Return the error about a family without a capability."""
    others = [name for name, entry in index().items() if ability in entry.capabilities]
    return UserError(
        f"{family_name} models do not support {ability} (families that do: {', '.join(others)})"
    )


def no_seq2seq(family_name: str, verb: str) -> UserError:
    """Return the error about a family that is no encoder-decoder."""
    others = [n for n, entry in index().items() if entry.architecture == "encoder-decoder"]
    way = ""
    if verb == "summarize":
        way = "; kinfolk finetune MODEL --task extract trains models that choose sentences"
    return UserError(
        f"{family_name} models do not support {verb} (families that do: {', '.join(others)}{way})"
    )


def not_finetuned(path: Path | str) -> UserError:
    """Return the error about a model without a task."""
    return UserError(
        f"{path} was not fine-tuned: fine-tune it on labelled rows with kinfolk finetune, or "
        "score it with kinfolk evaluate and the formulation prompt"
    )


def is_pretrained(folder: Path) -> bool:
    """Return whether a folder is that of a pretraining run, or a checkpoint of one."""
    return (recipe_values(folder) or {}).get("type") == "pretrain"


def recipe_family(folder: Path) -> str | None:
    """Return the family that a recipe names; None where there is none."""
    model = (recipe_values(folder) or {}).get("model")
    if isinstance(model, dict) and isinstance(model.get("backbone"), dict):
        model = model["backbone"]
    name = model.get("type") if isinstance(model, dict) else None
    return name if isinstance(name, str) and name in index() else None


def recipe_values(folder: Path) -> dict[str, Any] | None:
    """Return the recipe of a run or of a checkpoint; None where there is none, or a damaged one."""
    file = next((folder / name for name in RECIPES if (folder / name).is_file()), None)
    if file is None:
        return None
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return None
    return value if isinstance(value, dict) else None
