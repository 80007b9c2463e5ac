"""Contextual features of a pretrained network as the input of a task network (Peters et al., 2018).

    backbone -> hidden states of its layers -> scalar mix -> [word vectors; mix] -> task network

The backbone is frozen, or trained with the task network. A task network has a config of its own:
`@config("bilstm_tagger")` names it, `build` makes it, `ModelWithFeaturesConfig.task_network` holds
it, so that another network is another config.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.batch import IGNORE_INDEX, Inputs, Output, TensorTree
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.crf import CRF, bio_transitions
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.language_model import MAX_LAYERS, MAX_SIZE, network_of
from kinfolk.nn.recurrent import open_forget_gates_
from kinfolk.nn.task_heads import TaskModel, TaskModelConfig
from kinfolk.packed_texts import PackedTexts


@dataclass(frozen=True, eq=False)
class TextFeatures(TensorTree):
    """The features of texts, one after the other, and the instance of each text."""

    features: Tensor  # (tokens, size)
    text_ids: Tensor  # (tokens,): 0, 0, 0, 1, 1 ...
    instance_ids: Tensor | None = None  # (texts,): a pair of texts is one instance
    output_features: Tensor | None = None  # (tokens, size): added after the layers

    @cached_property
    def packed(self) -> PackedTexts:
        """The order of tokens in which recurrent layers read the texts."""
        return PackedTexts.of(self.text_ids[None])

    def unpack(self, flat: Tensor) -> Tensor:
        """Put packed tokens back into the order of the features."""
        order = self.packed.positions
        return torch.zeros_like(flat).index_copy(0, order, flat)


class TaskNetwork(nn.Module, ABC):
    """A network over the features of texts: scores of labels for each token or each instance."""

    scores_tokens: bool  # one row of scores for each token, or for each instance

    @abstractmethod
    def forward(self, texts: TextFeatures) -> Tensor:
        """Return the scores: (tokens or instances, labels)."""

    def nll(self, scores: Tensor, target: Tensor, weight: Tensor, texts: TextFeatures) -> Tensor:
        """Return the summed -log p(target)."""
        nll = F.cross_entropy(scores, target, reduction="none", ignore_index=IGNORE_INDEX)
        return (weight * nll).sum()

    def predict(self, scores: Tensor, texts: TextFeatures) -> tuple[Tensor, Tensor]:
        """Return the predicted labels, and the probabilities of all: (n,) and (n, labels)."""
        return scores.argmax(-1), scores.softmax(-1)


class TaskNetworkConfig(ABC):
    """Base of the frozen dataclasses that describe a task network."""

    @abstractmethod
    def build(
        self, input_size: int, output_size: int, labels: Sequence[str], dropout: float
    ) -> TaskNetwork:
        """Build the network; `output_size` is that of the output features, 0 without them."""


class BiLSTMLayers(nn.Module):
    """Bidirectional LSTM layers over the tokens of texts."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        sizes = [input_size, *[2 * hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            nn.LSTM(size, hidden_size, bidirectional=True) for size in sizes
        )
        self.output_size = 2 * hidden_size
        open_forget_gates_(self)

    def forward(self, x: Tensor, texts: TextFeatures) -> Tensor:
        """Return the hidden states in the order of the features: (tokens, 2 * hidden_size)."""
        # cuDNN's half precision under autocast is float16, in which small gradients are lost.
        with torch.autocast(x.device.type, enabled=False):
            x = x[texts.packed.positions].to(next(self.parameters()).dtype)
            for layer in self.layers:
                x = layer(PackedSequence(self.dropout(x), texts.packed.batch_sizes))[0].data
            return texts.unpack(x)


def lstm_size(default: int) -> Any:
    """Declare the size of the LSTMs of a task network."""
    return field(default=default, ge=1, le=MAX_SIZE, help="size of the LSTM of each direction")


def lstm_layers(default: int) -> Any:
    """Declare the number of LSTM layers of a task network."""
    return field(default=default, ge=1, le=MAX_LAYERS, help="number of bidirectional LSTM layers")


@config("bilstm_tagger")
class BiLSTMTaggerConfig(TaskNetworkConfig):
    """The tagger of the ELMo paper by default: two layers of 200 units and a CRF."""

    hidden_size: int = lstm_size(200)
    num_layers: int = lstm_layers(2)
    crf: bool = field(default=True, help="score sequences of tags (CRF), not each tag by itself")
    bio_constraint: bool = field(
        default=False, help="predict no I- tag that does not continue a span of its type"
    )

    def __post_init__(self) -> None:
        if self.bio_constraint and not self.crf:
            raise UserError("bio_constraint=True applies to sequences of tags: set crf=True too")

    def build(
        self, input_size: int, output_size: int, labels: Sequence[str], dropout: float
    ) -> "BiLSTMTagger":
        """Build the tagger."""
        return BiLSTMTagger(self, input_size, output_size, labels, dropout)


