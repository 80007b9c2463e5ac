"""The page of a race: it says what race.json says, whoever raced and however far it got."""

import copy
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from kinfolk.families import families
from kinfolk.reports.race_cards import Card, emphasized, joined, lead_card, race_summary
from kinfolk.reports.race_charts import OBJECTIVE_TITLES, outlying_baselines, tradeoff
from kinfolk.reports.race_page import render
from kinfolk.reports.race_tables import byte_count, pair_rows, score_part
from kinfolk.reports.race_view import (
    PageEntrant,
    ScoreScale,
    label_counts,
    lead,
    pairs,
    race_entrants,
    score_rows,
    task_scale,
)
from support.races import EVIL, FAMILIES, hostile_race, race

SECTIONS = [
    "Held-out text",
    "triage.tsv",
    "reviews.jsonl",
    "Learning",
    "Cost and score",
    "Frozen layers",
    "Generated text",
    "What it cost",
    "Left out",
    "How the race was run",
    "Run it again",
    "Notes",
]
VOID = {"meta", "input", "link", "br", "hr"}
ACCURACY = ScoreScale("accuracy", "points", 100)
PSEUDO_ROW = {
    "kind": "pseudo-likelihood",
    "words": "pseudo-likelihood, each token",
    "mean": 1.5,
    "low": 1.4,
    "high": 1.6,
    "spread": 0.01,
    "seeds": [1.49, 1.51],
}


class Page(HTMLParser):
    """The elements and the text of a page, which must be closed in the order they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[str]:
        """Return the text directly inside every element of a kind."""
        return [text.strip() for inside, text in self.texts if inside == tag and text.strip()]

    @property
    def said(self) -> str:
        inside = (text for tag, text in self.texts if tag not in ("script", "style"))
        return " ".join(" ".join(inside).split())


def test_a_full_race_has_every_section_in_order() -> None:
    page = Page(render(race()))
    assert page.all("h2") == SECTIONS
    assert page.all("h1") == ["Which family fits this text?"]
    for family in FAMILIES:
        assert page.said.count(f"{family}/tiny") > 10


def test_the_page_needs_nothing_beside_it() -> None:
    for tag, attributes in Page(render(race())).elements:
        assert tag not in ("link", "img", "iframe")
        assert not {"src", "href"} & {*attributes}


def test_no_text_of_a_user_becomes_markup() -> None:
    text = render(hostile_race())
    page = Page(text)
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert page.said.count(EVIL) > 40
    for tag, attributes in page.elements:
        if tag == "button" and "data-name" in attributes:
            assert str(attributes["data-name"]).startswith(
                (EVIL, "unigram", "5-gram", "TF", "bi", "maj")
            )


def test_chart_data_is_json_that_holds_the_names() -> None:
    page = Page(render(hostile_race()))
    data = [text for tag, text in page.texts if tag == "script" and text.lstrip().startswith("{")]
    found = [names(json.loads(text)) for text in data]
    assert len(found) > 10
    assert all(f"{EVIL}0" in one or f"{EVIL}1" in one for one in found)


def names(value: Any) -> list[str]:
    """Return all texts inside JSON."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in inner for text in names(one)]


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("likelihood", "Held-out text"),
        ("probes", "Frozen layers"),
        ("samples", "Generated text"),
        ("command", "Run it again"),
        ("notes", "Notes"),
    ],
)
def test_an_empty_section_vanishes(key: str, section: str) -> None:
    found = race()
    del found[key]
    assert Page(render(found)).all("h2") == [title for title in SECTIONS if title != section]
    found[key] = None
    assert section not in Page(render(found)).all("h2")


def test_a_race_of_which_nothing_is_known_yet_is_a_page() -> None:
    page = Page(render({"schema": 1, "complete": False, "entrants": []}))
    assert "This race is not complete." in page.said
    assert page.all("h2") == ["How the race was run"]


