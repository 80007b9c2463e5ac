"""The race page in a browser: entrants are hidden everywhere, switches switch, tables sort."""

from collections.abc import Callable
from typing import Any

import pytest

from kinfolk.reports import race_page
from support.pages import CUT_OFF, PAGES
from support.races import EVIL, FAMILIES, hostile_race, race

Open = Callable[..., Any]
ENTRANTS = ("bert/tiny", "electra/tiny", "glm/tiny", "gpt2/tiny")
NUM_PAIRS = 21  # of four entrants and three baselines


@pytest.fixture(autouse=True)
def few_entrants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the page of a race that is drawn fast."""
    monkeypatch.setitem(PAGES, "small race", lambda: race_page.render(race(ENTRANTS)))


def chip(tab: Any, name: str) -> Any:
    return tab.locator(f'.chip[data-name="{name}"]')


def names(table: Any) -> list[str]:
    """Return the first column of the rows that are shown."""
    return table.locator("tbody tr:visible th").all_inner_texts()


def column(table: Any, index: int) -> list[str]:
    return table.locator(f"tbody tr td:nth-child({index})").all_inner_texts()


@pytest.mark.parametrize("device", ["desktop", pytest.param("phone", marks=pytest.mark.slow)])
def test_a_hidden_entrant_leaves_all_charts_and_tables(device: str, open_page: Open) -> None:
    tab = open_page("small race", device)
    task = tab.locator("#task-0")
    interval, curve = task.locator("figure.interval:visible"), task.locator("figure.line")
    for place in (interval.locator("svg"), task.locator("table[data-sortable]:visible").first):
        assert "electra/tiny" in place.text_content()
    chip(tab, "electra/tiny").click()
    assert chip(tab, "electra/tiny").get_attribute("aria-pressed") == "false"
    assert "electra/tiny" not in interval.locator("svg").text_content()
    assert "bert/tiny" in interval.locator("svg").text_content()
    key = curve.locator(".legend-key", has_text="electra/tiny")
    assert key.get_attribute("aria-pressed") == "false"
    for table in tab.locator("table:visible:not(.data table)").all():
        assert "electra/tiny" not in table.inner_text()
    tab.locator(".reset").click()
    assert "electra/tiny" in interval.locator("svg").text_content()
    assert key.get_attribute("aria-pressed") == "true"
    assert tab.locator(".reset").is_hidden()


@pytest.mark.slow
def test_a_phone_shows_the_interval_of_a_score_without_scrolling(open_page: Open) -> None:
    tab = open_page("small race", "phone")
    tables = tab.locator("#text .scroll table[data-sortable]:not(.list)").all()
    assert len(tables) == 2
    for table in tables:
        third = table.locator("thead th").nth(2)
        assert third.inner_text() == "95 % interval"
        faded = 36  # pixels at the edge of a table that goes on
        box = third.bounding_box()
        assert box["x"] + box["width"] <= 390 - 18 - faded
        assert table.locator("tbody th").first.inner_text() in ENTRANTS  # not broken


@pytest.mark.slow
def test_columns_that_a_phone_scrolls_to_make_no_row_tall(open_page: Open) -> None:
    tab = open_page("small race", "phone")
    rows = tab.locator("#text table[data-sortable]:not(.list) tbody tr:not(.line)")
    heights = rows.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().height)")
    assert len(heights) == len(ENTRANTS) and max(heights) < 45  # a line of text


@pytest.mark.slow
def test_a_desktop_shows_the_costs_of_all_seeds_without_scrolling(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = race(ENTRANTS)
    for entrant in found["entrants"]:
        if entrant["cost"]:
            entrant["cost"] |= {"tokens_range": [2_558_570, 2_562_004], "seconds_range": [171, 183]}
    monkeypatch.setitem(PAGES, "costs", lambda: race_page.render(found))
    table = open_page("costs").locator("#cost .scroll")
    assert "2,558,570 to 2,562,004" in table.inner_text()
    assert table.evaluate("node => node.scrollWidth <= node.clientWidth")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_long_names_of_tasks_leave_the_page_in_its_width(
    device: str, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "sentiment_of_reviews" * 4 + ".tsv"
    named = race(ENTRANTS, tasks=[long, f"b_{long}"])
    monkeypatch.setitem(PAGES, "long tasks", lambda: race_page.render(named))
    tab = open_page("long tasks", device)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("#tradeoff [data-switch] button", has_text=long).count() == 2
    assert tab.evaluate(CUT_OFF) == []


@pytest.mark.slow
def test_the_page_says_that_pairs_decide_where_lines_overlap(open_page: Open) -> None:
    tab = open_page("small race")
    for section in ("#text", "#task-0"):
        assert "can be shown where lines overlap" in tab.locator(section).inner_text()


@pytest.mark.slow
def test_a_double_click_leaves_one_entrant(open_page: Open) -> None:
    tab = open_page("small race")
    chip(tab, "bert/tiny").dblclick()
    assert names(tab.locator("#cost table")) == ["bert/tiny"]
    assert tab.locator('.chip[aria-pressed="true"]').all_inner_texts() == ["bert/tiny"]


def expect_text(place: Any, text: str) -> None:
    """Assert that a text is there, once the chart is drawn: a new one is empty for a moment."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    api.expect(place).to_contain_text(text)


