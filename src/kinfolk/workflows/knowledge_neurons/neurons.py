"""Knowledge neurons (Dai et al., 2021): feed-forward neurons on which the answer of a fact depends.

prompts of a fact -> integrated gradients of the answer's probability, by layer and neuron
    -> neurons above a threshold in most of the prompts
    -> probabilities of this fact and of others with these neurons suppressed and amplified,
       against as many random neurons of the same layers
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.nn.integrated_gradients import COMPLETENESS_TOLERANCE, STEPS
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.neurons import NeuronLayer, ScaledNeurons, feed_forwards
from kinfolk.rng import sequential
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.folders import load_tokenizer
from kinfolk.workflows.generate import to_inference
from kinfolk.workflows.knowledge_neurons.effects import (
    EffectRow,
    Group,
    NeuronEffect,
    summarize_effects,
)
from kinfolk.workflows.knowledge_neurons.fact_prompts import Fact, read_facts, to_fact
from kinfolk.workflows.knowledge_neurons.passes import NeuronPasses, PromptAttribution
from kinfolk.workflows.load import load

THRESHOLD, SHARE = 0.2, 0.7  # of the paper, section 4.1
DRAWS = 20
MAX_OTHERS = 20  # prompts of other facts for each fact
OPERATIONS: dict[Literal["suppress", "amplify"], float] = {"suppress": 0.0, "amplify": 2.0}
Facts = Sequence[Fact | tuple[str | Sequence[str], str]] | Path | str


@dataclass(frozen=True)
class KnowledgeNeuron:
    """A neuron on which a fact depends."""

    stack: str  # encoder, decoder, generator; "" where the network has one stack of layers
    layer: int  # from 1
    neuron: int  # from 0
    attribution: float  # mean over the prompts
    share: float  # of the prompts in which it is above the threshold


@dataclass(frozen=True, eq=False)
class FactNeurons:
    """The knowledge neurons of a fact, and the prompts that they were found on."""

    fact: Fact
    prompts: tuple[PromptAttribution, ...]
    neurons: tuple[KnowledgeNeuron, ...]  # the highest attribution first
    effects: tuple[EffectRow, ...]  # on this fact, and on each other prompt


@dataclass(frozen=True, eq=False, kw_only=True)
class NeuronsResult:
    """What `neurons` finds."""

    model: str
    family: str
    layers: tuple[NeuronLayer, ...]
    facts: tuple[FactNeurons, ...]
    effects: tuple[NeuronEffect, ...]  # over all facts that have neurons
    threshold: float
    share: float
    draws: int
    notes: tuple[str, ...]

    @property
    def completeness_error(self) -> float:
        """The largest error of any layer and prompt, relative to the difference of the outputs."""
        return max(prompt.error for fact in self.facts for prompt in fact.prompts)

    @property
    def counts_by_layer(self) -> list[tuple[NeuronLayer, int]]:
        """How many knowledge neurons of all facts each layer has."""
        found = [(n.stack, n.layer) for fact in self.facts for n in fact.neurons]
        return [(layer, found.count((layer.stack, layer.number))) for layer in self.layers]

    def __repr__(self) -> str:
        count = sum(len(fact.neurons) for fact in self.facts)
        return (
            f"NeuronsResult({self.family}, layers={len(self.layers)}, facts={len(self.facts)}, "
            f"neurons={count}, effects={len(self.effects)})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return all values but the arrays, by their names."""
        return {
            "model": self.model,
            "family": self.family,
            "threshold": self.threshold,
            "share": self.share,
            "draws": self.draws,
            "completeness_error": self.completeness_error,
            "layers": [
                {"stack": layer.stack, "layer": layer.number, "knowledge_neurons": count}
                for layer, count in self.counts_by_layer
            ],
            "effects": [asdict(effect) for effect in self.effects],
            "facts": [
                {
                    "answer": fact.fact.answer,
                    "prompts": [prompt.to_json() for prompt in fact.prompts],
                    "neurons": [asdict(neuron) for neuron in fact.neurons],
                    "effects": [row.to_json() for row in fact.effects],
                }
                for fact in self.facts
            ],
            "notes": list(self.notes),
        }


