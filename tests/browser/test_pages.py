"""Every page, in a browser: nothing is cut off, and charts answer to the mouse and the keys."""

from collections.abc import Callable
from typing import Any

import pytest

from support.pages import CUT_OFF, EVIL, PAGES

Open = Callable[..., Any]


def figure(tab: Any, kind: str) -> Any:
    return tab.locator(f"figure.{kind}").first


def curves(chart: Any) -> int:
    return chart.locator("svg path[stroke-width='2.2']").count()


def check_whole(tab: Any) -> None:
    charts = tab.locator("figure.chart").count()
    assert charts and tab.locator("figure.chart.drawn").count() == charts
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(CUT_OFF) == []


SAMPLE = (("run", "desktop"), ("evaluation", "phone"), ("race", "phone"))  # the others are slow


@pytest.mark.parametrize(
    ("name", "device", "theme"),
    [
        pytest.param(
            *(name, device, theme), marks=[] if (name, device) in SAMPLE else pytest.mark.slow
        )
        for name in PAGES
        for device, theme in (("desktop", "light"), ("phone", "dark"))
    ],
)
def test_nothing_is_cut_off(name: str, device: str, theme: str, open_page: Open) -> None:
    check_whole(open_page(name, device, theme))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["desktop", "phone"])
@pytest.mark.parametrize("name", ["isotropy", "neurons", "probe"])
def test_tables_of_measures_are_read_without_scrolling(
    name: str, device: str, open_page: Open
) -> None:
    tab = open_page(name, device)
    tables = tab.locator(".scroll:has(> table.records)")
    wide = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth).length"
    assert tables.count() and tables.evaluate_all(wide) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("device", "theme"), [("desktop", "dark"), ("phone", "light")])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_off_in_the_other_theme(
    name: str, device: str, theme: str, open_page: Open
) -> None:
    check_whole(open_page(name, device, theme))


def test_a_text_that_is_cut_off_would_be_found(open_page: Open) -> None:
    tab = open_page("run", "phone")
    tab.locator("h1").evaluate("node => (node.style.marginLeft = '300px')")
    tab.locator("svg text").first.evaluate(
        "node => node.setAttribute('transform', 'translate(-50 0)')"
    )
    found = tab.evaluate(CUT_OFF)
    assert {what.partition(":")[0] for what in found} == {"window", "drawing"}


# Where to point, as fractions of the chart, and what the tooltip then says.
HOVERED = {
    "line": (0.5, 0.4, ["step 2", "gpt2", "unigram", "5.900"]),
    "bars": (0.35, 0.38, ["gpt2", "1.50", "exact"]),
    "interval": (0.5, 0.16, ["gpt2/tiny", "80.2", "95 % interval", "78.8 to 81.4", "3 seeds"]),
    "heatmap": (0.5, 0.5, ["reference", "prediction", "column"]),
    "histogram": (0.9, 0.6, ["8 to 9", "64"]),
}


@pytest.mark.slow
def test_short_values_of_a_phone_stand_on_one_line(open_page: Open) -> None:
    cells = open_page("audit", "phone").locator("td[data-label]:visible").all()
    short = {
        cell.inner_text(): cell.bounding_box()["height"]
        for cell in cells
        if len(cell.inner_text()) < 20
    }
    assert "a.txt:1" in short
    assert max(short.values()) < 32


@pytest.mark.slow
def test_a_long_name_leaves_room_for_the_numbers_beside_it(open_page: Open) -> None:
    for box in open_page("tokenizers").locator(".scroll:has(table.records)").all():
        assert box.evaluate("node => node.scrollWidth <= node.clientWidth")


@pytest.mark.slow
def test_negative_numbers_have_minus_signs(open_page: Open) -> None:
    texts = open_page("claims").locator("figure svg text").all_text_contents()
    assert "−1.3" in texts and "−1.9 to −0.7" in texts
    assert not [text for text in texts if text.startswith("-")]


def test_hovering_shows_the_values(open_page: Open) -> None:
    tab = open_page("gallery")
    for kind, (across, down, words) in HOVERED.items():
        chart = figure(tab, kind)
        chart.scroll_into_view_if_needed()
        box = chart.locator(".plot").bounding_box()
        tab.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        tip = chart.locator(".tip-box")
        tip.wait_for(state="visible")
        assert [word for word in words if word not in tip.inner_text()] == []
    chart = figure(tab, "scatter")
    chart.scroll_into_view_if_needed()
    label = chart.locator("svg text", has_text="TF-IDF").bounding_box()
    tab.mouse.move(label["x"] - 11, label["y"] + label["height"] / 2)
    chart.locator(".tip-box").wait_for(state="visible")
    assert "74.9" in chart.locator(".tip-box").inner_text()


@pytest.mark.slow
def test_hovering_shows_a_rate_below_one(open_page: Open) -> None:
    chart = figure(tab := open_page("lr-find"), "line")
    chart.scroll_into_view_if_needed()
    box = chart.locator(".plot").bounding_box()
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    chart.locator(".tip-box").wait_for(state="visible")
    assert "learning rate 0.00" in chart.locator(".tip-box").inner_text()


