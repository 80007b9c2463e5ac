"""A pretrained network with a task head."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.batch import Inputs, LazyLogits, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.coreference import CandidateSpans, CoreferenceHead, CoreferenceScores
from kinfolk.nn.init import init_weights_, uniform_attention_init_
from kinfolk.nn.inter_sentence import InterSentenceHead
from kinfolk.nn.label_weights import LabelWeights
from kinfolk.nn.language_model import LanguageModel, ModelConfig, Pooling, network_of

# What is scored: a text; each token; each token as the start and the end of a span; each of several
# options; pairs of spans (coreference); each sentence of a document.
Head = Literal["text", "tokens", "span", "choice", "coref", "sentences"]
FIXED_LABELS = {
    "span": ("start", "end"),
    "choice": ("score",),
    "coref": ("score",),
    "sentences": ("score",),
}
CONCAT_POOLING_SIZE = 50  # of the layer before the scores: that of the released code
POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu}


def pooling_of(backbone: ModelConfig) -> Pooling:
    """Return the pooling of the network that a config describes."""
    network = backbone.network
    if network.pooling is None:
        raise UserError(
            f"{network.__name__} takes no task head: it declares no `pooling`, the hidden state "
            "that represents a text"
        )
    return network.pooling


class TaskModelConfig(ModelConfig):
    """Base of the configs of a network below modules for tasks."""

    backbone: Any

    @property
    def vocab_size(self) -> int:  # type: ignore[override]  # read from the backbone
        """The number of token ids."""
        return int(self.backbone.vocab_size)

    @property
    def hidden_size(self) -> int:
        """The size of the hidden states."""
        return int(self.backbone.hidden_size)

    @property
    def pretrained(self) -> ModelConfig:
        """The config of the network below the head."""
        return self.backbone

    @property
    def max_length(self) -> int | None:
        """The longest input in tokens; None where there is no bound."""
        return self.backbone.max_length

    def build_on(self, backbone: LanguageModel) -> "TaskModel":
        """Return new modules for tasks on a copy of the weights of a pretrained network."""
        assert issubclass(self.network, TaskModel)
        return self.network.of(backbone, self)

    @property
    def removed_modules(self) -> tuple[str, ...]:
        """The modules of the backbone that the tasks do not use."""
        network: type[LanguageModel] = self.backbone.network
        return network.pretraining_only + network.pooling_only


@config("with_head")
class ModelWithHeadConfig(TaskModelConfig):
    """The config of a pretrained network and of the head on it."""

    backbone: Any = field(group="model", help="network below the head")
    head: Head = field(help="what is scored")
    labels: tuple[str, ...] = field(help="names of the scores, in order")
    pooling: Pooling = field(help="pooling of the hidden states")
    regression: bool = field(default=False, help="the score is a number, not one of several labels")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate before the last layer")
    label_sets: int = field(
        default=0, ge=0, le=2**10, help="label sets of sentences whose weights are learned"
    )

    def __post_init__(self) -> None:
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise UserError(
                f"labels={self.labels}: pass at least one label, each with another name"
            )
        if self.labels != FIXED_LABELS.get(self.head, self.labels):
            raise UserError(
                f"labels={self.labels} do not fit the head {self.head!r}: its scores are "
                f"{FIXED_LABELS[self.head]}"
            )
        if self.regression and (self.head != "text" or len(self.labels) > 1):
            raise UserError(
                f"regression=True needs head='text' with one label (got head={self.head!r} with "
                f"labels={self.labels})"
            )
        if self.label_sets and (self.head != "sentences" or self.label_sets == 1):
            raise UserError(
                f"label_sets={self.label_sets} needs head='sentences' and at least 2 sets (got "
                f"head={self.head!r})"
            )
        if self.head == "text" and len(self.labels) == 1 and not self.regression:
            raise UserError(
                f"labels={self.labels}: classification needs at least two labels; pass "
                "regression=True if the score is a number"
            )

    @property
    def pools_text(self) -> bool:
        """Whether the head scores whole texts."""
        return self.head in ("text", "choice")

    @property
    def removed_modules(self) -> tuple[str, ...]:
        """The modules of the backbone that the head does not use."""
        pooled = self.pooling.pooler and self.pools_text
        return self.backbone.network.pretraining_only if pooled else super().removed_modules


class ClassificationHead(nn.Module):
    """One score per label, after a dense layer if the pooling has an activation."""

    def __init__(self, c: ModelWithHeadConfig) -> None:
        super().__init__()
        self.activation = (
            POOLER_ACTIVATIONS[c.pooling.activation]
            if c.pooling.activation and c.pools_text
            else None
        )
        self.dense = nn.Linear(c.hidden_size, c.hidden_size) if self.activation else nn.Identity()
        self.dropout = nn.Dropout(c.dropout)
        self.out_proj = nn.Linear(
            c.hidden_size, len(c.labels), bias=c.pooling.bias or not c.pools_text
        )
        init_weights_(self, std=c.backbone.init_std)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.dense(x)) if self.activation else x
        return self.out_proj(self.dropout(x))


class BatchNorm(nn.Module):
    """Batch normalization; a single vector is normalized by the running statistics."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        training = self.training and len(x) > 1
        statistics = self.running_mean, self.running_var
        return F.batch_norm(x, *statistics, self.weight, self.bias, training)


