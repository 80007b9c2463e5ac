"""Forward passes of a network on prompts of facts, with neurons recorded, attributed and scaled."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import tree_map
from kinfolk.generation.prompts import eval_mode
from kinfolk.nn.integrated_gradients import integrated_gradients
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.neurons import (
    Change,
    NeuronLayer,
    ScaledNeurons,
    changed_neurons,
    frozen,
    record_neurons,
    with_scales,
    with_values,
)
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.types import FloatArray
from kinfolk.workflows.knowledge_neurons.fact_prompts import FactInputs, fact_inputs

MAX_ROWS, MAX_TOKENS = 64, 4096  # of a batch


@dataclass(frozen=True, eq=False)
class PromptAttribution:
    """The attribution of an answer's probability to the neurons of every layer."""

    prompt: str
    probability: float  # of the answer; of several tokens, the product
    layers: tuple[NeuronLayer, ...]
    by_layer: tuple[FloatArray, ...]  # (neurons,) of each layer
    totals: tuple[float, ...]  # of the attributions of a layer
    differences: tuple[float, ...]  # of the probability to that with the layer's neurons at zero
    errors: tuple[float, ...]  # of completeness, relative to the difference
    steps: tuple[int, ...]  # points of the integral

    @property
    def error(self) -> float:
        """The largest error of completeness."""
        return max(self.errors)

    @property
    def attributions(self) -> dict[str, FloatArray]:
        """The attributions of each stack of layers by its name: (layers, neurons)."""
        stacks: dict[str, list[FloatArray]] = {}
        for layer, values in zip(self.layers, self.by_layer, strict=True):
            stacks.setdefault(layer.stack, []).append(values)
        return {stack: np.stack(values) for stack, values in stacks.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the values of each layer."""
        return {
            "prompt": self.prompt,
            "probability": self.probability,
            "layers": [
                {
                    "stack": layer.stack,
                    "layer": layer.number,
                    "total": self.totals[n],
                    "difference": self.differences[n],
                    "error": self.errors[n],
                    "steps": self.steps[n],
                }
                for n, layer in enumerate(self.layers)
            ],
        }


class NeuronPasses:
    """A network and its tokenizer; the network is the same after each call."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.layers: tuple[NeuronLayer, ...] = ()
        self.encoded = lru_cache(maxsize=None)(self._encode)

    def _encode(self, prompt: str, answer: str) -> FactInputs:
        """Return the inputs of a prompt; the first one tells which layers run."""
        given = fact_inputs(self.model, self.tokenizer, prompt, answer)
        if not self.layers:
            self.layers = tuple(layer for layer, _ in self.record(given))
        return given

    def record(self, given: FactInputs) -> list[tuple[NeuronLayer, Tensor]]:
        """Return the neurons of every layer: (1, length, neurons)."""
        with torch.no_grad(), eval_mode(self.model):
            return record_neurons(self.model, lambda: self._log_probabilities(given, 1))

    def attribute(self, prompt: str, answer: str, steps: int) -> PromptAttribution:
        """Attribute the probability of an answer to the neurons where it is predicted."""
        given = self.encoded(prompt, answer)
        found = []
        with eval_mode(self.model), frozen(self.model):
            probability = float(self._log_probabilities(given, 1).exp())
            for layer, values in self.record(given):
                positions = given.positions_in(layer.stack)

                def function(
                    rows: Tensor, layer: NeuronLayer = layer, positions: Tensor = positions
                ) -> Tensor:
                    change = with_values(layer, positions, rows)
                    return self._log_probabilities(given, len(rows), change).exp()

                x = values[0].index_select(0, positions)
                found.append(
                    integrated_gradients(function, x, steps=steps, max_rows=self._rows(given))
                )
        return PromptAttribution(
            prompt,
            probability,
            self.layers,
            # A neuron has a value for each token of the answer.
            tuple(each.attributions.double().sum(0).cpu().numpy() for each in found),
            tuple(each.total for each in found),
            tuple(each.difference for each in found),
            tuple(each.error for each in found),
            tuple(each.steps for each in found),
        )

    def probabilities(self, prompt: str, answer: str, rows: Sequence[ScaledNeurons]) -> list[float]:
        """Return the probability of the answer for each choice of neurons that are scaled."""
        given, found = self.encoded(prompt, answer), list[float]()
        positions = [given.positions_in(layer.stack) for layer in self.layers]
        size = self._rows(given)
        with torch.no_grad(), eval_mode(self.model):
            for first in range(0, len(rows), size):
                some = rows[first : first + size]
                change = with_scales(self.layers, positions, some, given.labels.device)
                found += self._log_probabilities(given, len(some), change).exp().tolist()
        return found

    @staticmethod
    def _rows(given: FactInputs) -> int:
        """Return how many rows a batch has."""
        return max(1, min(MAX_ROWS, MAX_TOKENS // given.length))

    def _log_probabilities(
        self, given: FactInputs, rows: int, change: Change = lambda call, x: x
    ) -> Tensor:
        """Return the log-probability of the answer in copies of a prompt: (rows,)."""
        inputs = tree_map(given.inputs, lambda t: t.expand(rows, *t.shape[1:]))
        with changed_neurons(self.model, change):
            hidden = self.model.forward_lm(inputs).hidden
        if inputs.target_positions is None:
            hidden = hidden.index_select(1, given.positions)
        logits = self.model.lm_logits(hidden.flatten(0, 1)).logits().float()
        labels = given.labels.repeat(rows)
        chosen = logits.log_softmax(-1).gather(1, labels[:, None])
        return chosen.view(rows, -1).sum(1)
