"""One line of a megabyte: every command that reads text ends in seconds."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.runs import Home, Kinfolk, one_sentence

SIZE = 10**6  # bytes of the line
SECONDS = 10  # of the processor
LINES = {
    "words": "the cat saw a ball ",
    "one word": "a",
    "combining characters": "a\u0301\u0323\u0302 ",
    "only combining characters": "\u0301\u0323",
    "deep JSON": '[{"a":',
    "Chinese": "我们学习语言模型",
}


QUICK = ("one word", "only combining characters")  # the others are slow


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in LINES],
)
def line(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    part = LINES[request.param]
    file = tmp_path_factory.mktemp("line") / "line.txt"
    file.write_text(part * (SIZE // len(part.encode())) + "\n", encoding="utf-8")
    return file


@contextmanager
def quick(seconds: float = SECONDS) -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < seconds


def test_a_line_too_long_to_summarize_is_refused_at_once(
    kinfolk: Kinfolk, runs: dict[str, Path], line: Path
) -> None:
    with quick():
        sentence = one_sentence(kinfolk("summarize", runs["t5"], line, "--device", "cpu"))
    assert "line 1: the text has" in sentence and "split it into texts of at most" in sentence


def test_tokens_of_a_long_line_are_scored_by_an_encoder(
    kinfolk: Kinfolk, runs: dict[str, Path], line: Path
) -> None:
    with quick():
        said = kinfolk(
            *("evaluate", runs["bert"], "--text", line, "--max-tokens", 300),
            *("--device", "cpu", "--json"),
        )
    assert said.code == 0, said
    score = json.loads(said.out)
    assert score["tokens"] == 300 < score["sampled_from"]


@pytest.mark.slow
def test_an_encoder_scores_a_long_line_in_a_minute_by_default(
    kinfolk: Kinfolk, runs: dict[str, Path], line: Path
) -> None:
    with quick(120):
        said = kinfolk("evaluate", runs["bert"], "--text", line, "--device", "cpu", "--json")
    score = json.loads(said.out)
    assert score["tokens"] == 2**14 < score["sampled_from"]
    assert "--max-tokens" in said.err


def test_a_long_line_becomes_a_corpus_and_is_audited(
    kinfolk: Kinfolk, home: Home, line: Path, tmp_path: Path
) -> None:
    with quick():
        prepared = kinfolk(
            *("prepare", line, "--tokenizer", home.tokenizer, "-o", tmp_path / "c", "--json"),
            *("--dedup", "near"),
        )
    assert (prepared.code, json.loads(prepared.out)["documents"]) == (0, 1)
    with quick():
        assert kinfolk("audit", line, "-o", tmp_path / "page.html").code == 0


def test_a_record_nested_deeply_is_refused_at_once(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    file = tmp_path / "deep.jsonl"
    file.write_text('{"text": ' + "[" * (SIZE // 2) + "]" * (SIZE // 2) + "}\n")
    with quick():
        said = kinfolk("prepare", file, "--tokenizer", home.tokenizer, "-o", tmp_path / "c")
    assert f"line 1 of {file}" in one_sentence(said)
    assert not (tmp_path / "c").exists()
