"""Take a screenshot of a page: screenshot.py PAGE.html OUT.png [--phone] [--dark]

The picture is the window of a desktop (1280 x 960, or --height) or of a phone (390 x 844), with
128 colors, so that it is small enough for the repository.
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("page", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--phone", action="store_true")
parser.add_argument("--dark", action="store_true")
parser.add_argument("--height", type=int)
parser.add_argument("--from", dest="start", default="body", help="selector to scroll to")
parser.add_argument("--above", type=int, default=24, help="pixels above it")
parser.add_argument("--click", action="append", default=[], help="selector to click on first")
options = parser.parse_args()

width, height = (390, 844) if options.phone else (1280, 960)
with sync_playwright() as driver:
    browser = driver.chromium.launch(
        executable_path=shutil.which("chromium"), args=["--no-sandbox"]
    )
    tab = browser.new_page(
        viewport={"width": width, "height": options.height or height},
        color_scheme="dark" if options.dark else "light",
        device_scale_factor=2 if options.phone else 1,
    )
    tab.goto(options.page.resolve().as_uri())
    for selector in options.click:
        tab.locator(selector).first.click()
    tab.locator(options.start).first.evaluate(
        "(node, above) => scrollTo(0, scrollY + node.getBoundingClientRect().top - above)",
        options.above,
    )
    tab.wait_for_timeout(300)
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    picture.quantize(128).save(options.out, optimize=True)
    browser.close()
