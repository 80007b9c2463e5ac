"""A headless Chromium that opens pages made by the functions that make the real ones."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from support.pages import PAGES

WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
NAMES = ("chromium", "chromium-browser", "google-chrome")
Device = Literal["desktop", "phone"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Return the browser, one for all tests of a process."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium: install Debian's package chromium, or Google Chrome")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@cache
def page_html(name: str) -> str:
    return PAGES[name]()


@dataclass
class Opened:
    """A page in a tab, and what went wrong in it."""

    tab: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def opened() -> list[Opened]:
    """Return the pages that a test has opened."""
    return []


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path, opened: list[Opened]) -> Iterator[Any]:
    """Return a function that opens a page from disk; no page may write to the console."""

    def show(
        name: str, device: Device = "desktop", theme: str = "light", *, script: bool = True
    ) -> Any:
        width, height = WIDTHS[device]
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            has_touch=device == "phone",
            java_script_enabled=script,
        )
        page = Opened(context.new_page())
        opened.append(page)
        page.tab.on("console", lambda message: page.errors.append(message.text))
        page.tab.on("pageerror", lambda error: page.errors.append(str(error)))
        page.tab.on("dialog", lambda dialog: page.errors.append(f"dialog {dialog.message}"))
        page.tab.on("request", lambda request: page.requests.append(request.url))
        file = tmp_path / f"{name}.html"
        file.write_text(page_html(name), encoding="utf-8")
        page.tab.goto(file.as_uri())
        return page.tab

    yield show
    for page in opened:
        page.tab.context.close()
        assert page.errors == []
        assert len(set(page.requests)) == 1  # the file itself
