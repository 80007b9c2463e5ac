"""A task: what is asked of a text, by which names it is answered, and how answers are scored."""

from dataclasses import dataclass
from typing import Any

from kinfolk.config import config
from kinfolk.errors import UserError

# Each kind of task, and what its rows ask for.
TASKS = {
    "classify": "a class for a text or a pair",
    "regress": "a number for a text or a pair",
    "choose": "one of several options",
    "tag": "a tag for each word",
    "span": "the answer in a context",
    "write": "a text about a text",
    "complete": "the word that goes on with a text",
    "lm": "the text itself",
    "coref": "the spans that mean one thing",
}
# What each kind is scored by, the one to be better at first; `loss` is the smaller the better.
METRICS = {
    "classify": ("accuracy", "f1", "macro_f1", "matthews"),
    "regress": ("pearson", "spearman"),
    "choose": ("accuracy",),
    "tag": ("f1", "accuracy"),
    "span": ("f1", "exact"),
    "write": ("bleu", "chrf", "rouge1", "rouge2", "rougeL"),
    "complete": ("accuracy", "perplexity"),
    "lm": ("perplexity", "bits_per_byte"),
    "coref": ("conll_f1",),
}
FALLING = ("perplexity", "bits_per_byte")  # the smaller the better
HUNDREDS = ("bleu", "chrf")  # go to 100, all others to 1


@config("task")
class Task:
    """One task: a frozen value that is saved with the model that learned it."""

    kind: str
    labels: tuple[str, ...] = ()  # classes or tags, in the order of the scores
    metric: str = ""  # the one that decides which model is best
    positive_label: str | None = None  # the class that F1 is about, where there are two
    is_pair: bool = False  # of texts
    prefix: str = ""  # what a text-to-text model reads before a text
    language: bool = False  # words are characters, in scores of texts

    def __post_init__(self) -> None:
        if self.kind not in TASKS:
            raise UserError(f"no task is called {self.kind!r}: there are {', '.join(TASKS)}")
        if self.metric and self.metric not in METRICS[self.kind]:
            raise UserError(
                f"{self.kind} is not scored by {self.metric!r}: choose one of "
                f"{', '.join(METRICS[self.kind])}"
            )

    @property
    def main_metric(self) -> str:
        """The metric that decides."""
        return self.metric or METRICS[self.kind][0]

    def normalized(self, score: float) -> float:
        """Return a score by the main metric as one of which more is better, and 1 the best."""
        if self.main_metric in FALLING:
            return 1 / max(score, 1e-9)
        return score / 100 if self.main_metric in HUNDREDS else score

    def label_id(self, label: str) -> int:
        """Return the number of a label."""
        try:
            return self.labels.index(label)
        except ValueError:
            known = ", ".join(self.labels[:12]) + (" ..." if len(self.labels) > 12 else "")
            raise UserError(
                f"the label {label!r} was not there in training: the model knows {known}"
            ) from None


@dataclass(frozen=True)
class Prediction:
    """What a model says to a row."""

    value: Any  # a label, a number, the place of an option, tags, a text, or clusters
    probabilities: tuple[
        float, ...
    ] = ()  # the probability of each label, option or tag, where known
    probability: float | None = None  # the probability of the answer, where it is one
    nll: float | None = None  # -log p of the right answer, and how many tokens it has
    tokens: int = 0