@pytest.mark.slow
def test_a_chart_that_was_not_shown_hides_the_entrant_too(open_page: Open) -> None:
    tab = open_page("small race")
    chip(tab, "electra/tiny").click()
    tab.locator('#task-0 [data-switch] button[data-key="16"]').click()
    drawing = tab.locator("#task-0 figure.interval:visible svg")
    drawing.wait_for()
    expect_text(drawing, "bert/tiny")
    assert "electra/tiny" not in drawing.text_content()


def test_the_number_of_labels_switches_chart_table_and_matrix(open_page: Open) -> None:
    tab = open_page("small race")
    task = tab.locator("#task-0")
    shown = [task.locator("figure.interval:visible"), task.locator("table[data-sortable]:visible")]
    shown.append(task.locator("table.matrix:visible"))
    before = [place.first.inner_text() for place in shown]
    task.get_by_role("group", name="labels").get_by_text("16", exact=True).click()
    assert [place.count() for place in shown] == [1, 1, 1]
    after = [place.first.inner_text() for place in shown]
    assert all(a != b for a, b in zip(before, after, strict=True))
    other = tab.locator("#task-1 [data-switch] [aria-pressed=true]")
    assert other.inner_text() == "all"


@pytest.mark.slow
def test_learning_curves_change_their_axis_together(open_page: Open) -> None:
    tab = open_page("small race")
    drawings = tab.locator("#learning figure:visible svg")
    panels = len({*tab.locator("#learning h3").all_inner_texts()})
    for axis in ("tokens", "FLOPs", "seconds"):
        tab.get_by_role("group", name="by").get_by_text(axis).click()
        drawings.first.wait_for()
        assert drawings.count() == panels
        for drawing in drawings.all():
            expect_text(drawing, axis)


@pytest.mark.slow
def test_any_cost_can_be_set_against_any_score(open_page: Open) -> None:
    tab = open_page("small race")
    chart = tab.locator("#tradeoff figure:visible")
    for cost in ("time", "parameters"):
        tab.get_by_role("group", name="cost").get_by_text(cost, exact=True).click()
        for score, entrant in (("triage.tsv", "bert/tiny"), ("held-out text", "gpt2/tiny")):
            tab.get_by_role("group", name="score").get_by_text(score).click()
            chart.locator("svg").wait_for()
            assert chart.count() == 1
            expect_text(chart.locator("svg"), cost)
            expect_text(chart.locator("svg"), entrant)


@pytest.mark.parametrize("key", ["click", pytest.param("Enter", marks=pytest.mark.slow)])
def test_a_table_sorts_by_the_value_of_a_column(key: str, open_page: Open) -> None:
    table = open_page("small race").locator("#cost table")
    head = table.locator("thead th", has_text="tokens/s")
    written = {"k": 1e3, "M": 1e6}
    speeds = []
    for _ in range(2):
        head.click() if key == "click" else head.press(key)
        cells = column(table, 9)
        speeds.append([float(text[:-1]) * written[text[-1]] for text in cells])
    assert speeds[0] == sorted(speeds[0])
    assert speeds[1] == sorted(speeds[1], reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    table.locator("thead th").first.click()
    assert names(table) == sorted(ENTRANTS)


@pytest.mark.slow
def test_pairs_are_found_by_name_and_by_what_was_shown(open_page: Open) -> None:
    tab = open_page("small race")
    pairs = tab.locator("#task-0 details.pairs:visible")
    pairs.locator("summary").click()
    rows = pairs.locator("tbody tr:visible")
    assert rows.count() == NUM_PAIRS
    pairs.get_by_role("searchbox").fill("ELECTRA gpt2")
    assert rows.count() == 1
    assert {"electra/tiny", "gpt2/tiny"} <= {*rows.inner_text().split()}
    pairs.get_by_role("searchbox").fill("")
    pairs.get_by_role("checkbox").check()
    assert 0 < rows.count() < NUM_PAIRS
    assert pairs.locator("output").inner_text() == f"{rows.count()} of {NUM_PAIRS}"
    assert pairs.get_by_text("no difference shown").locator("visible=true").count() == 0


def test_markup_in_names_and_texts_stays_text(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PAGES, "hostile race", lambda: race_page.render(hostile_race()))
    tab = open_page("hostile race")
    assert tab.locator("img").count() == 0
    assert EVIL in tab.locator(".chip").first.inner_text()
    assert EVIL in tab.locator("#task-0 figure.line .legend").inner_text()
    tab.locator(".chip").first.click()
    assert EVIL + "0" not in tab.locator("#task-0 table[data-sortable]:visible").first.inner_text()
    plot = tab.locator("#text figure:visible .plot").first
    plot.scroll_into_view_if_needed()
    plot.hover()
    assert tab.locator("img").count() == 0


RACES = {
    "one entrant": lambda: race(["gpt2/tiny"], tasks=(), seeds=1, complete=False),
    "twenty entrants": lambda: race(
        [f"{family}-{i}={family}/tiny" for family in FAMILIES[:4] for i in range(5)],
        tasks=["t.tsv"],
    ),
    "no likelihood": lambda: race(["bert/tiny", "electra/tiny"], likelihood=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["desktop", "phone"])
@pytest.mark.parametrize("name", RACES)
def test_small_and_large_races_fit(
    name: str, device: str, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PAGES, name, lambda: race_page.render(RACES[name]()))
    tab = open_page(name, device)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("figure.drawn").count() == tab.locator("figure.chart").count() > 0
