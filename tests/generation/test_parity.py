"""The same weights write the same texts in transformers, with the same scores."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.decode import GeneratedSequence
from support.decoding import Rules, constrain
from support.trained_peers import PROMPTS, SOURCES, Pair

pytestmark = pytest.mark.parity

TOKENS = 12
HISTORY = {"repetition_penalty", "no_repeat_ngram_size"}  # rules about tokens so far
NETWORKS = [(name, learned) for learned in (False, True) for name in ("gpt2", "gpt", "t5")]
GREEDILY: dict[str, tuple[dict[str, Any], Rules]] = {
    "plain": ({}, constrain()),
    "fewest": ({"min_new_tokens": 6}, constrain(min_new_tokens=6)),
    "repetition": ({"repetition_penalty": 1.6}, constrain(repetition_penalty=1.6)),
    "ngram": ({"no_repeat_ngram_size": 2}, constrain(no_repeat_ngram_size=2)),
    "all": (
        {"min_new_tokens": 4, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
        constrain(min_new_tokens=4, repetition_penalty=1.2, no_repeat_ngram_size=3),
    ),
}
SEARCHES: dict[str, tuple[dict[str, Any], GenerationConfig, Rules]] = {
    "early": (
        {"num_beams": 4, "early_stopping": True},
        GenerationConfig(num_beams=4, early_stopping=True),
        constrain(),
    ),
    "early-long": (
        {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0},
        GenerationConfig(num_beams=3, early_stopping=True, length_penalty=2.0),
        constrain(),
    ),
    "fewest": (
        {"num_beams": 4, "min_new_tokens": 5},
        GenerationConfig(num_beams=4),
        constrain(min_new_tokens=5),
    ),
    "ngram": (
        {"num_beams": 4, "no_repeat_ngram_size": 2},
        GenerationConfig(num_beams=4),
        constrain(no_repeat_ngram_size=2),
    ),
    "repetition": (
        {"num_beams": 3, "repetition_penalty": 1.4, "length_penalty": 0.6},
        GenerationConfig(num_beams=3, length_penalty=0.6),
        constrain(repetition_penalty=1.4),
    ),
    "wide": (
        {"num_beams": 8, "num_return_sequences": 5},
        GenerationConfig(num_beams=8),
        constrain(),
    ),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a network by its name and whether it is trained, made when first asked for."""
    known: dict[tuple[str, bool], Pair] = {}

    def pair(name: str, learned: bool) -> Pair:
        if (name, learned) not in known:
            folder: Path = tmp_path_factory.mktemp(name)
            known[name, learned] = Pair.make(name, folder, learned=learned)
        return known[name, learned]

    return pair


def greedy(pair: Pair, **options: Any) -> list[tuple[list[int], list[float]]]:
    """Let transformers write one by one; return ids and log-probabilities.

    Its rules look at padding as if it had been said, so that its own batch differs from that.
    """
    found = []
    for text in pair.texts:
        out, (ids,) = pair.generate([text], max_new_tokens=TOKENS, **options)
        rows = [logits[0].log_softmax(-1) for logits in out.logits]
        found.append((ids, [float(row[id]) for row, id in zip(rows, ids, strict=False)]))
    return found


def same(ours: list[GeneratedSequence], theirs: list[tuple[list[int], list[float]]]) -> None:
    assert [text.ids for text in ours] == [ids for ids, _ in theirs]
    for text, (_, costs) in zip(ours, theirs, strict=True):
        assert text.logprobs == pytest.approx(costs, abs=1e-4)
        assert text.finished == (len(text.ids) < TOKENS)


@pytest.mark.parametrize(("name", "learned"), NETWORKS)
@pytest.mark.parametrize("way", GREEDILY)
def test_greedy_texts(pairs: Any, name: str, learned: bool, way: str) -> None:
    pair: Pair = pairs(name, learned)
    options, rules = GREEDILY[way]
    ours = pair.write(GREEDY, rules, max_new_tokens=TOKENS)
    same(ours, greedy(pair, **options))
    if not (rules.keys() & HISTORY and not pair.reads):  # then padding plays no part
        _, together = pair.generate(pair.texts, max_new_tokens=TOKENS, **options)
        assert [text.ids for text in ours] == together
    assert min(len(text.ids) for text in ours) >= rules.get("min_new_tokens", 0)
    assert len({tuple(text.ids) for text in ours}) > 1


