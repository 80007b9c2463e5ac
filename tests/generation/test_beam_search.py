"""Beam search: against a slow one without a state, against all texts there are, and in groups."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.batch import Inputs, Output
from kinfolk.errors import UserError
from kinfolk.generation.beam_search import beam_search
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.decode import Decoder, GeneratedSequence, collect_sequences
from kinfolk.generation.prompts import eval_mode
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from support.decoding import asked, constrain, generate, generate_steps, write
from support.references import ENDS, NAMES, VOCAB, Scribe, scribe

Text = tuple[int, ...]
Scores = Callable[[Text], Sequence[float]]  # the log-probabilities of what follows a text


@pytest.fixture(scope="module")
def scribes() -> dict[str, Scribe]:
    return {name: scribe(name) for name in NAMES}


def searched(
    scores: Scores, beam: GenerationConfig, *, tokens: int, ends: frozenset[int] = ENDS
) -> list[tuple[Text, float]]:
    """Search as in Vijayakumar et al. (2016), algorithm 1, over texts spelled out in full.

    At each time one group after the other takes a step of beam search. A token's log-probability
    is lessened for each beam of an earlier group that says the same token at that time, and the
    sums keep what was taken off. One group is plain beam search.
    """
    beams: list[list[tuple[float, Text]]] = [[(0.0, ())] for _ in range(beam.num_beam_groups)]
    whole: list[list[tuple[float, Text]]] = [[] for _ in range(beam.num_beam_groups)]
    going = [True] * beam.num_beam_groups
    for time in range(1, tokens + 1):
        crowd: Counter[int] = Counter()
        for group in [g for g in range(beam.num_beam_groups) if going[g]]:
            ways = [
                (total + score - beam.diversity_penalty * crowd[id], (*text, id))
                for total, text in beams[group]
                for id, score in enumerate(scores(text))
            ]
            ways.sort(key=lambda way: -way[0])
            done = [w for w in ways[: beam.beams_per_group] if w[1][-1] in ends or time == tokens]
            whole[group] += [(total / time**beam.length_penalty, text) for total, text in done]
            whole[group] = sorted(whole[group], key=lambda way: -way[0])[: beam.beams_per_group]
            beams[group] = [w for w in ways if w[1][-1] not in ends][: beam.beams_per_group]
            crowd.update(text[-1] for _, text in beams[group])
            if len(whole[group]) == beam.beams_per_group:
                hope = beams[group][0][0] / time**beam.length_penalty
                going[group] = hope > whole[group][-1][0] and not beam.early_stopping
    ranked = sorted((way for found in whole for way in found), key=lambda way: -way[0])
    return [(text[:-1] if text[-1] in ends else text, score) for score, text in ranked]


def scores_of(who: Scribe, number: int) -> Scores:
    return lambda text: who.scores(number, text).log_softmax(-1).tolist()


def same(found: Sequence[GeneratedSequence], expected: Sequence[tuple[Text, float]]) -> None:
    assert [tuple(text.ids) for text in found] == [ids for ids, _ in expected[: len(found)]]
    scores = [score for _, score in expected[: len(found)]]
    assert [text.score for text in found] == pytest.approx(scores, abs=1e-4)


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record from which rows beams went on."""
    seen: list[list[int]] = []
    keep = Decoder.select_rows

    def recorded(self: Decoder, rows: Sequence[int]) -> None:
        seen.append(list(rows))
        keep(self, rows)

    monkeypatch.setattr(Decoder, "select_rows", recorded)
    return seen


BEAMS = (
    GenerationConfig(num_beams=3),
    GenerationConfig(num_beams=4, length_penalty=0.0),
    GenerationConfig(num_beams=4, length_penalty=-1.0, early_stopping=True),
    GenerationConfig(num_beams=4, num_beam_groups=2, diversity_penalty=1.5),
    GenerationConfig(num_beams=6, num_beam_groups=3, diversity_penalty=0.4, length_penalty=0.5),
)


