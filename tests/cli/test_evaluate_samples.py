"""`kinfolk evaluate --samples`: what was written, measured beside real text."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.data.corpus import Corpus
from kinfolk.data.prepare import prepare
from kinfolk.metrics.diversity import diversity_scores
from kinfolk.text import Tokenizer
from kinfolk.workflows.baselines import document_nll, end_ids, ngram_of_corpus
from kinfolk.workflows.samples import read_samples, sample_excerpts, samples_as_dict
from support.runs import Home, Kinfolk

TEXTS = ["The cat saw a ball again.", "A dog\nforgot the letter.", "", "我爱你。"]
FULL = [text.replace("\n", " ") for text in TEXTS if text]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def measured(kinfolk: Kinfolk, *arguments: object) -> Any:
    said = kinfolk("evaluate", "--samples", *arguments, "--json")
    assert (said.code, said.err) == (0, "")
    return json.loads(said.out)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", "\n".join(json.dumps({"text": t, "ids": [1]}) for t in TEXTS), TEXTS),
        ("a.json", json.dumps([{"text": t} for t in TEXTS]), TEXTS),
        ("b.json", json.dumps(TEXTS, indent=2), TEXTS),
        ("one.jsonl", json.dumps({"text": "one"}), ["one"]),
        ("lines.txt", "\n".join(FULL) + "\n", FULL),
        ("blocks.txt", "\n\n".join(t for t in TEXTS if t) + "\n", [t for t in TEXTS if t]),
        ("windows.txt", "one\r\ntwo\r\n", ["one", "two"]),
    ],
)
def test_samples_are_read_from_every_form(
    name: str, text: str, expected: list[str], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert read_samples(path) == expected


def test_the_numbers_are_those_of_the_texts(kinfolk: Kinfolk, tmp_path: Path) -> None:
    path = written(tmp_path, "s.jsonl", "\n".join(json.dumps({"text": t}) for t in TEXTS))
    found = measured(kinfolk, path)
    expected = samples_as_dict(diversity_scores(TEXTS))
    earlier = {"repetition": expected["repetition_rate"], "loops": expected["loop_rate"]}
    assert found == {"samples": expected | earlier}
    assert found["samples"]["texts"] == 4 and found["samples"]["empty"] == 1
    assert found["samples"]["perplexity"] is None


def test_what_generate_writes_is_read(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    said = kinfolk("generate", runs["gpt2"], "The", "--num", 6, "--max-tokens", 20, "--json")
    found = measured(kinfolk, written(tmp_path, "s.json", said.out))
    assert found["samples"]["texts"] == 6


@pytest.mark.parametrize("name", ["s.json", "s.jsonl"])
def test_samples_are_measured_beside_real_text(
    name: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    # A network that has learned little writes any byte, NUL among them.
    texts = ["The cat qzx", "a\0b", "The \ufffd garden", "the the the", "letter. A", "\0"]
    rows = [json.dumps({"text": text}) for text in texts]
    whole = "\n".join(rows) if name == "s.jsonl" else f"[{', '.join(rows)}]"
    path = written(tmp_path, name, whole)
    assert read_samples(path) == texts
    found = measured(kinfolk, path, "--corpus", home.corpus)
    samples, real = found["samples"], found["real"]
    assert samples["texts"] == real["texts"] == 6
    assert 1 < real["perplexity"] < samples["perplexity"]
    model, tokenizer = ngram_of_corpus(home.corpus)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    losses = document_nll(model, map(np.array, ids), *end_ids(Corpus.open(home.corpus)))
    costs = np.concatenate([nll[:-1] for nll in losses])
    assert samples["perplexity"] == pytest.approx(math.exp(costs.mean()))


def test_a_table_is_for_people(kinfolk: Kinfolk, home: Home) -> None:
    said = kinfolk("evaluate", "--samples", home.text, "--corpus", home.corpus)
    assert (said.code, said.err) == (0, "")
    heading, *rows = said.out.splitlines()
    assert heading.split() == ["samples", "real", "text"]
    texts, samples, real = rows[0].split()
    assert (texts, samples) == ("texts", "80")
    # A piece or more of every document that is held out.
    assert Corpus.open(home.corpus / "holdout").documents <= int(real) < 80
    values = {row.split("  ")[0]: row.split()[-2:] for row in rows}
    expected = diversity_scores(read_samples(home.text))
    assert values["self-BLEU"][0] == f"{expected.self_bleu:.3f}"
    assert values["distinct-4"][0] == f"{expected.distinct_n[3]:.3f}"
    alone = kinfolk("evaluate", "--samples", home.text).out
    assert "real" not in alone and alone.splitlines()[-1].split()[-1] == "-"


def test_a_corpus_that_holds_nothing_out_is_a_warning(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "whole"
    prepare([home.text], tokenizer=Tokenizer.load(home.tokenizer), out=out)
    said = kinfolk("evaluate", "--samples", home.text, "--corpus", out, "--json")
    assert said.code == 0
    assert said.err.startswith("warning: ") and "prepare it with --holdout" in said.err
    assert json.loads(said.out).keys() == {"samples"}


@pytest.mark.parametrize(("count", "length"), [(5, 4), (40, 10), (60, 25), (3, 10_000)])
def test_excerpts_are_even_and_of_one_length(home: Home, count: int, length: int) -> None:
    corpus = Corpus.open(home.corpus)
    sizes = np.diff(corpus.starts)
    found = sample_excerpts(corpus, count, length)
    whole = [chunk for chunk in found if len(chunk) == length]
    assert len(found) == count
    assert len(whole) == min(count, (sizes // length).sum())
    if len(whole) <= (sizes >= length).sum():  # then none from the same document
        begins = {tuple(corpus.document(i)[:length]) for i in range(corpus.documents)}
        assert all(tuple(chunk) in begins for chunk in whole)


MISTAKES = [
    ("{tmp}/none", "no such file: {tmp}/none"),
    ("{tmp}", "no such file: {tmp}"),
    ("{tmp}/empty.txt", "{tmp}/empty.txt has no samples"),
    ("{tmp}/empty.jsonl", "{tmp}/empty.jsonl has no samples"),
    ("{tmp}/blank.jsonl", "{tmp}/blank.jsonl has no samples"),
    ("{tmp}/other.jsonl", "line 2 of {tmp}/other.jsonl has no 'text': choose one of story"),
    ("{tmp}/numbers.json", "sample 1 of {tmp}/numbers.json has no field 'text': it is a number"),
    ("{tmp}/broken.jsonl", "line 2 of {tmp}/broken.jsonl is not JSON"),
    ("{tmp}/good.txt --corpus {tmp}", "{tmp} is not a corpus: {tmp}/corpus.json does not exist"),
    ("{tmp}/good.txt --text {tmp}/good.txt", "--samples takes no MODEL"),
    ("{tmp}/good.txt {tmp}", "--samples takes no MODEL"),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_a_mistake_is_one_sentence(
    words: str, expected: str, kinfolk: Kinfolk, tmp_path: Path
) -> None:
    written(tmp_path, "empty.txt", " \n\n")
    written(tmp_path, "empty.jsonl", "")
    written(tmp_path, "blank.jsonl", '{"text": " "}\n')
    written(tmp_path, "other.jsonl", '{"text": "a"}\n{"story": "b"}\n')
    written(tmp_path, "numbers.json", "[1, 2]")
    written(tmp_path, "broken.jsonl", '{"text": "a"}\n{"text"\n')
    written(tmp_path, "good.txt", "one\ntwo\n")
    said = kinfolk("evaluate", "--samples", *words.format(tmp=tmp_path).split())
    assert (said.code, said.out) == (2, "")
    assert said.err.count("error: ") == 1
    assert said.err.startswith(f"error: {expected}".format(tmp=tmp_path)), said.err


def test_neither_a_model_nor_samples_is_a_mistake(kinfolk: Kinfolk) -> None:
    said = kinfolk("evaluate")
    assert said.code == 2 and "missing MODEL (or --samples FILE)" in said.err
