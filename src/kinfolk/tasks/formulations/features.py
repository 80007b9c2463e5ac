"""Hidden states of a pretrained network as features of a task network (Peters et al., 2018).

text         a fine film                    words      Anna  lives  in  Paris
ids     <s>  a fine film  </s>              ids   <s>  An ##na lives in Paris  </s>
read         *  *    *                      read       *       *     *  *

A task network reads the mixed hidden states of these tokens: a tagger those of each word, a
classifier those of all tokens of each text. Two texts of a pair are encoded by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import Batch, Loss
from kinfolk.config import TYPE, config, did_you_mean, from_json
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.nn.task_networks import FeatureLayers, ModelWithFeaturesConfig, TextFeatures
from kinfolk.tasks.formulations.base import Instance, RawScores, TaskTargets, split_by_instance
from kinfolk.tasks.formulations.head import SequenceHead, TokenHead, VectorHead
from kinfolk.tasks.formulations.sequences import (
    apply_template,
    causal_special_tokens,
    encode_plain,
    num_special_tokens,
    words_example,
)
from kinfolk.tasks.task import Prediction, TaskOutput
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.vectors import read_vectors, vector_size


@dataclass(frozen=True, kw_only=True)
class Features(VectorHead):
    """Base of task networks over the hidden states of a pretrained network."""

    task_network: str = ""  # registered name; empty: the default of the task
    feature_layers: FeatureLayers = "mixed"
    output_features: bool = False  # add them at the output of the task network's layers too
    train_backbone: bool = False
    vector_size: int = 0  # of the word vectors beside the features
    causal: bool = False  # the pretrained network is a decoder

    name = "features"
    task_networks: ClassVar[tuple[str, ...]]  # registered names, the default first

    @property
    def network_fields(self) -> dict[str, Any]:
        """The fields of the task network that follow from the task."""
        return {}

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the scores."""
        return self.task.head_labels

    def model_config(self, backbone: Any, /) -> ModelWithFeaturesConfig:
        """Return the config of the pretrained network with a task network over it."""
        network = self.task_network or self.task_networks[0]
        if network not in self.task_networks:
            raise UserError(
                f"--task-network {network} does not apply to {self.task.kind} tasks: "
                f"{did_you_mean(network, self.task_networks)}"
            )
        return ModelWithFeaturesConfig(
            backbone=backbone.features_only,
            task_network=from_json({TYPE: network, **self.network_fields}, group="task_network"),
            labels=self.labels,
            feature_layers=self.feature_layers,
            output_features=self.output_features,
            train_backbone=self.train_backbone,
            vector_size=self.vector_size,
        )

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Set the class weights and the size of the word vectors."""
        fitted = super().fit(rows, tokenizer, balanced=balanced)
        return replace(fitted, vector_size=vector_size(self.vectors)) if self.vectors else fitted

    def prepare(self, model: Any, tokenizer: Tokenizer) -> list[str]:
        """Set the word vectors."""
        if not self.vectors:
            return []
        vectors = read_vectors(self.vectors, tokenizer)
        model.set_word_vectors(vectors.ids, vectors.values)
        return [f"{self.vectors}: {vectors.summary}"]

    def text_example(self, ids: Sequence[int], tokenizer: Tokenizer) -> Example:
        """Return the example of a text that fits; of an empty one the first token is read."""
        special_tokens = tokenizer.special_tokens
        if self.frame:
            templated = apply_template(self.frame, special_tokens, [ids])
            return templated.example(templated.offsets[0] * bool(ids) + np.arange(len(ids) or 1))
        start = causal_special_tokens(special_tokens)[0]
        input_ids = np.array([start, *ids], np.int64)
        order = np.arange(len(input_ids)) if self.causal else np.zeros_like(input_ids)
        example = Example(
            input_ids=input_ids,
            order=order,
            read_positions=np.arange(len(ids)) + 1 if ids else np.zeros(1, np.int64),
        )
        return with_end(example, special_tokens.require("eos"))

    def num_special_tokens(self, texts: int) -> int:
        """Return the number of special tokens: without a template, one around and between."""
        return num_special_tokens(self.frame, texts) + (self.frame is None)


@config("feature_tagger")
class FeatureTagger(Features, TokenHead):
    """A task network that tags every word."""

    outputs = ("tags",)
    distills = False
    task_networks = ("bilstm_tagger",)

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Refuse class weights: a CRF scores whole sequences."""
        if balanced:
            raise UserError(
                "--class-weights does not apply to the formulation 'features' of tag tasks, whose "
                "CRF scores whole sequences: remove it"
            )
        return super().fit(rows, tokenizer)

    def example(
        self, words: Sequence[Sequence[int]], predicate: Sequence[int] | None, tokenizer: Tokenizer
    ) -> Example:
        """Return the example of words that fit, with an end token."""
        special_tokens = tokenizer.special_tokens
        example = words_example(
            words, predicate, special_tokens, template=self.frame, causal=self.causal
        )
        return example if self.frame else with_end(example, special_tokens.require("eos"))

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(tags of a sentence), or of each tag without a CRF."""
        targets, texts = batch.targets, self.texts(model, batch)
        scores = model.task_network(texts)
        nll = model.task_network.nll(scores, targets.target, targets.weight, texts)
        return Loss({"label": nll})

    def texts(self, model: Any, batch: Batch[TaskTargets]) -> TextFeatures:
        """Return the features of the words of each instance."""
        targets = batch.targets
        texts: TextFeatures = model.texts(batch.inputs, targets.read_at, targets.instance_ids)
        return texts

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the predicted tag of each word, then the probabilities of all: (words, 1 + n)."""
        texts = self.texts(model, batch)
        tags, probabilities = model.task_network.predict(model.task_network(texts), texts)
        both = torch.cat([tags[:, None].to(probabilities), probabilities], dim=1)
        return split_by_instance(both, batch.targets.instance_ids)

    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the predicted tag of every word, and its probability."""
        if not logits:
            return Prediction(())
        tags, probabilities = np.split(np.concatenate(list(logits)), [1], axis=1)
        chosen = tags.astype(np.int64)
        likely = np.take_along_axis(probabilities, chosen, axis=1)[:, 0]
        value = tuple(self.task.labels[tag] for tag in chosen[:, 0].tolist())
        return Prediction(value, tuple(likely.tolist()), float(likely.min()))


@config("feature_classifier")
class FeatureClassifier(Features, SequenceHead):
    """A task network that scores a text or a pair of texts: classes, or a number."""

    mean_pooling: bool = True  # every token is read

    outputs: ClassVar[tuple[TaskOutput, ...]] = ("label", "number")
    needs_template = False
    task_networks = ("bilstm_classifier", "bcn")

    @property
    def network_fields(self) -> dict[str, Any]:
        """Whether it reads pairs."""
        return {"pair": self.task.is_pair}

    def encode_row(self, row: Any, tokenizer: Tokenizer) -> list[tuple[Example, int]]:
        """Return an example for each text, and how many tokens were truncated."""
        return [self.encode_texts([ids], tokenizer) for ids in encode_plain(tokenizer, row.texts)]

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Return the example of a text that fits."""
        (ids,) = texts
        return self.text_example(ids, tokenizer)

    def scores(self, model: Any, batch: Batch[TaskTargets]) -> Tensor:
        """Return the scores of each instance: (instances, classes)."""
        targets = batch.targets
        assert targets.example_ids is not None
        texts = model.texts(
            batch.inputs, targets.read_at, targets.example_ids, targets.instance_ids
        )
        scores: Tensor = model.task_network(texts)
        return scores


def with_end(example: Example, eos: int) -> Example:
    """Return an example with an end token, from which a backward network starts."""
    assert example.order is not None
    last = example.order[-1:] + (example.order[-1:] > 0)
    return replace(
        example,
        input_ids=np.append(example.input_ids, eos),
        order=np.append(example.order, last),
    )
