"""kinfolk: pretrain, use and fairly compare every family of pretrained language model.

import kinfolk
model, tokenizer = kinfolk.load("runs/gpt2")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.errors import UserError
    from kinfolk.generation import fill, generate_text
    from kinfolk.recipes.answering import load_predictor
    from kinfolk.recipes.continuing import continue_from
    from kinfolk.recipes.evaluation import evaluate
    from kinfolk.recipes.finetuning import finetune
    from kinfolk.recipes.opening import load, logits
    from kinfolk.recipes.pretraining import pretrain, resume
    from kinfolk.recipes.recipe import CorpusShare, Recipe, recipe
    from kinfolk.recipes.tuning import FineTuneConfig, TaskDataset, task_dataset
    from kinfolk.recipes.writing import stream

__version__ = "0.1.0"

__all__ = [
    "CorpusShare",
    "FineTuneConfig",
    "Recipe",
    "TaskDataset",
    "UserError",
    "continue_from",
    "evaluate",
    "fill",
    "finetune",
    "generate_text",
    "load",
    "load_predictor",
    "logits",
    "pretrain",
    "recipe",
    "resume",
    "stream",
    "task_dataset",
]

_HOMES = {
    "CorpusShare": "recipes.recipe",
    "FineTuneConfig": "recipes.tuning",
    "Recipe": "recipes.recipe",
    "TaskDataset": "recipes.tuning",
    "UserError": "errors",
    "continue_from": "recipes.continuing",
    "evaluate": "recipes.evaluation",
    "fill": "generation",
    "finetune": "recipes.finetuning",
    "generate_text": "generation",
    "load": "recipes.opening",
    "load_predictor": "recipes.answering",
    "logits": "recipes.opening",
    "pretrain": "recipes.pretraining",
    "recipe": "recipes.recipe",
    "resume": "recipes.pretraining",
    "stream": "recipes.writing",
    "task_dataset": "recipes.tuning",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `kinfolk --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    return getattr(import_module(f"kinfolk.{_HOMES[name]}"), name)
