"""A self-contained HTML page: templates, style and scripts, number formats, an atomic write."""

import base64
import hashlib
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from kinfolk.files import new_file
from kinfolk.reports.charts import compact_number, significant

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC = Path(__file__).parent / "static"
MAX_DIGITS = 5  # of a number near 0
PAGE_SCRIPTS = ("page.js",)
CHART_SCRIPTS = ("echarts.min.js", "axes.js", "curves.js", "rows.js", "charts.js")


def render(template: str, **values: Any) -> str:
    """Return a page as HTML; values are escaped unless they are `Markup`."""
    return environment().get_template(template).render(**values)


@cache
def script(name: str) -> Markup:
    """Return a file of `static` as the content of a script element."""
    code = (STATIC / name).read_text(encoding="utf-8")
    return Markup(code.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def page_scripts(body: str) -> list[Markup]:
    """Return the scripts of a page; those of charts only where it has one."""
    charts = CHART_SCRIPTS if '<figure class="chart' in body else ()
    return [script(name) for name in (*PAGE_SCRIPTS, *charts)]


def security_policy(scripts: list[Markup], own_script: str) -> str:
    """Allow these scripts and nothing else: no other code, no request, no frame."""
    code = [*scripts, own_script] if own_script else scripts
    hashes = (hashlib.sha256(f"\n{each}\n".encode()).digest() for each in code)
    sources = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {sources}"


def write(html: str, path: Path) -> Path:
    """Write a page atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, errors="replace", newline="\n") as file:
        file.write(html)
    return path


@cache
def environment() -> "Environment":
    """Return the environment of all templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("kinfolk", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    formats = {"compact": compact_number, "duration": format_duration, "number": format_number}
    env.filters |= formats | {
        "percent": percent,
        "plural": plural,
        "significant": significant,
    }
    env.globals |= {"page_scripts": page_scripts, "security_policy": security_policy}
    return env


def format_number(value: float | None, digits: int = 2) -> str:
    """Write a score, with commas where it is large."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def digits_from_0(values: Iterable[float], digits: int) -> int:
    """Return how many digits tell each of several numbers from 0, those given or more."""
    known = [value for value in values if value]
    while digits < MAX_DIGITS and not all(round(value, digits) for value in known):
        digits += 1
    return digits


def format_duration(seconds: float) -> str:
    """Write 3725 as 1 h 2 min."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def percent(part: int, whole: int) -> str:
    """Write a fraction as a percentage, which is 0 only if the part is 0."""
    value = 100 * part / max(1, whole)
    if 0 < value < 0.1:
        return "<0.1%"
    return f"{value:.1f}%" if value < 10 or 99 < value < 100 else f"{value:.0f}%"


def plural(number: float, noun: str) -> str:
    """Write 1 line, 2 batches, 0.5 epochs."""
    count = f"{number:,}" if isinstance(number, int) else f"{number:,.3g}"
    ending = "" if count == "1" else "es" if noun.endswith("tch") else "s"
    return f"{count} {noun}{ending}"
