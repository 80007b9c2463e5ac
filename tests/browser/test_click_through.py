"""Every control of the pages is used with the mouse, in every width and theme; nothing breaks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinfolk.reports import race_page
from support.pages import CUT_OFF, PAGES
from support.races import FAMILIES, race

Open = Callable[..., Any]
LOOKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
ENTRANTS = ("bert/tiny", "electra/tiny", "gpt2/tiny", "glm/tiny")
CLICKED = ("quickstart", "run", "evaluation", "claims", "clicked race")
TWICE = ".legend-key, .toggle, .chip, .theme, thead th"  # a second click undoes or turns the first

# The controls that are shown, each by a selector that finds it again.
CONTROLS = """() => {
  const path = (node) => {
    const steps = [];
    for (; node !== document.body; node = node.parentElement)
      steps.unshift(`${node.localName}:nth-child(${[...node.parentElement.children].indexOf(node) + 1})`);
    return `body > ${steps.join(" > ")}`;
  };
  return [...document.querySelectorAll("button, summary, thead th[tabindex], input")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }))
    .map(path);
}"""  # noqa: E501


@pytest.fixture(autouse=True)
def few_entrants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the page of a race with few charts, so that all of them can be clicked."""
    small = race(ENTRANTS, tasks=["triage.tsv"])
    monkeypatch.setitem(PAGES, "clicked race", lambda: race_page.render(small))


def check_looks(tab: Any, after: str) -> None:
    """Assert that nothing is cut off, hidden, covered, faint or too wide."""
    wide = tab.evaluate("document.documentElement.scrollWidth > innerWidth")
    wrong = ["wide: the page scrolls sideways"] if wide else []
    assert (after, wrong + tab.evaluate(CUT_OFF) + tab.evaluate(LOOKS)) == (after, [])


def click(tab: Any, selector: str) -> str:
    """Click a control and check the page; return what it is called."""
    control = tab.locator(selector)
    if control.get_attribute("type") == "search":
        control.fill("tiny")
        check_looks(tab, "search")
        return "search"
    name = control.evaluate("node => `${node.localName} ${node.className} ${node.textContent}`")
    clicks = 2 if control.evaluate("(node, twice) => node.matches(twice)", TWICE) else 1
    for _ in range(clicks):
        control.click(timeout=5000)
        check_looks(tab, name)
    return str(name)


def click_everything(tab: Any) -> list[str]:
    """Click all controls, with those that appear meanwhile, and return their names."""
    clicked: dict[str, str] = {}
    while left := [each for each in tab.evaluate(CONTROLS) if each not in clicked]:
        clicked[left[0]] = click(tab, left[0])
    return list(clicked.values())


def hover_everything(tab: Any) -> int:
    """Point at all charts that are shown, and return how many tooltips came."""
    tips = 0
    for chart in tab.locator("figure.chart:visible").all():
        chart.locator(".plot").scroll_into_view_if_needed()
        box = chart.locator(".plot").bounding_box()
        for across in (0.2, 0.5, 0.95):
            tab.mouse.move(box["x"] + across * box["width"], box["y"] + 0.4 * box["height"])
            tab.wait_for_timeout(40)
            tip = chart.locator(".tip-box")
            if tip.count() and tip.is_visible():
                tips += 1
                assert tab.evaluate(CUT_OFF) == []
        tab.mouse.move(0, 0)
    return tips


def check_page(name: str, device: str, theme: str, open_page: Open) -> None:
    tab = open_page(name, device, theme)
    check_looks(tab, "opened")
    assert hover_everything(tab) > 0
    clicked = click_everything(tab)
    kinds = {what.split()[0] for what in clicked}
    assert {"button", "summary"} <= kinds
    if name == "clicked race":
        assert {"th", "search", "input"} <= kinds
        assert any("copy" in what for what in clicked)


COMMON = [("desktop", "light"), ("phone", "dark")]
OTHER = [("desktop", "dark"), ("phone", "light")]