def test_a_partial_race_shows_what_is_there() -> None:
    found = race(complete=False)
    found["tasks"] = found["tasks"][:1]
    found["tasks"][0] |= {"differences": [], "verdicts": []}
    found["likelihood"]["rows"] = found["likelihood"]["rows"][:2]
    for entrant in found["entrants"][3:]:
        entrant |= {"cost": None, "curve": None}
    said = Page(render(found)).said
    assert "This race is not complete." in said
    assert "Not compared yet" in said
    assert "Undecided" not in said.split("triage.tsv")[1].split("Budget")[0]
    assert "This race is not complete." not in Page(render(race())).said


@pytest.mark.parametrize(
    "found",
    [
        race(["gpt2/tiny"], tasks=()),
        race(["bert/tiny"], likelihood=False),
        race(seeds=1),
        race([f"{family}-{i}={family}/tiny" for family in FAMILIES[:4] for i in range(5)]),
        race([], tasks=()),
    ],
    ids=["one entrant", "no likelihood", "one seed", "twenty entrants", "baselines alone"],
)
def test_any_race_is_a_page(found: dict[str, Any]) -> None:
    page = Page(render(found))
    for entrant in found["entrants"]:
        assert entrant["name"] in page.said
    assert not re.search(r"\b(nan|None|inf|undefined)\b", page.said)


def test_missing_numbers_are_dashes() -> None:
    found = race(["gpt2/tiny", "glm/tiny"], tasks=["triage.tsv"])
    found["likelihood"]["rows"][0] |= {"low": None, "high": float("nan"), "spread": None}
    found["tasks"][0]["rows"][0]["mean"] = float("nan")
    found["entrants"][0]["cost"] |= {"flops": None, "peak_bytes": None}
    found["entrants"][0]["lr"] = None
    found["probes"][0]["rows"][0]["layers"][1] = None
    page = Page(render(found))
    assert not re.search(r"\b(nan|None)\b", page.said)
    assert "–" in page.all("td")


def test_pseudo_likelihoods_are_a_table_of_their_own() -> None:
    said = Page(render(race())).said
    ranked, apart = said.split("Held-out text Text that")[1].split("Pseudo-likelihood, each")
    assert "gpt2/tiny" in ranked
    assert "bert/tiny" not in ranked
    assert "bert/tiny" in apart.split("triage.tsv Scored by")[0]
    assert "gpt2/tiny" not in apart.split("triage.tsv Scored by")[0]


def test_pseudo_likelihoods_of_two_methods_share_no_chart() -> None:
    found = race(["bert/tiny", "albert/tiny", "t5/tiny"], tasks=())
    for row in found["likelihood"]["rows"]:
        if row["entrant"] == "t5/tiny":
            row["words"] = "each span from the rest"
    page = Page(render(found))
    titles = [title for title in page.all("h3") if title.startswith("Pseudo")]
    assert titles == [
        "Pseudo-likelihood, each token from all others",
        "Pseudo-likelihood, each span from the rest",
    ]
    assert page.said.count("A pseudo-likelihood predicts each token") == 1
    charts = [
        json.loads(text) for tag, text in page.texts if tag == "script" and '"kind"' in text[:9]
    ]
    intervals = [{row["name"] for row in c["rows"]} for c in charts if c["kind"] == "interval"]
    assert intervals == [{"bert/tiny", "albert/tiny"}, {"t5/tiny"}]


