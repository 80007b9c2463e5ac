"""What may be said next: every rule against its plain words, and rules that leave nothing."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.logits_process import NEG_INF, LogitsProcessor, TokenHistory, Trie
from support.decoding import Rules, asked, constrain, generate
from support.loops import every_case
from support.references import ENDS, VOCAB, Scribe, scribe

CPU = torch.device("cpu")
HOT = GenerationConfig(temperature=3.0)
METHODS: list[GenerationConfig] = [
    GREEDY,
    HOT,
    GenerationConfig(num_beams=4),
    GenerationConfig(num_beams=4, num_beam_groups=2),
    GenerationConfig(top_k=3, penalty_alpha=0.6),
]
LABELS = [(2,), (2, 3), (2, 3, 4), (6, 7), (10,)]  # "no" begins "nothing"

ids = st.integers(0, 5)
texts = st.lists(st.lists(ids, min_size=1, max_size=7), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def gpt2() -> Scribe:
    return scribe("gpt2")


@pytest.fixture(scope="module")
def t5() -> Scribe:
    return scribe("t5")


def said(prompts: Sequence[Sequence[int]], written: Sequence[int] = ()) -> TokenHistory:
    found = TokenHistory(prompts, 9, CPU)
    for id in written:
        found.append(torch.full((len(prompts),), id))
    return found


def left(rules: Rules, prompts: Sequence[Sequence[int]], written: Sequence[int] = ()) -> Tensor:
    """Say what is left of scores, half of them below zero."""
    scores = torch.linspace(-1.5, 1.5, 6).expand(len(prompts), -1)
    return processor(rules, {5})(scores, said(prompts, written))


def processor(rules: Rules, ends: Collection[int] = ()) -> LogitsProcessor:
    request = asked([], constraints=rules)
    return LogitsProcessor(request.config, request.constraints, ends, 6, CPU)


@settings(max_examples=60)
@given(prompts=texts, written=st.lists(ids, max_size=4), penalty=st.sampled_from([0.5, 1.3, 4.0]))
def test_what_was_said_is_weakened(
    prompts: list[list[int]], written: list[int], penalty: float
) -> None:
    found = left(constrain(repetition_penalty=penalty), prompts, written)
    for row, prompt in zip(found.tolist(), prompts, strict=True):
        for id, score in enumerate(torch.linspace(-1.5, 1.5, 6).tolist()):
            weak = score * penalty if score < 0 else score / penalty
            expected = weak if id in {*prompt, *written} else score
            assert row[id] == pytest.approx(expected, abs=1e-6)


@settings(max_examples=60)
@given(prompts=texts, written=st.lists(ids, max_size=4), size=st.integers(1, 4))
def test_no_run_is_said_twice(prompts: list[list[int]], written: list[int], size: int) -> None:
    judge = processor(constrain(no_repeat_ngram_size=size))
    found = judge.process(torch.zeros(len(prompts), 6), said(prompts, written))
    for row, prompt in zip(found.tolist(), prompts, strict=True):
        text = [*prompt, *written]
        runs = {tuple(text[n : n + size]) for n in range(len(text) - size + 1)}
        for id in range(6):
            again = len(text) >= size - 1 and (*text[len(text) - size + 1 :], id) in runs
            assert (row[id] == NEG_INF) == again


@settings(max_examples=60)
@given(
    prompts=texts,
    written=st.lists(ids, max_size=3),
    words=st.lists(st.lists(ids, min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_no_banned_word_is_finished(
    prompts: list[list[int]], written: list[int], words: list[list[int]]
) -> None:
    judge = processor(constrain(bad_words_ids=words))
    found = judge.process(torch.zeros(len(prompts), 6), said(prompts, written))
    for row, prompt in zip(found.tolist(), prompts, strict=True):
        for id in range(6):
            text = [*prompt, *written, id]
            finished = any(text[-len(word) :] == word for word in words)
            assert (row[id] == NEG_INF) == finished


def test_ids_outside_the_vocabulary_are_never_said_anyway() -> None:
    found = left(
        constrain(suppress_ids={-3, 2, 99}, bad_words_ids=[(99,), (1, 77), (99, 3)]), [[1]]
    )
    assert (found == NEG_INF).nonzero().tolist() == [[0, 2]]


def test_a_trie_knows_what_follows() -> None:
    trie = Trie(LABELS)
    assert set(trie.children) == {2, 6, 10} and not trie.is_end
    assert set(trie.walk([2]).children) == {3} and trie.walk([2]).is_end
    assert not trie.walk([6]).is_end and trie.walk([6, 7]).is_end and not trie.walk([6, 7]).children
    assert not trie.walk([3]).children and not trie.walk([3, 2]).is_end


@pytest.mark.parametrize("method", METHODS)
def test_a_closed_list_is_kept_to(gpt2: Scribe, t5: Scribe, method: GenerationConfig) -> None:
    for who in (gpt2, t5):
        for prefix in ((), (16, 2)):
            rules = constrain(allowed_ids=LABELS, forced_prefix=prefix)
            request = who.request(constraints=rules, seed=4)
            for text in generate(who.model, request, method):
                assert tuple(text.ids[: len(prefix)]) == prefix
                assert tuple(text.ids[len(prefix) :]) in LABELS and text.finished


def test_every_label_can_be_drawn(gpt2: Scribe) -> None:
    request = gpt2.request(
        constraints=constrain(allowed_ids=LABELS), num_return_sequences=40, seed=1
    )
    found = {tuple(text.ids) for text in generate(gpt2.model, request, HOT)}
    assert found == set(LABELS)


def test_beams_choose_the_likeliest_label(gpt2: Scribe, t5: Scribe) -> None:
    """A label's probability is that of its tokens and of an end after them."""
    for who in (gpt2, t5):
        rules = constrain(allowed_ids=LABELS)
        request = who.request(constraints=rules, eos_ids={1}, num_return_sequences=5)
        found = generate(who.model, request, GenerationConfig(num_beams=5, length_penalty=0.0))
        for number in range(len(who.prompts)):
            costs = {}
            for label in LABELS:
                whole = (*label, 1)
                rows = [who.scores(number, whole[:n]).log_softmax(-1) for n in range(len(whole))]
                costs[label] = sum(float(row[id]) for row, id in zip(rows, whole, strict=True))
            own = found[5 * number : 5 * number + 5]
            ranked = sorted(costs, key=lambda label: -costs[label])
            assert [tuple(text.ids) for text in own] == ranked
            scores = [costs[label] for label in ranked]
            assert [text.score for text in own] == pytest.approx(scores, abs=1e-4)


