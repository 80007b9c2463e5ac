"""The command prints the losses and the suggested rates, and writes a page of its own."""

import json
import re
from pathlib import Path

import pytest

from support.runs import Home, Kinfolk, one_sentence, tree

SMALL = ("--steps", "20", "--length", "32", "train.batch_size=4", "train.device=cpu")


def test_the_table_and_the_page(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    page, before = tmp_path / "lr.html", tree(home.corpus)
    said = kinfolk("lr-find", "gpt2/nano", *SMALL, "--corpus", home.corpus, "-o", page)
    assert said.code == 0, said
    assert "learning rate" in said.out and "steepest descent" in said.out
    assert "default of this size" in said.out
    assert said.out.rstrip().endswith(f"report: {page}")
    html = page.read_text(encoding="utf-8")
    assert "Learning rates of gpt2/nano" in html and '<figure class="chart line"' in html
    assert [path.name for path in tmp_path.iterdir()] == ["lr.html"]
    assert tree(home.corpus) == before
    again = kinfolk("lr-find", "gpt2/nano", *SMALL, "--corpus", home.corpus, "-o", page)
    assert "already exists" in one_sentence(again)


def test_the_result_for_programs(kinfolk: Kinfolk, home: Home) -> None:
    arguments = (*SMALL, "--corpus", home.corpus, "--from", "1e-4", "--to", "10", "--json")
    said = kinfolk("lr-find", "bert/nano", "--objective", "mlm", *arguments)
    values = json.loads(said.out)
    assert values["name"] == "bert/nano" and values["objective"] == "mlm"
    assert values["rates"][0] == 1e-4
    assert len(values["rates"]) == len(values["losses"]) == len(values["smoothed"])
    assert values["report"] is None
    if values["diverged"] is not None:
        assert values["tenth"] == values["diverged"] / 10


def test_both_rates_of_muon_are_named(kinfolk: Kinfolk, home: Home) -> None:
    arguments = (*SMALL, "--corpus", home.corpus, "train.optimizer=muon", "train.lr=1e-3")
    said = kinfolk("lr-find", "gpt2/nano", *arguments, "train.matrix_lr=0.02")
    assert "train.lr 0.001, train.matrix_lr 0.02" in said.out
    (note,) = [line for line in said.err.splitlines() if "train.matrix_lr" in line]
    assert "was 20 times as high at every step" in note
    pairs = re.findall(r"train\.lr=(\S+) train\.matrix_lr=(\S+) \(", note)
    assert pairs and all(float(b) == pytest.approx(20 * float(a), rel=0.02) for a, b in pairs)
    plain = kinfolk("lr-find", "gpt2/nano", *SMALL, "--corpus", home.corpus)
    assert "matrix_lr" not in plain.out + plain.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--corpus {corpus} --from 1 --to 1e-3", "--from 1 must be above 0 and below --to 0.001"),
        ("--corpus {corpus} --from 0.1 --to 0.1", "--from 0.1 must be above 0 and below --to 0.1"),
        ("--corpus {corpus} --from 0", "--from 0 must be above 0"),
        ("--corpus {corpus} --steps 9", "--steps must be at least 10 (got 9)"),
        ("--corpus {corpus} --to high", "'--to': Input should be a valid number"),
        ("", "missing --corpus DIR"),
        ("--corpus {corpus} -o lr.txt", "-o lr.txt: the page is HTML: choose a name that ends in"),
        ("--corpus {corpus} train.rate=1", "train.rate: no field 'rate'"),
        ("--corpus {corpus} --objective mlm", "gpt2 has no objective 'mlm'"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: str, sentence: str, kinfolk: Kinfolk, home: Home
) -> None:
    words = arguments.format(corpus=home.corpus).split()
    assert sentence in one_sentence(kinfolk("lr-find", "gpt2/nano", *words))