class BiLSTMTagger(TaskNetwork):
    """BiLSTM layers, a linear layer over each token, and a CRF."""

    scores_tokens = True

    def __init__(
        self,
        c: BiLSTMTaggerConfig,
        input_size: int,
        output_size: int,
        labels: Sequence[str],
        dropout: float,
    ) -> None:
        super().__init__()
        self.encoder = BiLSTMLayers(input_size, c.hidden_size, c.num_layers, dropout)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(self.encoder.output_size + output_size, len(labels))
        self.crf = CRF(len(labels)) if c.crf else None
        self.constraint = bio_transitions(labels) if c.bio_constraint else None

    def forward(self, texts: TextFeatures) -> Tensor:
        """Return the scores of the tags of each token."""
        x = self.encoder(texts.features, texts)
        if texts.output_features is not None:
            x = torch.cat([x, texts.output_features], dim=-1)
        return self.out_proj(self.dropout(x)).float()

    def nll(self, scores: Tensor, target: Tensor, weight: Tensor, texts: TextFeatures) -> Tensor:
        """Return the summed -log p(tags of a text), or of each tag."""
        if self.crf is None:
            return super().nll(scores, target, weight, texts)
        order = texts.packed.positions
        return self.crf.nll(scores[order], target[order], texts.packed)

    def predict(self, scores: Tensor, texts: TextFeatures) -> tuple[Tensor, Tensor]:
        """Return the best sequence of tags, and the marginal probabilities."""
        if self.crf is None:
            return super().predict(scores, texts)
        packed = scores[texts.packed.positions]
        tags = self.crf.decode(packed, texts.packed, self.constraint)
        return texts.unpack(tags), texts.unpack(self.crf.marginals(packed, texts.packed))


@config("bilstm_classifier")
class BiLSTMClassifierConfig(TaskNetworkConfig):
    """A layer of 200 units and the maximum over each text."""

    hidden_size: int = lstm_size(200)
    num_layers: int = lstm_layers(1)
    pair: bool = field(default=False, help="an instance is a pair of texts")

    def build(
        self, input_size: int, output_size: int, labels: Sequence[str], dropout: float
    ) -> "BiLSTMClassifier":
        """Build the classifier."""
        return BiLSTMClassifier(self, input_size, output_size, labels, dropout)


class BiLSTMClassifier(TaskNetwork):
    """BiLSTM layers and the maximum over each text; of a pair [u; v; |u - v|; u * v].

    The features of a pair are those of InferSent (Conneau et al. 2017); a single text is [u].
    """

    scores_tokens = False

    def __init__(
        self,
        c: BiLSTMClassifierConfig,
        input_size: int,
        output_size: int,
        labels: Sequence[str],
        dropout: float,
    ) -> None:
        super().__init__()
        self.encoder = BiLSTMLayers(input_size, c.hidden_size, c.num_layers, dropout)
        self.dropout = nn.Dropout(dropout)
        size = self.encoder.output_size + output_size
        self.pair = c.pair
        self.out_proj = nn.Linear(4 * size if c.pair else size, len(labels))

    def forward(self, texts: TextFeatures) -> Tensor:
        """Return the scores of the labels of each instance."""
        x = self.encoder(texts.features, texts)
        if texts.output_features is not None:
            x = torch.cat([x, texts.output_features], dim=-1)
        x = max_over_texts(x, texts)
        if self.pair:
            u, v = x[::2], x[1::2]
            x = torch.cat([u, v, (u - v).abs(), u * v], dim=-1)
        return self.out_proj(self.dropout(x)).float()


def max_over_texts(x: Tensor, texts: TextFeatures) -> Tensor:
    """Return the maximum over the tokens of each text: (texts, size)."""
    index = texts.text_ids[:, None].expand_as(x)
    assert texts.instance_ids is not None
    empty = x.new_zeros(len(texts.instance_ids), x.shape[1])
    return empty.scatter_reduce(0, index, x, "amax", include_self=False)


class ScalarMix(nn.Module):
    """gamma times the weighted sum of layers; the weights are a softmax (Peters et al., eq. 1).

    Deviation: the paper adds an L2 penalty on the weights before the softmax, 0.001 for most tasks.
    """

    def __init__(self, num_layers: int, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(1))
        self.layer_norm = layer_norm

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        if self.layer_norm:
            layers = [F.layer_norm(layer, layer.shape[-1:]) for layer in layers]
        weights = self.weights.softmax(0)
        mixed = sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
        return self.gamma * mixed


FeatureLayers = Literal["mixed", "last", "none"]