def test_greedy_takes_the_likeliest_token_that_is_left(gpt2: Scribe) -> None:
    found = generate(
        gpt2.model, gpt2.request(constraints=constrain(allowed_ids=LABELS), eos_ids={1}), GREEDY
    )
    for number, text in enumerate(found):
        written: list[int] = []
        while True:
            node = Trie(LABELS).walk(written)
            open = [*node.children, *([1] if node.is_end else [])]
            scores = gpt2.scores(number, written)
            best = max(open, key=lambda id: float(scores[id]))
            if best == 1:
                break
            written.append(best)
        assert text.ids == written


@pytest.mark.parametrize("method", METHODS)
def test_labels_need_no_end(gpt2: Scribe, method: GenerationConfig) -> None:
    """Beams wider than the list idle without complaint."""
    labels = [(2, 3), (6, 7, 8), (10,)]
    request = gpt2.request(constraints=constrain(allowed_ids=labels), eos_ids=(), seed=3)
    for text in generate(gpt2.model, request, method):
        assert tuple(text.ids) in labels and text.finished


def test_labels_may_bring_their_own_end(gpt2: Scribe) -> None:
    labels = [(2, 3, 1), (6, 1), (2, 1)]
    for method in METHODS:
        request = gpt2.request(
            constraints=constrain(allowed_ids=labels), eos_ids={1}, max_new_tokens=2
        )
        for text in generate(gpt2.model, request, method):
            assert (*text.ids, 1) in labels


