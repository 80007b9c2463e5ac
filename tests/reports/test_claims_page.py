"""The page of claims says every effect, and text from outside is no code."""

from typing import Any

from kinfolk.reports.claims_page import render

EVIL = "<script>alert('x')</script>"


def effect(**changes: Any) -> dict[str, Any]:
    values = {
        "first": "electra",
        "second": "bert",
        "unit": "points",
        "value": 2.1,
        "low": 0.9,
        "high": 3.4,
        "seeds": 3,
        "verdict": "holds",
        "words": "electra is ahead of bert by 2.1 points",
        "stage": "",
        "margin": 0.0,
        "smallest": 1.0,
        "scores": {},
        "secondary": False,
    }
    return values | changes


def claim(*effects: dict[str, Any], **changes: Any) -> dict[str, Any]:
    values = {
        "name": "electra",
        "sentence": "ELECTRA is better than BERT",
        "source": "Clark et al. 2020",
        "setting": "equal compute",
        "budget": "nano, 2e11 FLOPs each, 3 seeds",
        "command": "kinfolk claims electra",
        "verdict": "holds",
        "words": "holds: electra is ahead of bert by 2.1 points",
        "effects": list(effects),
        "races": ["electra"],
        "text": "1.01 MB of text for training (1,028 documents), 99 kB held out",
    }
    return values | changes


def page(*claims: dict[str, Any]) -> str:
    return render({"claims": list(claims), "scale": {"size": "nano"}, "seeds": 3})


def test_each_claim_has_its_verdict_and_effects_of_a_unit_share_a_chart() -> None:
    bits = effect(unit="bits per byte", value=0.04, low=0.01, high=0.07)
    aside = effect(secondary=True, words="all or constant: 0.4 points", second="constant")
    not_run = claim(name="nsp", words="not run: no task", verdict="not run", races=[])
    html = page(claim(effect(), aside), claim(bits, name="memory"), not_run)
    assert "Of 2 claims, 2 hold at this scale." in html
    for said in ("ahead of bert by 2.1 points", "all or constant: 0.4 points", "not run: no task"):
        assert said in html
    assert html.index("Claims about tasks") < html.index("Claims about held-out text")
    assert 'href="electra/race.html"' in html
    assert "3 seeds. 1.01 MB of text for training (1,028 documents), 99 kB held out.</p>" in html


def test_the_lead_counts_the_verdicts_that_were_given() -> None:
    verdicts = ("holds", "undecided", "reversed", "holds")
    html = page(*(claim(effect(), name=str(n), verdict=v) for n, v in enumerate(verdicts)))
    assert "Of 4 claims, 2 hold, 1 is reversed and 1 is undecided at this scale." in html
    assert "No claim was tested." in page(claim(verdict="not run"))


def test_an_effect_without_a_number_is_in_no_chart() -> None:
    html = page(claim(effect(value=None, low=None, high=None, words="no score: it diverged")))
    assert "Claims about tasks" not in html


def test_text_is_escaped() -> None:
    html = page(claim(effect(first=EVIL, words=EVIL, secondary=True), sentence=EVIL, words=EVIL))
    assert EVIL not in html and "&lt;script&gt;" in html
