"""A member with a head: what it learned about text, and a few scores read off it."""

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel, ModelConfig, Summary
from kinfolk.nn.ranking import Ranker, Ranking, Spans
from kinfolk.nn.table import initialise
from kinfolk.types import Inputs, Output, Prediction

# What is scored: a text, by one score a label; each of its tokens, by one a label; each token, as
# the start and as the end of a span; a text, by one number that its rivals have too; spans of
# words, each with every one before it.
Head = Literal["text", "tokens", "span", "choice", "coref"]
# Of the heads that leave no choice.
LABELS = {"span": ("start", "end"), "choice": ("score",), "coref": ("score",)}
BENDS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu}


def summary(body: ModelConfig) -> Summary:
    """Return how the member that a config describes sums a text up."""
    network = body.network()
    if network.summary is None:
        raise UserError(
            f"{network.__name__} takes no task head: it does not declare a `summary` that says "
            "which hidden state stands for a text"
        )
    return network.summary


@config("with_head")
class HeadedConfig(ModelConfig):
    """A member's config, and what stands on it."""

    body: Any = field(group="model", help="network below the head")
    head: Head = field(help="what is scored")
    labels: tuple[str, ...] = field(help="names of the scores, in order")
    summary: Summary = field(help="pooling of the hidden states")
    regress: bool = field(default=False, help="the score is a number, not one of several labels")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate before the last layer")

    def __post_init__(self) -> None:
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise UserError(
                f"labels={self.labels} must be names that differ, one for each score; give at "
                "least one, and none twice"
            )
        if self.labels != LABELS.get(self.head, self.labels):
            raise UserError(
                f"labels={self.labels} do not fit the head {self.head!r}: its scores are "
                f"{LABELS[self.head]}"
            )
        if self.regress and (self.head != "text" or len(self.labels) > 1):
            raise UserError(
                f"a number is one score of a text, and the head {self.head!r} has labels="
                f"{self.labels}: use the head 'text' with one label"
            )
        if self.head == "text" and len(self.labels) == 1 and not self.regress:
            raise UserError(
                f"labels={self.labels} leave nothing to choose: give two at least, or regress=True "
                "where the score is a number"
            )

    @property
    def vocab(self) -> int:  # type: ignore[override]  # read from the member's config
        """How many ids the member knows."""
        return int(self.body.vocab)

    @property
    def width(self) -> int:
        """How wide its hidden states are."""
        return int(self.body.width)

    @property
    def backbone(self) -> ModelConfig:
        """The member's own config."""
        return self.body

    @property
    def context(self) -> int | None:
        """How long its texts may be; None where the member has no such bound."""
        return self.body.context

    @property
    def sums(self) -> bool:
        """Whether scores are of whole texts."""
        return self.head in ("text", "choice")

    @property
    def dropped(self) -> tuple[str, ...]:
        """The parts of the member that only its pretraining needs."""
        network: type[LanguageModel] = self.body.network()
        unpooled = self.summary.own and not self.sums
        return network.pretraining_only + (network.pooling_only if unpooled else ())

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Headed

    def build(self) -> "Headed":
        """Make the network, with fresh weights."""
        return Headed(self)


class Scorer(nn.Module):
    """One score a label, behind a matrix and a bend where the member wants them."""

    def __init__(self, c: HeadedConfig) -> None:
        super().__init__()
        self.bend = BENDS[c.summary.bend] if c.summary.bend and c.sums else None
        self.dense = nn.Linear(c.width, c.width) if self.bend else nn.Identity()
        self.drop = nn.Dropout(c.dropout)
        self.out = nn.Linear(c.width, len(c.labels), bias=c.summary.bias or not c.sums)
        initialise(self, std=c.body.std)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bend(self.dense(x)) if self.bend else x
        return self.out(self.drop(x))


class Headed(LanguageModel):
    """A member without what only its pretraining needs, and a head."""

    def __init__(self, c: HeadedConfig) -> None:
        super().__init__()
        self.config = c
        self.body: LanguageModel = c.body.build()
        self.architecture = self.body.architecture
        for name in c.dropped:
            delattr(self.body, name)
        self.head = Ranker(c.width, c.dropout) if c.head == "coref" else Scorer(c)

    @property
    def backbone(self) -> LanguageModel:
        """The member that the head stands on."""
        return self.body

    @classmethod
    def of(cls, body: nn.Module, config: HeadedConfig) -> "Headed":
        """Put a fresh head on a copy of a member's weights."""
        headed = config.build()
        wanted, known = headed.body.state_dict(), body.state_dict()
        if fresh := [name for name in wanted if name not in known]:
            warnings.warn(f"the network has no {', '.join(fresh)}: they start fresh", stacklevel=2)
        headed.body.load_state_dict({name: known.get(name, wanted[name]) for name in wanted})
        return headed

    def forward(self, inputs: Inputs) -> Output:
        return self.body(inputs)

    def score(self, hidden: Tensor) -> Tensor:
        """Turn hidden states into scores: (..., labels).

        Those of a whole text are read off one of its hidden states: see `config.summary.reads`.
        """
        if self.config.summary.own and self.config.sums:
            hidden = self.body.pool(hidden)  # type: ignore[operator]
        return self.head(hidden)

    def rank(self, words: Tensor, spans: Spans, most: int) -> Ranking:
        """Score spans with those before them, by the hidden states of words: the head "coref"."""
        return self.head(words, spans, most)

    def predict(self, hidden: Tensor) -> Prediction:
        """Score tokens as the member does, where it still can: the decoders."""
        return self.body.predict(hidden)