def test_a_pseudo_likelihood_stands_beside_the_unigram_model_of_its_tokens() -> None:
    found = race(["gpt2/tiny", "bert/tiny", "albert/tiny"], tasks=())
    unigram = {"entrant": "unigram", "kind": "baseline", "words": "counts", "mean": 3.747}
    unigram |= {"low": 3.7, "high": 3.8, "seeds": [3.747], "fixed": True, "units": "text"}
    found["likelihood"]["rows"].append(unigram)
    for row in found["likelihood"]["rows"]:
        if row["entrant"] == "bert/tiny":
            row |= {"unigram": 3.747, "units": "tokens of corpus"}
    page = Page(render(found))
    charts = [json.loads(t) for tag, t in page.texts if tag == "script" and '"kind"' in t[:9]]
    lines = {
        frozenset(row["name"] for row in chart["rows"]): chart["lines"]
        for chart in charts
        if chart["kind"] == "interval"
    }
    line = [{"name": "unigram", "value": 3.747}]
    assert lines[frozenset({"bert/tiny"})] == line
    assert lines[frozenset({"albert/tiny"})] == []  # of other tokens
    part = page.said.split("Pseudo-likelihood, each token from all others")[1]
    assert "unigram 3.747" in part.split("Pseudo-likelihood")[0]


def learning_panels(found: dict[str, Any]) -> dict[str, set[str]]:
    """Return the titles of the learning section, and whose curves each panel has."""
    text = render(found).split('id="learning"')[1].split("</section>")[0]
    panels = {}
    for part in text.split("<h3>")[1:]:
        data = part.split('<script type="application/json">')[1].split("</script>")[0]
        panels[part.split("</h3>")[0]] = {one["name"] for one in json.loads(data)["series"]}
    return panels


@pytest.mark.parametrize(
    ("first", "second", "titles"),
    [
        (
            {"corpus": "bpe"},
            {"corpus": "byte"},
            ["mlm (masked tokens), tokens of bpe", "mlm (masked tokens), tokens of byte"],
        ),
        (
            {"objective_settings": {"mask_rate": 0.15, "fixed_masks": False}},
            {"objective_settings": {"mask_rate": 0.3, "fixed_masks": False}},
            ["mlm (masked tokens), mask_rate 0.15", "mlm (masked tokens), mask_rate 0.3"],
        ),
    ],
    ids=["two tokenizers", "two mask rates"],
)
def test_losses_of_two_kinds_share_no_panel(
    first: dict[str, Any], second: dict[str, Any], titles: list[str]
) -> None:
    found = race(["a=bert/tiny", "b=bert/tiny", "c=bert/tiny"], tasks=())
    a, b, c = found["entrants"][:3]
    a |= first
    b |= second
    c |= first
    assert learning_panels(found) == dict(zip(titles, [{"a", "c"}, {"b"}], strict=True))
    b |= first
    assert learning_panels(found) == {"mlm (masked tokens)": {"a", "b", "c"}}


def test_entrants_without_samples_are_named() -> None:
    found = race(["gpt2/tiny", "t5/tiny", "bert/tiny", "electra/tiny"], tasks=())
    found["not_sampled"] = [
        {"entrant": "bert/tiny", "reason": "an encoder"},
        {"entrant": "t5/tiny", "reason": "it writes spans"},
        {"entrant": "electra/tiny", "reason": "an encoder"},
    ]
    sentence = "Not sampled: bert/tiny, electra/tiny (an encoder); t5/tiny (it writes spans)."
    said = Page(render(found)).said
    assert sentence in said.split("Generated text")[1].split("What it cost")[0]
    found["samples"] = []  # the section vanishes, and the sentence is a note
    said = Page(render(found)).said
    assert "Generated text" not in said
    assert sentence in said.split(" Notes ")[1]


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (
            {"unit": "tokens", "low": 499_100, "high": 503_000, "spread": 0.0078},
            "The runs read 499,100 to 503,000 tokens: 0.8 % of the budget apart.",
        ),
        (
            {"unit": "flops", "low": 1.003e12, "high": 1.011e12, "spread": 0.008},
            "The runs did 1.003e+12 to 1.011e+12 FLOPs: 0.8 % of the budget apart.",
        ),
        (
            {"low": 171.0, "high": 189.0, "spread": 0.1},
            "The runs took 2 min 51 s to 3 min 9 s: 10.0 % of the budget apart.",
        ),
    ],
)
def test_costs_say_how_far_apart_the_runs_are(measured: dict[str, Any], words: str) -> None:
    found = race()
    found["budget"]["measured"] = measured
    said = Page(render(found)).said.replace("\u00a0", " ")
    assert words in said.split("What it cost")[1]
    assert words in said.split("Held-out text Text that")[0]


