"""Claims: their declarations, the verdict of an interval, and two of them run to the end."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.tasks.classification import Classification
from kinfolk.workflows.claims import scores as claim_scores
from kinfolk.workflows.claims.catalog import CLAIMS, SCALES, Part, Scale, select_claims
from kinfolk.workflows.claims.run import joint_verdict, run_claims, short_number
from kinfolk.workflows.claims.scores import (
    Measured,
    center_above_control,
    claim_effects,
    decide,
    effect_words,
    seed_interval,
    untrained_words,
)
from kinfolk.workflows.comparison.plan import Entrant, Plan
from kinfolk.workflows.comparison.tasks import task_choices
from kinfolk.workflows.recipe import recipe
from support.runs import DOES, WHAT, WHO, Home

SMALL = Scale(
    size="nano",
    tokens=60 * 64,
    flops=1e9,
    corpus_bytes=30_000,
    length=16,
    batch_size=4,
    vocab_size=400,
    train_rows=40,
    test_rows=30,
    task_steps=4,
    max_tokens=64,
)


def sentences(count: int, seed: int) -> list[str]:
    draws = random.Random(seed)
    return [" ".join(draws.choice(words) for words in (WHO, DOES, WHAT)) for _ in range(count)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    blocks = [". ".join(sentences(8, seed)) + "." for seed in range(60)]
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "said.tsv"
    rows = [f"{line}\t{'late' if line[0] > 'm' else 'early'}" for line in sentences(100, 1)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tested(text: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a claim about text, one about a task, and one that lacks its task."""
    out = tmp_path_factory.mktemp("claims")
    for names in (["glm-positions"], ["auxiliary-lm"]):
        run_claims(out, text, names, tasks=labelled, scale=SMALL, seeds=2, device="cpu", jobs=0)
    return out


def test_a_claim_has_the_command_that_tests_it_again(
    tested: Path, text: Path, labelled: Path
) -> None:
    found = json.loads((tested / "claims.json").read_text(encoding="utf-8"))["claims"]
    command = next(claim["command"] for claim in found if claim["name"] == "glm-positions")
    assert command == (
        f"kinfolk claims glm-positions --scale nano --corpus {text} --device cpu --seeds 2 "
        "-o claims"
    )


def test_a_claim_says_how_much_text_was_read(tested: Path) -> None:
    found = json.loads((tested / "claims.json").read_text(encoding="utf-8"))["claims"]
    (claim,) = (claim for claim in found if claim["name"] == "glm-positions")
    corpus = json.loads((tested / "glm-positions" / "race.json").read_text())["corpus"]
    size, held_out = corpus["bytes"] / 1000, corpus["held_out_bytes"] / 1000
    assert claim["text"] == (
        f"{size:.3g} kB of text for training ({corpus['documents']} documents), {held_out:.3g} kB "
        "held out"
    )


# Declarations


def test_the_claims_of_the_issue_are_there_by_unique_names() -> None:
    names = [claim.name for claim in CLAIMS]
    assert len(names) == len(set(names)) >= 14
    assert [claim.name for claim in select_claims(["nsp", "electra", "nsp"])] == ["nsp", "electra"]
    with pytest.raises(UserError, match="unknown claim 'electro': did you mean electra"):
        select_claims(["electro"])


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_compares_entrants_that_can_be_trained(claim: Any, home: Home) -> None:
    entrants = [Entrant.parse(text) for text in claim.entrants_at(SCALES["nano"])]
    known = {*claim.tasks} if claim.measure == "probe" else {entrant.name for entrant in entrants}
    for part in claim.parts:
        assert {part.first, part.second} <= known
        assert part.first != part.second
    assert any(not part.secondary for part in claim.parts)
    assert (claim.measure == "likelihood") == (not claim.tasks)
    made = [
        recipe(
            entrant.model,
            home.corpus,
            objective=entrant.objective,
            length=32,
            settings=entrant.settings,
        )
        for entrant in entrants
    ]
    for entrant in entrants:
        task_choices(entrant.name, entrant.model, entrant.task_settings, Classification)
        assert entrant.size in family(entrant.family).sizes
    # Entrants differ in something that the claim is about.
    settings = {
        (repr(r.model), repr(r.objective), e.task_settings, e.tokenizer)
        for r, e in zip(made, entrants, strict=True)
    }
    assert len(settings) == len(entrants)


