"""`kinfolk generate` and `kinfolk fill`: text, and the numbers behind it."""

import io
import json
import sys
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest

import kinfolk as package
from kinfolk.generation import generate as generation
from support.runs import Home, Kinfolk

PROMPT = "The cat saw"


def generate(kinfolk: Kinfolk, run: Path, *options: object) -> list[dict[str, list[float]]]:
    said = kinfolk("generate", run, PROMPT, "--max-tokens", 12, "--json", *options)
    assert (said.code, said.err) == (0, "")
    texts = json.loads(said.out)
    assert all(text.keys() >= {"text", "ids", "logprobs", "ended"} for text in texts)
    return texts  # type: ignore[no-any-return]


def test_logprobs_are_those_of_the_logits(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    model, tokenizer = package.load(runs["gpt2"])
    before = tokenizer.encode(PROMPT, add_special_tokens=False)
    (text,) = generate(kinfolk, runs["gpt2"], "--top-k", 40)
    assert len(text["ids"]) == len(text["logprobs"]) == 12
    scores = package.logits(model, [*before, *text["ids"]]).log_softmax(-1)
    expected = [scores[len(before) - 1 + n, id].item() for n, id in enumerate(text["ids"])]
    assert text["logprobs"] == pytest.approx(expected, abs=1e-4)
    both = tokenizer.decode([*before, *text["ids"]])
    assert both == PROMPT + text["text"]


def test_an_encoder_decoder_answers(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    model, tokenizer = package.load(runs["t5"])
    eos = tokenizer.special_tokens.eos
    source = [*tokenizer.encode(PROMPT, add_special_tokens=False), eos]
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
    before = [tokenizer.special_tokens.bos, *tokenizer.encode(PROMPT, add_special_tokens=False)]
    scores = package.logits(model, before)[-1]
    scores[sorted(tokenizer.special_tokens.ids - {tokenizer.special_tokens.eos})] = float("-inf")
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
    assert package.generate(*package.load(runs["gpt2"]), PROMPT, max_new_tokens=12) == text["text"]


def test_a_word_is_filled_with_its_probability(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    text = "The cat[MASK] a ball."
    said = kinfolk("fill", runs["bert"], text, "--top", 3, "--json")
    assert said.code == 0
    filled = json.loads(said.out)
    model, tokenizer = package.load(runs["bert"])
    ids = tokenizer.encode(text)
    place = ids.index(tokenizer.special_tokens.mask)
    shares = package.logits(model, ids)[place].softmax(-1)
    shares[sorted(tokenizer.special_tokens.ids)] = 0.0
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


def test_tokens_spell_the_text(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    (text,) = generate(kinfolk, runs["gpt2"], "--logprobs")
    tokens: list[dict[str, float]] = text["tokens"]  # type: ignore[assignment]
    assert "".join(str(token["text"]) for token in tokens) == text["text"]
    assert [token["logprob"] for token in tokens] == text["logprobs"]
    said = kinfolk("generate", runs["gpt2"], PROMPT, "--max-tokens", 12, "--logprobs").out
    assert said.startswith(f"{PROMPT}{text['text']}\n{tokens[0]['logprob']:10.4f}  ")
    assert said.count("\n") >= 13


@pytest.mark.parametrize(
    "options",
    [
        ("--method", "greedy"),
        ("--method", "beam", "--beam-size", 3, "--length-penalty", 0.5),
        ("--method", "diverse-beam", "--groups", 2, "--diversity", 1),
        ("--method", "contrastive", "--top-k", 3, "--penalty", 0.4),
        ("--top-p", 0.9, "--min-p", 0.01, "--typical", 0.9),
        ("--repetition-penalty", 1.5, "--no-repeat-ngram", 2),
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_every_method_writes(
    options: tuple[object, ...], kinfolk: Kinfolk, runs: dict[str, Path]
) -> None:
    (text,) = generate(kinfolk, runs["gpt2"], *options)
    assert len(text["ids"]) == 12
    assert generate(kinfolk, runs["gpt2"], *options) == [text]
    said = kinfolk("generate", runs["gpt2"], PROMPT, "--max-tokens", 12, *options)
    assert said.out == f"{PROMPT}{text['text']}\n"
    if options[-2] == "--no-repeat-ngram":
        _, tokenizer = package.load(runs["gpt2"])
        pairs = list(pairwise([*tokenizer.encode(PROMPT, add_special_tokens=False), *text["ids"]]))
        assert len(set(pairs)) == len(pairs)


def test_beams_are_texts_by_rank(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    beams = generate(kinfolk, runs["gpt2"], "--method", "beam", "--num", 2)
    means = [sum(beam["logprobs"]) / 12 for beam in beams]
    assert means[0] >= means[1] and beams[0]["ids"] != beams[1]["ids"]
    (greedy,) = generate(kinfolk, runs["gpt2"], "--method", "greedy")
    (narrow,) = generate(kinfolk, runs["gpt2"], "--method", "beam", "--beam-size", 1)
    assert narrow["ids"] == greedy["ids"]
    assert narrow["logprobs"] == pytest.approx(greedy["logprobs"], abs=1e-5)


def test_only_what_is_allowed_is_said(kinfolk: Kinfolk, runs: dict[str, Path]) -> None:
    allowed = ("--allow", " a ball", "--allow", " a song", "--prefix", " again")
    texts = {str(generate(kinfolk, runs["gpt2"], *allowed, "--seed", s)[0]["text"]) for s in "1234"}
    assert texts == {" again a ball", " again a song"}
    (answer,) = generate(kinfolk, runs["t5"], "--allow", "yes", "--allow", "no")
    assert str(answer["text"]) in ("yes", "no") and answer["ended"]


def test_a_banned_word_is_not_said(kinfolk: Kinfolk, home: Home) -> None:
    asked = ("generate", home.corpus, PROMPT, "--max-tokens", 200, "--min-tokens", 200)
    assert " the " in kinfolk(*asked).out.removeprefix(PROMPT)
    said = kinfolk(*asked, "--ban", "the").out.removeprefix(PROMPT)
    assert "the" not in said and "The" in said


def test_a_text_stops_before_the_stop(kinfolk: Kinfolk, home: Home) -> None:
    asked = ("generate", home.corpus, PROMPT, "--max-tokens", 80)
    whole = kinfolk(*asked).out
    assert "." in whole
    stopped = PROMPT + whole.removeprefix(PROMPT).split(".")[0]
    assert kinfolk(*asked, "--stop", ".", "--stop", "xyz").out == f"{stopped}\n"
    (text,) = json.loads(kinfolk(*asked, "--stop", ".", "--json").out)
    assert PROMPT + text["text"] == stopped and text["ended"]


def many(kinfolk: Kinfolk, run: Path, file: Path, *options: object) -> list[dict[str, object]]:
    said = kinfolk("generate", run, "--prompts", file, "--max-tokens", 8, "--json", *options)
    assert (said.code, said.err) == (0, "")
    return [json.loads(line) for line in said.out.splitlines()]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of several lengths, the longest not last."""
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    texts = ["The cat", "A dog found the old man again", "The", "My sister", "The king saw", "A"]
    file.write_text("".join(json.dumps({"prompt": t, "id": 1}) + "\n" for t in texts))
    return file


@pytest.mark.parametrize("member", ["gpt2", "t5"])
def test_no_batch_changes_a_text(
    member: str, kinfolk: Kinfolk, runs: dict[str, Path], prompts: Path
) -> None:
    alone, few, all_ = (
        many(kinfolk, runs[member], prompts, "--num", 2, "--batch", b) for b in (1, 4, 16)
    )
    assert alone == few == all_
    assert [(row["index"], row["number"]) for row in alone] == list(product(range(6), range(2)))
    assert [row["prompt"] for row in alone][1:3] == ["The cat", "A dog found the old man again"]
    assert len({str(row["text"]) for row in alone}) == 12


def test_each_prompt_has_a_line(kinfolk: Kinfolk, runs: dict[str, Path], prompts: Path) -> None:
    rows = many(kinfolk, runs["gpt2"], prompts, "--logprobs")
    assert all(row.keys() == {"index", "prompt", "text", "ended", "tokens"} for row in rows)
    said = kinfolk("generate", runs["gpt2"], "--prompts", prompts, "--max-tokens", 8)
    assert said.out == "\n\n".join(f"{row['prompt']}{row['text']}" for row in rows) + "\n"
    # The first is what the prompt alone gives.
    alone = kinfolk("generate", runs["gpt2"], "The cat", "--max-tokens", 8).out
    assert alone == f"The cat{rows[0]['text']}\n"


def test_a_prompt_may_be_piped(
    kinfolk: Kinfolk, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = kinfolk("generate", runs["gpt2"], PROMPT, "--max-tokens", 4)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{PROMPT}\n".encode())))
    assert kinfolk("generate", runs["gpt2"], "-", "--max-tokens", 4) == given
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert "not UTF-8 at byte 0" in kinfolk("generate", runs["gpt2"], "-").err


def test_a_long_prompt_is_cut_where_that_is_asked_for(
    kinfolk: Kinfolk, runs: dict[str, Path]
) -> None:
    long = " again" * 60
    asked = ("generate", runs["gpt2"], long, "--max-tokens", 4)
    refused = kinfolk(*asked)
    assert refused.code == 2 and "--truncate-prompt" in refused.err
    assert kinfolk(*asked, "--json") == refused
    said = kinfolk(*asked, "--truncate", "left")
    assert kinfolk(*asked, "--truncate-prompt") == said
    assert said.code == 0 and said.out.startswith(long)
    _, tokenizer = package.load(runs["gpt2"])
    ids = tokenizer.encode(long, add_special_tokens=False)
    over = len(ids) + 4 - 32
    assert said.err == f"warning: the prompt is too long: dropped its first {over} tokens\n"
    rest = tokenizer.decode(ids[over:])
    shorter = kinfolk("generate", runs["gpt2"], rest, "--max-tokens", 4).out
    assert shorter.removeprefix(rest) == said.out.removeprefix(long)


@pytest.mark.parametrize("precision", ["bf16", "int8", "float32"])
@pytest.mark.parametrize("member", ["gpt2", "t5"])
def test_a_precision_is_a_precision(
    member: str, precision: str, kinfolk: Kinfolk, runs: dict[str, Path]
) -> None:
    options = ("--method", "greedy", "--device", "cpu")
    (exact,) = generate(kinfolk, runs[member], *options)
    (text,) = generate(kinfolk, runs[member], *options, "--precision", precision)
    assert (text["logprobs"] == exact["logprobs"]) == (precision == "float32")
    assert text["logprobs"][0] == pytest.approx(exact["logprobs"][0], abs=0.1)


def interrupted(*arguments: object, **options: object) -> Iterator[str]:
    yield from (" one", " two")
    raise KeyboardInterrupt


def test_ctrl_c_leaves_what_was_written(
    kinfolk: Kinfolk, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "stream_text", interrupted)
    said = kinfolk("generate", runs["gpt2"], PROMPT)
    assert (said.code, said.out, said.err) == (130, f"{PROMPT} one two\n", "")


class Closed(io.StringIO):
    """A pipe whose reader has read enough."""

    def flush(self) -> None:
        if len(self.getvalue()) > len(PROMPT):
            raise BrokenPipeError(32, "Broken pipe")


def test_a_reader_may_go(
    kinfolk: Kinfolk, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Closed()
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # typer puts another in its place
    said = kinfolk("generate", runs["gpt2"], PROMPT)
    assert said.code == 1 and said.err == ""
    assert pipe.getvalue().startswith(PROMPT)


MISTAKES = {
    "generate {gpt2}": "pass either PROMPT or --prompts",
    "generate {gpt2} The --prompts {tmp}/none": "pass either PROMPT or --prompts",
    "generate {gpt2} --prompts {tmp}/none": "{tmp}/none does not exist",
    "generate {gpt2} --prompts {bad}": "line 2 of {bad} has no 'prompt': choose one of text",
    "generate {gpt2} --prompts {bad} --field text": "line 1 of {bad} has no 'text'",
    "generate {gpt2} --prompts {long} --batch 0": "batch_size must be at least 1 (got 0)",
    "generate {gpt2} --prompts {long}": "prompt 2: the prompt has 180 tokens, and a context of 32",
    "generate {gpt2} The --truncate right": "--truncate right: it must be left",
    "generate {gpt2} The --method smaple": "unknown method 'smaple': did you mean sample?",
    "generate {gpt2} The --method sample --num-beams 3": "--num-beams requires --method beam or "
    "diverse-beam (got sample)",
    "generate {gpt2} The --num-beams 3 --top-p 0.5": "--top-p requires --method sample (got beam)",
    "generate {gpt2} The --method greedy --temperature 1": "--temperature requires --method sample",
    "generate {gpt2} The --method beam --groups 2": "--num-beam-groups requires --method diverse-",
    "generate {gpt2} The --method beam --diversity 2": "--diversity-penalty requires --method div",
    "generate {gpt2} The --method beam --beam-size 999": "num_beams=999 exceeds the model's 420",
    "generate {gpt2} The --method diverse-beam --groups 3": "num_beams=4 is not divisible by num_b",
    "generate {gpt2} The --method beam --num 5": "num_return_sequences=5 exceeds num_beams=4",
    "generate {gpt2} The --method greedy --num 2": "greedy decoding gives one output",
    "generate {gpt2} The --num 0": "--num-samples=0: it must be at least 1",
    "generate {gpt2} The --method contrastive --num 2": "contrastive search gives one output",
    "generate {corpus} The --method contrastive": "contrastive search is not supported by this",
    "generate {corpus} The --precision int8": "precision int8 does not apply to ngram models",
    "generate {gpt2} The --precision int4": "unknown precision 'int4': did you mean int8",
    "generate {gpt2} The --min-p 2": "--min-p=2: it must be above 0 and at most 1",
    "generate {gpt2} The --repetition-penalty 0": "--repetition-penalty=0: it must be above 0",
    "generate {gpt2} The --no-repeat-ngram 0": "--no-repeat-ngram-size=0: it must be at least 1",
    "generate {gpt2} The --min-tokens 9 --max-tokens 8": "min_new_tokens=9 exceeds max_new_tok",
    "generate {gpt2} The --max-tokens x": "--max-new-tokens=x: it must be a whole number",
    "generate {gpt2} The --ban=": "bad_words has an empty string",
    "generate {gpt2} The --stop=": "stop_strings has an empty string",
    "generate {gpt2} The --allow=": "allowed_texts has an empty string",
    "generate {gpt2} The --allow yesterday --max-tokens 1": "need 7 tokens, and max_new_tokens",
    "generate {gpt2} The --beams 2": "unknown option --beams: did you mean --num-beams?",
    "fill {bert} [MASK] --method sample": "do not apply to encoder models",
    "fill {t5} [MASK] --temperature 1": "--temperature requires --method sample (got greedy)",
    "fill {t5} [MASK] --max-tokens 0": "--max-new-tokens=0: it must be at least 1",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_wrong_wish_is_one_sentence(
    words: str, kinfolk: Kinfolk, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    bad, long = tmp_path / "bad.jsonl", tmp_path / "long.jsonl"
    bad.write_text('{"prompt": "The"}\n{"text": "The"}\n')
    long.write_text('{"prompt": "The"}\n' + json.dumps({"prompt": " again" * 60}) + "\n")
    known = {**runs, "corpus": home.corpus, "tmp": tmp_path, "bad": bad, "long": long}
    said = kinfolk(*(word.format(**known) for word in words.split()))
    assert (said.code, said.out) == (2, "")
    sentence, *rest = said.err.splitlines()
    assert sentence.startswith("error: ") and MISTAKES[words].format(**known) in sentence
    assert rest in ([], [f"Try: kinfolk {words.split()[0]} --help"])


def test_spans_are_drawn_too(kinfolk: Kinfolk, home: Home) -> None:
    asked = ("fill", home.run("glm"), "The [MASK] saw a ball.", "--max-tokens", 12, "--json")
    drawn = [kinfolk(*asked, "--method", "sample", "--seed", s) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0].code == 0
    (hole,) = json.loads(drawn[0].out)["holes"]
    assert hole["text"]
    cold = kinfolk(*asked, "--method", "sample", "--temperature", 0)
    assert cold == kinfolk(*asked) and cold.code == 0
