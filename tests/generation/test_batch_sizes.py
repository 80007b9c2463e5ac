"""The batch size changes no text, but for rounding where two tokens are as likely."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.generate import GeneratedText, generate_batches
from kinfolk.generation.prompts import EncodedPrompt
from kinfolk.text import Tokenizer, train_tokenizer
from support.references import ENDS, NAMES, VOCAB, scribe

COUNT = 40  # prompts
SAMPLING = GenerationConfig(max_new_tokens=9, temperature=1.2, num_return_sequences=2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a bird sings"], kind="byte", vocab_size=0)


def prompts(name: str) -> list[EncodedPrompt]:
    """Draw prompts of many lengths."""
    rng = random.Random(0)
    texts = [[rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 12))] for _ in range(COUNT)]
    ends = set(ENDS)
    if name in ("t5", "transformer"):
        return [EncodedPrompt([0], [*text, 1], ends, set()) for text in texts]
    if name == "glm":  # the text, the start of a blank at its end
        return [EncodedPrompt([*t, 6, 2], None, ends, set(), [(len(t), 1)]) for t in texts]
    return [EncodedPrompt(text, None, ends, set()) for text in texts]


def texts_of(
    model: Any, tokenizer: Tokenizer, given: Sequence[EncodedPrompt], size: int
) -> list[GeneratedText]:
    found = generate_batches(model, tokenizer, given, SAMPLING, batch_size=size)
    return [text for texts in found for text in texts]


@pytest.mark.parametrize("name", NAMES)
def test_without_rounding_every_batch_size_gives_every_text(
    name: str, tokenizer: Tokenizer
) -> None:
    model, given = scribe(name).model, prompts(name)
    few, many = (texts_of(model, tokenizer, given, size) for size in (3, 16))
    assert [text.ids for text in few] == [text.ids for text in many]
    assert len({tuple(text.ids) for text in few}) > COUNT
    for one, other in zip(few, many, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "t5", "transformer_xl", "xlnet"])
def test_in_float32_batch_sizes_differ_by_rounding_alone(name: str, tokenizer: Tokenizer) -> None:
    model, given = scribe(name, scale=0.2).model.float(), prompts(name)
    few, many = (texts_of(model, tokenizer, given, size) for size in (3, 16))
    assert model.lm_logits(torch.zeros(1, 16)).logits().dtype == torch.float32
    equal = [(a, b) for a, b in zip(few, many, strict=True) if a.ids == b.ids]
    assert len(equal) >= len(few) - 1  # about one text of 2,000
    for one, other in equal:
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
