"""Entities in tags: seqeval's documented examples and tables, and scores that it gave."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.entities import (
    SCHEMES,
    encode_tags,
    entity_counts,
    entity_scores,
    get_entities,
    micro_f1,
    repair_tags,
)

PERSON = ["B-PER", "I-PER", "O"]
TRUTH = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], PERSON]
SAID = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], PERSON]

ANY = st.lists(st.sampled_from(["O", *(f"{kind}-{type}" for kind in "BIES" for type in "XY")]))
BIO = st.lists(st.sampled_from(["O", *(f"{kind}-{type}" for kind in "BI" for type in "XY")]))
PAIRS = st.lists(
    st.lists(st.tuples(*[st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])] * 2)), min_size=1
)


def test_the_example_in_the_documentation_of_seqeval() -> None:
    found = entity_scores(SAID, TRUTH)
    assert found.micro.f1 == found.macro.f1 == found.weighted.f1 == pytest.approx(0.5)
    assert found.accuracy == pytest.approx(0.8)
    assert (found.types["MISC"].f1, found.types["MISC"].support) == (0, 1)
    assert (found.types["PER"].f1, found.types["PER"].support) == (1, 1)
    assert entity_scores(SAID, TRUTH, "IOB2").micro == found.micro


def test_strict_scores_leave_out_what_does_not_nest() -> None:
    """The example of seqeval's page: an entity without its B- is found by default only."""
    truth, said = [["B-NP", "I-NP", "O"]], [["I-NP", "I-NP", "O"]]
    assert entity_scores(said, truth).micro.f1 == 1
    assert entity_scores(said, truth, "IOB2").micro.f1 == 0


@given(PAIRS)
def test_sentences_counted_by_themselves_add_up(pairs: list[list[tuple[str, str]]]) -> None:
    said, truth = ([[pair[side] for pair in line] for line in pairs] for side in (0, 1))
    for scheme in (None, *SCHEMES):
        rows = entity_counts(said, truth, scheme)
        assert len(rows) == len(pairs)
        assert micro_f1(rows) == entity_scores(said, truth, scheme).micro.f1


def test_types_that_are_only_said_count_in_the_mean() -> None:
    found = entity_scores([["B-X", "B-Y"]], [["B-X", "O"]])
    assert found.macro.f1 == pytest.approx(0.5) and found.weighted.f1 == pytest.approx(1)
    assert (found.micro.precision, found.micro.recall) == (0.5, 1)


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        # From the tables of seqeval's own tests.
        ("IOB1", "B-P", []),
        ("IOB1", "I-P", [("P", 0, 1)]),
        ("IOB1", "I-P B-P", [("P", 0, 1), ("P", 1, 2)]),
        ("IOB1", "I-P B-O", [("P", 0, 1)]),
        ("IOB1", "B-P I-P", [("P", 1, 2)]),
        ("IOB1", "B-P I-O", [("O", 1, 2)]),
        ("IOB1", "B-P B-P", [("P", 1, 2)]),
        ("IOB1", "B-P B-O", []),
        ("IOB2", "I-P", []),
        ("IOB2", "I-P B-O", [("O", 1, 2)]),
        ("IOB2", "B-P I-P", [("P", 0, 2)]),
        ("IOB2", "B-P I-O", [("P", 0, 1)]),
        ("IOB2", "B-P B-P", [("P", 0, 1), ("P", 1, 2)]),
        ("IOB2", "B I", [("_", 0, 2)]),
        ("BIOES", "B-P", []),
        ("BIOES", "S-P", [("P", 0, 1)]),
        ("BIOES", "B-P E-P", [("P", 0, 2)]),
        ("BIOES", "B-P E-O", []),
        ("BIOES", "B-P I-P", []),
        ("BIOES", "S-P E-P", [("P", 0, 1)]),
        ("BIOES", "I-P S-P", [("P", 1, 2)]),
        # What it does without a scheme, which is what conlleval does.
        (None, "O O O B-MISC I-MISC I-MISC O B-PER I-PER", [("MISC", 3, 6), ("PER", 7, 9)]),
        (None, "I-P I-O", [("P", 0, 1), ("O", 1, 2)]),
        (None, "B-P E-P E-P", [("P", 0, 2), ("P", 2, 3)]),
        (None, "S-P I-P O E-P", [("P", 0, 1), ("P", 1, 2), ("P", 3, 4)]),
        (None, "I-ORG-COMPANY I-ORG-COMPANY", [("ORG-COMPANY", 0, 2)]),
        (None, "O O O B I I O", [("_", 3, 6)]),
    ],
)
def test_golden_entities(
    scheme: str | None, tags: str, expected: list[tuple[str, int, int]]
) -> None:
    assert get_entities(tags.split(), scheme) == expected


