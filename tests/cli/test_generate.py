"""`kinfolk generate` and `kinfolk fill`: text, and the numbers behind it."""

import json
from pathlib import Path

import pytest

import kinfolk as package
from little import Kinfolk

PROMPT = "The cat saw"


def generate(kinfolk: Kinfolk, run: Path, *options: object) -> list[dict[str, list[float]]]:
    said = kinfolk("generate", run, PROMPT, "--max-tokens", 12, "--json", *options)
    assert (said.code, said.err) == (0, "")
    texts = json.loads(said.out)
    assert all(text.keys() == {"text", "ids", "logprobs"} for text in texts)
    return texts  # type: ignore[no-any-return]


def test_logprobs_are_those_of_the_logits(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    model, tokenizer = package.load(runs["gpt2"])
    before = [tokenizer.specials.bos, *tokenizer.encode(PROMPT, specials=False)]
    (text,) = generate(kinfolk, runs["gpt2"], "--top-k", 40)
    assert len(text["ids"]) == len(text["logprobs"]) == 12
    scores = package.logits(model, [*before, *text["ids"]]).log_softmax(-1)
    expected = [scores[len(before) - 1 + n, id].item() for n, id in enumerate(text["ids"])]
    assert text["logprobs"] == pytest.approx(expected, abs=1e-4)
    both = tokenizer.decode([*before, *text["ids"]])
    assert both == PROMPT + text["text"]


def test_an_encoder_decoder_answers(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    model, tokenizer = package.load(runs["t5"])
    eos = tokenizer.specials.eos
    source = [*tokenizer.encode(PROMPT, specials=False), eos]
    (text,) = generate(kinfolk, runs["t5"], "--seed", 1)
    assert text["ids"]
    scores = package.logits(model, text["ids"], source).log_softmax(-1)
    expected = [scores[place, id].item() for place, id in enumerate(text["ids"])]
    assert text["logprobs"] == pytest.approx(expected, abs=1e-4)


def test_a_seed_is_a_text(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    once, again, other = (generate(kinfolk, runs["gpt2"], "--seed", s) for s in (1, 1, 2))
    assert once == again
    assert once != other


def test_no_temperature_leaves_no_chance(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    model, tokenizer = package.load(runs["gpt2"])
    once, other = (generate(kinfolk, runs["gpt2"], "--temperature", 0, "--seed", s) for s in (1, 2))
    assert once == other
    before = [tokenizer.specials.bos, *tokenizer.encode(PROMPT, specials=False)]
    scores = package.logits(model, before)[-1]
    scores[sorted(tokenizer.specials.all - {tokenizer.specials.eos})] = float("-inf")
    assert once[0]["ids"][0] == scores.argmax().item()


def test_several_texts_differ_and_the_first_is_the_only_one(
    kinfolk: Kinfolk, runs: dict[str, Path]
) -> None:
    texts = generate(kinfolk, runs["gpt2"], "--num", 3)
    assert len({tuple(text["ids"]) for text in texts}) == 3
    (alone,) = generate(kinfolk, runs["gpt2"])
    assert texts[0]["ids"] == alone["ids"]
    said = kinfolk("generate", runs["gpt2"], PROMPT, "--max-tokens", 12, "--num", 3).out
    assert said == "\n\n".join(PROMPT + str(text["text"]) for text in texts) + "\n"


def test_the_text_streamed_is_the_text_of_the_json(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    (text,) = generate(kinfolk, runs["gpt2"])
    said = kinfolk("generate", runs["gpt2"], PROMPT, "--max-tokens", 12)
    assert said.out == f"{PROMPT}{text['text']}\n"
    assert package.continue_text(*package.load(runs["gpt2"]), PROMPT, tokens=12) == text["text"]


def test_a_word_is_filled_with_its_probability(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    text = "The cat[MASK] a ball."
    said = kinfolk("fill", runs["bert"], text, "--top", 3, "--json")
    assert said.code == 0
    filled = json.loads(said.out)
    model, tokenizer = package.load(runs["bert"])
    ids = tokenizer.encode(text)
    place = ids.index(tokenizer.specials.mask)
    shares = package.logits(model, ids)[place].softmax(-1)
    shares[sorted(tokenizer.specials.all)] = 0.0
    best = shares.topk(3)
    (hole,) = filled["holes"]
    assert [share for _, share in hole["choices"]] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert [word for word, _ in hole["choices"]] == [
        tokenizer.decode([id]) for id in best.indices.tolist()
    ]
    assert filled["text"] == text.replace("[MASK]", hole["text"])


@pytest.mark.parametrize("member", ["bert", "t5"])
def test_every_hole_is_filled(member: str, kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    text = "The [MASK] saw a [MASK]."
    filled = json.loads(kinfolk("fill", runs[member], text, "--json").out)
    assert len(filled["holes"]) == 2
    assert "[MASK]" not in filled["text"]
    assert filled["text"].startswith("The ") and filled["text"].endswith(".")
    said = kinfolk("fill", runs[member], text)
    assert said.out.splitlines()[0] == filled["text"].splitlines()[0]