@pytest.mark.parametrize("method", METHODS)
def test_every_rule_holds_for_every_method(gpt2: Scribe, method: GenerationConfig) -> None:
    prompts = gpt2.prompts
    for number, text in enumerate(
        generate(gpt2.model, gpt2.request(constraints=constrain(no_repeat_ngram_size=2)), method)
    ):
        pairs = list(pairwise([*prompts[number], *text.ids]))
        assert len(set(pairs)) == len(pairs)
    free = generate(gpt2.model, gpt2.request(eos_ids=()), method)
    unsaid, runs = {text.ids[0] for text in free}, {tuple(text.ids[1:3]) for text in free}
    prefix = sorted(set(range(VOCAB)) - unsaid - ENDS)[-2:]
    rules = constrain(
        suppress_ids=unsaid, bad_words_ids=sorted(runs), min_new_tokens=4, forced_prefix=prefix
    )
    for text in generate(gpt2.model, gpt2.request(constraints=rules), method):
        assert not unsaid & set(text.ids) and not runs & set(pairwise(text.ids))
        assert len(text.ids) >= 4 and text.ids[:2] == prefix


NOTHING_LEFT = [
    constrain(forced_prefix=(2, 3), suppress_ids={3}),
    constrain(forced_prefix=(2, 3), bad_words_ids=[(2, 3)]),
    constrain(forced_prefix=(2, 2, 2), no_repeat_ngram_size=1),
    constrain(allowed_ids=[(2,), (3,)], suppress_ids={2, 3}),
    constrain(allowed_ids=[(2, 3)], min_new_tokens=4),
    constrain(suppress_ids=set(range(VOCAB)) - {2}, no_repeat_ngram_size=1),
]


@pytest.mark.parametrize("method", METHODS)
def test_rules_that_leave_nothing_to_say_are_refused(
    gpt2: Scribe, method: GenerationConfig
) -> None:
    with every_case() as case:
        for rules in NOTHING_LEFT:
            with (
                case(rules),
                pytest.raises(UserError, match="the constraints exclude every token: relax them"),
            ):
                generate(gpt2.model, gpt2.request(constraints=rules, max_new_tokens=6), method)


@pytest.mark.parametrize("method", METHODS)
def test_a_text_may_neither_end_nor_go_on(gpt2: Scribe, method: GenerationConfig) -> None:
    rules = constrain(suppress_ids=set(range(VOCAB)) - ENDS, min_new_tokens=2)
    with pytest.raises(UserError, match=f"all {VOCAB} tokens of the model are suppressed or end"):
        generate(gpt2.model, gpt2.request(constraints=rules), method)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0: it must be above 0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty=-1"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty=inf"),
        ({"no_repeat_ngram_size": 0}, "no_repeat_ngram_size=0"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1"),
        ({"bad_words_ids": [()]}, "a bad word is empty"),
        ({"allowed_ids": []}, "allowed text is empty"),
        ({"allowed_ids": [(3,), ()]}, "allowed text is empty"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        asked([], constraints=wrong)


@pytest.mark.parametrize(
    ("rules", "wants", "words"),
    [
        (constrain(forced_prefix=(3, 1)), {}, "contains an end-of-text token"),
        (constrain(allowed_ids=[(3, 1, 4)]), {}, "contains an end-of-text token"),
        (
            constrain(allowed_ids=[(3, 4, 6)], forced_prefix=(2,)),
            {"max_new_tokens": 3},
            "prefix of 1 tokens and an allowed text of 3 .*=3",
        ),
        (constrain(allowed_ids=LABELS), {"eos_ids": ()}, "the beginning of another"),
        (constrain(forced_prefix=(3, VOCAB)), {}, f"has the id {VOCAB}"),
        (constrain(allowed_ids=[(3,), (-1,)]), {}, "has the id -1"),
        (constrain(), {"eos_ids": {1, 99}}, "has the id 99"),
        (
            constrain(suppress_ids=range(VOCAB)),
            {},
            f"all {VOCAB} tokens of the model are suppressed",
        ),
    ],
)
def test_rules_at_odds_with_the_rest_are_refused(
    gpt2: Scribe, rules: Rules, wants: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        generate(gpt2.model, gpt2.request(constraints=rules, **wants), GREEDY)
