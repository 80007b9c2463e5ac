"""Parameters and FLOPs by part add up to what torch counts; memory follows batch and length."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kinfolk import families
from kinfolk.batch import Inputs
from kinfolk.families.base import STANDARD_SIZES
from kinfolk.nn.characters import CharacterEmbedding
from kinfolk.nn.meta import count_parameters, meta_network
from kinfolk.training.flops import FlopCounter
from kinfolk.workflows.inspection.costs import (
    cost_parts,
    evaluate_terms,
    flop_terms,
    network_costs,
)
from kinfolk.workflows.inspection.memory import activation_bytes, lstm_values, saved_bytes

NAMES = [*families.families(), "bilstm", "cvt"]
LENGTH = 24
VOCAB = 320  # a multiple of 64: no padding rows are multiplied


def value_of(formula: str) -> int:
    """Compute a formula as it is printed."""
    total = 0
    for term in formula.split(" + "):
        product = 1
        for factor in term.split(" · "):
            product *= int(factor)
        total += product
    return total


def sizes(name: str) -> list[str]:
    family = families.family(name)
    return ["nano", *[size for size in family.sizes if size not in STANDARD_SIZES]]


@pytest.mark.parametrize("name", NAMES)
def test_parts_add_up_to_all_parameters_and_formulas_give_them(name: str) -> None:
    for size in sizes(name)[:2]:
        config = families.family(name).config(size)
        model = meta_network(config)
        parts = cost_parts(model, LENGTH)
        assert sum(part.parameters for part in parts) == count_parameters(model)
        for part in parts:
            assert value_of(part.parameter_formula) == part.parameters
            assert value_of(part.flop_formula) == part.flops


def run(model: Any, name: str) -> None:
    ids = torch.arange(LENGTH)[None] + 7  # different words, each of which is read once
    encoder = Inputs.from_ids(ids, causal=False)
    causal = model.decoding in ("causal", "encoder-decoder", "infilling") or name == "elmo"
    inputs = Inputs.from_ids(
        ids, causal=causal, encoder_inputs=encoder if "encoder-" in model.architecture else None
    )
    if name == "elmo":
        forward, backward, _ = model.forward_bilm(inputs, inputs)
        for hidden in (forward, backward):
            model.lm_logits(hidden).logits()
        return
    if name == "electra":
        model.discriminator_logits(model(inputs).hidden)
    hidden = model.forward_lm(inputs).hidden
    if name not in ("bilstm", "cvt"):
        model.lm_logits(hidden).logits()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ngram"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    config = families.family(name).config("nano").with_fields(vocab_size=VOCAB)
    model = config.build().eval()
    with torch.no_grad(), FlopCounter() as counter:
        run(model, name)
    ours = sum(map(evaluate_terms, flop_terms(meta_network(config), LENGTH).values()))
    assert ours == pytest.approx(counter.total, rel=2e-3), counter.total / ours


def test_flops_of_gpt2_are_the_known_formula() -> None:
    config: Any = families.family("gpt2").config("gpt2")
    parts = cost_parts(meta_network(config), 1024)
    flops = {part.name: part.flops for part in parts}
    n, d, layers = 1024, 768, 12
    assert flops["attention"] == layers * (2 * n * 4 * d * d + 4 * n * n * d)
    assert flops["feed-forward"] == layers * 2 * n * 8 * d * d
    assert flops["head"] == 2 * n * d * 50257
    assert {part.name: part.parameters for part in parts}["attention"] == layers * (
        4 * d * d + 4 * d
    )


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "xlnet", "transformer_xl", "albert"])
def test_memory_grows_with_batch_and_length(name: str) -> None:
    costs = network_costs(name, families.family(name).config("tiny"), LENGTH)
    for rows in (costs.training_bytes, costs.decoding_bytes):
        for row in rows:
            assert list(row) == sorted(row)
        for column in zip(*rows, strict=True):
            assert list(column) == sorted(column)
    states = 16 * sum(part.parameters for part in costs.parts)
    one, eight = (costs.training_bytes[i][0] - states for i in (0, 1))
    assert eight == 8 * one > 0


@pytest.mark.parametrize("limit", [16, 64, 100, 300, 512, 1024])
def test_memory_of_a_short_context_is_a_curve_too(limit: int) -> None:
    config = families.family("gpt2").config("nano").with_fields(max_length=limit)
    costs = network_costs("gpt2", config, LENGTH)
    assert len(costs.lengths) == 4 and costs.lengths[-1] == min(limit, 512)
    assert len(set(costs.training_bytes[0])) == 4


def saved_by_a_step(model: Any, run: Callable[[], Any]) -> int:
    """Run, and count the bytes that are saved for the backward pass, parameters left out."""
    kept: dict[int, tuple[int, torch.Tensor]] = {}
    weights = {w.untyped_storage()._cdata for w in model.parameters()}

    def keep(saved: torch.Tensor) -> torch.Tensor:
        if saved.untyped_storage()._cdata not in weights:
            kept[saved.untyped_storage()._cdata] = saved.untyped_storage().nbytes(), saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        run()
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize(("name", "reads"), [("elmo", 2), ("cvt", 1)])
def test_words_read_by_characters_keep_what_their_filters_return(name: str, reads: int) -> None:
    """Most of what ELMo keeps: a value of each filter at each place of a word."""
    config = families.family(name).config("nano").with_fields(vocab_size=VOCAB)
    model: Any = config.build()
    words = torch.arange(64)[None] + 7
    (reader,) = (part for part in model.modules() if isinstance(part, CharacterEmbedding))
    real = saved_by_a_step(reader, lambda: reader(words))
    layers = [part for part in model.modules() if isinstance(part, torch.nn.LSTM)]
    found = activation_bytes(meta_network(config), 64)
    rest = 4 * 64 * sum(map(lstm_values, layers))
    assert found - rest == pytest.approx(reads * real, rel=0.05)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_activations_are_those_that_a_step_saves(name: str) -> None:
    config = families.family(name).config("nano").with_fields(vocab_size=VOCAB)
    model = config.build()
    inputs = Inputs.from_ids(torch.zeros(1, 64, dtype=torch.int64), causal=name == "gpt2")
    real = saved_by_a_step(model, lambda: model(inputs))
    assert activation_bytes(meta_network(config), 64) == pytest.approx(real, rel=0.03)
    assert saved_bytes(model, inputs) == pytest.approx(real, rel=0.03)


def test_a_decoder_keeps_keys_and_values() -> None:
    config: Any = families.family("gpt2").config("gpt2")
    costs = network_costs("gpt2", replace(config), LENGTH)
    weights = 4 * sum(part.parameters for part in costs.parts)
    # Two vectors of 768 numbers in each of 12 layers, 4 bytes each, for 64 tokens.
    assert costs.decoding_bytes[0][0] - weights == 2 * 768 * 12 * 4 * 64
    assert network_costs("bert", families.family("bert").config("nano"), 8).decoding_bytes == []