def test_greedy_texts_of_a_gated_network(pairs: Any) -> None:
    pair: Pair = pairs("t5-gated", False)
    same(pair.write(GREEDY, constrain(), max_new_tokens=TOKENS), greedy(pair))


def test_no_token_twice(pairs: Any) -> None:
    pair: Pair = pairs("gpt2", False)
    ours = pair.write(GREEDY, constrain(no_repeat_ngram_size=1), max_new_tokens=TOKENS)
    same(ours, greedy(pair, no_repeat_ngram_size=1))
    for prompt, text in zip(PROMPTS, ours, strict=True):
        assert len({*prompt, *text.ids}) == len(prompt) + len(text.ids)


@pytest.mark.parametrize(("name", "learned"), NETWORKS)
def test_banned_words(pairs: Any, name: str, learned: bool) -> None:
    """Words of one and two tokens that would have been said, and one that starts in a prompt."""
    pair: Pair = pairs(name, learned)
    free = pair.write(GREEDY, constrain(), max_new_tokens=TOKENS)
    long = max((text.ids for text in free), key=len)
    words = [long[1:2], long[2:4], [PROMPTS[0][-1], free[0].ids[0] if free[0].ids else 7]]
    ours = pair.write(GREEDY, constrain(bad_words_ids=words), max_new_tokens=TOKENS)
    same(ours, greedy(pair, bad_words_ids=words))
    assert [text.ids for text in ours] != [text.ids for text in free]


def test_what_was_learned_is_written(pairs: Any) -> None:
    """The trained weights are no accident: they count on from a prompt and from a source."""
    for name, number, last in (("gpt2", 3, 36), ("gpt", 3, 36), ("t5", 1, 30)):
        text = pairs(name, True).write(GREEDY, constrain(), max_new_tokens=TOKENS)[number]
        assert (PROMPTS, SOURCES)[name == "t5"][number][-1 - (name == "t5")] == last
        assert text.finished and len(text.ids) >= 2
        steps = [after - before for before, after in pairwise([last, *text.ids])]
        assert set(steps) <= {1, 2}, (name, text.ids)  # 2 where it learned to leave one out


def searched(pair: Pair, alone: bool, **options: Any) -> tuple[list[list[int]], list[float]]:
    """Let transformers search, one by one where padding would play a part."""
    ids, scores = list[list[int]](), list[float]()
    for texts in [[text] for text in pair.texts] if alone else [pair.texts]:
        out, found = pair.generate(texts, max_new_tokens=TOKENS, **options)
        ids += found
        scores += out.sequences_scores.tolist()
    return ids, scores


def compare(
    pair: Pair, options: dict[str, Any], beam: GenerationConfig, rules: Rules
) -> list[GeneratedSequence]:
    num = options.setdefault("num_return_sequences", 2)
    ours = pair.write(beam, rules, max_new_tokens=TOKENS, num_return_sequences=num)
    ids, scores = searched(pair, bool(rules.keys() & HISTORY) and not pair.reads, **options)
    assert [text.ids for text in ours] == ids
    assert [text.score for text in ours] == pytest.approx(scores, abs=1e-4)
    return ours


@pytest.mark.parametrize(("size", "penalty"), [(2, 1.0), (4, 1.0), (4, 0.0), (3, 2.0), (4, -0.5)])
@pytest.mark.parametrize(("name", "learned"), NETWORKS)
def test_beams(pairs: Any, name: str, learned: bool, size: int, penalty: float) -> None:
    options = {"num_beams": size, "length_penalty": penalty}
    beam = GenerationConfig(num_beams=size, length_penalty=penalty)
    found = compare(pairs(name, learned), options, beam, constrain())
    assert penalty > 0 or len({len(text.ids) for text in found}) > 1


@pytest.mark.parametrize("way", SEARCHES)
@pytest.mark.parametrize(("name", "learned"), NETWORKS)
def test_beams_under_rules(pairs: Any, name: str, learned: bool, way: str) -> None:
    options, beam, rules = SEARCHES[way]
    found = compare(pairs(name, learned), dict(options), beam, rules)
    assert min(len(text.ids) for text in found) >= rules.get("min_new_tokens", 0)
    assert not learned or any(text.finished for text in found)