# Verdicts


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (0.1, 0.5, 0.0, "holds"),
        (-0.1, 0.5, 0.0, "undecided"),
        (-0.5, -0.1, 0.0, "reversed"),
        (-0.04, 0.01, 0.05, "holds"),  # the loss is smaller than what counts as little
        (-0.06, 0.01, 0.05, "undecided"),
        (-0.09, -0.06, 0.05, "reversed"),
    ],
)
def test_the_interval_decides(low: float, high: float, margin: float, verdict: str) -> None:
    measured = Measured((low + high) / 2, low, high, 3, {})
    assert decide(measured, margin) == verdict


def test_a_claim_of_several_parts_holds_if_all_do_and_secondary_ones_have_no_say() -> None:
    class Said:
        def __init__(self, verdict: str, secondary: bool = False) -> None:
            self.verdict, self.secondary = verdict, secondary

    def joint(*effects: Any) -> str:
        return joint_verdict(effects)

    assert joint(Said("holds"), Said("holds")) == "holds"
    assert joint(Said("holds"), Said("undecided")) == "undecided"
    assert joint(Said("holds"), Said("reversed")) == "reversed"
    assert joint(Said("holds"), Said("reversed", secondary=True)) == "holds"


def test_words_say_who_is_ahead_and_whether_it_would_matter() -> None:
    (claim,) = select_claims(["electra"])
    part = Part(first="electra", second="bert")
    ahead = effect_words(claim, part, Measured(2.04, 0.51, 3.6, 3, {}), "points")
    assert ahead == (
        "electra is ahead of bert by 2.0 points (95 % interval of the gain 0.5 to 3.6, 3 seeds)"
    )
    behind = effect_words(claim, part, Measured(-0.2, -0.6, 0.2, 1, {}), "points")
    assert behind == (
        "electra is behind bert by 0.2 points (95 % interval of the gain −0.6 to 0.2, 1 seed; "
        "less than the 1 point that would matter)"
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "end"),
    [
        (0.015, 0.001, 0.029, "; less than the 0.02 bits per byte that would matter, which the "
         "interval does not exclude)"),
        (-0.015, -0.029, -0.001, "; less than the 0.02 bits per byte that would matter, which the "
         "interval does not exclude)"),
        (0.010, 0.001, 0.019, "; less than the 0.02 bits per byte that would matter)"),
        (0.015, -0.001, 0.031, " 3 seeds)"),  # nothing is shown, and it may be large
        (0.025, 0.001, 0.049, " 3 seeds)"),
    ],
)  # fmt: skip
def test_an_effect_that_is_shown_but_too_small_to_matter_says_so(
    value: float, low: float, high: float, end: str
) -> None:
    (claim,) = select_claims(["memory"])
    assert claim.effect == 0.02
    measured = Measured(value, low, high, 3, {})
    words = effect_words(claim, claim.parts[0], measured, "bits per byte")
    assert words.endswith(end)


def test_an_end_of_an_interval_is_told_from_0() -> None:
    """The gain of weight tying was printed as -0.009 to 0.000."""
    (claim,) = select_claims(["weight-tying"])
    part = Part(first="tied", second="untied")
    words = effect_words(claim, part, Measured(-0.0047, -0.0091, -0.0003, 3, {}), "bits per byte")
    assert words.startswith(
        "tied is behind untied by 0.0047 bits per byte (95 % interval of the gain −0.0091 to "
        "−0.0003, 3 seeds"
    )


def test_the_centre_of_a_probe_is_that_above_random_weights() -> None:
    rows = [
        {"pretrained": True, "center_of_gravity": 2.5},
        {"pretrained": False, "center_of_gravity": 2.0},
    ]
    assert center_above_control(rows) == 0.5


