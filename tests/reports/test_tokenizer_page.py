"""The page of tokenizers stands alone, says every number, and runs nothing."""

import re
from collections import Counter
from pathlib import Path

from kinfolk.reports.page import write
from kinfolk.reports.tokenizers_page import render
from kinfolk.text.token_views import TokenView
from kinfolk.text.tokenizer_stats import TokenizerStats
from kinfolk.workflows.compare_tokenizers import Comparison, comparison_of
from support.pages import without_scripts

EVIL = "<script>alert('x')</script>"


def comparison(unknown: int = 5) -> Comparison:
    words = Counter(Latin=60, Han=40, Greek=0)
    measures = TokenizerStats(200, 100, 500, unknown, Counter(Latin=150, Han=50), words)
    chunks = [TokenView(7, "a", "a"), TokenView(1, "[UNK]", f"[UNK]⟨{EVIL}⟩", unknown=True)]
    labels = [(EVIL, "bpe", 8192), ("word", "word", 90)]
    return comparison_of(labels, [measures] * 2, [chunks, []], held_out=True)


def test_every_number_is_on_the_page() -> None:
    page = render(comparison())
    for said in ("8,192", "2.00", "2.50", "2.50%", "1.25", "Latin", "Han", "100 words in 500"):
        assert said in page
    assert page.count("<figure") == 3
    assert page.count('class="unknown"') == 1


def test_where_nothing_is_unknown_there_is_no_chart_of_it() -> None:
    assert render(comparison(0)).count("<figure") == 2


def test_rare_scripts_have_no_column() -> None:
    assert comparison().scripts == ["Latin", "Han"]


def test_nothing_from_outside_is_code_and_nothing_lies_beside_the_page(tmp_path: Path) -> None:
    path = write(render(comparison()), tmp_path / "deep" / "page.html")
    page = path.read_text(encoding="utf-8")
    assert EVIL not in page and "&lt;script&gt;" in page
    assert not re.search(r"(src|href)\s*=|url\(|@import", without_scripts(page))
    assert "--c0:" in page  # the report's dress