class ConcatPoolingHead(nn.Module):
    """Two linear layers, each after batch norm and dropout (Howard and Ruder 2018, section 3.3)."""

    def __init__(self, c: ModelWithHeadConfig) -> None:
        super().__init__()
        # The last hidden state, the maximum and the mean of all.
        self.norm = BatchNorm(3 * c.hidden_size)
        self.dense = nn.Linear(3 * c.hidden_size, CONCAT_POOLING_SIZE)
        self.dense_norm = BatchNorm(CONCAT_POOLING_SIZE)
        self.out_proj = nn.Linear(CONCAT_POOLING_SIZE, len(c.labels))
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.dense(self.dropout(self.norm(x))))
        return self.out_proj(self.dropout(self.dense_norm(x)))


def task_head(c: ModelWithHeadConfig) -> nn.Module:
    """Return the head that a config describes."""
    if c.head == "coref":
        return CoreferenceHead(c.hidden_size, c.dropout)
    if c.head == "sentences":
        return InterSentenceHead(c.hidden_size, c.dropout, c.backbone.init_std)
    if c.pools_text and c.pooling.token == "concat":
        return ConcatPoolingHead(c)
    return ClassificationHead(c)


class TaskModel(LanguageModel):
    """Base of networks for tasks: a pretrained network without its unused modules."""

    def __init__(self, c: TaskModelConfig) -> None:
        super().__init__()
        self.config = c
        self.backbone: LanguageModel = c.backbone.build()
        self.architecture = self.backbone.architecture
        for name in c.removed_modules:
            delattr(self.backbone, name)

    @classmethod
    def of(cls, backbone: LanguageModel, config: TaskModelConfig) -> Self:
        """Return new modules for tasks on a copy of the weights of a pretrained network."""
        model = cls(config)
        initial, known = model.backbone.state_dict(), backbone.state_dict()
        lost = {name.split(".")[0] for name in initial if name not in known}
        lost |= {*backbone.random_modules} - {*config.removed_modules}
        if lost:
            warnings.warn(
                f"the network has no weights of {', '.join(sorted(lost))}: they start from random "
                "values",
                stacklevel=2,
            )
        model.backbone.load_state_dict({name: known.get(name, initial[name]) for name in initial})
        return model

    @property
    def pretrained(self) -> LanguageModel:
        """The network below the modules for tasks."""
        return self.backbone

    def forward(self, inputs: Inputs) -> Output:
        return self.backbone(inputs)

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the logits of the backbone, if it still has an output layer (decoders)."""
        return self.backbone.lm_logits(hidden)

    def check_lm_head(self) -> None:
        """Raise UserError if the task head replaced the modules that predict tokens."""
        if {*self.backbone.lm_head_modules} & {*self.config.removed_modules}:
            raise UserError(
                "the model was fine-tuned: it has a task head and predicts no tokens any more; "
                "use predict, or the pretrained model"
            )


@network_of(ModelWithHeadConfig)
class ModelWithHead(TaskModel):
    """A pretrained network without its unused modules, and a head."""

    config: ModelWithHeadConfig

    def __init__(self, c: ModelWithHeadConfig) -> None:
        super().__init__(c)
        self.head = task_head(c)
        self.skips_unread = self.backbone.skips_unread
        if c.label_sets:
            self.label_weights = LabelWeights(c.hidden_size, c.label_sets)

    def reset_pooling(self) -> None:
        """Let the token that an encoder's head over a text reads start as the mean of all tokens.

        Attention starts uniform, and the layers that only pooling uses get new weights.
        """
        if self.architecture != "encoder" or not self.config.pools_text:
            return
        uniform_attention_init_(self.backbone)
        for name in self.backbone.pooling_only if self.config.pooling.pooler else ():
            init_weights_(self.backbone.get_submodule(name), std=self.config.backbone.init_std)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores of hidden states: (..., labels).

        Scores of a text are those of its hidden state at `config.pooling.token`, or of the mean.
        """
        if self.config.pooling.pooler and self.config.pools_text:
            hidden = self.backbone.pool(hidden)  # type: ignore[operator]
        return self.head(hidden)

    def antecedent_scores(
        self, words: Tensor, spans: CandidateSpans, most: int
    ) -> CoreferenceScores:
        """Score spans with those before them, from the hidden states of words (head "coref")."""
        return self.head(words, spans, most)

    def sentence_scores(
        self, sentences: Tensor, document_ids: Tensor, position_ids: Tensor
    ) -> Tensor:
        """Score vectors of sentences by those of their documents (head "sentences")."""
        return self.head(sentences, document_ids, position_ids)
