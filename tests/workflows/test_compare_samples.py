"""Samples of pretrained models: prompts, families, the reference, copies."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.families import families, family
from kinfolk.generation.generate import generate_batches
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.comparison import samples
from kinfolk.workflows.comparison.compare import compare
from kinfolk.workflows.comparison.samples import SampleEvaluator, sample_quality
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import recipe
from support.runs import LENGTH, Home, text

CONTINUE = [
    name
    for name in families()
    if family(name).model.decoding in ("causal", "infilling", "two-stream")
]
OTHERS = [name for name in families() if name not in CONTINUE]
FEW = {"count": 6, "prompt_tokens": 4, "new_tokens": 12}


@pytest.fixture(scope="module")
def evaluator(home: Home) -> SampleEvaluator:
    return SampleEvaluator.open(home.corpus)


def network(name: str, tokenizer: Tokenizer) -> tuple[LanguageModel, Tokenizer]:
    return InitialWeights(name=f"{name}/nano").config(tokenizer).build().eval(), tokenizer


@pytest.mark.parametrize("name", [name for name in CONTINUE if name != "ngram"])
def test_every_family_that_continues_text_is_sampled(name: str, evaluator: SampleEvaluator) -> None:
    result = sample_quality(network(name, evaluator.tokenizer), evaluator, **FEW)
    assert len(result.samples.texts) == 6
    # Random weights are nothing like the text.
    assert result.samples.ngram_perplexity > 5 * result.reference.ngram_perplexity
    assert result.samples.copies.mean() < result.reference.copies.mean()


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_families_are_refused_with_the_reason(
    name: str, evaluator: SampleEvaluator
) -> None:
    with pytest.raises(UserError, match=r"cannot continue a text|never to continue its input"):
        sample_quality(network(name, evaluator.tokenizer), evaluator, **FEW)


def test_a_model_of_the_text_samples_likelier_text_than_random_weights(
    home: Home, evaluator: SampleEvaluator, tmp_path: Path
) -> None:
    run = pretrain(recipe("ngram/nano", home.corpus), tmp_path / "ngram")
    counted = sample_quality(run, evaluator, **FEW).samples
    untrained = sample_quality(network("gpt2", evaluator.tokenizer), evaluator, **FEW).samples
    assert counted.ngram_perplexity < untrained.ngram_perplexity / 5
    assert counted.copies.mean() > untrained.copies.mean()


def test_samples_are_a_function_of_the_seed(
    runs: dict[str, Path], evaluator: SampleEvaluator
) -> None:
    first, again, other = (
        sample_quality(runs["gpt2"], evaluator, seed=n, **FEW) for n in (0, 0, 1)
    )
    assert first.to_json("gpt2") == again.to_json("gpt2")
    assert first.samples.texts != other.samples.texts
    assert first.reference.texts == other.reference.texts


def test_the_reference_is_the_real_continuation(runs: dict[str, Path], home: Home) -> None:
    result = sample_quality(runs["gpt2"], home.corpus, **FEW)
    documents = home.text.read_text(encoding="utf-8").split("\n\n")
    for prompt, rest in zip(result.reference.prompts, result.reference.texts, strict=True):
        assert any(prompt + rest in document for document in documents)


def test_numbers_for_the_page_are_finite_and_texts_are_text(
    runs: dict[str, Path], evaluator: SampleEvaluator
) -> None:
    result = sample_quality(runs["gpt2"], evaluator, **FEW)
    rows = json.loads(json.dumps(result.to_json("gpt2/nano")))
    assert [row["reference"] for row in rows] == [False, True]
    for row in rows:
        for name in ("distinct_1", "distinct_2", "repetition", "loops", "self_bleu"):
            assert 0 <= row[name] <= 1
        assert math.isfinite(row["ngram_perplexity"])
        assert len(row["texts"]) == 5


def test_perplexity_is_of_the_continuation_after_its_prompt(evaluator: SampleEvaluator) -> None:
    """Numerically: nats of the whole less those of the prompt."""
    prompt, rest = "The cat saw", " the garden."
    measured = evaluator.measure([prompt], [rest], 4)
    whole, before = evaluator.nats([prompt + rest])[0], evaluator.nats([prompt])[0]
    assert measured.nll[0] == pytest.approx(whole - before)
    likely = measured.ngram_perplexity
    assert evaluator.measure([prompt], [" xq zqj"], 4).ngram_perplexity > 10 * likely


def test_a_copy_of_training_text_is_found(evaluator: SampleEvaluator) -> None:
    training = evaluator.corpus.document(0)[:20]
    copied = evaluator.tokenizer.decode(training)
    measured = evaluator.measure(["", ""], [copied, "zqx jjk"], 20)
    assert measured.copies[0] == len(training) > measured.copies[1]


def test_a_model_with_another_tokenizer_gets_the_same_prompts(evaluator: SampleEvaluator) -> None:
    other = train_tokenizer([text()], kind="unigram", vocab_size=300, fewer=True)
    result = sample_quality(network("gpt2", other), evaluator, **FEW)
    shared = sample_quality(network("gpt2", evaluator.tokenizer), evaluator, **FEW)
    assert result.samples.prompts == shared.samples.prompts


def test_a_model_with_another_tokenizer_writes_as_much_text(
    evaluator: SampleEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are shorter than the tokens of the corpus, so that the same text has more of them."""
    asked: dict[str, int] = {}

    def generate(network: Any, tokenizer: Any, prompts: Any, config: Any, **others: Any) -> Any:
        asked[tokenizer.fingerprint] = config.max_new_tokens
        return generate_batches(network, tokenizer, prompts, config, **others)

    monkeypatch.setattr(samples, "generate_batches", generate)
    other = train_tokenizer(["a"], kind="bpe", vocab_size=362, fewer=True)
    result = sample_quality(network("gpt2", other), evaluator, **FEW)
    real = [len(text.encode()) for text in result.reference.texts]
    assert asked[other.fingerprint] == round(sum(real) / len(real)) > FEW["new_tokens"]
    sample_quality(network("gpt2", evaluator.tokenizer), evaluator, **FEW)
    assert asked[evaluator.tokenizer.fingerprint] == FEW["new_tokens"]


