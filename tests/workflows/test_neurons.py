"""Knowledge neurons of every family: attributions, the choice of neurons, and their effects."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.neurons import NeuronLayer, ScaledNeurons, feed_forwards
from kinfolk.reports.neurons_page import render
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.knowledge_neurons.effects import EffectRow, Group, summarize_effects
from kinfolk.workflows.knowledge_neurons.fact_prompts import Fact, fact_inputs, read_facts
from kinfolk.workflows.knowledge_neurons.neurons import choose_neurons
from kinfolk.workflows.knowledge_neurons.page import neurons_page
from kinfolk.workflows.knowledge_neurons.passes import NeuronPasses, PromptAttribution
from support.attributions import open_captum

TEXTS = [
    "The capital of France is Paris.",
    "The capital of Italy is Rome.",
    "Paris is the largest city of France.",
    "Rome lies in Italy, and New York does not.",
] * 4
FRANCE = ("The capital of France is [MASK].", "Paris")
ITALY = (["The capital of Italy is [MASK].", "The largest city of Italy is [MASK]."], "Rome")
RECURRENT = ("bilstm", "cove", "cvt", "elmo", "ngram", "ulmfit")
TRANSFORMERS = [name for name in families() if name not in RECURRENT]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, kind="word", vocab_size=400, fewer=True)


@pytest.fixture(scope="module")
def bytes_tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, kind="bpe", vocab_size=400, fewer=True)


def network(name: str, tokenizer: Tokenizer, **fields: Any) -> LanguageModel:
    config = replace(InitialWeights(name=f"{name}/nano").config(tokenizer), **fields)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return config.build().eval()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_transformer_has_complete_attributions_and_is_left_as_it_was(
    name: str, tokenizer: Tokenizer
) -> None:
    model = network(name, tokenizer).train()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    result = kinfolk.neurons(model, tokenizer, [FRANCE, ITALY], draws=3)
    assert result.completeness_error <= 0.01
    for fact in result.facts:
        for prompt in fact.prompts:
            assert 0 < prompt.probability < 1
            stacks = prompt.attributions
            total = sum(float(values.sum()) for values in stacks.values())
            assert total == pytest.approx(sum(prompt.totals), abs=1e-6)
            assert all(values.any(1).all() for values in stacks.values())
    assert all(len(part.down_proj._forward_pre_hooks) == 0 for _, part in feed_forwards(model))
    assert model.training and all(weight.requires_grad for weight in model.parameters())
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_attributions_of_a_very_small_probability_are_complete(
    name: str, bytes_tokenizer: Tokenizer
) -> None:
    model = network(name, bytes_tokenizer)
    with torch.no_grad():
        for _, part in feed_forwards(model):
            part.down_proj.weight *= 20  # neurons matter
    passes = NeuronPasses(model, bytes_tokenizer)
    found = passes.attribute(FRANCE[0], "New York", steps=2)
    assert found.probability < 1e-4
    assert max(found.steps) > 2
    for total, difference in zip(found.totals, found.differences, strict=True):
        assert abs(total - difference) <= 0.01 * abs(difference)


@pytest.mark.parametrize(
    ("name", "stacks"),
    [
        ("bert", {"": 2}),
        ("albert", {"": 2}),
        ("xlnet", {"": 2}),
        ("electra", {"generator": 2}),
        ("t5", {"encoder": 2, "decoder": 2}),
    ],
)
def test_layers_are_those_that_predict_tokens(
    name: str, stacks: dict[str, int], tokenizer: Tokenizer
) -> None:
    result = kinfolk.neurons(network(name, tokenizer), tokenizer, [FRANCE], draws=2)
    found = result.facts[0].prompts[0].attributions
    assert {stack: len(values) for stack, values in found.items()} == stacks


@pytest.mark.parametrize("name", ["gpt2", "transformer_xl"])
def test_the_probability_is_that_of_the_next_tokens(name: str, bytes_tokenizer: Tokenizer) -> None:
    model = network(name, bytes_tokenizer)
    passes = NeuronPasses(model, bytes_tokenizer)
    (found,) = passes.probabilities("The capital is [MASK].", "New York", [ScaledNeurons({}, 1.0)])
    start = bytes_tokenizer.special_tokens.bos
    start = bytes_tokenizer.special_tokens.eos if start is None else start
    before = bytes_tokenizer.encode("The capital is", add_special_tokens=False)
    answer = bytes_tokenizer.encode(" New York", add_special_tokens=False)
    ids = [start, *before, *answer]
    scores = kinfolk.logits(model, ids).log_softmax(-1)
    expected = sum(float(scores[n, ids[n + 1]]) for n in range(len(before), len(ids) - 1))
    assert len(answer) > 1 and found == pytest.approx(np.exp(expected), rel=1e-4)


def test_the_probability_at_a_mask_is_that_of_fill(tokenizer: Tokenizer) -> None:
    for name in ("bert", "albert", "electra", "xlnet"):
        model = network(name, tokenizer)
        (fill,) = kinfolk.fill(model, tokenizer, FRANCE[0], candidates=100).masks
        expected = dict(fill.candidates)["Paris"]
        result = kinfolk.neurons(model, tokenizer, [FRANCE], draws=2)
        assert result.facts[0].prompts[0].probability == pytest.approx(expected, rel=1e-4)


@pytest.mark.parity
def test_attributions_of_a_network_are_those_of_captum(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attr = open_captum(monkeypatch)
    model = network("bert", tokenizer)
    special = tokenizer.special_tokens
    plain = tokenizer.encode(FRANCE[0], add_special_tokens=False)
    ids = [special.require("cls"), *plain, special.require("sep")]
    place = ids.index(special.require("mask"))
    paris = tokenizer.token_to_id("Paris")
    found = NeuronPasses(model, tokenizer).attribute(*FRANCE, 20)
    assert found.steps == (20, 20)
    for number, layer in enumerate(model.layers):
        down_proj, values = layer.feed_forward.sublayer.down_proj, list[torch.Tensor]()

        def keep(module: Any, args: Any, values: list[torch.Tensor] = values) -> None:
            values.append(args[0][0, place].detach())

        def probability(x: torch.Tensor, down_proj: Any = down_proj) -> torch.Tensor:
            def put(module: Any, args: Any) -> Any:
                rows = args[0].clone()
                rows[:, place] = x
                return (rows,)

            handle = down_proj.register_forward_pre_hook(put)
            inputs = Inputs.from_ids(torch.tensor([ids] * len(x)), causal=False)
            logits = model.lm_logits(model(inputs).hidden[:, place]).logits()
            handle.remove()
            return logits.softmax(-1)[:, paris]

        handle = down_proj.register_forward_pre_hook(keep)
        model(Inputs.from_ids(torch.tensor([ids]), causal=False))
        handle.remove()
        expected = attr.IntegratedGradients(probability).attribute(values[0][None], n_steps=20)
        np.testing.assert_allclose(
            found.by_layer[number], expected.detach().numpy()[0], rtol=1e-3, atol=1e-8
        )


def test_suppression_is_the_same_as_a_weight_without_the_neuron(tokenizer: Tokenizer) -> None:
    model = network("gpt2", tokenizer)
    passes = NeuronPasses(model, tokenizer)
    prompt, answer = "[MASK]", "Paris"  # one place: a weight acts on all places
    passes.encoded(prompt, answer)
    suppressed, doubled = passes.probabilities(
        prompt, answer, [ScaledNeurons({1: [3, 7]}, 0.0), ScaledNeurons({1: [3, 7]}, 2.0)]
    )
    weight = feed_forwards(model)[1][1].down_proj.weight
    for factor, expected in ((0.0, suppressed), (2.0, doubled)):
        kept = weight[:, [3, 7]].detach().clone()
        with torch.no_grad():
            weight[:, [3, 7]] = factor * kept
            changed = passes.probabilities(prompt, answer, [ScaledNeurons({}, 1.0)])[0]
            weight[:, [3, 7]] = kept
        assert changed == pytest.approx(expected, rel=1e-5)
    assert suppressed != doubled


def attributed(*by_layer: list[float]) -> PromptAttribution:
    layers = tuple(NeuronLayer(n, "", n + 1, len(values)) for n, values in enumerate(by_layer))
    zeros = (0.0,) * len(layers)
    arrays = tuple(np.array(values) for values in by_layer)
    return PromptAttribution("", 0.5, layers, arrays, zeros, zeros, zeros, (20,) * len(layers))


def test_neurons_are_above_the_threshold_in_enough_prompts() -> None:
    first = attributed([1.0, 0.19, 0.2], [0.5, -3.0, 0.3])
    second = attributed([0.1, 0.0, 0.021], [0.01, -3.0, 0.05])
    layers = first.layers

    def chosen(share: float, *prompts: PromptAttribution) -> set[tuple[int, int]]:
        return {(n.layer, n.neuron) for n in choose_neurons(layers, prompts, 0.2, share)}

    assert chosen(0.7, first) == {(1, 0), (1, 2), (2, 0), (2, 2)}
    assert chosen(0.7, first, second) == {(1, 0), (1, 2), (2, 2)}
    assert chosen(0.5, first, second) == {(1, 0), (1, 2), (2, 0), (2, 2)}
    assert choose_neurons(layers, [first], 0.2, 0.7)[0].attribution == 1.0
    assert chosen(0.7, attributed([-1.0, 0.0, 0.0], [0.0, 0.0, 0.0])) == set()


def effect(group: Group, before: float, after: float, *random: float) -> EffectRow:
    return EffectRow(group, "suppress", "p", "a", before, after, random)


def test_effects_are_means_over_facts_with_intervals_of_the_difference() -> None:
    facts = [
        [effect("prompts", 0.9, 0.2 + n / 100, 0.88, 0.9), effect("other facts", 0.5, 0.5, 0.5)]
        for n in range(30)
    ]
    own, others = summarize_effects(facts)
    assert own.group == "prompts" and own.facts == 30 and own.over == "facts"
    assert own.change == pytest.approx(-0.555) and own.random_change == pytest.approx(-0.01)
    assert own.difference == pytest.approx(-0.545)
    low, high = own.difference_interval
    assert low < own.difference < high < -0.5 and own.p < 0.01
    assert others.difference == 0 and others.p == 1.0


def test_one_prompt_has_an_interval_over_draws() -> None:
    (own,) = summarize_effects([[effect("prompts", 0.9, 0.1, 0.8, 0.85, 0.9, 0.95)]])
    assert own.over == "draws" and own.change_interval is None
    assert own.difference_interval[0] < own.difference < own.difference_interval[1] < 0
    assert own.p == pytest.approx(1 / 5)


def test_neurons_found_on_one_prompt_are_tested_on_the_other(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    result = kinfolk.neurons(
        model, tokenizer, [ITALY], others=[FRANCE], find_on=1, draws=4, threshold=0.5
    )
    (fact,) = result.facts
    assert [len(fact.prompts), len(fact.fact.prompts)] == [1, 2]
    groups = [(row.group, row.answer) for row in fact.effects if row.operation == "suppress"]
    assert groups == [("prompts", "Rome"), ("other prompts", "Rome"), ("other facts", "Paris")]
    assert all(len(row.random) == 4 for row in fact.effects)
    page = render(neurons_page(result))
    assert "other prompts of the facts" in page and "Completeness" in page
    count = len(fact.neurons)
    assert repr(result) == f"NeuronsResult(bert, layers=2, facts=1, neurons={count}, effects=6)"


def test_facts_with_the_same_answer_are_not_other_facts(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    again = ("France has the capital [MASK].", "Paris")
    result = kinfolk.neurons(model, tokenizer, [FRANCE, again], draws=2)
    assert {effect.group for effect in result.effects} == {"prompts"}


def test_a_causal_model_needs_no_blank_and_an_encoder_decoder_none(tokenizer: Tokenizer) -> None:
    gpt2 = network("gpt2", tokenizer)
    with_blank, without = (
        fact_inputs(gpt2, tokenizer, prompt, "Paris")
        for prompt in ("The capital of France is [MASK].", "The capital of France is")
    )
    assert torch.equal(with_blank.inputs.input_ids, without.inputs.input_ids)
    t5 = network("t5", tokenizer)
    pair = fact_inputs(t5, tokenizer, "The capital of France", "Paris")
    assert pair.labels.tolist() == [tokenizer.token_to_id("Paris")]
    assert pair.positions.tolist() == [0]


def test_several_masks_hide_an_answer_of_several_tokens(tokenizer: Tokenizer) -> None:
    model = network("bert", tokenizer)
    given = fact_inputs(model, tokenizer, "Rome and [MASK] [MASK] are cities.", "New York")
    mask = tokenizer.special_tokens.mask
    assert given.inputs.input_ids[0, given.positions].tolist() == [mask, mask]
    assert [tokenizer.id_to_token(id) for id in given.labels.tolist()] == ["New", "York"]


@pytest.mark.parametrize("name", ["ulmfit", "elmo", "ngram"])
def test_a_family_without_feed_forward_layers_is_refused(name: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=f"{name} models have no feed-forward layers"):
        kinfolk.neurons(network(name, tokenizer), tokenizer, [FRANCE])


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (("no blank", "Paris"), "has no \\[MASK\\]: it must occur exactly once, where"),
        (("[MASK] and then [MASK].", "Paris"), "in 2 places: \\[MASK\\] must occur exactly once"),
        (("It is [MASK].", "New York"), "'New York' is 2 tokens, and .* has \\[MASK\\] 1 times"),
        (("The " * 600 + "[MASK].", "Paris"), "and the model's context is"),
        (("It is [MASK].", " "), "the answer of 'It is \\[MASK\\].' is empty"),
        (("It is [MASK].", "Oslo"), "'Oslo' has words that the tokenizer does not know"),
        ((1, 2), "is no fact: give"),
    ],
)
def test_a_bad_fact_is_one_sentence(fact: Any, expected: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=expected):
        kinfolk.neurons(network("bert", tokenizer), tokenizer, [fact])


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (f"{'The ' * 600}no blank", "Paris"),
        (f"{'The ' * 600}[MASK] and [MASK].", "Paris"),
        (f"{'The ' * 600}[MASK].", "New York"),
        (f"{'The ' * 600}[MASK].", " "),
    ],
)
def test_a_long_prompt_is_shortened_in_the_sentence(
    prompt: str, answer: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(UserError) as error:
        kinfolk.neurons(network("bert", tokenizer), tokenizer, [(prompt, answer)])
    assert "The The ...'" in str(error.value) and len(str(error.value)) < 400


def test_an_answer_inside_a_token_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="shares the token 'Paris' with the text beside it"):
        fact_inputs(network("bert", tokenizer), tokenizer, "It is Par[MASK].", "is")


def test_facts_are_read_from_json_lines_and_tables(tmp_path: Path) -> None:
    lines, rows = tmp_path / "facts.jsonl", tmp_path / "facts.tsv"
    lines.write_text(
        '{"prompts": ["a [MASK]", "b [MASK]"], "answer": "x"}\n{"prompt": "c", "answer": "y"}\n',
        encoding="utf-8",
    )
    rows.write_text(
        "fact\tprompt\tanswer\n1\ta [MASK]\tx\n2\tc\ty\n1\tb [MASK]\tx\n", encoding="utf-8"
    )
    expected = [Fact(("a [MASK]", "b [MASK]"), "x"), Fact(("c",), "y")]
    assert read_facts(lines) == read_facts(rows) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("empty.jsonl", "", "has no facts: each needs"),
        ("empty.tsv", "prompt\tanswer\n", "has no facts: each needs"),
        ("words.tsv", "a\tb\n", "has the columns a, b: it needs prompt and answer"),
        ("list.jsonl", '{"prompt": 1, "answer": "x"}\n', "row 1 of .* is no fact: it needs"),
        (
            "two.tsv",
            "fact\tprompt\tanswer\n1\ta\tx\n1\tb\ty\n",
            "row 3 of .* has the answer 'y', and the first of the same fact 'x'",
        ),
    ],
)
def test_a_bad_file_of_facts_is_one_sentence(
    name: str, text: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=expected):
        read_facts(tmp_path / name)
