"""Prediction modules of cross-view training (Clark et al. 2018, section 3).

For every task, a primary module sees the whole input, and auxiliary modules see a part of it: their
views. On unlabelled text the views learn to agree with the primary module, which is fixed there.
"""

from typing import Any, Literal

from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import LanguageModel, network_of
from kinfolk.nn.task_heads import TaskModel, TaskModelConfig

Unit = Literal["text", "tokens"]  # what is scored: a text, or each word of it
FULL = "full"  # the view of the whole input, with dropout (section 4)
# The other views of a word: with the words before it, with those after it, and without the word.
# Deviation: the paper has no views of a text; here they are those of one direction and of a half.
VIEWS: dict[Unit, tuple[str, ...]] = {
    "tokens": ("forward", "backward", "future", "past"),
    "text": ("forward", "backward", "first_half", "second_half"),
}


class ViewedStates(LanguageModel):
    """A network with two layers, whose first has separate states for both directions."""

    def encode(self, inputs: Inputs, *, dropout: float) -> Output:
        """Return the hidden states of both layers at a dropout rate, which is 0 in evaluation."""
        raise NotImplementedError

    def directions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the forward and the backward states of the first layer."""
        raise NotImplementedError


@config("task_views")
class TaskViews:
    """What the prediction modules of one task score."""

    unit: Unit = field(help="what is scored: a text, or each word of it")
    labels: tuple[str, ...] = field(help="names of the scores, in order")

    def __post_init__(self) -> None:
        if len(self.labels) < 2 - (self.unit == "tokens"):
            raise UserError(f"labels={self.labels}: classification needs at least two labels")

    @property
    def views(self) -> tuple[str, ...]:
        """The names of its views."""
        return FULL, *VIEWS[self.unit]


@config("with_views")
class ModelWithViewsConfig(TaskModelConfig):
    """The config of a network, and of the prediction modules of several tasks on it."""

    backbone: Any = field(group="model", help="network below the prediction modules")
    tasks: tuple[TaskViews, ...] = field(help="tasks, each with modules of its own")


class PredictionModule(nn.Module):
    """One score per label: U ReLU(W x) + b."""

    def __init__(self, size: int, inner: int, labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(size, inner)
        self.out_proj = nn.Linear(inner, labels)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.dense(x).relu())


class TaskModules(nn.Module):
    """The primary module of a task and its auxiliary modules, one for each view."""

    def __init__(self, c: TaskViews, hidden_size: int, view_size: int) -> None:
        super().__init__()
        self.primary = PredictionModule(hidden_size, view_size, len(c.labels))
        sizes = dict.fromkeys(c.views, view_size) | {FULL: hidden_size}
        # `forward` is a name that a module of torch cannot have.
        self.auxiliary = nn.ModuleDict(
            {
                f"{view}_view": PredictionModule(size, view_size, len(c.labels))
                for view, size in sizes.items()
            }
        )


@network_of(ModelWithViewsConfig)
class ModelWithViews(TaskModel):
    """A network, and the prediction modules of one or several tasks, which share it."""

    backbone: ViewedStates
    config: ModelWithViewsConfig

    def __init__(self, c: ModelWithViewsConfig) -> None:
        super().__init__(c)
        sizes = c.backbone.hidden_size, c.backbone.view_size
        self.tasks = nn.ModuleList(TaskModules(task, *sizes) for task in c.tasks)
        init_weights_(self.tasks, std=0.1)

    def primary_logits(self, states: Tensor, task: int) -> Tensor:
        """Return the scores of the primary module of a task: (..., labels)."""
        return self.modules_of(task).primary(states)

    def view_logits(self, states: Tensor, task: int, view: str) -> Tensor:
        """Return the scores of the module of a view: (..., labels)."""
        return self.modules_of(task).auxiliary[f"{view}_view"](states)

    def modules_of(self, task: int) -> TaskModules:
        """Return the prediction modules of a task."""
        modules = self.tasks[task]
        assert isinstance(modules, TaskModules)
        return modules
