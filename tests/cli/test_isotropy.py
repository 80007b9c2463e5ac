"""The command prints measures by layer and writes a page."""

import json
from pathlib import Path

from support.runs import Kinfolk, one_sentence


def test_the_table_the_page_and_the_json(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    page, pairs = tmp_path / "isotropy.html", tmp_path / "pairs.tsv"
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the cat {n}\n" for n in range(20)), encoding="utf-8")
    rows = [f"a cat {n}\ta dog {n * n}\t{n % 5}" for n in range(12)]
    pairs.write_text("a\tb\tscore\n" + "\n".join(rows) + "\n", encoding="utf-8")
    words = ("isotropy", runs["bert"], "--text", text, "--sts", pairs, "--no-flow")
    said = kinfolk(*words, "--columns", "a,b,score", "-o", page)
    assert said.code == 0, said
    assert "IsoScore" in said.out and "standardize" in said.out
    assert said.out.rstrip().endswith(f"report: {page}")
    assert "Similarity after each transform" in page.read_text(encoding="utf-8")
    assert "already exists" in one_sentence(kinfolk(*words, "-o", page))
    values = json.loads(kinfolk(*words, "--columns", "a,b,score", "--json").out)
    assert values["pairs"] == 12 and len(values["layers"]) == 3
    assert values["transforms"][0]["name"] == "none"