@config("with_features")
class ModelWithFeaturesConfig(TaskModelConfig):
    """The config of a pretrained network and of the task network that reads its features."""

    backbone: Any = field(group="model", help="network whose hidden states are the features")
    task_network: Any = field(group="task_network", help="network that reads the features")
    labels: tuple[str, ...] = field(help="names of the scores, in order")
    feature_layers: FeatureLayers = field(
        default="mixed",
        help="mixed: a weighted sum of all layers; last: the last layer; none: word vectors alone",
    )
    output_features: bool = field(
        default=False, help="add the features at the output of the task network's layers too"
    )
    feature_norm: bool = field(default=False, help="normalize each layer before it is mixed")
    train_backbone: bool = field(default=False, help="train the pretrained network too")
    vector_size: int = field(
        default=0, ge=0, le=MAX_SIZE, help="size of the word vectors beside the features; 0: none"
    )
    dropout: float = field(
        default=0.5, ge=0, lt=1, help="dropout rate of the features and of the task network"
    )

    def __post_init__(self) -> None:
        if len(set(self.labels)) < max(1, len(self.labels)):
            raise UserError(
                f"labels={self.labels}: pass at least one label, each with another name"
            )
        if self.feature_layers == "none" and (self.output_features or not self.vector_size):
            raise UserError(
                "feature_layers='none' leaves the word vectors alone: give some (--vectors FILE), "
                "and no output_features"
            )


@network_of(ModelWithFeaturesConfig)
class ModelWithFeatures(TaskModel):
    """A pretrained network, the mix of its layers, word vectors, and a task network."""

    config: ModelWithFeaturesConfig
    static_shapes = False

    def __init__(self, c: ModelWithFeaturesConfig) -> None:
        super().__init__(c)
        self.backbone.requires_grad_(c.train_backbone)
        layers, size = self.backbone.num_feature_layers, self.backbone.feature_size
        mixed = c.feature_layers == "mixed"
        self.mix = ScalarMix(layers, layer_norm=c.feature_norm) if mixed else None
        self.output_mix = (
            ScalarMix(layers, layer_norm=c.feature_norm) if mixed and c.output_features else None
        )
        self.word_vectors = TokenEmbedding(c.vocab_size, c.vector_size) if c.vector_size else None
        if self.word_vectors is not None:
            nn.init.zeros_(self.word_vectors.weight)  # of words without a vector
            self.word_vectors.requires_grad_(False)
        self.dropout = nn.Dropout(c.dropout)
        feature_size = 0 if c.feature_layers == "none" else size
        self.task_network: TaskNetwork = c.task_network.build(
            feature_size + c.vector_size, size if c.output_features else 0, c.labels, c.dropout
        )

    def train(self, mode: bool = True) -> "ModelWithFeatures":
        """Set the mode; a frozen backbone stays in evaluation mode, without dropout."""
        super().train(mode)
        self.backbone.train(mode and self.config.train_backbone)
        return self

    def set_word_vectors(self, ids: npt.NDArray[np.int64], values: npt.NDArray[np.float32]) -> None:
        """Set the vectors of tokens; those of the other tokens stay as they are."""
        assert self.word_vectors is not None
        self.word_vectors.set_rows(ids, values)

    def forward(self, inputs: Inputs) -> Output:
        """Return the input of the task network for every token: (batch, length, size)."""
        everything = torch.arange(inputs.input_ids.numel(), device=inputs.input_ids.device)
        features, _ = self.features(inputs, everything)
        return Output(features.view(*inputs.input_ids.shape, -1))

    def features(self, inputs: Inputs, read_at: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the input of the task network at some positions, and what its output is given."""
        parts, output = [], None
        if self.word_vectors is not None:
            parts.append(self.word_vectors(inputs.input_ids.flatten()[read_at]))
        if self.config.feature_layers != "none":
            with torch.set_grad_enabled(self.config.train_backbone and torch.is_grad_enabled()):
                layers = [
                    layer.flatten(0, 1).index_select(0, read_at)
                    for layer in self.backbone.layer_outputs(inputs)
                ]
            parts.append(layers[-1] if self.mix is None else self.mix(layers))
            if self.config.output_features:
                mixed = layers[-1] if self.output_mix is None else self.output_mix(layers)
                output = self.dropout(mixed)
        return torch.cat(parts, dim=-1), output

    def texts(
        self,
        inputs: Inputs,
        read_at: Tensor,
        text_ids: Tensor,
        instance_ids: Tensor | None = None,
    ) -> TextFeatures:
        """Return the features of the tokens that the task network reads."""
        features, output = self.features(inputs, read_at)
        return TextFeatures(features, text_ids, instance_ids, output)

    def check_lm_head(self) -> None:
        """Raise UserError: the task network predicts no tokens."""
        raise UserError(
            "the model was fine-tuned: it has a task network and predicts no tokens any more; use "
            "predict, or the pretrained model"
        )
