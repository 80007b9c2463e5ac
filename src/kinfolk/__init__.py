"""kinfolk: pretrain, use and fairly compare every family of pretrained language model.

import kinfolk
model, tokenizer = kinfolk.load("runs/gpt2")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.errors import UserError
    from kinfolk.tasks.dataset import TaskDataset, task_dataset
    from kinfolk.training.config import FineTuneConfig
    from kinfolk.training.loop import Callback
    from kinfolk.workflows.evaluate import evaluate
    from kinfolk.workflows.finetune import finetune
    from kinfolk.workflows.generate import fill, generate, stream
    from kinfolk.workflows.load import load, logits
    from kinfolk.workflows.predict import load_predictor
    from kinfolk.workflows.pretrain import pretrain, resume
    from kinfolk.workflows.recipe import CorpusShare, Recipe, continue_from, recipe

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "CorpusShare",
    "FineTuneConfig",
    "Recipe",
    "TaskDataset",
    "UserError",
    "continue_from",
    "evaluate",
    "fill",
    "finetune",
    "generate",
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
    "Callback": "training.loop",
    "CorpusShare": "workflows.recipe",
    "FineTuneConfig": "training.config",
    "Recipe": "workflows.recipe",
    "TaskDataset": "tasks.dataset",
    "UserError": "errors",
    "continue_from": "workflows.recipe",
    "evaluate": "workflows.evaluate",
    "fill": "workflows.generate",
    "finetune": "workflows.finetune",
    "generate": "workflows.generate",
    "load": "workflows.load",
    "load_predictor": "workflows.predict",
    "logits": "workflows.load",
    "pretrain": "workflows.pretrain",
    "recipe": "workflows.recipe",
    "resume": "workflows.pretrain",
    "stream": "workflows.generate",
    "task_dataset": "tasks.dataset",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `kinfolk --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    return getattr(import_module(f"kinfolk.{_HOMES[name]}"), name)
