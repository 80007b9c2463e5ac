"""Text from saved models: a stream, batches, and lines."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import kinfolk
from kinfolk.errors import UserError
from kinfolk.generation.beam_search import BeamSearch
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.contrastive_search import ContrastiveSearch
from kinfolk.generation.methods import DecodingMethod
from kinfolk.generation.sampling import GREEDY, Sampling
from kinfolk.workflows.generate import (
    SORT_WINDOW,
    generate_lines,
    generate_many,
    load_generator,
    load_seq2seq,
    task_prefix,
    to_inference,
)
from little import Home

PROMPTS = ["The cat", "A dog found the old man again", "The", "My sister", "The king saw", "A red"]


def test_a_stream_is_the_text_piece_by_piece(runs: dict[str, Path]) -> None:
    chunks = list(kinfolk.stream(runs["gpt2"], "The cat", tokens=12, seed=3))
    pair = kinfolk.load(runs["gpt2"])
    assert len(chunks) > 3
    assert list(kinfolk.stream(pair, "The cat", tokens=12, seed=3)) == chunks
    assert "".join(chunks) == kinfolk.generate_text(*pair, "The cat", tokens=12, seed=3)
    assert "".join(chunks) != "".join(kinfolk.stream(pair, "The cat", tokens=12, seed=4))
    (texts,) = generate_many(*pair, ["The cat"], GenerationConfig(max_new_tokens=12, seed=3))
    assert texts[0].text == "".join(chunks)


def test_a_stream_obeys(home: Home) -> None:
    wishes = {"tokens": 60, "fewest": 60, "ban": ["the", "The"], "prefix": " again"}
    text = "".join(kinfolk.stream(home.corpus, "A dog", **wishes))  # type: ignore[arg-type]
    assert text.startswith(" again") and "the" not in text.lower()
    stopped = "".join(kinfolk.stream(home.corpus, "A dog", **wishes, stop=["a "]))  # type: ignore[arg-type]
    assert text.startswith(stopped) and "a " not in stopped and "a " in text
    labels = [" a ball", " a song"]
    assert "".join(kinfolk.stream(home.corpus, "A dog", allow=labels)) in labels


def test_a_wrong_stream_says_so_before_it_begins(runs: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="bert cannot generate"):
        kinfolk.stream(runs["bert"], "The cat")
    with pytest.raises(UserError, match="leaves no room"):
        kinfolk.stream(runs["gpt2"], " again" * 60)
    with pytest.warns(UserWarning, match="its first .* tokens are left out"):
        assert list(kinfolk.stream(runs["gpt2"], " again" * 60, tokens=4, truncate=True))


def test_tokens_come_one_by_one(runs: dict[str, Path]) -> None:
    model, tokenizer = kinfolk.load(runs["gpt2"])
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    chunks = kinfolk.stream((model, tokenizer), "The cat", tokens=12, method=GREEDY)
    next(chunks)
    assert len(calls) < 4
    list(chunks)
    assert len(calls) == 12


@pytest.mark.parametrize(
    "method",
    [Sampling(top_p=0.9), GREEDY, BeamSearch(num_beams=3), ContrastiveSearch()],
    ids=lambda m: str(m)[:12],
)
@pytest.mark.parametrize("member", ["gpt2", "t5"])
def test_no_neighbour_changes_a_text(
    member: str, method: DecodingMethod, runs: dict[str, Path]
) -> None:
    model, tokenizer = kinfolk.load(runs[member])
    wishes = GenerationConfig(
        max_new_tokens=6,
        num_return_sequences=1 if method == GREEDY or isinstance(method, ContrastiveSearch) else 2,
    )
    alone, few, together = (
        list(generate_many(model, tokenizer, PROMPTS, wishes, method, batch=batch))
        for batch in (1, 2, 6)
    )
    for other in (few, together):
        for one, two in zip(alone, other, strict=True):
            assert [text.ids for text in one] == [text.ids for text in two]
            assert [text.text for text in one] == [text.text for text in two]
            for a, b in zip(one, two, strict=True):
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_texts_come_a_window_at_a_time(runs: dict[str, Path]) -> None:
    asked = []

    def prompts() -> Iterator[str]:
        for _ in range(3 * SORT_WINDOW):
            asked.append(1)
            yield "The"

    found = generate_many(
        *kinfolk.load(runs["gpt2"]), prompts(), GenerationConfig(max_new_tokens=1), batch=1
    )
    next(found)
    assert len(asked) == SORT_WINDOW
    assert len(list(found)) == 3 * SORT_WINDOW - 1


def test_tokens_add_up_to_the_text(runs: dict[str, Path]) -> None:
    model, tokenizer = kinfolk.load(runs["gpt2"])
    for texts in generate_many(model, tokenizer, PROMPTS, GenerationConfig(max_new_tokens=10)):
        tokens = texts[0].tokens(tokenizer)
        assert "".join(chunk for chunk, _ in tokens) == texts[0].text
        assert [logprob for _, logprob in tokens] == texts[0].logprobs


def test_lines_keep_their_order_and_their_number(runs: dict[str, Path]) -> None:
    model, tokenizer = load_seq2seq(runs["t5"], "translate", device="cpu")
    lines, done = ["The cat saw a ball.", "", "A dog", "\t", "The"] * 3, []
    found = list(
        generate_lines(model, tokenizer, lines, prefix="x: ", tokens=8, batch=2, watch=done.append)
    )
    alone = [
        next(generate_lines(model, tokenizer, [line], prefix="x: ", tokens=8)) for line in lines[:5]
    ]
    assert found == alone * 3
    assert [bool(line) for line in alone] == [True, False, True, False, True]
    assert sum(done) == len(lines)
    assert next(generate_lines(model, tokenizer, ["x: A dog"], tokens=8)) == alone[2]


def test_a_model_is_made_ready(runs: dict[str, Path], home: Home) -> None:
    model, _ = load_generator(runs["gpt2"], device="cpu", precision="bf16")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    model, _ = load_generator(runs["gpt2"], device="cpu")
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    size = sum(weight.numel() for weight in model.parameters())
    assert (
        sum(weight.numel() for weight in to_inference(model, precision="int8").parameters()) < size
    )
    grams, _ = load_generator(home.corpus)
    assert to_inference(grams, precision="float32") is grams


def test_int8_is_for_the_cpu(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model, _ = kinfolk.load(runs["gpt2"])
    with pytest.raises(UserError, match="int8 is for the CPU"):
        to_inference(model, precision="int8")


def test_a_task_is_told_or_usual(runs: dict[str, Path]) -> None:
    assert task_prefix(runs["t5"], "x: ", "summarize: ") == "x: "
    assert task_prefix(runs["t5"], None, "summarize: ") == "summarize: "
    with pytest.raises(UserError, match="say with --prefix"):
        task_prefix(runs["t5"], None)