@pytest.mark.slow
def test_all_entrants_of_a_comparison_continue_the_same_text(tmp_path: Path, home: Home) -> None:
    """Also one with bytes for tokens, whose rows hold less text, and one that counts."""
    entrants = ["gpt2/nano", "bytes=gpt2/nano tokenizer=bpe:362", "ngram/2"]
    small: dict[str, Any] = {"seeds": 1, "length": 64, "batch_size": 4, "device": "cpu", "jobs": 0}
    race = compare(entrants, home.text, tmp_path / "race", tokens=13_000, samples=4, **small).race
    prompts = {row["entrant"]: row["prompts"] for row in race["samples"]}
    assert len(prompts) == 4 and len({tuple(found) for found in prompts.values()}) == 1
    (sizes,) = {tuple(map(len, [row["texts"] for row in race["samples"]]))}
    assert sizes == (4, 4, 4, 4)


def test_windows_are_short_where_documents_are(tmp_path: Path, home: Home) -> None:
    source = tmp_path / "short.txt"
    source.write_text("\n\n".join(text(60, seed=3).split(". ")), encoding="utf-8")
    prepare([source], Tokenizer.load(home.tokenizer), tmp_path / "corpus", holdout=0.3)
    evaluator = SampleEvaluator.open(tmp_path / "corpus")
    windows, size = evaluator.windows(10, 16, 64)
    lengths = {len(window) for window in windows}
    assert len(lengths) == 1
    assert max(np.diff(evaluator.held_out.starts)) >= lengths.pop()
    assert 1 <= size < len(windows[0])


@pytest.mark.parametrize("name", ["gpt2", "transformer_xl"])  # the second has no bound
def test_texts_are_as_long_as_the_rows_of_training(
    name: str,
    home: Home,
    evaluator: SampleEvaluator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt and its continuation fill a row, but for what special tokens may need."""
    lengths: list[tuple[int, int]] = []

    def generate(network: Any, tokenizer: Any, prompts: Any, *arguments: Any, **others: Any) -> Any:
        found = [*generate_batches(network, tokenizer, prompts, *arguments, **others)]
        pairs = zip(prompts, found, strict=True)
        lengths.extend((prompt.length, len(one.ids)) for prompt, (one,) in pairs)
        return found

    monkeypatch.setattr(samples, "generate_batches", generate)
    result = sample_quality(home.run(name), evaluator, count=4)
    room = LENGTH - samples.RESERVED_TOKENS
    prompt = samples.PROMPT_TOKENS * room // (samples.PROMPT_TOKENS + samples.NEW_TOKENS)
    assert lengths == [(prompt, room - prompt)] * 4
    assert result.samples.tokens == room - prompt
    whole = evaluator.encode(
        [a + b for a, b in zip(result.reference.prompts, result.reference.texts, strict=True)]
    )
    assert [len(ids) for ids in whole] == [room] * 4


def test_a_prompt_does_not_end_within_a_character(tmp_path: Path) -> None:
    source = tmp_path / "chinese.txt"
    source.write_text("\n\n".join("天地玄黄宇宙洪荒" * n for n in range(3, 40)), encoding="utf-8")
    tokenizer = train_tokenizer(["abc"], kind="bpe", vocab_size=370, fewer=True)  # bytes
    prepare([source], tokenizer, tmp_path / "corpus", holdout=0.3)
    evaluator = SampleEvaluator.open(tmp_path / "corpus")
    result = sample_quality(network("gpt2", tokenizer), evaluator, count=3)
    for prompt, rest in zip(result.reference.prompts, result.reference.texts, strict=True):
        assert "\ufffd" not in prompt
        assert not rest.startswith(prompt)


def test_a_corpus_without_held_out_text_is_refused(tmp_path: Path, home: Home) -> None:
    prepare([home.text], Tokenizer.load(home.tokenizer), tmp_path / "corpus")
    with pytest.raises(UserError, match="no held-out documents"):
        SampleEvaluator.open(tmp_path / "corpus")
