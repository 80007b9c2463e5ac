"""The page: whatever it is given, it stands alone, reads well and runs nothing of it."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path

from kinfolk.reports.charts import Series
from kinfolk.reports.page import write
from kinfolk.reports.run_page import (
    LossPanel,
    ModelScore,
    ReferenceScore,
    Report,
    Sample,
    SampleTimeline,
    TextSpan,
    render,
)
from support.pages import chart_json, without_scripts

NAN = float("nan")
EVIL = "<script>alert('x')</script>"


def full() -> Report:
    falling = Series("gpt2/nano", range(1, 101), [9 / math.sqrt(i) for i in range(1, 101)])
    return Report(
        title=EVIL,
        subtitle=EVIL,
        facts=[("seed", EVIL)],
        panels=[
            LossPanel(title=EVIL, curves=[falling], with_baselines=True),
            LossPanel(title="nsp", curves=[Series(EVIL, [1, 2], [3, 2])]),
        ],
        metrics=[
            Series("accuracy", [1, 2], [0.5, 0.7]),
            Series("BLEU", [1, 2], [20.0, 30.0]),
            Series("F1", [1, 2], [0.4, 0.6]),
        ],
        results=[("accuracy", "0.7")],
        result_columns=["best checkpoint"],
        scores=[
            ModelScore("gpt2/nano", "left to right", 3.0, 1.5, 24_000_000, 3_200_000, 612.0),
            ModelScore(EVIL, "one token hidden", 2.0, 1.0, comparable=False),
            ModelScore("t5/nano", "spans hidden", 2.5, 1.2, comparable=False),
            ModelScore("gone", "left to right", NAN),
        ],
        baselines=[
            ReferenceScore("unigram", 6.0, 3.0, is_unigram=True),
            ReferenceScore("3-gram", 2.5, 1.2),
        ],
        samples=[
            Sample("gpt2/nano", "says", EVIL, [TextSpan("Given "), TextSpan(EVIL, generated=True)])
        ],
        training=[LossPanel(title=EVIL, curves=[Series("lr", [1, 2], [3e-5, 0.0])], y="rate")],
        timelines=[SampleTimeline(EVIL, EVIL, [(1500, EVIL)])],
        commands=[(EVIL, EVIL)],
        recipe=EVIL,
        notes=[EVIL],
    )


def charts(page: str) -> list[dict[str, object]]:
    return [chart_json(figure) for figure in page.split("<figure")[1:]]


def test_only_comparable_things_share_an_axis() -> None:
    found = charts(render(full()))
    losses, other, accuracy, bleu, f1, likelihood, tokens, spans, _ = found
    assert [line["name"] for line in losses["lines"]] == ["unigram", "3-gram"]
    assert other["lines"] == []
    for chart, name in ((accuracy, "accuracy"), (bleu, "BLEU"), (f1, "F1")):
        assert [one["name"] for one in chart["series"]] == [name]
    assert [row["name"] for row in likelihood["rows"]] == ["gpt2/nano"]
    assert [line["value"] for line in likelihood["lines"]] == [3.0, 1.2]
    for chart, name in ((tokens, EVIL), (spans, "t5/nano")):
        assert [row["name"] for row in chart["rows"]] == [name]
        # A model without context predicts a token as well with both sides as with none.
        assert chart["lines"] == [{"name": "unigram", "value": 3.0}]
        assert chart["rows"][0]["muted"]


def test_nothing_from_outside_is_code() -> None:
    page = render(full())
    assert EVIL not in page
    assert without_scripts(page).count("&lt;script&gt;") >= 15
    assert any(EVIL in [one["name"] for one in chart.get("series", ())] for chart in charts(page))
    assert "<mark>&lt;script&gt;alert" in page


def test_small_values_keep_their_digits() -> None:
    page = render(full())
    rate = next(chart for chart in charts(page) if chart.get("y") == "rate")
    assert rate["digits"] == 7  # 0.0000300
    assert "<dt>step 1,500</dt>" in page


def test_only_what_was_put_into_a_mask_is_marked() -> None:
    filled = [(4, "the cat saw us."), (8, "the cat"), (12, "something else")]
    timeline = SampleTimeline("fills a mask", "the [MASK] saw us.", filled)
    page = render(Report(title="m", timelines=[timeline]))
    shown = re.findall(r"<dd>(.*?)</dd>", page)
    assert shown == [
        "the <mark>cat</mark> saw us.",
        "the <mark>cat</mark>",  # cut
        "<mark>something else</mark>",
    ]
    plain = SampleTimeline("continues a text", "the cat", [(4, "the cat saw us.")])
    assert "<mark>the cat saw us.</mark>" in render(Report(title="m", timelines=[plain]))


def test_the_page_is_closed_and_needs_nothing_beside_it() -> None:
    page = render(full())
    assert not re.search(r"(src|href)\s*=|url\(|@import", without_scripts(page))

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
    assert page.count("below the unigram") == 3  # two pseudo-likelihoods
    assert page.count("cannot be compared with the dashed baselines") == 2
    assert "Dashed lines: the loss of unigram and 3-gram on the same tokens." in page


def test_an_empty_report_is_a_title() -> None:
    page = render(Report(title="Nothing yet"))
    assert "Nothing yet" in page
    assert "<h2>" not in page
    assert "echarts" not in page  # 550 kB only where there is a chart


def test_writing_leaves_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "report.html"
    broken = Sample("m", "says", "", [TextSpan("half a letter \ud800", generated=True)])
    write(render(Report(title="first")), path)
    write(render(Report(title="second", samples=[broken])), path)
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]
    assert "second" in path.read_text(encoding="utf-8")