GOLDEN = json.loads((Path(__file__).parent / "golden" / "entities.json").read_text("utf-8"))[
    "cases"
]


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
def test_scores_equal_those_of_seqeval(average: str, scheme: str | None) -> None:
    """`golden/make.py` wrote them; a case without an entity has no mean there."""
    compared, wrong = 0, []
    for case in GOLDEN:
        expected = case["scores"].get(scheme or "", {}).get(average)
        if expected is None:
            continue
        said, truth = ([line.split() for line in case[side]] for side in ("said", "truth"))
        found = getattr(entity_scores(said, truth, scheme), average)
        compared += 1
        if [found.precision, found.recall, found.f1] != pytest.approx(expected, abs=1e-8):
            wrong.append((said, truth, expected, found))
    assert compared > 40
    assert not wrong, wrong


def test_accuracy_equals_that_of_seqeval() -> None:
    known = [case for case in GOLDEN if case["accuracy"] is not None]
    assert len(known) > 90
    for case in known:
        said, truth = ([line.split() for line in case[side]] for side in ("said", "truth"))
        assert entity_scores(said, truth).accuracy == pytest.approx(case["accuracy"]), case


@given(ANY, st.sampled_from(list(SCHEMES)))
def test_repaired_tags_mean_the_same_and_nest(tags: list[str], scheme: str) -> None:
    mended, changed = repair_tags(tags, scheme)
    assert get_entities(mended, scheme) == get_entities(mended) == get_entities(tags)
    assert changed == sum(new != old for new, old in zip(mended, tags, strict=True))
    assert repair_tags(mended, scheme) == (mended, 0)
    assert encode_tags(get_entities(tags), len(tags), scheme) == mended


@given(BIO)
def test_only_an_i_that_goes_on_with_nothing_is_repaired(tags: list[str]) -> None:
    mended, _ = repair_tags(tags)
    for place, (new, old) in enumerate(zip(mended, tags, strict=True)):
        before = tags[place - 1] if place else "O"
        alone = old.startswith("I") and before[1:] != old[1:]
        assert new == (f"B{old[1:]}" if alone else old)


def test_repair_says_how_many_it_changed() -> None:
    assert repair_tags(["O", "I-PER", "I-LOC", "I-LOC"]) == (["O", "B-PER", "B-LOC", "I-LOC"], 2)
    assert repair_tags(["B-PER", "I-PER", "O", "B-LOC"], "BIOES") == (
        ["B-PER", "E-PER", "O", "S-LOC"],
        2,
    )
    assert repair_tags(["I", "I", "O"]) == (["B", "I", "O"], 1)
    assert repair_tags([]) == ([], 0)


def test_what_cannot_be_scored_is_a_sentence() -> None:
    with pytest.raises(UserError, match="2 sentences cannot be scored against 1"):
        entity_scores([["O"], ["O"]], [["O"]])
    with pytest.raises(UserError, match="there are no sentences"):
        entity_scores([], [])
    with pytest.raises(UserError, match="sentence 2 has 1 tags said and 2 true"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(UserError, match="tag 'PER' is not O and does not start with"):
        entity_scores([["PER"]], [["O"]])
    with pytest.raises(UserError, match="no scheme 'IOE2'"):
        get_entities(["O"], "IOE2")
    with pytest.raises(UserError, match="tag S-PER is not of a scheme with"):
        get_entities(["S-PER"], "IOB2")


def test_sentences_without_entities_have_no_score_to_speak_of() -> None:
    found = entity_scores([["O", "O"], []], [["O", "O"], []])
    assert found.accuracy == 1 and found.micro.f1 == found.macro.f1 == 0 and found.types == {}
