"""Contrastive search: against the paper's own formula, a whole pass for every token tried."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.config import GREEDY, GenerationConfig
from support.decoding import constrain, generate
from support.references import ENDS, NAMES, Scribe, scribe

TIE = 1e-6
STATES = [name for name in NAMES if name not in ("xlnet", "ngram")]


@pytest.fixture(scope="module")
def scribes() -> dict[str, Scribe]:
    # The states of the Transformer's usual weights here are all alike.
    return {name: scribe(name, scale=0.4 if name == "transformer" else None) for name in NAMES}


def states(who: Scribe, number: int, written: list[int]) -> Tensor:
    """Return the direction of the state of every token so far: (tokens, width)."""
    with torch.no_grad():
        return F.normalize(who.hidden(number, written)[0], dim=-1)


def worths(
    who: Scribe, number: int, method: GenerationConfig, written: list[int]
) -> dict[int, float]:
    """Return what each token tried is worth after a text: Su et al. (2022), equation 5."""
    shares = who.scores(number, written).softmax(-1)
    past = states(who, number, written)
    found = {}
    for id in shares.topk(method.top_k).indices.tolist():
        new = states(who, number, [*written, id])[-1]
        likeness = float((past @ new).max())
        found[id] = (1 - method.penalty_alpha) * float(shares[id]) - method.penalty_alpha * likeness
    return found


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize(("top_k", "penalty"), [(3, 0.6), (5, 0.3), (4, 1.0)])
def test_a_text_is_that_of_the_papers_formula(
    scribes: dict[str, Scribe], name: str, top_k: int, penalty: float
) -> None:
    who, method = scribes[name], GenerationConfig(top_k=top_k, penalty_alpha=penalty)
    found = generate(who.model, who.request(max_new_tokens=6), method)
    decided = []
    for number, text in enumerate(found):
        assert text.finished or len(text.ids) == 6
        for size in range(len(text.ids) + text.finished):
            tried = worths(who, number, method, text.ids[:size])
            chosen = [text.ids[size]] if size < len(text.ids) else ENDS & tried.keys()
            # States are compared in single precision: worths closer than that are a tie.
            assert max(tried[id] for id in chosen) > max(tried.values()) - TIE
            best, second = sorted(tried.values())[:-3:-1]
            decided.append(best - second > 10 * TIE)
        rows = [who.scores(number, text.ids[:n]).log_softmax(-1) for n in range(len(text.ids))]
        costs = [float(row[id]) for row, id in zip(rows, text.ids, strict=True)]
        assert text.logprobs == pytest.approx(costs, abs=1e-5)
    assert sum(decided) > 0.7 * len(decided)  # and ties are rare


@pytest.mark.parametrize("name", STATES)
def test_without_a_penalty_or_a_choice_it_is_greedy(scribes: dict[str, Scribe], name: str) -> None:
    who = scribes[name]
    greedy = [text.ids for text in generate(who.model, who.request(), GREEDY)]
    for method in (
        GenerationConfig(penalty_alpha=0.0),
        GenerationConfig(top_k=1, penalty_alpha=0.9),
    ):
        assert [text.ids for text in generate(who.model, who.request(), method)] == greedy
    other = generate(who.model, who.request(), GenerationConfig(top_k=6, penalty_alpha=1.0))
    assert [text.ids for text in other] != greedy


def test_what_is_forbidden_is_not_even_a_choice(scribes: dict[str, Scribe]) -> None:
    """Where rules leave less than is tried, the rest never wins, however unlike it is."""
    who, few = scribes["gpt2"], constrain(allowed_ids=[(3, 4), (6, 7)])
    for method in (
        GenerationConfig(top_k=8, penalty_alpha=1.0),
        GenerationConfig(top_k=99, penalty_alpha=0.5),
    ):
        for text in generate(who.model, who.request(constraints=few), method):
            assert tuple(text.ids) in {(3, 4), (6, 7)} and text.finished


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"top_k": 0}, "top_k=0"),
        ({"penalty_alpha": -0.1}, "penalty_alpha=-0.1"),
        ({"penalty_alpha": 1.1}, "penalty_alpha=1.1"),
        ({"penalty_alpha": float("nan")}, "penalty_alpha=nan"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        GenerationConfig(**wrong)


def test_who_has_nothing_to_contrast_is_refused(scribes: dict[str, Scribe]) -> None:
    for name, words in (
        ("xlnet", "not supported by this model"),
        ("ngram", "not supported by this model"),
    ):
        who = scribes[name]
        with pytest.raises(UserError, match=words):
            generate(who.model, who.request(), GenerationConfig(penalty_alpha=0.6))
    who = scribes["gpt2"]
    with pytest.raises(UserError, match="contrastive search gives one output"):
        generate(
            who.model, who.request(num_return_sequences=2), GenerationConfig(penalty_alpha=0.6)
        )
