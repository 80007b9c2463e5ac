"""The page: whatever it is given, it stands alone, reads well and runs nothing."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from kinfolk.reports.charts import (
    LABEL_HEIGHT,
    Bar,
    ReferenceLine,
    Series,
    bars,
    compact_number,
    line_chart,
    place_labels,
    running_mean,
    ticks,
)
from kinfolk.reports.page import write
from kinfolk.reports.run_page import Baseline, ModelScore, Report, Sample, TextSpan, render
from support.loops import every_case

NAN, INFINITY = float("nan"), float("inf")
ODD = {
    "nothing": Series("odd <&\x00> name", [], []),
    "a point": Series("odd <&\x00> name", [3], [4.0]),
    "two points": Series("odd <&\x00> name", [1, 2], [4.0, 3.0]),
    "constant": Series("odd <&\x00> name", range(100), [2.5] * 100),
    "zeros": Series("odd <&\x00> name", range(100), [0.0] * 100),
    "NaN": Series("odd <&\x00> name", range(50), [NAN] * 50),
    "some NaN": Series("odd <&\x00> name", range(4), [3.0, NAN, INFINITY, 1.0]),
    "long": Series("odd <&\x00> name", range(1, 20_001), np.linspace(9, 3, 20_000).tolist()),
    "tiny": Series("odd <&\x00> name", [1, 2], [1e-12, 3e-12]),
    "huge": Series("odd <&\x00> name", [1e12, 3e12], [1e30, 1e29]),
}
LINES = [
    ReferenceLine("unigram", 6.5),
    ReferenceLine("3-gram & more", 4.2),
    ReferenceLine("lost", NAN),
]
EVIL = "<script>alert('x')</script>"


def full() -> Report:
    falling = Series("gpt2/nano", range(1, 101), [9 / math.sqrt(i) for i in range(1, 101)])
    return Report(
        title=EVIL,
        subtitle=EVIL,
        facts=[("seed", EVIL)],
        curves=[falling, Series(EVIL, [1, 2], [3, 2])],
        scores=[
            ModelScore("gpt2/nano", "left to right", 3.0, 1.5, 24_000_000, 3_200_000, 612.0),
            ModelScore(EVIL, "one token hidden", 2.0, 1.0, comparable=False),
            ModelScore("gone", "left to right", NAN),
        ],
        baselines=[Baseline("unigram", 6.0, 3.0), Baseline("3-gram", 2.5, 1.2)],
        samples=[
            Sample("gpt2/nano", "says", EVIL, [TextSpan("Given "), TextSpan(EVIL, generated=True)])
        ],
        notes=[EVIL],
    )


def words(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter() if node.text]


@pytest.mark.parametrize("odd", ODD)
def test_no_series_breaks_the_curves(odd: str) -> None:
    with every_case() as case:
        for lines in ([], LINES):
            with case(lines):
                svg = line_chart([ODD[odd]], lines, x="steps", y="loss")
                ElementTree.fromstring(svg)
                assert not re.search(r"nan|inf\b", svg)
                assert len(svg) < 40_000


def test_every_name_is_on_the_charts() -> None:
    series = [ODD["long"], Series("a name that is much too long to fit", [1, 2], [3, 4])]
    said = " ".join(words(line_chart(series, LINES[:2], x="steps", y="loss")))
    assert "a name that is much too long to fit" in said
    assert "odd <& > name" in said
    assert {"unigram", "3-gram"} <= set(said.split())
    said = " ".join(words(bars([Bar("gpt2", 1.5, "exact"), Bar("bert", NAN)], LINES, x="bits")))
    assert {"gpt2", "1.50", "exact", "bert", "unigram", "3-gram"} <= set(said.split())


def test_bars_of_nothing_are_still_a_chart() -> None:
    for values in ([], [Bar("a", NAN)], [Bar("a", 0.0)]):
        assert ElementTree.fromstring(bars(values, [], x="bits")).tag.endswith("svg")


def test_labels_never_overlap() -> None:
    for heights in ([], [50.0] * 5, [0, 1, 2, 99, 100], list(np.linspace(90, 100, 6))):
        gaps = np.diff(place_labels(heights, 10, 200))
        assert (gaps >= LABEL_HEIGHT - 1e-9).all()


def test_ticks_are_few_and_round() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert [compact_number(tick) for tick in ticks(0, 24e6)] == ["0", "5M", "10M", "15M", "20M"]
    for low, high in [(3.01, 3.02), (-5, 1e9), (1e-12, 3e-12)]:
        assert 3 <= len(ticks(low, high)) <= 9


def test_smoothing_keeps_the_first_point_and_a_straight_line() -> None:
    line = np.linspace(9, 3, 500)
    np.testing.assert_allclose(running_mean(line)[:480], line[:480])
    few = line[:5]
    assert running_mean(few) is few


def test_nothing_from_outside_is_code() -> None:
    page = render(full())
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8
    assert "<mark>&lt;script&gt;alert" in page


def test_the_page_is_closed_and_needs_nothing_beside_it() -> None:
    page = render(full())
    assert not re.search(r"(src|href)\s*=|url\(|@import", page)

    class Closed(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.depth: list[str] = []

        def handle_starttag(self, tag: str, _: object) -> None:
            if tag != "meta":
                self.depth.append(tag)

        def handle_startendtag(self, tag: str, _: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.depth.pop() == tag

    parser = Closed()
    parser.feed(page)
    assert not parser.depth


def test_a_score_is_held_against_the_lines_only_where_that_is_fair() -> None:
    page = render(full())
    assert "50% below the unigram" in page
    assert "25% above the 3-gram" in page
    assert page.count("below the unigram") == 1
    assert page.count("cannot be compared with the dashed baselines") == 1
    assert "Dashed lines: the loss of unigram and 3-gram on the same tokens." in page


def test_an_empty_report_is_a_title() -> None:
    page = render(Report(title="Nothing yet"))
    assert "Nothing yet" in page
    assert "<h2>" not in page


def test_writing_leaves_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "report.html"
    broken = Sample("m", "says", "", [TextSpan("half a letter \ud800", generated=True)])
    write(render(Report(title="first")), path)
    write(render(Report(title="second", samples=[broken])), path)
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]
    assert "second" in path.read_text(encoding="utf-8")
