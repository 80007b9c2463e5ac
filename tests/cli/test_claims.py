"""`kinfolk claims`: the list, what it needs, and what it refuses."""

import dataclasses
import json
from pathlib import Path

import pytest

from kinfolk.workflows.claims import catalog
from kinfolk.workflows.claims.catalog import CLAIMS
from support.runs import Home, Kinfolk, one_sentence
from support.runs import text as runs_text


def test_the_list_has_every_claim_with_its_source(kinfolk: Kinfolk) -> None:
    said = kinfolk("claims", "--list", "--json")
    assert said.code == 0, said.err
    listed = json.loads(said.out)
    assert [entry["name"] for entry in listed] == [claim.name for claim in CLAIMS]
    assert all(entry["source"] and entry["sentence"] for entry in listed)
    said = kinfolk("claims", "nsp", "--list")
    assert "nsp" in said.out and "electra" not in said.out


@pytest.mark.slow
def test_the_plan_has_entrants_and_budgets_and_writes_nothing(
    kinfolk: Kinfolk, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(
        catalog.SCALES["nano"], tokens=100_000, length=16, batch_size=8, vocab_size=400
    )
    monkeypatch.setitem(catalog.SCALES, "nano", small)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(runs_text(documents=150), encoding="utf-8")
    said = kinfolk("claims", "memory", "--corpus", text, "--device", "cpu", "--plan", "-o", out)
    assert said.code == 0, said.err
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert any(line.startswith("memory memory 100,000 tokens each ") for line in lines), said.out
    assert any(line.startswith("none ") for line in lines)
    assert any(line.startswith("3 seeds of each entrant; about ") for line in lines)
    assert not out.exists()
    monkeypatch.undo()
    said = kinfolk("claims", "nsp", "--corpus", text, "--plan")
    assert "needs a classification of pairs of texts" in one_sentence(said)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["electro"], "unknown claim 'electro': did you mean electra?"),
        (["memory", "--scale", "huge"], "--scale huge: there are nano, tiny, mini"),
        (["memory", "-o", "OUT"], "missing --corpus PATH"),
        (["memory", "--corpus", "TEXT"], "missing -o DIR"),
        (["memory", "--corpus", "nowhere", "-o", "OUT"], "nowhere does not exist"),
        (["nsp", "--corpus", "TEXT", "-o", "OUT"], "needs a classification of pairs of texts"),
        (["nsp", "--corpus", "TEXT", "--task", "no.tsv", "-o", "OUT"], "no such file: no.tsv"),
        (["memory", "--corpus", "TEXT", "--document", "page", "-o", "OUT"], "block or file"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(
    words: list[str], sentence: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    places = {"OUT": str(out), "TEXT": str(home.text)}
    said = kinfolk("claims", *(places.get(word, word) for word in words))
    assert sentence in one_sentence(said)
    assert not out.exists()