@pytest.mark.parametrize(
    ("name", "beam"),
    [
        pytest.param(
            *(name, beam),
            id=f"{name}-{beam.num_beams}-{beam.num_beam_groups}",
            # By default two searches of each family, and families of each search.
            marks=[] if (row + column) % len(BEAMS) < 2 else pytest.mark.slow,
        )
        for row, name in enumerate(NAMES)
        for column, beam in enumerate(BEAMS)
    ],
)
def test_a_search_is_that_over_whole_passes(
    scribes: dict[str, Scribe], name: str, beam: GenerationConfig, crossings: list[list[int]]
) -> None:
    """Keys and values, what an encoder said, memories, blanks, guesses and histories all follow
    their beams: a search that scores every text anew finds the same."""
    who, tokens = scribes[name], 7
    num = beam.num_beams
    found = generate(who.model, who.request(max_new_tokens=tokens, num_return_sequences=num), beam)
    for number in range(len(who.prompts)):
        expected = searched(scores_of(who, number), beam, tokens=tokens)
        same(found[number * num : (number + 1) * num], expected)
    crossed = [rows for rows in crossings[1:] if rows != sorted(rows)]
    assert crossed or beam.num_beam_groups > 1, "no two beams ever changed places"
    assert any(len(set(rows)) < len(rows) for rows in crossings[1:]), "no beam was ever doubled"


