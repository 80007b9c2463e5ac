"""Tiny models with weights large enough to have opinions, and a tokenizer for them."""

import pytest
import torch
from torch import nn

from kinfolk.families.bert import Bert, BertConfig
from kinfolk.families.gpt2 import GPT2, GPT2Config
from kinfolk.families.t5 import T5, T5Config
from kinfolk.text import Tokenizer, train_tokenizer

WORDS = "the cat sat on the mat and the dog played with a red ball in the old garden . "


def stirred(model: nn.Module) -> nn.Module:
    """Draw every matrix anew, so that the best token changes from place to place."""
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn(weight.shape, generator=random) * 0.3)
    return model


@pytest.fixture
def gpt2() -> GPT2:
    model = stirred(
        GPT2Config(vocab_size=50, hidden_size=32, num_layers=2, num_heads=2, max_length=24).build()
    )
    assert isinstance(model, GPT2)
    return model


@pytest.fixture
def t5() -> T5:
    model = stirred(
        T5Config(vocab_size=50, hidden_size=32, num_layers=2, num_heads=2, max_distance=32).build()
    )
    assert isinstance(model, T5)
    return model


@pytest.fixture
def bert() -> Bert:
    model = stirred(
        BertConfig(vocab_size=50, hidden_size=32, num_layers=2, num_heads=2, max_length=24).build()
    )
    assert isinstance(model, Bert)
    return model


@pytest.fixture(scope="session", params=["bpe", "wordpiece", "unigram", "char"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    sizes = {"bpe": 390, "wordpiece": 174, "unigram": 129, "char": 200}
    return train_tokenizer([WORDS] * 20, kind=request.param, vocab_size=sizes[request.param])
