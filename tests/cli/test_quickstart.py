"""The quickstart does the main job in small; here in very small."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.data import demo_text
from kinfolk.workflows import quickstart
from support.runs import Kinfolk

SHORT = ["steps=5", "batch_size=4", "device=cpu"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    every = demo_text.demo_documents

    def some() -> Iterator[str]:
        return (document[:300] for document in itertools.islice(every(), 100))

    monkeypatch.setattr(demo_text, "demo_documents", some)
    monkeypatch.setattr(quickstart, "HOLDOUT", 0.1)
    monkeypatch.setattr(quickstart, "VOCAB_SIZE", 512)
    members = dict.fromkeys(("gpt2/nano", "bert/nano", "t5/nano"), SHORT)
    monkeypatch.setattr(quickstart, "MODELS", members)


@pytest.mark.usefixtures("small")
def test_three_families_are_trained_scored_and_shown(kinfolk: Kinfolk, tmp_path: Path) -> None:
    out, found = tmp_path / "out", []
    whole = quickstart.quickstart

    def seen(*arguments: object, **named: object) -> quickstart.Quickstart:
        found.append(whole(*arguments, **named))  # type: ignore[arg-type]
        return found[0]

    quickstart.quickstart, original = seen, whole  # type: ignore[assignment]
    try:
        said = kinfolk("quickstart", "-o", out)
    finally:
        quickstart.quickstart = original
    assert said.code == 0, said.err
    scores, lines = found[0].scores, found[0].baselines
    assert [score.model for score in scores] == ["gpt2/nano", "bert/nano", "t5/nano"]
    assert lines.trigram is not None and 0 < lines.trigram.loss < lines.unigram
    for score in scores:
        assert f"{score.bits_per_byte:.3f}" in said.out
        assert score.tokens > 100
        assert score.parameters > 10_000
        assert (out / score.model.partition("/")[0] / "checkpoints" / "last").is_dir()
    gap = scores[0].bits_per_byte / lines.trigram.bits_per_byte - 1
    assert f"gpt2/nano: {gap:.0%} more bits per byte than the 3-gram baseline" in said.out
    page = found[0].page.read_text(encoding="utf-8")
    assert found[0].page == out / "report.html"
    assert all(name in page for name in ("gpt2/nano", "bert/nano", "t5/nano", "unigram entropy"))
    assert "<h3>gpt2/nano, clm: each token from those before it</h3>" in page
    assert quickstart.PROMPT in said.out
    assert said.out.endswith(f"report: {out / 'report.html'}\n")