def test_the_card_says_where_runs_are_too_far_apart() -> None:
    found = race()
    found["budget"] |= {"tolerance": 0.02}
    found["budget"]["measured"] |= {"spread": 0.02}
    words = "That is more than the 2\u00a0% that equal budgets allow."
    assert words not in render(found)
    found["budget"]["measured"] |= {"spread": 0.031}
    assert words in render(found)


def test_an_end_of_an_interval_is_told_from_0() -> None:
    pair = {"first": "a", "second": "b", "value": -0.0047, "low": -0.0091, "high": -0.0003}
    (found,) = pairs([{**pair, "p": 0.01, "shown": True}])
    scale = ScoreScale("bits per byte", "bits per byte", digits=3, lower_is_better=True)
    (row,) = pair_rows([found], ["a", "b"], scale)
    assert [cell.text for cell in row.cells[:2]] == ["−0.0047", "−0.0091 to −0.0003"]
    assert scale.differences(0.0, 0.1234) == ["0.000", "+0.123"]


def test_baselines_on_a_card_are_called_so() -> None:
    entrants = {"a": PageEntrant("a", "e0", 0), "b": PageEntrant("b", "e1", None)}
    rows = score_rows(rows_of(a=0.7, b=0.9), ACCURACY)

    def card(shown: bool, value: float = 0.2) -> Card:
        led = lead("t", ACCURACY, rows, pairs([pair_of("b", "a", value, shown)]))
        assert led is not None
        return lead_card(led, entrants)

    assert card(shown=True).asides == ["A baseline.", "Shown to be ahead of a."]
    assert card(shown=False).asides[0].startswith("Highest mean: the baseline b, 90.0 points")
    rows = score_rows(rows_of(a=0.9, b=0.7), ACCURACY)
    assert card(shown=True, value=-0.2).asides == ["Shown to be ahead of the baseline b."]


def test_two_entrants_have_a_pair_and_no_matrix() -> None:
    page = Page(render(race(["gpt2/tiny", "glm/tiny"], tasks=())))
    assert "Which is ahead of which" not in page.all("h3")
    assert "1 pair with an interval" in page.all("summary")
    assert "Which is ahead of which" in Page(render(race())).all("h3")


def test_one_seed_is_said_to_cover_rows_only() -> None:
    said = Page(render(race(seeds=1))).said
    assert "One seed: the 95 % intervals cover the test rows (or documents) only" in said
    assert "spread over seeds" not in said
    said = Page(render(race(seeds=3))).said
    assert "One seed" not in said
    assert "spread over seeds" in said


def rows_of(**means: float) -> list[dict[str, Any]]:
    return [
        {"entrant": name, "mean": mean, "low": mean, "high": mean} for name, mean in means.items()
    ]


def pair_of(first: str, second: str, value: float, shown: bool) -> dict[str, Any]:
    ends = (value - 0.01, value + 0.01) if shown else (-1.0, 1.0)
    pair = {"first": first, "second": second, "value": value, "p": 0.01, "shown": shown}
    return pair | dict(zip(("low", "high"), ends, strict=True))


