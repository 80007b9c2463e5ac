"""Defaults of fine-tuning that depend on the initial weights, the rows and the classes.

Weights are raw where they are new, or were pretrained on fewer than `RAW_TOKENS` tokens: they need
more and larger steps than those of a published model. What a user sets is never changed by a
default. docs/results.md has the measurements.

| | raw weights | pretrained weights |
| --- | --- | --- |
| steps | 3 epochs, at least 400 and 20 per class | the same; from hidden size 512 at least 150 |
| learning rate, encoders and decoders | 0.12 / hidden size | 0.03 / hidden size |
| learning rate, encoder-decoders | 2e-2 | 5e-3 |
| learning rate, recurrent | 2e-3 | 2e-3 |
| learning rate, a task network over frozen features | 1e-3 | 1e-3 |
| a head over a text of an encoder | attention starts uniform, new pooler | as pretrained |

Small files are read at most 40 times. After little pretraining the hidden state of [CLS], which
only next-sentence prediction trains, is nearly the same for all texts; with uniform attention it
starts as the mean of all tokens (`ModelWithHead.reset_pooling`).
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.config import read_json
from kinfolk.nn.task_networks import ModelWithFeaturesConfig
from kinfolk.training.checkpoint import checkpoint_step
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.recipe import Recipe

RAW_TOKENS = 50_000_000  # pretrained on fewer, weights are treated like new ones
EPOCHS = 3.0  # where these are more steps than the minimum
MAX_EPOCHS = 40.0  # that reach the minimum
MIN_FINETUNE_STEPS = 400  # a small network predicts the most frequent class for the first hundred
STEPS_PER_CLASS = 20
WIDE = 512  # hidden size from which pretrained weights need few steps
MIN_STEPS_WIDE = 150
TASK_NETWORK_LR = 1e-3  # of new layers over frozen features, whatever their size
MAX_FINETUNE_EVALUATIONS = 8  # at most, where the number of epochs is not given


def is_raw(folder: str) -> bool:
    """Return whether weights are new ("") or were pretrained by us on little text.

    A folder without a recipe of ours is a published model. A recipe that started from other weights
    is raw only if those are.
    """
    if not folder:
        return True
    path = Path(folder) / "kinfolk.json"
    if not path.is_file():
        return False
    recipe: Any = read_json(path)
    if isinstance(recipe, Recipe) and pretraining_tokens(recipe, Path(folder)) >= RAW_TOKENS:
        return False
    return is_raw(recipe.init_from)


def pretraining_tokens(recipe: Recipe, folder: Path) -> int:
    """Return the number of tokens that a run had read when it wrote a checkpoint."""
    if folder.resolve().name.startswith("step-"):
        return tokens_of_steps(recipe, checkpoint_step(folder))
    return tokens_of_steps(recipe, recipe.train.steps)


def tokens_of_steps(recipe: Recipe, steps: int) -> int:
    """Return the number of tokens in the rows of this many steps."""
    return steps * recipe.train.batch_size * int(recipe.objective.max_length)


def finetune_train_config(config: Any, *, raw: bool) -> TrainConfig:
    """Return the default training settings; wider networks have lower learning rates."""
    backbone = config.pretrained
    architecture = backbone.network.architecture
    common = TrainConfig(
        batch_size=32, schedule="linear", min_lr_ratio=0.0, betas=(0.9, 0.999), eval_batches=64
    )
    if isinstance(config, ModelWithFeaturesConfig) and not config.train_backbone:
        return replace(common, lr=TASK_NETWORK_LR, weight_decay=0.01)
    if architecture == "encoder-decoder":
        # T5's pretraining uses 2e-2 (families/t5.py); a lower rate does not learn in a few hundred
        # steps which of all tokens occur in answers.
        lr = 2e-2 if raw else 5e-3
        return replace(common, optimizer="adamw_rms", lr=lr, weight_decay=0.0)
    # BERT's 4e-5 at hidden size 768 (appendix A.3); higher for narrower and raw networks.
    scale = 0.12 if raw else 0.03
    lr = 2e-3 if architecture == "recurrent" else min(2e-3, scale / backbone.hidden_size)
    return replace(common, lr=float(f"{lr:.1e}"), weight_decay=0.01)


def default_steps(epoch: int, *, classes: int, hidden_size: int, raw: bool) -> int:
    """Return the number of steps for epochs of this many steps."""
    least = MIN_STEPS_WIDE if hidden_size >= WIDE and not raw else MIN_FINETUNE_STEPS
    least = max(least, STEPS_PER_CLASS * classes)
    return math.ceil(max(EPOCHS * epoch, min(least, MAX_EPOCHS * epoch)))