def neurons(
    model: LanguageModel | Path | str,
    tokenizer: Tokenizer | Path | str | None,
    facts: Facts,
    *,
    others: Facts = (),
    find_on: int | None = None,
    threshold: float = THRESHOLD,
    share: float = SHARE,
    steps: int = STEPS,
    draws: int = DRAWS,
    seed: int = 0,
    device: str = "auto",
    on_step: Callable[[int], None] = lambda done: None,
) -> NeuronsResult:
    """Find the knowledge neurons of facts, and measure what changing them does.

    `neurons(model, tokenizer, [("The capital of France is [MASK].", "Paris")]).facts[0].neurons`

    A fact is a pair of a prompt, or several, and the answer; or facts are a file of them. The
    neurons are those whose attribution is above `threshold` times the highest in at least a `share`
    of the prompts, of the first `find_on` where that is given: effects on the others are then
    measured apart. `others` are facts whose neurons are not searched; the effects on them, and on
    the other facts, show whether the neurons are specific. The model is a folder, or the network
    that `kinfolk.load` returns, which is left as it was.
    """
    _check_settings(find_on, threshold, share, steps, draws)
    known, unrelated = _facts(facts), _facts(others)
    if not known:
        raise UserError("there are no facts: give at least one")
    name = str(model) if isinstance(model, Path | str) else model.family_name
    network, tokenizer = _open(model, tokenizer, device)
    passes = NeuronPasses(network, tokenizer)
    for fact in (*known, *unrelated):  # every prompt is checked before the first is attributed
        for prompt in fact.prompts:
            passes.encoded(prompt, fact.answer)
    found: list[FactNeurons] = []
    for number, fact in enumerate(known):
        attributed = tuple(
            passes.attribute(prompt, fact.answer, steps) for prompt in fact.prompts[:find_on]
        )
        chosen = choose_neurons(passes.layers, attributed, threshold, share)
        tests = _test_prompts(known, unrelated, number, find_on, seed)
        rows = measure_effects(passes, chosen, tests, draws, seed + number)
        found.append(FactNeurons(fact, attributed, chosen, rows))
        on_step(number + 1)
    return NeuronsResult(
        model=name,
        family=network.family_name,
        layers=passes.layers,
        facts=tuple(found),
        effects=summarize_effects([fact.effects for fact in found if fact.neurons]),
        threshold=threshold,
        share=share,
        draws=draws,
        notes=tuple(_notes(network, found, share)),
    )


def _check_settings(
    find_on: int | None, threshold: float, share: float, steps: int, draws: int
) -> None:
    if not 0 < threshold <= 1:
        raise UserError(f"threshold {threshold:g}: it must be above 0 and at most 1")
    if not 0 < share <= 1:
        raise UserError(f"share {share:g}: it must be above 0 and at most 1")
    for name, value, least in (("find_on", find_on, 1), ("steps", steps, 2), ("draws", draws, 2)):
        if value is not None and value < least:
            raise UserError(f"{name} {value}: it must be at least {least}")


def _facts(given: Facts) -> list[Fact]:
    return read_facts(given) if isinstance(given, Path | str) else [to_fact(one) for one in given]


def _open(
    model: LanguageModel | Path | str, tokenizer: Tokenizer | Path | str | None, device: str
) -> tuple[LanguageModel, Tokenizer]:
    """Return the network and its tokenizer; refuse networks without neurons or predictions."""
    if isinstance(tokenizer, Path | str):
        tokenizer = load_tokenizer(tokenizer)
    loaded = isinstance(model, Path | str)
    if isinstance(model, Path | str):
        model, tokenizer = load(model, tokenizer)
    if tokenizer is None:
        raise UserError("the tokenizer is missing: call neurons(model, tokenizer, facts)")
    if not feed_forwards(model):
        raise UserError(
            f"{family_of(model).name} models have no feed-forward layers, whose neurons are "
            "searched: use a Transformer, such as bert, gpt2 or t5"
        )
    if model.pretrained is not model:
        raise UserError(
            "the model was fine-tuned: its task head predicts labels, not tokens; use the "
            "pretrained model"
        )
    model.check_lm_head()
    # Half precision is too coarse for gradients of probabilities.
    return (to_inference(model, device=device, precision="fp32") if loaded else model), tokenizer