def test_a_leader_is_named_alone_only_where_it_is_ahead_of_all_others() -> None:
    rows = score_rows(rows_of(a=0.9, b=0.8, c=0.7), ACCURACY)
    apart = pairs([pair_of("b", "a", -0.1, True), pair_of("a", "c", 0.2, True)])
    close = pairs([pair_of("b", "a", -0.1, False), pair_of("a", "c", 0.2, True)])
    found = lead("t", ACCURACY, rows, apart)
    assert found is not None
    assert (found.best.name, found.equals, found.behind) == ("a", (), ("b", "c"))
    found = lead("t", ACCURACY, rows, close)
    assert found is not None
    assert (found.best.name, found.equals, found.behind) == ("a", ("b",), ("c",))
    assert lead("t", ACCURACY, rows[:1], []) is None
    found = lead("t", ACCURACY, rows, apart[:1])  # nothing is known about a and c
    assert found is not None
    assert (found.equals, found.behind) == ((), ("b",))


def test_the_lowest_score_leads_where_lower_is_better() -> None:
    scale = ScoreScale("bits per byte", "bits per byte", lower_is_better=True)
    rows = score_rows(rows_of(a=1.9, b=1.7), scale)
    found = lead("text", scale, rows, pairs([pair_of("a", "b", 0.2, True)]))
    assert found is not None
    assert (found.best.name, found.behind) == ("b", ("a",))


def test_of_equal_scores_the_baseline_comes_last() -> None:
    rows = [{"entrant": "TF-IDF", "mean": 1.0, "baseline": True}, *rows_of(a=1.0, b=1.0)]
    assert [row.name for row in score_rows(rows, ACCURACY)] == ["a", "b", "TF-IDF"]


def test_the_matrix_is_colored_only_where_a_difference_was_shown() -> None:
    rows = score_rows(rows_of(a=0.9, b=0.8, c=0.79), ACCURACY)
    found = pairs([pair_of("b", "a", -0.1, True), pair_of("b", "c", 0.01, False)])
    part = score_part(rows, found, ACCURACY)
    states = {(row.name, cell.name): cell.state for row in part.matrix for cell in row.cells}
    assert states["a", "b"] == "ahead"
    assert states["b", "a"] == "behind"
    assert states["b", "c"] == states["c", "b"] == "open"
    assert states["a", "a"] == states["a", "c"] == "none"
    texts = {(row.name, cell.name): cell.text for row in part.matrix for cell in row.cells}
    assert texts["a", "b"] == "▲ +10.0"
    assert texts["b", "a"] == "▼ −10.0"
    assert texts["c", "b"] == "−1.0"


def test_pairs_have_the_better_ranked_entrant_first() -> None:
    found = pairs([pair_of("b", "a", -0.1, True)])
    (row,) = pair_rows(found, ["a", "b"], ACCURACY)
    assert (row.first, row.second, row.words) == ("a", "b", "ahead")
    assert [cell.text for cell in row.cells] == ["+10.0", "+9.0 to +11.0", "0.010"]


def test_fractions_are_points_and_losses_are_not() -> None:
    def scale(**fields: Any) -> ScoreScale:
        return task_scale({"metric": "m", **fields})

    assert scale(maximum=1, unit="points").score(0.8432) == "84.3"
    assert scale(maximum=100, unit="points").score(31.25) == "31.2"
    assert scale(maximum=None, lower_is_better=True, unit="rmse").score(0.8432) == "0.843"
    assert ACCURACY.difference(0.00004) == "0.0"


def test_label_counts_increase_and_all_rows_come_last() -> None:
    rows = [{"labels": labels} for labels in ("all", "256", "16", "64", "16")]
    assert label_counts({"rows": rows, "train": 4000}) == ["16", "64", "256", "all"]
    assert label_counts({"rows": rows}) == ["16", "64", "256", "all"]


def test_names_in_a_verdict_are_whole_names() -> None:
    entrants = race_entrants(race(["gpt=gpt2/tiny", "gpt2=gpt2/tiny"], tasks=()))
    text = emphasized("gpt2 is ahead of gpt on gpt2.tsv by <1", entrants)
    assert text.startswith('<b class="c1">gpt2</b> is ahead of <b class="c0">gpt</b> on gpt2')
    assert text.endswith("by &lt;1.")
    assert emphasized("no difference", {}) == "No difference."


