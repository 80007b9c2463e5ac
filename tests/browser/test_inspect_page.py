"""The page of an inspection in a browser: tokens, grids, heads and families answer."""

from collections.abc import Callable
from typing import Any

import pytest

from support.pages import CUT_OFF, EVIL

Open = Callable[..., Any]
DEVICES = pytest.mark.parametrize(
    ("device", "theme"), [("desktop", "light"), ("phone", "dark")], ids=["desktop", "phone"]
)


def card(tab: Any, family: str, objective: str) -> Any:
    cards = tab.locator(f".objective[data-family='{family}']")
    return cards.filter(has=tab.locator("h3 code", has_text=objective)).first


def texts(tokens: Any) -> list[str]:
    return list(tokens.all_inner_texts())


@DEVICES
def test_a_token_shows_what_it_attends_to_in_every_family(
    device: str, theme: str, open_page: Open
) -> None:
    tab = open_page("inspect", device, theme)
    tab.locator(".text-strip .tok", has_text="fox").click()
    gpt2 = card(tab, "gpt2/nano", "clm")
    assert texts(gpt2.locator(".tok.active")) == ["fox"]
    assert texts(gpt2.locator(".tok.seen")) == ["<|endoftext|>", "The", "quick", "fox"]
    encoder = card(tab, "t5/nano", "spans").locator(".stream").first
    seen = texts(encoder.locator(".tok.seen"))
    # The encoder attends to all of its own document, and to nothing of the packed second one.
    assert "dog" in seen and "follows" not in seen and "second" not in seen
    bert = texts(card(tab, "bert/nano", "mlm").locator(".tok.seen"))
    assert bert[0] == "[CLS]" and bert[-1] == "[SEP]" and len(bert) > 10
    tab.locator(".text-strip .tok", has_text="fox").click()  # again lets go
    tab.locator("h1").click()
    assert tab.locator(".objective .tok.active").count() == 0


@DEVICES
def test_heads_can_be_chosen(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)
    model = tab.locator("#model-1 .attention").first
    heads = model.locator(".thumbs button")
    assert heads.count() == 4
    heads.nth(3).click()
    assert heads.nth(3).get_attribute("aria-pressed") == "true"
    model.locator(".queries .tok").nth(2).click()
    words = model.locator(".chosen").inner_text()
    assert words.startswith("layer 2, head 2; quick attends most to ")
    weights = [
        float(token.evaluate("node => node.style.getPropertyValue('--w')") or 0)
        for token in model.locator(".keys-strip .tok").all()
    ]
    assert sum(weights) == pytest.approx(1, abs=0.02) and not any(weights[3:])


def painted(canvas: Any) -> str:
    return str(canvas.evaluate("node => node.toDataURL()"))


def test_grids_have_the_colors_of_the_theme_and_a_row_is_marked(open_page: Open) -> None:
    tab = open_page("inspect")
    canvas = card(tab, "gpt2/nano", "clm").locator("canvas").first
    light = painted(canvas)
    tab.locator(".theme").click()
    dark = painted(canvas)
    assert dark != light
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tab.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    assert painted(canvas) != dark
    assert tab.locator(".text-strip .tok.active").count() == 1


def test_a_family_can_be_hidden_or_shown_alone(open_page: Open) -> None:
    tab = open_page("inspect")
    every = tab.locator(".objective:visible").count()
    chip = tab.locator(".chip[data-family='bert/nano']")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert tab.locator(".objective:visible").count() == every - 4
    tab.locator(".chip.reset").click()
    assert tab.locator(".objective:visible").count() == every
    chip.dblclick()
    assert tab.locator(".objective:visible").count() == 4


@DEVICES
def test_costs_open_and_nothing_is_cut_off(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)
    for summary in tab.locator("details.cost summary").all():
        summary.click()
    first = tab.locator("details.cost").first
    assert "parameters = " in first.inner_text() and "FLOPs = " in first.inner_text()
    first.locator("figure.line svg").first.wait_for(state="visible")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(CUT_OFF) == []


def test_grids_are_text_too(open_page: Open) -> None:
    tab = open_page("inspect")
    gpt2 = card(tab, "gpt2/nano", "clm")
    gpt2.locator("details.data summary").first.click()
    rows = gpt2.locator("pre").first.inner_text().splitlines()
    assert rows[0].startswith("#.") and rows[1].startswith("##.") and len(set(map(len, rows))) == 1
    labels = tab.locator(".mask canvas").first.get_attribute("aria-label")
    assert "pairs" in labels


def test_names_are_text(open_page: Open) -> None:
    tab = open_page("inspect")
    assert EVIL in tab.locator("#model-1 h2").inner_text()
    assert tab.locator("img").count() == 0


def test_the_keyboard_reaches_the_tokens(open_page: Open) -> None:
    tab = open_page("inspect")
    tab.locator(".text-strip .tok").nth(2).focus()
    assert texts(tab.locator(".text-strip .tok.active")) == ["fox"]
    tab.keyboard.press("Tab")
    assert texts(tab.locator(".text-strip .tok.active")) == ["jumps"]