@pytest.mark.parametrize("name", NAMES)
def test_the_winners_cost_what_they_cost_without_beams(
    scribes: dict[str, Scribe], name: str
) -> None:
    who = scribes[name]
    found = generate(
        who.model,
        who.request(num_return_sequences=3, max_new_tokens=8),
        GenerationConfig(num_beams=3),
    )
    for place, text in enumerate(found):
        rows = [scores_of(who, place // 3)(tuple(text.ids[:n])) for n in range(len(text.ids))]
        costs = [row[id] for row, id in zip(rows, text.ids, strict=True)]
        assert text.logprobs == pytest.approx(costs, abs=1e-5)


class Table(LanguageModel):
    """A model by hand: what it has read lies in its state, and a table says what comes next."""

    class Config(ModelConfig):
        vocab_size = 4

    class Said:
        def __init__(self, scores: Tensor) -> None:
            self.scores = scores

        def logits(self) -> Tensor:
            return self.scores

        def nll(self, labels: Tensor) -> Tensor:
            raise NotImplementedError

    architecture = "decoder"
    decoding = "causal"

    def __init__(self, chances: dict[Text, Sequence[float]]) -> None:
        super().__init__()
        self.config = self.Config()
        self.chances = chances

    def forward(self, inputs: Inputs) -> Output:
        state = inputs.cache
        assert state is not None
        seen = inputs.full_key_mask()
        keys = inputs.input_ids[:, None, :, None].double()
        kept, _ = state.layer(0).update(keys, -keys)
        assert kept.shape[2] == seen.document_ids.shape[1]
        rows = []
        for ids, own in zip(
            kept[:, 0, :, 0].long().tolist(), seen.document_ids.tolist(), strict=True
        ):
            rows.append([id for id, document in zip(ids, own, strict=True) if document == 0])
        hidden = torch.tensor([[self.chances.get(tuple(row), [0.25] * 4)] for row in rows])
        return Output(hidden, cache=state)

    def lm_logits(self, hidden: Tensor) -> Any:
        return self.Said(hidden.log())


def test_beams_that_cross_at_every_step_keep_their_own_past() -> None:
    """The second beam overtakes the first at each step, so that their rows change places."""
    chances = {
        (0,): [0.05, 0.50, 0.40, 0.05],
        (0, 1): [0.10, 0.30, 0.30, 0.30],
        (0, 2): [0.80, 0.10, 0.06, 0.04],  # 2 0 overtakes all of 1 ...
        (0, 2, 0): [0.25, 0.25, 0.26, 0.24],
        (0, 1, 1): [0.02, 0.02, 0.02, 0.94],  # ... and 1 1 3 that
        (0, 1, 1, 3): [0.10, 0.20, 0.30, 0.40],
        (0, 2, 0, 2): [0.01, 0.97, 0.01, 0.01],  # ... and 2 0 2 1 that again
    }
    beam = GenerationConfig(num_beams=2, length_penalty=0.0)
    request = asked([[0], [3, 0]], max_new_tokens=[4, 4], num_return_sequences=2)
    found = generate(Table(chances), request, beam)
    assert [text.ids for text in found[:2]] == [[2, 0, 2, 1], [1, 1, 3, 3]]
    assert [text.score for text in found[:2]] == pytest.approx(
        [
            float(torch.tensor([0.40, 0.80, 0.26, 0.97]).log().sum()),
            float(torch.tensor([0.50, 0.30, 0.94, 0.40]).log().sum()),
        ]
    )
    # Nothing is known of the other prompt: all its texts are as good.
    assert found[2].score == pytest.approx(found[3].score) == pytest.approx(4 * -1.3862944)


@pytest.mark.parametrize("name", ["gpt2", "t5", "transformer_xl", "xlnet"])
@pytest.mark.parametrize(("words", "tokens", "size"), [(4, 3, 16), (4, 2, 4), (5, 2, 5)])
def test_beams_that_hold_all_texts_find_the_best_there_is(
    scribes: dict[str, Scribe], name: str, words: int, tokens: int, size: int
) -> None:
    """Of 4 or 5 words one may end a text; every text there is is tried."""
    who, end = scribes[name], 2
    rules = constrain(suppress_ids=range(words, VOCAB))
    request = who.request(
        max_new_tokens=tokens, constraints=rules, eos_ids={end}, num_return_sequences=2
    )
    found = generate(who.model, request, GenerationConfig(num_beams=size, length_penalty=0.0))
    for number in range(len(who.prompts)):
        costs: dict[Text, float] = {}
        for text in product(range(words), repeat=tokens):
            stop = text.index(end) + 1 if end in text else tokens
            ids = text[:stop]
            costs[ids] = sum(scores_of(who, number)(ids[:n])[ids[n]] for n in range(len(ids)))
        best = sorted(costs, key=lambda ids: -costs[ids])[:2]
        for one, ids in zip(found[2 * number : 2 * number + 2], best, strict=True):
            assert tuple(one.ids) == (ids[:-1] if ids[-1] == end else ids)
            assert one.score == pytest.approx(costs[ids], abs=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "ngram"])
def test_groups_that_do_not_shun_each_other_are_searches_of_their_size(
    scribes: dict[str, Scribe], name: str
) -> None:
    who = scribes[name]
    apart = generate(
        who.model,
        who.request(num_return_sequences=6),
        GenerationConfig(num_beams=6, num_beam_groups=3, diversity_penalty=0.0),
    )
    alone = generate(who.model, who.request(num_return_sequences=2), GenerationConfig(num_beams=2))
    for number in range(len(who.prompts)):
        group = alone[2 * number : 2 * number + 2]
        assert [text.ids for text in apart[6 * number : 6 * number + 6]] == [
            text.ids for text in group for _ in range(3)
        ]


def test_diversity_parts_the_groups(scribes: dict[str, Scribe]) -> None:
    """A penalty beyond any score: groups of one beam never say the same at the same time."""
    who = scribes["gpt2"]
    request = who.request(max_new_tokens=5, eos_ids=(), num_return_sequences=3)
    found = generate(
        who.model,
        request,
        GenerationConfig(num_beams=3, num_beam_groups=3, diversity_penalty=100.0),
    )
    for number in range(len(who.prompts)):
        texts = [text.ids for text in found[3 * number : 3 * number + 3]]
        for said in zip(*texts, strict=True):
            assert len(set(said)) == 3


def test_a_group_that_has_stopped_costs_the_others_nothing() -> None:
    """It says nothing any more; above all not the token 0, as its idle rows do."""
    chances: dict[Text, Sequence[float]] = {
        (3,): [0.01, 0.89, 0.09, 0.01],  # one group ends at once, by 1; the other says 2
        (3, 2): [0.55, 0.01, 0.40, 0.04],
    }
    request = asked([[3]], max_new_tokens=3, eos_ids={1}, num_return_sequences=2)
    beam = GenerationConfig(
        num_beams=2, num_beam_groups=2, diversity_penalty=0.8, length_penalty=0.0
    )
    model: Any = Table({**chances, (3, 2, 0): [0.01, 0.97, 0.01, 0.01]})
    found = generate(model, request, beam)
    expected = searched(
        lambda text: torch.tensor(model.chances.get((3, *text), [0.25] * 4)).log().tolist(),
        beam,
        tokens=3,
        ends=frozenset({1}),
    )
    same(found, expected)


def test_one_beam_is_greedy(scribes: dict[str, Scribe]) -> None:
    for who in scribes.values():
        greedy = generate(who.model, who.request(), GREEDY)
        with torch.inference_mode(), eval_mode(who.model):
            beam = beam_search(Decoder(who.model, who.request()))
        assert [text.ids for text in beam] == [text.ids for text in greedy]
        assert [text.finished for text in beam] == [text.finished for text in greedy]


def test_a_stream_of_beams_is_what_was_found(scribes: dict[str, Scribe]) -> None:
    who, beam = scribes["gpt2"], GenerationConfig(num_beams=3)
    rules = constrain(allowed_ids=[(3,), (4, 6), (7, 8, 10)])
    for wants in (
        {},
        {"eos_ids": ()},
        {"eos_ids": (), "constraints": rules},
        {"should_stop": lambda ids: 6 in ids},
    ):
        request = who.request(num_return_sequences=2, **wants)
        whole = generate(who.model, request, beam)
        streamed = collect_sequences(generate_steps(who.model, request, beam), 8)
        assert [(t.ids, t.logprobs, t.finished) for t in streamed] == [
            (t.ids, t.logprobs, t.finished) for t in whole
        ]


def test_a_text_that_is_enough_is_whole(scribes: dict[str, Scribe]) -> None:
    who = scribes["gpt2"]
    free = generate(
        who.model, who.request(eos_ids=(), max_new_tokens=6), GenerationConfig(num_beams=3)
    )
    last = free[0].ids[2]
    enough = who.request(eos_ids=(), max_new_tokens=6, should_stop=lambda ids: ids[-1] == last)
    found = generate(who.model, enough, GenerationConfig(num_beams=3, length_penalty=0.0))
    for text in found:
        assert text.finished == (last in text.ids)
        assert last not in text.ids[:-1]
    assert any(text.finished for text in found)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_beams": 0}, "num_beams=0"),
        (
            {"num_beams": 4, "num_beam_groups": 3},
            "num_beams=4 is not divisible by num_beam_groups=3",
        ),
        ({"num_beam_groups": 0}, "num_beam_groups=0"),
        ({"diversity_penalty": -1.0}, "diversity_penalty=-1"),
        ({"diversity_penalty": float("inf")}, "diversity_penalty=inf"),
        ({"diversity_penalty": float("nan")}, "diversity_penalty=nan"),
        ({"length_penalty": float("nan")}, "length_penalty=nan"),
        ({"length_penalty": float("-inf")}, "length_penalty=-inf"),
    ],
)
def test_a_search_that_means_nothing_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        GenerationConfig(**{"num_beams": 4} | wrong)


def test_a_search_that_cannot_be_is_refused(scribes: dict[str, Scribe]) -> None:
    model = scribes["gpt2"].model
    with pytest.raises(UserError, match=f"num_beams=24 exceeds the model's {VOCAB} tokens"):
        write(model, [[3]], max_new_tokens=3, method=GenerationConfig(num_beams=24))
    with pytest.raises(UserError, match="num_return_sequences=4 exceeds num_beams=3"):
        write(
            model,
            [[3]],
            max_new_tokens=3,
            num_return_sequences=4,
            method=GenerationConfig(num_beams=3),
        )
    few = constrain(allowed_ids=[(3,), (4,)])
    with pytest.raises(
        UserError, match="num_return_sequences=3 exceeds the 2 outputs that the constraints"
    ):
        generate(
            model,
            asked([[3]], max_new_tokens=3, num_return_sequences=3, constraints=few),
            GenerationConfig(num_beams=3),
        )