@pytest.mark.parametrize(
    ("name", "device", "theme"),
    [
        ("quickstart", *COMMON[0]),
        pytest.param("quickstart", *COMMON[1], marks=pytest.mark.slow),
        *(
            pytest.param(name, *look, marks=pytest.mark.slow)
            for name in CLICKED[1:]
            for look in COMMON
        ),
    ],
)
def test_every_control_can_be_used(name: str, device: str, theme: str, open_page: Open) -> None:
    check_page(name, device, theme, open_page)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "theme"), OTHER)
@pytest.mark.parametrize("name", CLICKED)
def test_every_control_can_be_used_in_the_other_theme(
    name: str, device: str, theme: str, open_page: Open
) -> None:
    check_page(name, device, theme, open_page)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_names_of_points_do_not_cover_each_other(device: str, open_page: Open) -> None:
    tab = open_page("race", device)
    buttons = tab.locator("#tradeoff [data-switch] button")
    assert buttons.count() == 8  # five costs, three scores
    for button in buttons.all():
        button.click()
        check_looks(tab, button.inner_text())
    names = tab.locator("#tradeoff figure:visible svg text").all_text_contents()
    assert sum("/tiny" in name for name in names) == 8  # all entrants have a place


@pytest.mark.slow
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_twenty_entrants_can_be_read(
    device: str, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{kind} with a long name {i}={kind}/tiny" for kind in FAMILIES[:4] for i in range(5)]
    large = race(names, tasks=["t.tsv"])
    monkeypatch.setitem(PAGES, "large race", lambda: race_page.render(large))
    tab = open_page("large race", device)
    check_looks(tab, "opened")
    assert "…" not in tab.locator("#task-0").inner_text()


QUICK = (("hidden", "phone"), ("overlap", "desktop"))  # the others are slow
PLANTED = {
    "wide": ("main", "node.style.minWidth = '2000px'"),
    "window": ("h1", "node.style.marginLeft = '97vw'"),
    "hidden": ("h1", "node.style.cssText = 'overflow: hidden; white-space: nowrap; width: 60px'"),
    "faint": (".lead", "node.style.color = 'light-dark(#aaa, #555)'"),
    "tiny": (".lead", "node.style.fontSize = '9px'"),
    "overlap": ("svg", "node.append(node.querySelector('text').cloneNode(true))"),
    "drawing": ("svg text", "node.setAttribute('transform', 'translate(-50 0)')"),
}


@pytest.mark.parametrize(
    ("kind", "device", "theme"),
    [
        pytest.param(
            *(kind, device, theme),
            marks=[] if (kind, device) in QUICK else pytest.mark.slow,
        )
        for kind in PLANTED
        for device, theme in COMMON
    ],
)
def test_a_planted_mistake_is_found(kind: str, device: str, theme: str, open_page: Open) -> None:
    selector, mistake = PLANTED[kind]
    tab = open_page("quickstart", device, theme)
    check_looks(tab, "opened")
    tab.locator(selector).first.evaluate(f"node => {{ {mistake} }}")
    with pytest.raises(AssertionError, match=f"{kind}: "):
        check_looks(tab, "planted")


def test_what_a_click_breaks_is_found(open_page: Open) -> None:
    tab = open_page("claims")
    tab.evaluate(
        """() => {
          const button = document.createElement("button");
          button.textContent = "planted";
          button.onclick = () => (document.querySelector("main").style.minWidth = "2000px");
          document.querySelector("main").append(button);
        }"""
    )
    with pytest.raises(AssertionError, match=r"(?s)planted.*wide: "):
        click_everything(tab)


def test_an_error_in_a_page_is_found(open_page: Open, opened: list[Any]) -> None:
    tab = open_page("claims")
    tab.evaluate("() => { setTimeout(() => { throw new Error('planted'); }); }")
    tab.evaluate("() => console.error('also planted')")
    tab.wait_for_timeout(100)
    assert sorted(opened[0].errors) == ["also planted", "planted"]
    opened[0].errors.clear()