def test_generated_text_is_marked_and_real_text_is_not() -> None:
    text = render(race(["gpt2/tiny"], tasks=()))
    assert text.count("The members of<mark> ") == 1
    assert '<p class="text">The members of reading' not in text
    assert "longest copy" in Page(text).all("th")
    found = race(["gpt2/tiny"], tasks=())
    for sample in found["samples"]:
        del sample["prompts"], sample["longest_copy"]
    assert "<mark>" not in render(found)
    assert "longest copy" not in Page(render(found)).all("th")


def test_real_text_alone_is_no_section() -> None:
    assert "Generated text" not in Page(render(race(["bert/tiny"]))).all("h2")


def test_a_counting_model_has_no_steps() -> None:
    found = race(["gpt2/tiny", "ngram/tiny"], tasks=())
    found["entrants"][1] |= {"counted": True, "parameters": 0, "steps": 3, "lr": 5e-4}
    found["entrants"].append(found["entrants"][1] | {"name": "5-gram", "baseline": True})
    found["entrants"][1]["cost"] = found["entrants"][-1]["cost"] = None
    cells = Page(render(found)).said.split("What it cost")[1].split("Left out")[0]
    assert "ngram/tiny counting – – – – –" in cells
    assert "5-gram" not in cells
    assert "ngram/tiny counts the text once and is outside of the budget: no steps" in cells


def test_a_baseline_that_is_ahead_of_all_is_never_off_the_axis() -> None:
    rows = rows_of(a=0.08, b=0.06, best=0.457, worst=0.001)
    for row in rows[2:]:
        row["baseline"] = True
    scored = score_rows(rows, ACCURACY)
    assert not outlying_baselines([r for r in scored if r.name != "worst"], ACCURACY)
    for row in rows[:2]:
        row |= {"mean": row["mean"] + 0.3, "low": row["mean"] + 0.3, "high": row["mean"] + 0.3}
    found = outlying_baselines(score_rows(rows, ACCURACY), ACCURACY)
    assert [row.name for row in found] == ["worst"]
    loss = ScoreScale("loss", "nats", lower_is_better=True)  # there the lowest is the best
    found = outlying_baselines(score_rows(rows, loss), loss)
    assert [row.name for row in found] == ["best"]


def test_cost_and_score_says_who_has_no_dot() -> None:
    found = race(["gpt2/tiny", "glm/tiny", "bert/tiny", "ngram/tiny"])
    found["entrants"][3] |= {"counted": True, "parameters": 0, "cost": None}
    row = {**found["likelihood"]["rows"][0], "entrant": "ngram/tiny"}
    found["likelihood"]["rows"].append(row)
    said = Page(render(found)).said.split("Cost and score")[1].split("Frozen layers")[0]
    assert "bert/tiny (no likelihood of the held-out text)" in said
    assert "ngram/tiny (counted, not trained: no FLOPs in the table of costs)" in said


def test_metrics_have_their_titles() -> None:
    found = race()
    found["tasks"][0] |= {"metric": "f1", "metric_title": "F1"}
    said = Page(render(found)).said
    assert "Scored by F1; higher is better." in said and "f1" not in said


def test_long_lists_of_names_end_in_a_number() -> None:
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c", "d"]) == "a, b, c and d"
    assert joined([*"abcdef"]) == "a, b, c and 3 others"


def test_the_summary_counts_entrants_without_those_left_out() -> None:
    found = race()
    assert race_summary(found) == "8 entrants, wiki.txt (12.4 MB), 3 minutes each, 3 seeds, 2 tasks"
    assert byte_count(999) == "999 bytes"


def test_speed_in_tokens_is_compared_where_tokens_are_the_same() -> None:
    found = race()
    assert "<h3>Fastest</h3>" in render(found)
    found["entrants"][0]["corpus"] = "corpus-2"
    assert "<h3>Fastest</h3>" not in render(found)


