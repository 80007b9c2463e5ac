"""Charts: any values make one, names cannot leave it, the library is the one recorded."""

import hashlib
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from kinfolk.reports import page
from kinfolk.reports.chart_data import MAX_POINTS, TABLE_ROWS, curve_table, running_mean
from kinfolk.reports.charts import (
    Bar,
    Bin,
    IntervalRow,
    Point,
    ReferenceLine,
    Series,
    bars,
    compact_number,
    heatmap,
    histogram,
    interval_chart,
    line_chart,
    scatter,
    significant,
)
from support.pages import EVIL, chart_json, without_scripts

NAN, INFINITY = float("nan"), float("inf")
TOOLS = Path(__file__).parents[2] / "tools" / "charts"
ODD = {
    "nothing": ([], []),
    "a point": ([3], [4.0]),
    "constant": (range(100), [2.5] * 100),
    "NaN": (range(50), [NAN] * 50),
    "some NaN": (range(4), [3.0, NAN, INFINITY, 1.0]),
    "long": (range(1, 20_001), np.linspace(9, 3, 20_000).tolist()),
    "tiny": ([1, 2], [1e-12, 3e-12]),
    "huge": ([1e12, 3e12], [1e30, 1e29]),
}
LINES = [ReferenceLine("unigram", 6.5), ReferenceLine(EVIL, 4.2), ReferenceLine("lost", NAN)]
CHARTS = {
    "line": line_chart([Series(EVIL, [1, 2], [3, 4])], LINES, x=EVIL, y=EVIL),
    "bars": bars([Bar(EVIL, 1.5, EVIL), Bar("bert", NAN)], LINES, x=EVIL),
    "interval": interval_chart([IntervalRow(EVIL, 1, 0.5, NAN, EVIL, group=EVIL)], LINES, x=EVIL),
    "scatter": scatter([Point(EVIL, 1, 2, EVIL), Point("lost", NAN, 1)], x=EVIL, y=EVIL),
    "heatmap": heatmap([EVIL], [EVIL], [[3]], x=EVIL, y=EVIL),
    "histogram": histogram([Bin(EVIL, EVIL, 3, EVIL)], x=EVIL, y=EVIL, note=EVIL),
}


@pytest.mark.parametrize("odd", ODD)
def test_no_series_breaks_the_curves(odd: str) -> None:
    chart = line_chart([Series("odd \x00 name", *ODD[odd])], LINES, x="steps", y="loss")
    (curve,) = chart_json(chart)["series"]
    _, ys = ODD[odd]
    assert len(curve["points"]) == min(MAX_POINTS, int(np.isfinite(ys).sum()))
    assert len(chart) < 60_000
    assert [line["name"] for line in chart_json(chart)["lines"]] == ["unigram", EVIL]


@pytest.mark.parametrize("kind", CHARTS)
def test_names_cannot_leave_the_data(kind: str) -> None:
    chart = CHARTS[kind]
    assert EVIL not in chart and chart.count("</script>") == 1
    data = chart_json(chart)
    assert data["kind"] == kind and data["x"] == EVIL
    assert EVIL in json.dumps(data)
    assert not re.search(
        r"<(?!/?(figure|div|script|details|summary|table|thead|tbody|t[rdh])\b)", chart
    )


@pytest.mark.parametrize("kind", CHARTS)
def test_what_is_drawn_is_also_a_table_and_a_sentence(kind: str) -> None:
    chart = without_scripts(CHARTS[kind])
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", chart)
    assert html.escape(EVIL, quote=False) in [cell.replace("&#39;", "'") for cell in cells]
    label = re.search(r'aria-label="([^"]*)"', chart)
    assert label and EVIL in html.unescape(label[1])


def test_a_table_of_curves_has_their_newest_values() -> None:
    rows = curve_table([[(1, 5.0), (3, 4.0)], [(2, 7.0)]], 1)
    assert rows == [["1", "5.0", ""], ["2", "5.0", "7.0"], ["3", "4.0", ""]]
    many = [(float(i), 0.0) for i in range(1000)]
    assert len(curve_table([many], 1)) == TABLE_ROWS


def test_a_legend_has_the_last_measurement_not_the_mean_that_is_drawn() -> None:
    steps = [*range(1, 101)]
    losses = [7 - 0.01 * step + 0.2 * (step % 2) for step in steps]
    curve = chart_json(line_chart([Series("train", steps, losses)], x="step", y="loss"))["series"][
        0
    ]
    assert curve["last"] == pytest.approx(losses[-1])
    assert curve["points"][-1][1] != pytest.approx(losses[-1], abs=0.05)
    empty = chart_json(line_chart([Series("none", [], [])], x="step", y="loss"))
    assert empty["series"][0]["last"] is None


def test_smoothing_keeps_the_first_point_and_a_straight_line() -> None:
    line = np.linspace(9, 3, 500)
    np.testing.assert_allclose(running_mean(line)[:480], line[:480])
    few = line[:5]
    assert running_mean(few) is few


def test_numbers_are_short() -> None:
    shown = [compact_number(value) for value in (0, 5e6, 24_500_000, 1.5e12, 0.12345)]
    assert shown == ["0", "5M", "24.5M", "1.5T", "0.1235"]


@pytest.mark.parametrize(
    ("value", "plain", "signed"),
    [
        (0.1234, "0.123", "+0.123"),
        (-0.0101, "-0.010", "-0.010"),
        (0.0095, "0.0095", "+0.0095"),
        (-0.00004, "-4.0e-05", "-4.0e-05"),
        (3.27e-7, "3.3e-07", "+3.3e-07"),
        (0.0, "0.000", "0.000"),
        (-0.0, "0.000", "0.000"),
        (float("nan"), "–", "–"),
    ],
)
def test_a_number_near_0_has_two_significant_digits(value: float, plain: str, signed: str) -> None:
    assert (significant(value), significant(value, signed=True)) == (plain, signed)


def test_the_library_is_the_one_that_is_recorded() -> None:
    recorded = json.loads((page.STATIC / "echarts.json").read_text(encoding="utf-8"))
    bundle = (page.STATIC / "echarts.min.js").read_bytes()
    assert hashlib.sha256(bundle).hexdigest() == recorded["sha256"]
    package = json.loads((TOOLS / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((TOOLS / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert package["dependencies"]["echarts"] == recorded["echarts"]
    assert package["devDependencies"]["esbuild"] == recorded["esbuild"]
    for name in ("echarts", "zrender", "esbuild"):
        assert lock[f"node_modules/{name}"]["version"] == recorded[name]
    assert f"Apache ECharts {recorded['echarts']}".encode() in bundle[:200]
    licences = (page.STATIC / "ECHARTS-LICENSE.txt").read_text(encoding="utf-8")
    assert "Apache License" in licences and "Baidu" in licences


def test_scripts_evaluate_no_text_and_end_where_they_should() -> None:
    for name in (*page.PAGE_SCRIPTS, *page.CHART_SCRIPTS):
        code = page.script(name)
        assert not re.search(r"\beval\(|new Function\(|</script|<!--", code), name


def test_the_policy_allows_the_scripts_of_the_page_and_no_other() -> None:
    scripts = page.page_scripts('<figure class="chart')
    policy = page.security_policy(scripts, "own()")
    assert policy.startswith("default-src 'none';") and policy.count("'sha256-") == len(scripts) + 1
    assert "unsafe-eval" not in policy and "script-src 'unsafe-inline'" not in policy
    assert len(page.page_scripts("no chart")) == len(page.PAGE_SCRIPTS)
