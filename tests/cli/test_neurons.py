"""The command prints neurons and effects, and writes a page."""

import json
import re
from pathlib import Path

from support.runs import Kinfolk, one_sentence


def test_the_table_the_page_and_the_json(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    page, facts = tmp_path / "neurons.html", tmp_path / "facts.jsonl"
    rows = [
        {"prompts": ["the cat saw the [MASK].", "a dog saw the [MASK]."], "answer": "garden"},
        {"prompt": "the king found the [MASK].", "answer": "river"},
    ]
    facts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ("neurons", runs["gpt2"], "--facts", facts, "--draws", "3", "--threshold", "0.5")
    said = kinfolk(*words, "--find-on", "1", "-o", page)
    assert said.code == 0, said
    assert "the cat saw the [MASK]." in said.out and "suppress, other facts" in said.out
    assert "knowledge neurons (L1 N85: layer 1, neuron 85, counted from 0)" in said.out
    assert re.search(r" L[12] N\d+", said.out)
    assert not re.search(r"[+-]0\.0+(?![\d.])", said.out)  # a change that is rounded to nothing
    assert "add up to the difference of the outputs within 0." in said.out
    assert said.out.rstrip().endswith(f"report: {page}")
    html = page.read_text(encoding="utf-8")
    assert "Neurons suppressed and amplified" in html
    assert re.search(r"layer [12], neuron \d+", html) and "L1 N85 is neuron 85 of layer 1" in html
    assert not re.search(r"[+-]0\.0+(?![\d.])", html.split("<script")[0])
    assert "already exists" in one_sentence(kinfolk(*words, "-o", page))
    values = json.loads(kinfolk(*words, "--json").out)
    assert values["completeness_error"] <= 0.01 and values["family"] == "gpt2"
    assert [len(fact["prompts"]) for fact in values["facts"]] == [2, 1]
    groups = [(effect["group"], effect["operation"]) for effect in values["effects"]]
    assert groups == [
        (group, operation)
        for group in ("prompts", "other facts")
        for operation in ("suppress", "amplify")
    ]


def test_one_fact_on_the_command_line(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    words = ("--answer", "a", "--prompt", "the old man found [MASK] ball", "--draws", "2", "--json")
    for family in ("bert", "t5"):
        said = kinfolk("neurons", runs[family], "the cat saw [MASK] dog", *words)
        assert said.code == 0, said
        (fact,) = json.loads(said.out)["facts"]
        assert fact["answer"] == "a" and len(fact["prompts"]) == 2
