"""The page of an inspection in a browser: tokens, grids, heads and families answer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kinfolk.reports.inspect_page import render, shown_sources
from kinfolk.reports.inspect_view import CurvesView, ModelView, ObjectiveView
from kinfolk.workflows.inspection.page import inspect_page, inspected_families
from support.pages import CUT_OFF, EVIL, INSPECTED, PAGES

Open = Callable[..., Any]
# The places of every stream of every card that are active, and those that they attend to.
MARKED = """() => [...document.querySelectorAll(".objective")].map((card) =>
  [...card.querySelectorAll(".stream")].map((stream) => {
    const tokens = [...stream.querySelectorAll(".tok")];
    const places = (name) => tokens.flatMap((token, n) => (token.classList.contains(name) ? [n] : []));
    return [places("active"), places("seen")];
  }))"""  # noqa: E501
# Times of hovers in milliseconds: from the first event of a move to the frame that shows it.
TIMED = """() => {
  window.hovers = [];
  let begin = null;
  for (const kind of ["pointerover", "pointerout", "pointermove"])
    addEventListener(kind, () => (begin ??= performance.now()), true);
  const frame = () => {
    if (begin !== null) {
      const began = begin, shown = new MessageChannel();
      begin = null;
      shown.port1.onmessage = () => window.hovers.push(performance.now() - began);
      shown.port2.postMessage(0);
    }
    requestAnimationFrame(frame);
  };
  frame();
}"""
SLOW = 100  # milliseconds; 16 alone on a CPU, and 1,500 where a hover painted every cell
DEVICES = pytest.mark.parametrize(
    ("device", "theme"),
    [
        pytest.param("desktop", "light", id="desktop"),
        pytest.param("phone", "dark", id="phone", marks=pytest.mark.slow),
    ],
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


def expected(view: ObjectiveView, token: int) -> dict[str, tuple[list[int], list[int]]]:
    """Return the places of a token of the text in every stream, and those that they attend to."""
    places = {
        stream.name: [n for n, source in enumerate(shown_sources(stream)) if source == token]
        for stream in view.streams
    }
    seen: dict[str, set[int]] = {stream.name: set() for stream in view.streams}
    for mask in view.masks:
        for place, row in zip(mask.query_positions, mask.mask, strict=True):
            if place in places[mask.queries]:
                seen[mask.keys] |= set(np.flatnonzero(row).tolist())
    return {name: (places[name], sorted(seen[name])) for name in places}


@pytest.mark.slow
@DEVICES
def test_every_card_of_every_family_shows_what_its_masks_hold(
    device: str, theme: str, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = inspect_page(INSPECTED)
    families = {view.family.partition("/")[0] for view in page.objectives}
    assert families == set(inspected_families())
    monkeypatch.setitem(PAGES, "every family", lambda: render(page))
    tab = open_page("every family", device, theme)
    numbers = {token: n for n, (token, _) in enumerate(page.tokens)}
    marked = 0
    for token in ("fox", "follows"):
        tab.locator(".text-strip .tok", has_text=token).click()
        shown = tab.evaluate(MARKED)
        for view, streams in zip(page.objectives, shown, strict=True):
            want = expected(view, numbers[token])
            assert streams == [list(want[stream.name]) for stream in view.streams], view.family
            marked += any(places for places, _ in want.values())
        tab.locator(".text-strip .tok", has_text=token).click()
    assert marked > len(page.objectives)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


# Whether the first token that is marked in every table is in the part of it that is in view.
IN_VIEW = """() => [...document.querySelectorAll(".stream")].flatMap((stream) => {
  const token = stream.querySelector(".tok.active");
  if (!token) return [];
  const box = stream.getBoundingClientRect(), own = token.getBoundingClientRect();
  return [own.left >= stream.querySelector("th").getBoundingClientRect().right && own.right <= box.right];
})"""  # noqa: E501


@pytest.mark.slow
@DEVICES
def test_tables_scroll_to_the_token_that_is_chosen(
    device: str, theme: str, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"word{i} is here." for i in range(16))
    page = render(inspect_page(text, ["gpt2/nano", "electra/nano", "t5/nano"]))
    monkeypatch.setitem(PAGES, "long", lambda: page)
    tab = open_page("long", device, theme)
    for token in ("word14", "word1", "word9"):
        tab.locator(".text-strip .tok").get_by_text(token, exact=True).click()
        found = tab.evaluate(IN_VIEW)
        assert len(found) >= 5 and all(found), token


@pytest.mark.slow
@DEVICES
def test_curves_over_tokens_name_them(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)
    chart = tab.locator("#model-1 .chart").first
    chart.locator("summary").click()
    first = chart.locator("tbody tr td:first-child")
    assert texts(first)[:3] == ["1 <|endoftext|>", "2 The", "3 quick"]
    chart.locator(".plot").hover(position={"x": 200, "y": 100})
    number, _, name = tab.locator(".tip-title").inner_text().removeprefix("token ").partition(": ")
    assert f"{number} {name}" in texts(first)


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


@pytest.mark.slow
@DEVICES
def test_every_token_of_the_text_answers_in_a_trained_encoder_decoder(
    device: str, theme: str, open_page: Open
) -> None:
    tab = open_page("inspect", device, theme)
    t5 = tab.locator("#model-2 .attention")
    tokens = tab.locator(".text-strip .tok")
    for number, token in enumerate(texts(tokens)):
        tokens.nth(number).click()
        marked = [texts(one.locator(".queries .tok.active")) for one in t5.all()]
        # It stands in the encoder's input, or in the decoder's, whose queries cross-attention has.
        assert marked in ([[token], [], []], [[], [token], [token]]), token
        tokens.nth(number).click()


@pytest.mark.slow
@DEVICES
def test_a_token_of_the_second_row_shows_its_memory(
    device: str, theme: str, open_page: Open
) -> None:
    tab = open_page("inspect", device, theme)
    model = tab.locator("#model-5")
    assert "attends to the memory" in model.inner_text()
    attention = model.locator(".attention")
    queries = attention.locator(".queries .tok")
    length = queries.count()
    half = -(-length // 2)
    queries.nth(half).click()
    memory = attention.locator(".keys-strip .tok.memory")
    assert memory.count() == half
    weights = [
        float(one.evaluate("node => node.style.getPropertyValue('--w')")) for one in memory.all()
    ]
    said = attention.locator(".chosen").inner_text()
    assert f"{sum(weights):.2f} of its attention is to the memory" in said
    queries.nth(half - 1).click()
    assert memory.count() == 0
    assert "0.00 of its attention is to the memory" in attention.locator(".chosen").inner_text()


@pytest.mark.slow
@DEVICES
def test_the_discriminator_of_a_trained_model_says_something_of_every_token(
    device: str, theme: str, open_page: Open
) -> None:
    tab = open_page("inspect", device, theme)
    shown = tab.locator("#model-4 .values .tok")
    values = [float(token.locator("small").inner_text()) for token in shown.all()]
    assert len(values) == tab.locator(".text-strip .tok").count()
    assert all(0 <= value <= 1 for value in values) and len(set(values)) > 1
    assert tab.locator(".values").count() == 1


def painted(canvas: Any) -> str:
    return str(canvas.evaluate("node => node.toDataURL()"))


@DEVICES
def test_grids_have_the_colors_of_the_theme_and_a_row_is_marked(
    device: str, theme: str, open_page: Open
) -> None:
    tab = open_page("inspect", device, theme)
    canvas = card(tab, "gpt2/nano", "clm").locator("canvas").first
    first = painted(canvas)
    tab.locator(".theme").click()
    other = painted(canvas)
    assert other != first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + 5, box["y"] + box["height"] / 2
    tab.touchscreen.tap(x, y) if device == "phone" else tab.mouse.move(x, y)
    assert painted(canvas) != other
    assert tab.locator(".text-strip .tok.active").count() == 1
    if device == "phone":  # the mark of a finger stays until it taps elsewhere
        tab.locator("h1").tap()
    else:
        tab.mouse.move(0, 0)
    assert tab.locator(".text-strip .tok.active, .objective .tok.active").count() == 0


def hover(tab: Any, node: Any, *, row: float = 0.5) -> None:
    """Move the mouse onto a node, as far down as `row` says."""
    node.scroll_into_view_if_needed()
    box = node.bounding_box()
    tab.mouse.move(box["x"] + min(6, box["width"] / 2), box["y"] + row * box["height"])


def test_a_mouse_marks_a_token_everywhere_and_leaves_no_mark(open_page: Open) -> None:
    tab = open_page("inspect")
    grid = card(tab, "gpt2/nano", "clm").locator("canvas").first
    plain = painted(grid)
    hover(tab, tab.locator(".text-strip .tok", has_text="fox"))
    marked = painted(grid)
    assert marked != plain
    assert texts(card(tab, "bert/nano", "mlm").locator(".tok.active")) in (["fox"], ["[MASK]"])
    assert texts(tab.locator("#model-1 .queries .tok.active")) == ["fox"]
    hover(tab, tab.locator(".text-strip .tok", has_text="jumps"))
    assert painted(grid) not in (plain, marked)
    tab.mouse.move(0, 0)
    assert painted(grid) == plain and tab.locator(".objective .tok.active").count() == 0


@pytest.mark.slow
def test_a_mouse_that_moves_down_a_grid_marks_each_token(open_page: Open) -> None:
    tab = open_page("inspect")
    gpt2 = card(tab, "gpt2/nano", "clm")
    grid, tokens = gpt2.locator("canvas").first, texts(gpt2.locator(".tok"))
    for row, token in enumerate(tokens):
        for part in (0.3, 0.6):
            hover(tab, grid, row=(row + part) / len(tokens))
            assert texts(gpt2.locator(".tok.active")) == [token]


@pytest.mark.slow
def test_a_mouse_on_the_large_grid_chooses_its_row(open_page: Open) -> None:
    tab = open_page("inspect")
    attention = tab.locator("#model-1 .attention").first
    large, queries = attention.locator(".large"), attention.locator(".queries .tok")
    plain, length = painted(large), queries.count()
    for row in (2, length - 1):
        hover(tab, large, row=(row + 0.5) / length)
        assert texts(attention.locator(".queries .tok.active")) == [queries.nth(row).inner_text()]
        assert queries.nth(row).get_attribute("class") == "tok active"
        assert painted(large) != plain


@pytest.mark.slow
def test_a_hover_is_quick_on_a_page_of_252_tokens(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(f"word{n} is here." for n in range(63))
    page = inspect_page(words, ["gpt2/nano", "bert/nano", "t5/nano"])
    assert len(page.tokens) == 252
    monkeypatch.setitem(PAGES, "long", lambda: render(page))
    tab = open_page("long")
    tab.evaluate(TIMED)
    tokens = tab.locator(".text-strip .tok")
    for place in range(8, 20):
        hover(tab, tokens.nth(place))
        tab.wait_for_timeout(60)
        assert texts(tab.locator(".text-strip .tok.active")) == [tokens.nth(place).inner_text()]
    times = sorted(tab.evaluate("window.hovers"))
    assert len(times) >= 12 and times[len(times) // 2] < SLOW


@DEVICES
def test_a_family_can_be_hidden_or_shown_alone(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)
    every = tab.locator(".objective:visible").count()
    chip = tab.locator(".chip[data-family='bert/nano']")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert tab.locator(".objective:visible").count() == every - 4
    tab.locator(".chip.reset").click()
    assert tab.locator(".objective:visible").count() == every
    chip.dblclick()
    assert tab.locator(".objective:visible").count() == 4


@pytest.mark.slow
@DEVICES
def test_a_link_leads_to_a_family_below_the_text(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)
    name = "bert/nano"
    tab.locator(f".chip[data-family='{name}']").click()
    links = tab.locator(".contents a")
    assert links.last.inner_text() == "costs"
    links.filter(has_text=name).first.click()
    assert tab.locator(f".chip[data-family='{name}']").get_attribute("aria-pressed") == "true"
    tab.wait_for_timeout(100)
    top = tab.locator(f".objective[data-family='{name}'] h3").first.bounding_box()["y"]
    strip = tab.locator(".text-strip").bounding_box()
    assert strip["y"] + strip["height"] <= top <= strip["y"] + strip["height"] + 60
    links.filter(has_text="inside t5").click()
    tab.wait_for_timeout(100)
    strip = tab.locator(".text-strip").bounding_box()
    top = tab.locator("#model-2 h2").bounding_box()["y"]
    assert strip["y"] + strip["height"] <= top <= strip["y"] + strip["height"] + 60
    targets = {link.get_attribute("href") for link in links.all()}
    assert all(tab.locator(target).count() == 1 for target in targets)


@pytest.mark.slow
@DEVICES
def test_grids_name_their_rows_and_columns(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)

    def named(family: str, objective: str, grid: int) -> list[str]:
        return texts(card(tab, family, objective).locator(".mask").nth(grid).locator(".axis"))

    assert named("gpt2/nano", "clm", 0) == ["key →", "query →"]
    assert named("t5/nano", "spans", 2) == ["key: encoder →", "query: decoder →"]
    assert named("ngram/3", "clm", 0) == ["context →", "prediction →"]
    attention = tab.locator("#model-1 .attention").first
    assert texts(attention.locator(".axis")) == ["head →", "layer →", "key →", "query →"]
    assert texts(attention.locator(".strip .words")) == ["query", "key"]
    tab.locator(".row-names summary").click()
    assert "attends to those of its document" in tab.locator(".row-names").inner_text()


# The contrast of a text and its background, as WCAG 2 defines it.
CONTRAST = """(node) => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (color) => {
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(node);
  const [low, high] = [light(style.color), light(style.backgroundColor)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""  # noqa: E501


@pytest.mark.slow
@DEVICES
def test_a_token_with_all_of_the_attention_is_legible(
    device: str, theme: str, open_page: Open
) -> None:
    tab = open_page("inspect", device, theme)
    attention = tab.locator("#model-1 .attention").first
    attention.locator(".queries .tok").first.click()  # attends to itself alone
    token = attention.locator(".keys-strip .tok").first
    assert float(token.evaluate("node => node.style.getPropertyValue('--w')")) == 1
    tab.locator("h1").click()
    assert token.evaluate(CONTRAST) >= 4.5
    assert token.evaluate(CONTRAST) < tab.locator(".keys-strip .tok").last.evaluate(CONTRAST) - 2


@pytest.mark.slow
def test_a_chart_of_norms_does_not_magnify_rounding(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = [5.6568 + 1e-6 * n for n in (3, 1, 2, 5)]
    curves = [("layer 1", norms), ("layer 2", [value + 1e-6 for value in norms])]
    view = CurvesView(title="Norms", hint="", unit="L2 norm", tokens="abcd", curves=curves)
    page = inspect_page(INSPECTED, ["gpt2/nano"])
    model = ModelView(
        name="m", family="bert", hint="", lens_names=(), predictions=(), attention=(), curves=[view]
    )
    monkeypatch.setitem(PAGES, "flat", lambda: render(replace(page, models=[model])))
    tab = open_page("flat")
    drawn = tab.locator("#model-1 figure.line svg text")
    drawn.first.wait_for(state="visible")
    levels = [float(text) for text in drawn.all_text_contents() if text.startswith("5.")]
    assert len(levels) == len(set(levels)) >= 3
    assert 0.03 < max(levels) - min(levels) < 0.08


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


@pytest.mark.slow
@DEVICES
def test_costs_of_a_part_are_read_without_scrolling(
    device: str, theme: str, open_page: Open
) -> None:
    tab = open_page("inspect", device, theme)
    cost = tab.locator("details.cost").first
    if cost.get_attribute("open") is None:
        cost.locator("summary").first.click()
    box = cost.locator(".scroll:has(> table.parts)")
    assert box.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert box.locator("td.formula").first.inner_text().startswith("parameters = ")
    gap = "node => node.getBoundingClientRect().top - node.previousElementSibling.getBoundingClientRect().bottom"  # noqa: E501
    assert cost.locator(".multiples").evaluate(gap) >= 20


@pytest.mark.slow
@DEVICES
def test_grids_are_text_too(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)
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


@DEVICES
def test_the_keyboard_reaches_the_tokens(device: str, theme: str, open_page: Open) -> None:
    tab = open_page("inspect", device, theme)
    tab.locator(".text-strip .tok").nth(2).focus()
    assert texts(tab.locator(".text-strip .tok.active")) == ["fox"]
    tab.keyboard.press("Tab")
    assert texts(tab.locator(".text-strip .tok.active")) == ["jumps"]
