"""kinfolk: pretrain, use and fairly compare every family of pretrained language model.

import kinfolk
model, tokenizer = kinfolk.load("runs/gpt2")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.errors import UserError
    from kinfolk.generation import continue_text, fill_text
    from kinfolk.recipes.answering import solver
    from kinfolk.recipes.continuing import continued
    from kinfolk.recipes.evaluation import evaluate
    from kinfolk.recipes.finetuning import finetune
    from kinfolk.recipes.opening import load, logits
    from kinfolk.recipes.pretraining import pretrain, resume
    from kinfolk.recipes.recipe import Recipe, Share, recipe
    from kinfolk.recipes.tuning import Habits, sheet
    from kinfolk.recipes.writing import stream

__version__ = "0.1.0"

__all__ = [
    "Habits",
    "Recipe",
    "Share",
    "UserError",
    "continue_text",
    "continued",
    "evaluate",
    "fill_text",
    "finetune",
    "load",
    "logits",
    "pretrain",
    "recipe",
    "resume",
    "sheet",
    "solver",
    "stream",
]

_HOMES = {
    "Habits": "recipes.tuning",
    "Recipe": "recipes.recipe",
    "Share": "recipes.recipe",
    "UserError": "errors",
    "continue_text": "generation",
    "continued": "recipes.continuing",
    "evaluate": "recipes.evaluation",
    "fill_text": "generation",
    "finetune": "recipes.finetuning",
    "load": "recipes.opening",
    "logits": "recipes.opening",
    "pretrain": "recipes.pretraining",
    "recipe": "recipes.recipe",
    "resume": "recipes.pretraining",
    "sheet": "recipes.tuning",
    "solver": "recipes.answering",
    "stream": "recipes.writing",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `kinfolk --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    return getattr(import_module(f"kinfolk.{_HOMES[name]}"), name)