def test_the_interval_of_seeds_is_students() -> None:
    mean, half = seed_interval([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3)
    # t of 2 degrees of freedom is 4.303; the standard deviation is sqrt(7/3).
    assert half == pytest.approx(4.302653 * np.sqrt(7 / 3) / np.sqrt(3), rel=1e-6)
    assert seed_interval([1.5]) == (1.5, float("inf"))


def test_numbers_of_budgets_are_short() -> None:
    assert [short_number(x) for x in (2e5, 2e6, 6e12, 1.25e15)] == [
        "200,000",
        "2e6",
        "6e12",
        "1.25e15",
    ]


# Claims that are run


def test_the_effect_of_a_likelihood_is_the_difference_of_bits_per_byte(tested: Path) -> None:
    found = json.loads((tested / "claims.json").read_text())
    claim = next(c for c in found["claims"] if c["name"] == "glm-positions")
    (effect,) = claim["effects"]
    race = tested / "glm-positions"
    bits = {}
    for name in ("two", "one"):
        bits[name] = []
        for seed in (0, 1):
            result = json.loads((race / "jobs" / f"likelihood.{name}.seed-{seed}.json").read_text())
            nats, size = np.array(result["documents"]).sum(0)
            bits[name].append(nats / size / np.log(2))
    expected = np.mean(bits["one"]) - np.mean(bits["two"])  # fewer bits are better
    assert effect["value"] == pytest.approx(expected, abs=1e-9)
    assert effect["scores"]["two"] == pytest.approx(bits["two"])
    assert effect["low"] < effect["value"] < effect["high"]
    assert (effect["unit"], effect["seeds"]) == ("bits per byte", 2)
    assert claim["verdict"] == effect["verdict"]


def test_the_effect_on_a_task_is_in_points(tested: Path) -> None:
    found = json.loads((tested / "claims.json").read_text())
    claim = next(c for c in found["claims"] if c["name"] == "auxiliary-lm")
    (effect,) = claim["effects"]
    scores = {}
    for name in ("auxiliary", "none"):
        files = (tested / "auxiliary-lm" / "jobs").glob(f"finetune.*.{name}.labels-all.*.json")
        scores[name] = [100 * json.loads(file.read_text())["score"] for file in sorted(files)]
        assert len(scores[name]) == 2
    expected = np.mean(scores["auxiliary"]) - np.mean(scores["none"])
    assert effect["value"] == pytest.approx(expected, abs=1e-9)
    assert effect["unit"] == "points"
    assert "points" in claim["words"]


def test_results_of_earlier_calls_stay_in_the_files(tested: Path) -> None:
    rows = [*csv.DictReader((tested / "claims.csv").read_text().splitlines())]
    assert [row["claim"] for row in rows] == ["auxiliary-lm", "glm-positions"]
    page = (tested / "claims.html").read_text()
    for row in rows:
        assert f"{row['claim']}/race.html" in page
        assert (tested / row["claim"] / "race.json").is_file()


def test_an_earlier_claim_keeps_the_command_of_its_call(tested: Path, text: Path) -> None:
    before = json.loads((tested / "claims.json").read_text(encoding="utf-8"))["claims"]
    run_claims(tested, text, ["glm-positions"], scale=SMALL, seeds=2, device="cpu", jobs=0)
    after = json.loads((tested / "claims.json").read_text(encoding="utf-8"))["claims"]
    assert after == before
    commands = {claim["name"]: claim["command"] for claim in after}
    assert "--task" in commands["auxiliary-lm"]
    assert "--task" not in commands["glm-positions"]  # which needs none


def test_the_same_call_trains_nothing_again(tested: Path, text: Path, labelled: Path) -> None:
    jobs = {path: path.stat().st_mtime_ns for path in tested.rglob("jobs/*.json")}
    before = (tested / "claims.json").read_text()
    names = ["glm-positions", "auxiliary-lm"]
    again = run_claims(
        tested, text, names, tasks=labelled, scale=SMALL, seeds=2, device="cpu", jobs=0
    )
    assert {path: path.stat().st_mtime_ns for path in tested.rglob("jobs/*.json")} == jobs
    assert [result.name for result in again] == names
    assert (tested / "claims.json").read_text() == before


def test_plans_are_read_and_unigrams_counted_once(
    tested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (claim,) = select_claims(["glm-positions"])
    claim = replace(claim, parts=claim.parts * 2)
    read, counted = Plan.read, claim_scores.fit_ngram
    plans, models = [], []
    monkeypatch.setattr(Plan, "read", lambda path: plans.append(path) or read(path))
    monkeypatch.setattr(
        claim_scores, "fit_ngram", lambda *given: models.append(given) or counted(*given)
    )
    claim_scores.corpus_unigram_bits.cache_clear()
    first, second = claim_effects(claim, {"": tested / claim.name})
    assert first == second and first.value is not None
    assert len(plans) == len(models) == 1
    claim_effects(claim, {"": tested / claim.name})
    assert len(models) == 1


def test_an_interrupted_claim_continues(tested: Path, text: Path, labelled: Path) -> None:
    before = json.loads((tested / "claims.json").read_text())
    race = tested / "glm-positions"
    (race / "jobs" / "likelihood.one.seed-1.json").unlink()
    values = json.loads((race / "race.json").read_text())
    (race / "race.json").write_text(json.dumps(values | {"complete": False}))
    run_claims(
        tested, text, ["glm-positions"], tasks=labelled, scale=SMALL, seeds=2, device="cpu", jobs=0
    )
    assert json.loads((tested / "claims.json").read_text())["claims"] == before["claims"]


def test_other_settings_need_another_folder(tested: Path, text: Path) -> None:
    with pytest.raises(UserError, match="glm-positions was started with other settings"):
        run_claims(tested, text, ["glm-positions"], scale=replace(SMALL, tokens=1e6), seeds=2)


def test_another_text_needs_another_folder(tested: Path, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8")[::-1], encoding="utf-8")
    with pytest.raises(UserError, match="glm-positions was started with other settings"):
        run_claims(tested, other, ["glm-positions"], scale=SMALL, seeds=2, device="cpu", jobs=0)


def test_an_unknown_unit_of_documents_is_refused(text: Path, tmp_path: Path) -> None:
    unit: Any = "page"
    with pytest.raises(UserError, match="--document must be block or file"):
        run_claims(tmp_path / "out", text, document=unit, scale=SMALL)
    assert not (tmp_path / "out").exists()


def test_one_seed_cannot_decide_a_claim(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--seeds 1: a verdict needs the spread of at least 2"):
        run_claims(tmp_path / "claims", text, ["glm-positions"], scale=SMALL, seeds=1)
    assert not (tmp_path / "claims").exists()


def test_a_job_that_failed_is_undecided_with_its_reason(tested: Path) -> None:
    (claim,) = select_claims(["auxiliary-lm"])
    race = tested / "auxiliary-lm"
    plan = Plan.read(race / "plan.json")
    job = next(job for job in plan.jobs if job.kind == "finetune" and job.entrant == "none")
    path = race / "jobs" / f"{job.name}.json"
    kept = path.read_text()
    try:
        path.write_text(json.dumps({"job": job.name, "failed": "loss is NaN at step 3"}))
        (effect,) = claim_effects(claim, {"": race})
    finally:
        path.write_text(kept)
    assert (effect.verdict, effect.value) == ("undecided", None)
    assert effect.words == "no score: loss is NaN at step 3"


@pytest.mark.parametrize(
    ("name", "first", "second", "good", "words"),
    [
        ("glm-positions", "two", "one", 0.1, "is not better than a unigram model"),
        ("auxiliary-lm", "auxiliary", "none", 99.0, "neither is better than the largest class"),
    ],
)
def test_entrants_that_learned_nothing_decide_nothing(
    tested: Path, name: str, first: str, second: str, good: float, words: str
) -> None:
    (claim,) = select_claims([name])
    plan = Plan.read(tested / name / "plan.json")
    bad = 100.0 if claim.measure == "likelihood" else 1.0
    for scores, found in (((bad, bad), True), ((good, bad), False), ((bad, good), False)):
        measured = Measured(0.5, 0.4, 0.6, 1, {first: scores[:1], second: scores[1:]})
        said = untrained_words(claim, tested / name, plan, measured)
        assert (said is not None) == found
        assert not found or words in str(said)


def test_a_claim_without_its_kind_of_task_is_refused_by_name_and_else_listed(
    text: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="nsp needs a classification of pairs of texts: give it"):
        run_claims(tmp_path / "a", text, ["nsp"], tasks=labelled, scale=SMALL)
    with pytest.raises(UserError, match="electra needs a classification of single texts"):
        run_claims(tmp_path / "a", text, ["electra"], scale=SMALL)
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr("kinfolk.workflows.claims.catalog.CLAIMS", tuple(select_claims(["nsp"])))
    (result,) = run_claims(tmp_path / "b", text, tasks=labelled, scale=SMALL)
    assert result.verdict == "not run"
    assert result.words.startswith("not run: it needs a classification of pairs of texts")
    assert "not run" in (tmp_path / "b" / "claims.csv").read_text()


def test_a_corpus_of_text_and_a_scale_are_needed(tmp_path: Path, text: Path, home: Home) -> None:
    with pytest.raises(UserError, match="is a prepared corpus, and claims have their own"):
        run_claims(tmp_path / "a", home.corpus, ["memory"], scale=SMALL)
    with pytest.raises(UserError, match="no corpus is given"):
        run_claims(tmp_path / "a", [], ["memory"], scale=SMALL)
    with pytest.raises(UserError, match="--scale huge: there are nano, tiny, mini"):
        run_claims(tmp_path / "a", text, ["memory"], scale="huge")
