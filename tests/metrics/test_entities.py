"""Entity F1: the documented examples of seqeval, and golden scores of it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.entities import (
    EntityF1,
    TagAccuracy,
    TagScheme,
    WordF1,
    get_entities,
    repair_tags,
    scores_by_type,
)
from kinfolk.metrics.metric import PRF, precision_recall_f1

PERSON = ["B-PER", "I-PER", "O"]
TRUTH = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], PERSON]
SAID = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], PERSON]

ANY = st.lists(st.sampled_from(["O", *(f"{kind}-{type}" for kind in "BIES" for type in "XY")]))
BIO = st.lists(st.sampled_from(["O", *(f"{kind}-{type}" for kind in "BI" for type in "XY")]))
PAIRS = st.lists(
    st.lists(st.tuples(*[st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])] * 2)), min_size=1
)


entity_f1, tag_accuracy, word_f1 = EntityF1(), TagAccuracy(), WordF1()


def test_the_example_in_the_documentation_of_seqeval() -> None:
    types = scores_by_type(SAID, TRUTH)
    assert entity_f1(SAID, TRUTH) == pytest.approx(0.5)
    assert tag_accuracy(SAID, TRUTH) == pytest.approx(0.8)
    assert (types["MISC"].f1, types["MISC"].support) == (0, 1)
    assert (types["PER"].f1, types["PER"].support) == (1, 1)


def test_an_entity_without_its_b_counts() -> None:
    assert entity_f1([["I-NP", "I-NP", "O"]], [["B-NP", "I-NP", "O"]]) == 1


@given(PAIRS)
def test_counts_of_sentences_are_those_of_types(pairs: list[list[tuple[str, str]]]) -> None:
    said, truth = ([[pair[side] for pair in line] for line in pairs] for side in (0, 1))
    rows, types = entity_f1.statistics(said, truth), scores_by_type(said, truth)
    assert len(rows) == len(pairs)
    assert rows.sum(0)[2] == sum(score.support for score in types.values())


def test_types_that_are_only_predicted_are_scored() -> None:
    types = scores_by_type([["B-X", "B-Y"]], [["B-X", "O"]])
    assert (types["X"].f1, types["Y"].f1, types["Y"].support) == (1, 0, 0)


def test_tags_that_are_not_entities_are_scored_by_word_without_o() -> None:
    said, truth = [["DET", "NOUN", "O"], ["O", "VERB"]], [["DET", "VERB", "O"], ["VERB", "VERB"]]
    assert word_f1(said, truth) == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert tag_accuracy(said, truth) == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # From seqeval's own tests, without a scheme, which is what conlleval does.
        ("O O O B-MISC I-MISC I-MISC O B-PER I-PER", [("MISC", 3, 6), ("PER", 7, 9)]),
        ("I-P I-O", [("P", 0, 1), ("O", 1, 2)]),
        ("B-P E-P E-P", [("P", 0, 2), ("P", 2, 3)]),
        ("S-P I-P O E-P", [("P", 0, 1), ("P", 1, 2), ("P", 3, 4)]),
        ("I-ORG-COMPANY I-ORG-COMPANY", [("ORG-COMPANY", 0, 2)]),
        ("O O O B I I O", [("_", 3, 6)]),
        ("B-P M-P E-P S-P", [("P", 0, 3), ("P", 3, 4)]),
        ("B M E S B E", [("_", 0, 3), ("_", 3, 4), ("_", 4, 6)]),
        ("B-P I-P L-P U-P O", [("P", 0, 3), ("P", 3, 4)]),
    ],
)
def test_golden_entities(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert get_entities(tags.split()) == expected


GOLDEN = json.loads((Path(__file__).parent / "golden" / "entities.json").read_text("utf-8"))[
    "cases"
]


def mean(scores: list[PRF], weights: list[int]) -> list[float]:
    return [
        sum(weight * value for weight, value in zip(weights, column, strict=True)) / sum(weights)
        for column in zip(*((s.precision, s.recall, s.f1) for s in scores), strict=True)
    ]


@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
def test_scores_equal_those_of_seqeval(average: str) -> None:
    """`golden/make.py` wrote them; a case without an entity has no mean there."""
    compared, wrong = 0, []
    for case in GOLDEN:
        expected = case["scores"].get("", {}).get(average)
        said, truth = ([line.split() for line in case[side]] for side in ("said", "truth"))
        each = list(scores_by_type(said, truth).values())
        supports = [score.support for score in each]
        if expected is None or not sum(supports):
            continue
        if average == "micro":
            total = precision_recall_f1(*entity_f1.statistics(said, truth).sum(0).tolist())
            found = [total.precision, total.recall, entity_f1(said, truth)]
        else:
            found = mean(each, supports if average == "weighted" else [1] * len(each))
        compared += 1
        if found != pytest.approx(expected, abs=1e-8):
            wrong.append((said, truth, expected, found))
    assert compared > 40
    assert not wrong, wrong


def test_accuracy_equals_that_of_seqeval() -> None:
    known = [case for case in GOLDEN if case["accuracy"] is not None]
    assert len(known) > 90
    for case in known:
        said, truth = ([line.split() for line in case[side]] for side in ("said", "truth"))
        assert tag_accuracy(said, truth) == pytest.approx(case["accuracy"]), case


@given(ANY, st.sampled_from(["IOB2", "BIOES", "BMES", "BILOU"]))
def test_repaired_tags_mean_the_same_and_nest(tags: list[str], scheme: TagScheme) -> None:
    mended = repair_tags(tags, scheme)
    assert get_entities(mended) == get_entities(tags)
    letters = {"IOB2": "OBI", "BIOES": "OBIES", "BMES": "OBMES", "BILOU": "OBILU"}
    assert not {tag[0] for tag in mended} - set(letters[scheme])
    for before, tag in zip(["O", *mended], mended, strict=False):  # each goes on with an entity
        if tag[0] in "IMEL":
            assert before[0] in "BIM" and before[1:] == tag[1:]
    assert repair_tags(mended, scheme) == mended


@given(BIO)
def test_only_an_i_that_goes_on_with_nothing_is_repaired(tags: list[str]) -> None:
    mended = repair_tags(tags)
    for place, (new, old) in enumerate(zip(mended, tags, strict=True)):
        before = tags[place - 1] if place else "O"
        alone = old.startswith("I") and before[1:] != old[1:]
        assert new == (f"B{old[1:]}" if alone else old)


def test_repaired_tags_of_each_scheme() -> None:
    assert repair_tags(["O", "I-PER", "I-LOC", "I-LOC"]) == ["O", "B-PER", "B-LOC", "I-LOC"]
    found = repair_tags(["B-PER", "I-PER", "O", "B-LOC"], "BIOES")
    assert found == ["B-PER", "E-PER", "O", "S-LOC"]
    assert repair_tags(["I", "I", "O"]) == ["B", "I", "O"]
    assert repair_tags(["M-X", "M-X", "M-X"], "BMES") == ["B-X", "M-X", "E-X"]
    assert repair_tags([]) == []


def test_what_cannot_be_scored_is_a_sentence() -> None:
    with pytest.raises(UserError, match="got 2 sentences for 1 references"):
        entity_f1([["O"], ["O"]], [["O"]])
    with pytest.raises(UserError, match="no sentences"):
        entity_f1([], [])
    with pytest.raises(UserError, match="sentence 2 has 1 predicted tags and 2 reference tags"):
        entity_f1([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(UserError, match="tag 'PER' is not O and does not start with"):
        entity_f1([["PER"]], [["O"]])


def test_sentences_without_entities_have_no_score_to_speak_of() -> None:
    said = truth = [["O", "O"], []]
    assert tag_accuracy(said, truth) == 1 and entity_f1(said, truth) == 0
    assert scores_by_type(said, truth) == {}
