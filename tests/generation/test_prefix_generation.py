"""Generation after a prefix: the same text by every method, in any batch and any cache."""

from typing import Any

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.families.glm import GLMConfig
from kinfolk.families.gpt import GPTConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.gpt3 import GPT3Config
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.decode import Decoder
from kinfolk.nn.prefixes import KeyValuePrefix, prefix_shape
from support.decoding import asked, write

SIZES: dict[str, Any] = {"vocab_size": 60, "hidden_size": 32, "num_layers": 2, "num_heads": 2}
CONFIGS = {
    "gpt": GPTConfig(**SIZES, max_length=64),
    "gpt2": GPT2Config(**SIZES, max_length=64),
    "gpt3": GPT3Config(**SIZES, max_length=64, attention_window=9),
}
PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [11, 12], [20, 21, 22], [3, 4]]
METHODS = {
    "greedy": GREEDY,
    "sample": GenerationConfig(top_k=20, seed=4),
    "several": GenerationConfig(top_p=0.9, seed=4, num_return_sequences=3),
    "beam": GenerationConfig(num_beams=3),
    "contrastive": GenerationConfig(penalty_alpha=0.6, top_k=3),
}


def network(config: Any) -> Any:
    torch.manual_seed(0)
    model = config.build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.2)
    return model


def prefix_of(model: Any, length: int = 5, seed: int = 1) -> KeyValuePrefix:
    layers, heads, head_dim = prefix_shape(model.config)
    draws = torch.Generator().manual_seed(seed)
    shape = layers, heads, length, head_dim
    return KeyValuePrefix(*(2 * torch.randn(shape, generator=draws) for _ in range(2)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_of_a_batch_get_the_texts_they_get_alone(name: str, method: str) -> None:
    model = network(CONFIGS[name])
    wants = {"max_new_tokens": 12, "method": METHODS[method], "prefix": prefix_of(model)}
    together = write(model, PROMPTS, **wants)
    alone = [
        text
        for i, prompt in enumerate(PROMPTS)
        for text in write(model, [prompt], first=i, **wants)
    ]
    assert [t.ids for t in together] == [t.ids for t in alone]
    plain = write(model, PROMPTS, **(wants | {"prefix": None}))
    assert [t.ids for t in together] != [t.ids for t in plain]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prefix_without_slots_leaves_logits_as_they_are(name: str) -> None:
    model = network(CONFIGS[name])
    with torch.inference_mode():
        plain = Decoder(model, asked(PROMPTS)).next_logits()
        empty = Decoder(model, asked(PROMPTS, prefix=prefix_of(model, 0))).next_logits()
    assert torch.allclose(empty, plain, atol=1e-5)


@pytest.mark.parametrize("method", ["greedy", "sample", "several"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_static_cache_writes_what_a_growing_one_writes(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(CONFIGS[name])
    wants = {"max_new_tokens": 30, "prefix": prefix_of(model)}
    growing = write(model, PROMPTS, method=METHODS[method], **wants)
    # The step that is compiled on a CPU is the one that is captured on CUDA.
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    static = write(model, PROMPTS, method=METHODS[method], compile=True, **wants)
    # By the step that there is, after another prefix.
    other = {"max_new_tokens": 30, "prefix": prefix_of(model, seed=2)}
    write(model, PROMPTS, method=METHODS[method], compile=True, **other)
    again = write(model, PROMPTS, method=METHODS[method], compile=True, **wants)
    assert [t.ids for t in static] == [t.ids for t in growing] == [t.ids for t in again]


def test_a_prefix_takes_nothing_from_the_context() -> None:
    model = network(CONFIGS["gpt2"])
    (text,) = write(model, [[3]], max_new_tokens=63, prefix=prefix_of(model, 20))
    assert len(text.ids) == 63


def test_models_that_take_no_prefix_are_refused() -> None:
    prefix = prefix_of(network(CONFIGS["gpt2"]))
    glm = network(GLMConfig(**SIZES, max_length=64))
    with pytest.raises(UserError, match="glm models take no prefix"):
        write(glm, PROMPTS, prefix=prefix, blanks=[[(0, 1)]] * 4)
    wider = network(GPT2Config(**(SIZES | {"hidden_size": 64}), max_length=64))
    with pytest.raises(UserError, match="other layers or heads than the model"):
        write(wider, PROMPTS, prefix=prefix)
