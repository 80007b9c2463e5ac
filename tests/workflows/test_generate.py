"""Text from saved models: a stream, batches, and lines."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfolk
from kinfolk.errors import UserError
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.generate import SORT_WINDOW, generate_many, transform_lines
from kinfolk.workflows.generate import load_generator, load_seq2seq, task_prefix, to_inference
from support.runs import Home

PROMPTS = ["The cat", "A dog found the old man again", "The", "My sister", "The king saw", "A red"]


def test_a_stream_is_the_text_piece_by_piece(runs: dict[str, Path]) -> None:
    options = {"max_new_tokens": 12, "seed": 3}
    chunks = list(kinfolk.stream(runs["gpt2"], "The cat", **options))
    pair = kinfolk.load(runs["gpt2"])
    assert len(chunks) > 3
    assert list(kinfolk.stream(*pair, "The cat", **options)) == chunks
    assert "".join(chunks) == kinfolk.generate(*pair, "The cat", **options)
    assert "".join(chunks) != "".join(kinfolk.stream(*pair, "The cat", max_new_tokens=12, seed=4))
    (texts,) = generate_many(*pair, ["The cat"], GenerationConfig(**options))
    assert texts[0].text == "".join(chunks)


def test_generate_takes_folders_models_and_lists(runs: dict[str, Path]) -> None:
    model, tokenizer = kinfolk.load(runs["gpt2"])
    options = {"max_new_tokens": 6, "top_p": 0.9}
    text = kinfolk.generate(model, tokenizer, "The cat", **options)
    assert isinstance(text, str) and text
    for call in (
        (runs["gpt2"], "The cat"),
        (str(runs["gpt2"]), "The cat"),
        (runs["gpt2"], tokenizer, "The cat"),
        (model, runs["gpt2"], "The cat"),
    ):
        assert kinfolk.generate(*call, **options) == text
    assert kinfolk.generate(runs["gpt2"], prompt="The cat", **options) == text
    both = kinfolk.generate(model, tokenizer, ["The cat", "A dog"], **options)
    assert both[0] == text and len(both) == 2
    three = kinfolk.generate(model, tokenizer, "The cat", num_return_sequences=3, **options)
    assert isinstance(three, list) and three[0] == text and len(set(three)) == 3
    assert kinfolk.generate(model, tokenizer, [], **options) == []
    assert kinfolk.generate(model, tokenizer, "The", num_beams=2, max_new_tokens=4)


def test_fill_takes_folders_and_models(runs: dict[str, Path], home: Home) -> None:
    text = "The cat[MASK] a ball."
    filled = kinfolk.fill(*kinfolk.load(runs["bert"]), text, candidates=3)
    assert kinfolk.fill(runs["bert"], text, candidates=3) == filled
    assert filled.text == text.replace("[MASK]", filled.masks[0].text)
    assert len(filled.masks[0].candidates) == 3
    greedy, drawn = (
        kinfolk.fill(home.run("glm"), text, max_new_tokens=12, do_sample=sample, seed=1).text
        for sample in (False, True)
    )
    assert greedy != drawn and "[MASK]" not in greedy + drawn
    with pytest.raises(UserError, match="max_new_tokens does not apply to encoder models"):
        kinfolk.fill(runs["bert"], text, max_new_tokens=9)


WRONG_CALLS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "stream without a tokenizer": (
        lambda model, tokenizer: kinfolk.stream(model, "Once"),
        r"the tokenizer is missing: call kinfolk.stream\(model, tokenizer, text\) or",
    ),
    "generate without a tokenizer": (
        lambda model, tokenizer: kinfolk.generate(model, prompt="Once"),
        "the tokenizer is missing: call kinfolk.generate",
    ),
    "a pair as the model": (
        lambda model, tokenizer: kinfolk.generate((model, tokenizer), "Once"),
        "model is a tuple: call kinfolk.generate.*with the two values of kinfolk.load",
    ),
    "no prompt": (
        lambda model, tokenizer: kinfolk.generate(model, tokenizer),
        "the text must be a str or a list of str, not NoneType",
    ),
    "ids as the prompt": (
        lambda model, tokenizer: kinfolk.generate(model, tokenizer, tokenizer("Once")),
        "the text must be a str or a list of str, not int",
    ),
    "a name of another library": (
        lambda model, tokenizer: kinfolk.generate(model, tokenizer, "Once", max_tokens=5),
        "unknown argument 'max_tokens': did you mean max_new_tokens?",
    ),
    "a misspelled name": (
        lambda model, tokenizer: kinfolk.stream(model, tokenizer, "Once", temprature=1.0),
        "unknown argument 'temprature': did you mean temperature?",
    ),
    "a value outside its range": (
        lambda model, tokenizer: kinfolk.generate(model, tokenizer, "Once", top_p=90),
        "top_p=90: it must be above 0 and at most 1",
    ),
    "a value of another type": (
        lambda model, tokenizer: kinfolk.generate(model, tokenizer, "Once", max_new_tokens="5"),
        "max_new_tokens='5': it must be a whole number",
    ),
    "a stream of several": (
        lambda model, tokenizer: kinfolk.stream(model, tokenizer, ["Once", "Twice"]),
        "stream takes one prompt: use generate",
    ),
    "fill by a decoder": (
        lambda model, tokenizer: kinfolk.fill(model, tokenizer, "It was [MASK]."),
        "gpt2 models do not support fill",
    ),
    "fill with stop strings": (
        lambda model, tokenizer: kinfolk.fill(model, tokenizer, "It was [MASK].", stop_strings="."),
        "fill does not support stop_strings",
    ),
    "a folder that is not there": (
        lambda model, tokenizer: kinfolk.generate("runs/nowhere", "Once"),
        "no such folder: runs/nowhere",
    ),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_is_one_sentence(name: str, runs: dict[str, Path]) -> None:
    call, sentence = WRONG_CALLS[name]
    with pytest.raises(UserError, match=sentence):
        call(*kinfolk.load(runs["gpt2"]))


def test_a_tokenizer_is_a_function(runs: dict[str, Path]) -> None:
    _, tokenizer = kinfolk.load(runs["gpt2"])
    assert tokenizer("The cat") == tokenizer.encode("The cat")
    assert tokenizer(["The cat", "A"]) == [tokenizer.encode("The cat"), tokenizer.encode("A")]


def test_a_stream_obeys(home: Home) -> None:
    wants = {
        "max_new_tokens": 60,
        "min_new_tokens": 60,
        "bad_words": ["the", "The"],
        "forced_prefix": " again",
    }
    text = "".join(kinfolk.stream(home.corpus, "A dog", **wants))
    assert text.startswith(" again") and "the" not in text.lower()
    stopped = "".join(kinfolk.stream(home.corpus, "A dog", **wants, stop_strings="a "))
    assert text.startswith(stopped) and "a " not in stopped and "a " in text
    labels = [" a ball", " a song"]
    assert "".join(kinfolk.stream(home.corpus, "A dog", allowed_texts=labels)) in labels


def test_a_wrong_stream_says_so_before_it_begins(runs: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="bert models do not support generate"):
        kinfolk.stream(runs["bert"], "The cat")
    with pytest.raises(UserError, match="has room for"):
        kinfolk.stream(runs["gpt2"], " again" * 60)
    with pytest.warns(UserWarning, match=r"dropped its first .* tokens"):
        assert list(
            kinfolk.stream(runs["gpt2"], " again" * 60, max_new_tokens=4, truncate_left=True)
        )


def test_tokens_come_one_by_one(runs: dict[str, Path]) -> None:
    model, tokenizer = kinfolk.load(runs["gpt2"])
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    chunks = kinfolk.stream(model, tokenizer, "The cat", max_new_tokens=12, do_sample=False)
    next(chunks)
    assert len(calls) < 4
    list(chunks)
    assert len(calls) == 12


@pytest.mark.parametrize(
    "method",
    [
        GenerationConfig(top_p=0.9),
        GREEDY,
        GenerationConfig(num_beams=3),
        GenerationConfig(penalty_alpha=0.6),
    ],
    ids=lambda config: config.method,
)
@pytest.mark.parametrize("member", ["gpt2", "t5"])
def test_no_neighbour_changes_a_text(
    member: str, method: GenerationConfig, runs: dict[str, Path]
) -> None:
    model, tokenizer = kinfolk.load(runs[member])
    one = method.method in ("greedy", "contrastive")
    config = replace(method, max_new_tokens=6, num_return_sequences=1 if one else 2)
    alone, few, together = (
        list(generate_many(model, tokenizer, PROMPTS, config, batch_size=batch))
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
        *kinfolk.load(runs["gpt2"]), prompts(), GenerationConfig(max_new_tokens=1), batch_size=1
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
    lines, done = ["The cat saw a ball.", "", "A dog", "\t", "The"] * 3, list[int]()
    eight = replace(GREEDY, max_new_tokens=8)

    def transformed(lines: list[str], **options: Any) -> list[str]:
        return list(transform_lines(model, tokenizer, lines, eight, fixed_limit=True, **options))

    found = transformed(lines, prefix="x: ", batch_size=2, on_progress=done.append)
    alone = [transformed([line], prefix="x: ")[0] for line in lines[:5]]
    assert found == alone * 3
    assert [bool(line) for line in alone] == [True, False, True, False, True]
    assert sum(done) == len(lines)
    assert transformed(["x: A dog"]) == alone[2:3]


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
    with pytest.raises(UserError, match="int8 runs on the CPU only"):
        to_inference(model, precision="int8")


def test_a_task_is_told_or_usual(runs: dict[str, Path]) -> None:
    assert task_prefix(runs["t5"], "x: ", "summarize: ") == "x: "
    assert task_prefix(runs["t5"], None, "summarize: ") == "summarize: "
    with pytest.raises(UserError, match="pass --source-prefix"):
        task_prefix(runs["t5"], None)