def test_no_entrant_is_the_fastest_where_the_seeds_overlap() -> None:
    found = race()
    running = [one for one in found["entrants"] if one.get("cost")]
    slow, fast = sorted(running, key=lambda one: one["cost"]["tokens_per_second"])[-2:]
    said = Page(render(found)).said
    assert f"Fastest {fast['name']} " in said
    slow["cost"]["tokens_per_second_range"][1] = fast["cost"]["tokens_per_second_range"][0]
    assert "<h3>Fastest</h3>" not in render(found)


def test_rendering_changes_nothing_in_the_race() -> None:
    found = race()
    before = copy.deepcopy(found)
    assert render(found) == render(found)
    assert found == before


def test_pseudo_likelihoods_of_other_units_have_a_panel_of_their_own() -> None:
    """Tokens of two vocabularies are not equally hard to predict from both sides."""
    found = race()
    names = [one["name"] for one in found["entrants"] if not one["left_out"]][:3]
    units = dict(zip(names, ("tokens of a", "tokens of b", "tokens of a"), strict=True))
    found["likelihood"]["rows"] = [
        {**PSEUDO_ROW, "entrant": name, "units": unit} for name, unit in units.items()
    ]
    text = render(found)
    titles = re.findall(r"<h3>(Pseudo-likelihood[^<]*)</h3>", text)
    start = "Pseudo-likelihood, each token, tokens of"
    assert titles == [f"{start} a", f"{start} b"]
    second = text.split(titles[1])[1].split("</section>")[0].split("</table>")[0]
    table = second.split("<tbody>")[1]
    assert names[1] in table and names[0] not in table and names[2] not in table
    for row in found["likelihood"]["rows"]:
        row["units"] = "tokens of a"
    assert re.findall(r"<h3>(Pseudo-likelihood[^<]*)</h3>", render(found)) == [
        "Pseudo-likelihood, each token"
    ]


def test_models_that_no_seed_changes_are_called_fixed() -> None:
    rows = [
        {"entrant": "a", "mean": 0.5, "spread": 0.1, "seeds": [0.4, 0.6]},
        {"entrant": "b", "mean": 0.7, "spread": 0.0, "seeds": [0.7], "fixed": True},
    ]
    part = score_part(score_rows(rows, ACCURACY), [], ACCURACY)
    column = list(part.columns).index("spread over seeds")
    assert {row.name: row.cells[column].text for row in part.rows} == {"a": "10.0", "b": "fixed"}


def test_the_seconds_that_runs_took_are_beside_their_budget() -> None:
    found = race()
    found["entrants"][0]["cost"]["seconds_range"] = [171.0, 183.0]
    text = render(found)
    assert "The runs took 2 min 51 s to 3 min 9 s: 10.0\u00a0% of the budget apart." in text
    assert "<small>2 min 51 s to 3 min 3 s</small></td>" in text
    assert "below them, the least and the most of a seed" in text
    assert "<small>" not in render(race()) and "of a seed" not in render(race())


def test_every_objective_that_learns_has_a_title_in_words() -> None:
    names = {name for family in families().values() for name in family.objectives}
    assert {*OBJECTIVE_TITLES} == names


def test_a_score_that_one_entrant_has_is_not_the_first_that_is_drawn_against_cost() -> None:
    found = race(["a=gpt2/tiny", "b=gpt2/tiny", "bert/tiny"], tasks=["triage.tsv"])
    assert [part.label for part in scores_of(found)] == ["held-out text", "triage.tsv"]
    del found["entrants"][1]["cost"]["flops"]  # the likelihood of one entrant has a dot
    assert [part.label for part in scores_of(found)] == ["triage.tsv", "held-out text"]
    assert [part.shown for part in scores_of(found)] == [True, False]


def scores_of(found: dict[str, Any]) -> Any:
    return tradeoff(found, race_entrants(found))["scores"]