def test_the_legend_hides_and_shows_curves(open_page: Open) -> None:
    chart = figure(open_page("gallery"), "line")
    whole = curves(chart)
    key = chart.locator(".legend-key").first
    key.click()
    assert key.get_attribute("aria-pressed") == "false" and curves(chart) < whole
    key.focus()
    key.press("Enter")
    assert key.get_attribute("aria-pressed") == "true" and curves(chart) == whole
    key.dblclick()
    pressed = [one.get_attribute("aria-pressed") for one in chart.locator(".legend-key").all()]
    assert pressed == ["true", *["false"] * (len(pressed) - 1)]


def drag(tab: Any, chart: Any, start: float, end: float) -> None:
    chart.scroll_into_view_if_needed()
    box = chart.locator(".plot").bounding_box()
    height = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + start * box["width"], height)
    tab.mouse.down()
    tab.mouse.move(box["x"] + end * box["width"], height, steps=3)
    tab.mouse.up()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_a_drag_zooms_and_the_button_resets(device: str, open_page: Open) -> None:
    tab = open_page("gallery", device)
    chart = figure(tab, "line")
    before = chart.locator("svg text").all_text_contents()
    assert chart.locator(".unzoom").is_hidden()
    drag(tab, chart, 0.5, 0.7)
    zoomed = chart.locator("svg text").all_text_contents()
    assert zoomed != before and "0" not in zoomed and "unigram" not in zoomed
    chart.locator(".unzoom").click()
    assert chart.locator("svg text").all_text_contents() == before
    assert chart.locator(".unzoom").is_hidden()


@pytest.mark.slow
def test_an_axis_can_be_logarithmic(open_page: Open) -> None:
    chart = figure(open_page("gallery"), "line")
    before = chart.locator("svg text").all_text_contents()
    chart.get_by_text("log x").click()
    assert chart.locator("svg text").all_text_contents() != before
    assert "10" in chart.locator("svg text").all_text_contents()


def color(tab: Any, selector: str, what: str = "color") -> str:
    return tab.locator(selector).first.evaluate(f"node => getComputedStyle(node).{what}")


def test_the_theme_button_recolors_page_and_charts(open_page: Open) -> None:
    tab = open_page("quickstart")
    looks = [(color(tab, "body", "backgroundColor"), color(tab, "svg text", "fill"))]
    assert tab.locator(".theme").inner_text() == "Dark"
    tab.locator(".theme").click()
    looks.append((color(tab, "body", "backgroundColor"), color(tab, "svg text", "fill")))
    assert looks[0][0] != looks[1][0] and looks[0][1] != looks[1][1]
    tab.reload()  # the choice is kept
    assert color(tab, "body", "backgroundColor") == looks[1][0]
    tab.locator(".theme").click()
    assert color(tab, "body", "backgroundColor") == looks[0][0]


@pytest.mark.slow
def test_paper_is_white_and_has_no_buttons(open_page: Open) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    light = color(open_page("quickstart"), "body", "backgroundColor")
    tab = open_page("quickstart", theme="dark")
    assert color(tab, "body", "backgroundColor") != light
    tab.emulate_media(media="print")
    sync_api.expect(tab.locator("body")).to_have_css("background-color", light)
    assert tab.locator(".theme").is_hidden() and tab.locator(".data").first.is_hidden()
    assert tab.locator("figure.drawn svg").first.bounding_box()["width"] <= 680


@pytest.mark.slow
def test_charts_follow_the_width_of_the_window(open_page: Open) -> None:
    tab = open_page("gallery")
    tab.set_viewport_size({"width": 390, "height": 844})
    # Not wait_for_function: it evaluates strings, which the policy of our pages forbids.
    for _ in range(100):
        if tab.locator("figure.line svg").first.evaluate("node => node.clientWidth") < 390:
            break
        tab.wait_for_timeout(50)
    assert tab.locator("figure.line svg").first.evaluate("node => node.clientWidth") < 390
    assert tab.evaluate(CUT_OFF) == []


def test_without_scripts_the_data_is_a_table(open_page: Open) -> None:
    tab = open_page("gallery", "phone", script=False)
    for table in tab.locator("figure.chart table").all():
        assert table.is_visible()
    assert tab.locator(".plot").first.is_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_the_command_and_the_recipe_are_readable(device: str, open_page: Open) -> None:
    tab = open_page("run", device)
    started = tab.locator(".commands code").first
    assert started.inner_text().startswith("kinfolk pretrain bert/mini --corpus ccc")
    recipe = tab.locator("details.recipe pre")
    assert recipe.is_hidden()
    tab.locator("details.recipe summary").click()
    assert recipe.is_visible() and '"lr": 0.0003' in recipe.inner_text()
    assert tab.locator(".timeline dt").all_inner_texts() == ["step 500", "step 3,000"]
    titles = tab.locator("section", has_text="Pale: single steps.").locator("h3").all_inner_texts()
    assert titles[0] == "learning rate" and titles[-1] == "memory"
    check_whole(tab)


def test_names_are_text_wherever_they_are_shown(open_page: Open) -> None:
    tab = open_page("run")
    chart = figure(tab, "line")
    box = chart.locator(".plot").bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    chart.locator(".tip-box").wait_for(state="visible")
    assert EVIL in chart.locator(".tip-box").inner_text()
    assert EVIL in chart.locator(".legend").inner_text()
    assert tab.locator("img").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_page_prints(name: str, open_page: Open) -> None:
    assert open_page(name).pdf(format="A4").startswith(b"%PDF")
