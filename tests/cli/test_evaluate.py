"""`kinfolk evaluate --json`: numbers that agree with each other and with the slow way."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfolk as package
from kinfolk import files, hub
from kinfolk.batch import Inputs
from kinfolk.cli import evaluate as command
from kinfolk.data.encode import DocumentEncoder
from kinfolk.workflows import evaluate
from support.runs import MEMBERS, Home, Kinfolk

TEXT = "The cat saw a ball again.\n\nA dog forgot the letter.\n"
BYTES = len("The cat saw a ball again.") + len("A dog forgot the letter.")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize("member", MEMBERS)
def test_the_numbers_agree_with_each_other(
    member: str, kinfolk: Kinfolk, runs: dict[str, Path], text: Path
) -> None:
    said = kinfolk("evaluate", runs[member], "--text", text, "--device", "cpu", "--json")
    assert (said.code, said.err) == (0, "")
    score = json.loads(said.out)
    assert score["bytes"] == BYTES
    assert score["perplexity"] == pytest.approx(math.exp(score["loss"]))
    bits = score["loss"] * score["tokens"] / math.log(2) / BYTES
    assert score["bits_per_byte"] == pytest.approx(bits)
    _, tokenizer = package.load(runs[member])
    tokens = sum(
        len(tokenizer.encode(t, add_special_tokens=False)) for t in TEXT.strip().split("\n\n")
    )
    # A decoder also predicts where each of the two documents ends.
    assert score["tokens"] == tokens + (2 if member == "gpt2" else 0)


def test_a_bidirectional_model_is_scored_in_both_directions(
    kinfolk: Kinfolk, home: Home, text: Path
) -> None:
    """By whole documents: the pair of numbers is that of each direction alone."""
    run = home.run("elmo")
    said = kinfolk("evaluate", run, "--text", text, "--device", "cpu", "--json", "--length", 8)
    score = json.loads(said.out)
    assert score["kind"].startswith("likelihood of each direction: left to right, and right")
    for prefix in ("", "backward_"):
        bits = score[f"{prefix}loss"] * score["tokens"] / math.log(2) / BYTES
        assert score[f"{prefix}bits_per_byte"] == pytest.approx(bits)
        assert score[f"{prefix}perplexity"] == pytest.approx(math.exp(score[f"{prefix}loss"]))
    model, tokenizer = package.load(run)
    nats = [0.0, 0.0]
    for document in TEXT.strip().split("\n\n"):
        ids = tokenizer.encode(document, add_special_tokens=False)
        end = tokenizer.special_tokens.eos
        rows = [torch.tensor([[end, *given, end]]) for given in (ids, ids[::-1])]
        inputs = [Inputs.from_ids(row[:, :-1], causal=True) for row in rows]
        with torch.no_grad():
            hidden = model.forward_bilm(*inputs)
            for direction in range(2):
                logits = model.lm_logits(hidden[direction][0])
                nats[direction] += float(logits.nll(rows[direction][0, 1:]))
    found = [score[name] * score["tokens"] for name in ("loss", "backward_loss")]
    assert found == pytest.approx(nats, rel=1e-5)
    shown = kinfolk("evaluate", run, "--text", text, "--device", "cpu").out
    assert "backward bits per byte" in shown


@pytest.mark.parametrize("most", [9, 10**6])
def test_an_encoder_scores_some_tokens_evenly_spread_and_says_so(
    most: int, kinfolk: Kinfolk, runs: dict[str, Path], text: Path
) -> None:
    said = kinfolk(*("evaluate", runs["bert"], "--text", text, "--json", "--max-tokens", most))
    score = json.loads(said.out)
    size = package.evaluate(runs["bert"], file=text).tokens
    if most > size:
        assert (score["tokens"], "sampled_from" in score, said.err) == (size, False, "")
        return
    assert (score["tokens"], score["sampled_from"]) == (9, size)
    assert said.err.startswith(f"9 of {size:,} tokens were scored, evenly spread: ")
    assert f"--max-tokens {size} scores all" in said.err
    bits = score["loss"] * size / math.log(2) / score["bytes"]
    assert score["bits_per_byte"] == pytest.approx(bits)


def test_the_work_of_an_encoder_is_bounded_by_default(
    home: Home, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "MAX_SCORED_TOKENS", 7)
    assert package.evaluate(runs["bert"], file=home.text).tokens == 7
    assert package.evaluate(runs["bert"], file=home.text, max_tokens=8).tokens == 8
    assert package.evaluate(runs["gpt2"], file=home.text).sampled_from is None


def test_long_work_is_estimated_after_the_first_batch(
    kinfolk: Kinfolk, home: Home, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SECONDS_WITHOUT_ESTIMATE", 0)
    said = kinfolk("evaluate", runs["bert"], "--text", home.text, "--max-tokens", 200)
    (line,) = [line for line in said.err.splitlines() if "batches take about" in line]
    assert "--length" in line and "--max-tokens" in line


def test_the_checkpoint_is_hashed_and_everything_opened_once(
    kinfolk: Kinfolk, home: Home, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            calls[name] += 1
            return original(*arguments, **settings)

        monkeypatch.setattr(owner, name, call)

    hashed: list[Path] = []
    sha256 = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path) or sha256(path))
    files._sha256.cache_clear()
    counted(hub, "load")
    counted(DocumentEncoder, "__call__")
    said = kinfolk("evaluate", runs["bert"], "--text", home.text, "--device", "cpu", "--json")
    assert "pair_accuracy" in json.loads(said.out)
    assert calls == {"load": 1, "__call__": 1}
    assert "model.safetensors" in [path.name for path in hashed]
    assert len({path.resolve() for path in hashed}) == len(hashed)


def test_the_loss_is_that_of_the_logits(
    kinfolk: Kinfolk, runs: dict[str, Path], text: Path
) -> None:
    score = json.loads(kinfolk("evaluate", runs["gpt2"], "--text", text, "--json").out)
    model, tokenizer = package.load(runs["gpt2"])
    bos, eos = tokenizer.special_tokens.bos, tokenizer.special_tokens.eos
    nats = 0.0
    for document in TEXT.strip().split("\n\n"):
        ids = [bos, *tokenizer.encode(document, add_special_tokens=False), eos]
        scores = package.logits(model, ids[:-1]).log_softmax(-1)
        nats -= sum(scores[place, id].item() for place, id in enumerate(ids[1:]))
    assert score["loss"] == pytest.approx(nats / score["tokens"], rel=1e-5)


def test_people_read_the_same_numbers(kinfolk: Kinfolk, home: Home, runs: dict[str, Path]) -> None:
    corpus = home.corpus / "holdout"
    score = json.loads(kinfolk("evaluate", runs["gpt2"], "--corpus", corpus, "--json").out)
    said = kinfolk("evaluate", runs["gpt2"], "--corpus", corpus).out
    assert f"{score['loss']:,.4f}" in said
    assert f"{score['bits_per_byte']:,.4f}" in said
    assert f"{score['tokens']:,}" in said
    assert score["kind"] in said


def test_a_folder_of_text_is_scored_as_its_files(
    kinfolk: Kinfolk, runs: dict[str, Path], text: Path
) -> None:
    one, folder = (
        kinfolk("evaluate", runs["gpt2"], "--text", path, "--json").out
        for path in (text, text.parent)
    )
    assert one == folder
