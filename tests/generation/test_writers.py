"""Every member that writes: as without a state, and as each text alone, whatever the method."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.cuda_graph import GraphedDecodeStep
from kinfolk.generation.decode import Decoder, GeneratedSequence
from kinfolk.generation.sampling import sample_next_ids
from kinfolk.rng import uniforms
from support.decoding import Rules, constrain, generate, using
from support.references import NAMES, Scribe, method_name, scribe

ALL = GenerationConfig(temperature=1.3, top_k=15, top_p=0.95, min_p=0.02, typical_p=0.95)
SEARCHES: list[GenerationConfig] = [
    GREEDY,
    ALL,
    GenerationConfig(num_beams=3),
    GenerationConfig(num_beams=4, num_beam_groups=2, diversity_penalty=0.7, length_penalty=0.5),
    GenerationConfig(top_k=3, penalty_alpha=0.6),
]
FILTERS = [
    GenerationConfig(),
    GenerationConfig(temperature=0.5),
    GenerationConfig(top_k=4),
    GenerationConfig(top_p=0.6),
    GenerationConfig(min_p=0.2),
    GenerationConfig(typical_p=0.5),
]
RULES = [
    constrain(suppress_ids={2, 3, 14}),
    constrain(bad_words_ids=[(4,), (6, 7), (3, 4, 8), (11, 2)]),
    constrain(repetition_penalty=1.7),
    constrain(no_repeat_ngram_size=1),
    constrain(no_repeat_ngram_size=2),
    constrain(min_new_tokens=5),
    constrain(forced_prefix=(16, 17, 3)),
    constrain(allowed_ids=[(2, 3), (2, 3, 4), (6,), (7, 8, 10)]),
    constrain(
        forced_prefix=(16,),
        repetition_penalty=0.8,
        no_repeat_ngram_size=3,
        min_new_tokens=3,
        suppress_ids={4},
        bad_words_ids=[(2,)],
    ),
]


@pytest.fixture(scope="module")
def scribes() -> dict[str, Scribe]:
    return {name: scribe(name) for name in NAMES}


def fits(name: str, method: GenerationConfig) -> bool:
    """Say whether a member can write by a method."""
    return not (method.method == "contrastive" and name in ("xlnet", "ngram"))


def same(ours: GeneratedSequence, theirs: GeneratedSequence) -> None:
    assert (ours.ids, ours.finished) == (theirs.ids, theirs.finished)
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
    assert ours.score == pytest.approx(theirs.score, abs=1e-5)


def alone_as_together(
    who: Scribe, method: GenerationConfig, **wants: Any
) -> list[GeneratedSequence]:
    """Compare the texts of all prompts with those of each prompt alone; return them."""
    each, num = wants.pop("each", None), wants.get("num_return_sequences", 1)
    together = generate(who.model, who.request(**wants, **each_of(each)), method)
    for row in range(len(who.prompts)):
        alone = generate(who.model, who.request(row, **wants, **each_of(each, row)), method)
        for ours, theirs in zip(alone, together[row * num : (row + 1) * num], strict=True):
            same(ours, theirs)
    return together


def each_of(tokens: list[int] | None, row: int | None = None) -> dict[str, Any]:
    if tokens is None:
        return {}
    return {"max_new_tokens": tokens if row is None else tokens[row : row + 1]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sampling", [GREEDY, GenerationConfig(), ALL], ids=method_name)
def test_a_text_is_that_of_a_whole_pass_a_token(
    scribes: dict[str, Scribe], name: str, sampling: GenerationConfig
) -> None:
    """Two streams over the whole text for XLNet, places by hand for GLM, a memory of rows for
    Transformer-XL: several prompts at once, to 1e-5."""
    who = scribes[name]
    found = generate(who.model, who.request(seed=3), sampling)
    for number, text in enumerate(found):
        ids, costs = who.slowly(number, sampling, seed=3)
        assert text.ids == ids
        assert text.logprobs == pytest.approx(costs, abs=1e-5)
    assert len({len(text.ids) for text in found}) > 1 or sampling is GREEDY
    assert len({tuple(text.ids) for text in found}) > 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", SEARCHES, ids=method_name)
def test_together_is_one_by_one(
    scribes: dict[str, Scribe], name: str, method: GenerationConfig
) -> None:
    if not fits(name, method):
        pytest.skip(f"{name} has no states to contrast")
    num = 1 if method.method in ("contrastive", "greedy") else 2
    wants: dict[str, Any] = {"seed": 5, "num_return_sequences": num, "each": [9, 4, 11, 6]}
    found = alone_as_together(scribes[name], method, **wants)
    assert len({len(text.ids) for text in found}) > 1
    for prompt, most in enumerate(wants["each"]):
        own = found[prompt * num : (prompt + 1) * num]
        assert all(len(text.ids) <= most for text in own)
        if method.num_beams > 1 and method.num_beam_groups == 1:
            assert own[0].score >= own[1].score and own[0].ids != own[1].ids


@pytest.mark.parametrize("name", ["gpt2", "transformer_xl", "xlnet"])
@pytest.mark.parametrize("sampling", FILTERS, ids=method_name)
def test_together_is_one_by_one_under_every_filter(
    scribes: dict[str, Scribe], name: str, sampling: GenerationConfig
) -> None:
    found = alone_as_together(scribes[name], sampling, seed=2, num_return_sequences=3)
    assert len({tuple(text.ids) for text in found}) > 5  # every text has a chance of its own


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("number", range(len(RULES)))
def test_together_is_one_by_one_under_every_rule(
    scribes: dict[str, Scribe], name: str, number: int
) -> None:
    who, changed = scribes[name], 0
    for method in (
        ALL,
        GenerationConfig(num_beams=3),
        GenerationConfig(top_k=3, penalty_alpha=0.6),
    ):
        found = alone_as_together(who, method, constraints=RULES[number], seed=1, max_new_tokens=6)
        free = generate(who.model, who.request(seed=1, max_new_tokens=6), method)
        changed += [text.ids for text in found] != [text.ids for text in free]
    assert changed


@settings(max_examples=25)
@given(
    name=st.sampled_from(NAMES),
    method=st.sampled_from([m for m in (*SEARCHES, *FILTERS) if m.method != "contrastive"]),
    rules=st.sampled_from([constrain(), *RULES]),
    order=st.permutations(range(4)),
    each=st.lists(st.integers(3, 8), min_size=4, max_size=4),
    copies=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
)
def test_company_changes_nothing(
    scribes: dict[str, Scribe],
    name: str,
    method: GenerationConfig,
    rules: Rules,
    order: list[int],
    each: list[int],
    copies: int,
    seed: int,
) -> None:
    """Any prompts, in any order, with rooms of any size: each text as if it were alone."""
    few = (
        "allowed_ids" in rules or len(rules.get("forced_prefix", ())) > 1
    )  # there are not many texts then
    who, num = scribes[name].turned(order), 1 if few or method.is_greedy else copies
    alone_as_together(
        who, method, constraints=rules, seed=seed, num_return_sequences=num, each=each
    )


@pytest.mark.parametrize("name", NAMES)
def test_copies_are_texts_of_their_own_and_the_first_is_that_of_one_alone(
    scribes: dict[str, Scribe], name: str
) -> None:
    who = scribes[name]
    one, three = (generate(who.model, who.request(num_return_sequences=n, seed=9)) for n in (1, 3))
    for text, first in zip(one, three[::3], strict=True):
        same(text, first)
    assert len({tuple(text.ids) for text in three}) > 6
    # The number of a text is that of its prompt: what stands before it in other calls counts.
    (later,) = generate(who.model, who.request(2, seed=9, first=2))
    same(later, one[2])
    moved = generate(who.model, who.request(seed=9, first=77))
    assert [text.ids for text in moved] != [text.ids for text in one]


@pytest.mark.parametrize("sampling", [GREEDY, ALL], ids=method_name)
@pytest.mark.parametrize("name", ["gpt", "gpt2", "gpt3", "glm", "t5", "transformer"])
def test_a_pinned_state_writes_what_a_growing_one_does(
    scribes: dict[str, Scribe], name: str, sampling: GenerationConfig
) -> None:
    """The turn that an accelerator records, run here as it is."""
    who, tokens, other = scribes[name], 12, scribes[name].turned()
    turn: GraphedDecodeStep | None = None
    # The second prompts find the state of the first, and write over it.
    for texts, seed in ((who, 6), (other, 7), (who, 8)):
        asked = texts.request(
            max_new_tokens=tokens,
            eos_ids=(),
            seed=seed,
            constraints=constrain(suppress_ids={3, 4}),
        )
        expected = generate(who.model, asked, sampling)
        with torch.inference_mode():
            writer = Decoder(who.model, using(asked, sampling))
            chances = torch.from_numpy(uniforms(seed, range(4), tokens))
            left = writer.logits_processor(writer.next_logits(), writer.history)
            writer.append(sample_next_ids(left, sampling, chances[:, 0]))
            turn = turn or GraphedDecodeStep(writer)
            turn.load(writer, chances)
            for _ in range(1, tokens):
                turn.step()
        for row, text in enumerate(expected):
            assert turn.ids[row, 1:tokens].tolist() == text.ids[1:]
            costs = turn.logprobs[row, 1:tokens].tolist()
            assert costs == pytest.approx(text.logprobs[1:], abs=1e-5)


def test_texts_of_the_whole_context_fit_it(scribes: dict[str, Scribe]) -> None:
    """The last token of a context has a place, by every method."""
    for name in ("gpt", "gpt2", "gpt3", "glm"):
        small = scribe(name, context=10)
        for method in SEARCHES:
            found = generate(small.model, small.request(max_new_tokens=99, eos_ids=()), method)
            sizes = [len(p) + len(t.ids) for p, t in zip(small.prompts, found, strict=True)]
            assert sizes == [10] * 4, (name, method)