def choose_neurons(
    layers: Sequence[NeuronLayer],
    prompts: Sequence[PromptAttribution],
    threshold: float,
    share: float,
) -> tuple[KnowledgeNeuron, ...]:
    """Return the neurons above the threshold in enough prompts (section 3.2 and 3.3)."""
    votes = [np.zeros(layer.size, np.int64) for layer in layers]
    for prompt in prompts:
        highest = max(float(values.max()) for values in prompt.by_layer)
        for vote, values in zip(votes, prompt.by_layer, strict=True):
            vote += (values > 0) & (values >= threshold * highest)
    found = [
        KnowledgeNeuron(
            stack=layer.stack,
            layer=layer.number,
            neuron=int(neuron),
            attribution=float(np.mean([prompt.by_layer[n][neuron] for prompt in prompts])),
            share=float(votes[n][neuron] / len(prompts)),
        )
        for n, layer in enumerate(layers)
        for neuron in np.flatnonzero(votes[n] >= share * len(prompts))
    ]
    return tuple(sorted(found, key=lambda neuron: -neuron.attribution))


def _test_prompts(
    known: Sequence[Fact],
    unrelated: Sequence[Fact],
    number: int,
    find_on: int | None,
    seed: int,
) -> list[tuple[Group, str, str]]:
    """Return the prompts on which the neurons of a fact are tested, with their answers.

    Other facts are asked by their first prompt; facts with the same answer are none of the others.
    """
    fact = known[number]
    found_on = len(fact.prompts[:find_on])
    own: list[tuple[Group, str, str]] = [
        ("prompts" if n < found_on else "other prompts", prompt, fact.answer)
        for n, prompt in enumerate(fact.prompts)
    ]
    others = [
        other
        for n, other in enumerate((*known, *unrelated))
        if n != number and other.answer != fact.answer
    ]
    if len(others) > MAX_OTHERS:
        chosen = sequential(seed + number).choice(len(others), MAX_OTHERS, replace=False)
        others = [others[n] for n in sorted(chosen)]
    return [*own, *(("other facts", other.prompts[0], other.answer) for other in others)]


def measure_effects(
    passes: NeuronPasses,
    chosen: Sequence[KnowledgeNeuron],
    tests: Sequence[tuple[Group, str, str]],
    draws: int,
    seed: int,
) -> tuple[EffectRow, ...]:
    """Return the probabilities with neurons suppressed and amplified, and with random ones."""
    if not chosen:
        return ()
    numbers = {(layer.stack, layer.number): n for n, layer in enumerate(passes.layers)}
    own: dict[int, list[int]] = {}
    for neuron in chosen:
        own.setdefault(numbers[neuron.stack, neuron.layer], []).append(neuron.neuron)
    sets = [own, *_random_sets(passes.layers, own, draws, seed)]
    rows = []
    for group, prompt, answer in tests:
        scaled = [ScaledNeurons(one, f) for f in OPERATIONS.values() for one in sets]
        before, *after = passes.probabilities(prompt, answer, [ScaledNeurons({}, 1.0), *scaled])
        values = np.array(after).reshape(len(OPERATIONS), len(sets))
        rows += [
            EffectRow(group, operation, prompt, answer, before, float(own_value), random)
            for operation, (own_value, *rest) in zip(OPERATIONS, values, strict=True)
            for random in (tuple(map(float, rest)),)
        ]
    return tuple(rows)


def _random_sets(
    layers: Sequence[NeuronLayer], own: Mapping[int, Sequence[int]], draws: int, seed: int
) -> list[dict[int, list[int]]]:
    """Draw as many neurons of the same layers, several times."""
    rng = sequential(seed)
    return [
        {
            n: rng.choice(layers[n].size, len(chosen), replace=False).tolist()
            for n, chosen in own.items()
        }
        for _ in range(draws)
    ]


def _notes(network: LanguageModel, found: Sequence[FactNeurons], share: float) -> list[str]:
    """Return what a reader of the result should know."""
    notes = []
    if network.decoding == "causal":
        notes.append("A causal model reads what is before the blank; what follows is left out.")
    if empty := [fact.fact.answer for fact in found if not fact.neurons]:
        notes.append(
            f"{len(empty)} of {len(found)} facts have no neuron that {share:.0%} of their prompts "
            f"share, and are left out of the effects ({', '.join(map(repr, empty[:5]))}"
            f"{' ...' if len(empty) > 5 else ''}): lower the share or the threshold."
        )
    incomplete = [p for fact in found for p in fact.prompts if p.error > COMPLETENESS_TOLERANCE]
    if incomplete:
        notes.append(
            f"The attributions of {len(incomplete)} prompts miss the difference of the outputs by "
            f"more than {COMPLETENESS_TOLERANCE:.0%}."
        )
    return notes
