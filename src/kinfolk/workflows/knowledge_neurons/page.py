"""The values of the page of knowledge neurons."""

from pathlib import Path

import numpy as np

from kinfolk.reports.neurons_page import EffectView, FactView, NeuronsPage
from kinfolk.workflows.knowledge_neurons.effects import NeuronEffect
from kinfolk.workflows.knowledge_neurons.neurons import FactNeurons, KnowledgeNeuron, NeuronsResult

HIGHEST = 20  # neurons in the chart
CHANGED = {"suppress": "suppressed", "amplify": "amplified"}
TESTED = {
    "prompts": "prompts they were found on",
    "other prompts": "other prompts of the facts",
    "other facts": "other facts",
}


def neurons_page(result: NeuronsResult) -> NeuronsPage:
    """Gather the values of the page."""
    first = result.facts[0]
    prompt = first.prompts[0]
    return NeuronsPage(
        title=f"Knowledge neurons of {Path(result.model).name}",
        effects=[effect_view(effect) for effect in result.effects],
        over=" and ".join(sorted({effect.over for effect in result.effects})),
        layers=[(layer.title, count) for layer, count in result.counts_by_layer],
        completeness=[
            (layer.title, total, difference)
            for layer, total, difference in zip(
                prompt.layers, prompt.totals, prompt.differences, strict=True
            )
        ],
        highest=[(full_name(n), n.attribution) for n in first.neurons[:HIGHEST]],
        facts=[fact_view(fact) for fact in result.facts],
        settings=[
            ("model", result.model),
            ("family", result.family),
            ("facts", f"{len(result.facts):,}"),
            ("threshold", f"{result.threshold:g} of the highest attribution of a prompt"),
            ("share", f"{result.share:.0%} of the prompts"),
            ("draws of random neurons", str(result.draws)),
            ("largest error of completeness", f"{result.completeness_error:.2%}"),
        ],
        notes=result.notes,
    )


def effect_name(effect: NeuronEffect) -> str:
    """Return the name of an effect in tables and on the page."""
    return f"{CHANGED[effect.operation]}, {TESTED[effect.group]}"


def effect_view(effect: NeuronEffect) -> EffectView:
    """Return the values of one effect; that of a single prompt has no interval of its own."""
    bounds = effect.change_interval or (effect.change, effect.change)
    return EffectView(
        effect_name(effect),
        effect.before,
        (effect.change, *bounds),
        (effect.random_change, *effect.random_interval),
        (effect.difference, *effect.difference_interval),
        effect.p,
    )


def fact_view(fact: FactNeurons) -> FactView:
    """Return the values of one fact."""

    def after(operation: str) -> float | None:
        own = [r for r in fact.effects if r.group == "prompts" and r.operation == operation]
        return float(np.mean([row.after for row in own])) if own else None

    return FactView(
        fact.fact.prompts[0],
        fact.fact.answer,
        float(np.mean([prompt.probability for prompt in fact.prompts])),
        after("suppress"),
        after("amplify"),
        [neuron_name(neuron) for neuron in fact.neurons],
    )


def neuron_name(neuron: KnowledgeNeuron) -> str:
    """Return a short name for lists: L3 N1042, or encoder L3 N1042."""
    return f"{neuron.stack} L{neuron.layer} N{neuron.neuron}".strip()


def full_name(neuron: KnowledgeNeuron) -> str:
    """Return the name in words: layer 3, neuron 1042, or encoder layer 3, neuron 1042."""
    return f"{neuron.stack} layer {neuron.layer}, neuron {neuron.neuron}".strip()
