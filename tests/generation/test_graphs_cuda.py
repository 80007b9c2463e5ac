"""A captured turn on an accelerator writes what the plain loop writes, and kernels of our own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from kinfolk.families.glm import GLMConfig
from kinfolk.families.gpt import GPTConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.gpt3 import GPT3Config
from kinfolk.families.t5 import T5Config
from kinfolk.families.transformer import TransformerConfig
from kinfolk.generation import cuda_graph
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.nn.prefixes import KeyValuePrefix, prefix_shape
from support.decoding import write

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SIZES = {"vocab_size": 90, "hidden_size": 64, "num_layers": 2, "num_heads": 2}
CONFIGS = {
    "gpt": GPTConfig(**SIZES, max_length=128),
    "gpt2": GPT2Config(**SIZES, max_length=128),
    "gpt3": GPT3Config(**SIZES, max_length=128, attention_window=9),
    "glm": GLMConfig(**SIZES, max_length=128),
    "t5": T5Config(**SIZES, max_distance=32),
    "transformer": TransformerConfig(**SIZES),
}
PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [11, 12], [20, 21, 22], [3, 4]]


@pytest.mark.parametrize("method", [GREEDY, GenerationConfig(top_k=20)], ids=["greedy", "sample"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_captured_turn_writes_what_the_loop_writes(
    name: str, method: GenerationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = CONFIGS[name].build().to("cuda")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.2)
    reads = model.decoding == "encoder-decoder"
    wants = {
        "max_new_tokens": 60,
        "eos_ids": {17, 30},
        "seed": 5,
        "encoder_ids": PROMPTS if reads else None,
        "blanks": [[(0, 1)]] * 4 if name == "glm" else None,
        "method": method,
    }
    prompts = [[0]] * 4 if reads else PROMPTS
    captured = write(model, prompts, **wants)
    again = write(model, prompts, **wants)  # by the graph that there is
    monkeypatch.setattr(cuda_graph, "MIN_NEW_TOKENS", 10**6)
    plain = write(model, prompts, **wants)
    assert [t.ids for t in captured] == [t.ids for t in again] == [t.ids for t in plain]
    assert [t.finished for t in captured] == [t.finished for t in plain]
    for one, other in zip(captured, plain, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_memory_is_pinned_by_another_thread_while_a_turn_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, pinned = cuda_graph.GraphedDecodeStep.step, list[bool]()

    def pin() -> bool:
        return torch.empty(2**27, dtype=torch.uint8, pin_memory=True).is_pinned()

    def step_while_pinning(self: cuda_graph.GraphedDecodeStep) -> None:
        if torch.cuda.is_current_stream_capturing():
            with ThreadPoolExecutor(1) as loader:
                pinned.append(loader.submit(pin).result())
        step(self)

    monkeypatch.setattr(cuda_graph.GraphedDecodeStep, "step", step_while_pinning)
    model = CONFIGS["gpt2"].build().to("cuda")
    texts = write(model, PROMPTS, max_new_tokens=40)
    assert pinned == [True] and len(texts) == len(PROMPTS)


@pytest.mark.parametrize("name", ["gpt", "gpt2", "gpt3"])
def test_a_captured_turn_after_a_prefix_writes_what_the_loop_writes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = CONFIGS[name].build().to("cuda")
    layers, heads, head_dim = prefix_shape(model.config)
    first, second = (KeyValuePrefix(*torch.randn(2, layers, heads, 5, head_dim)) for _ in range(2))
    captured = write(model, PROMPTS, max_new_tokens=60, seed=5, prefix=first)
    other = write(model, PROMPTS, max_new_tokens=60, seed=5, prefix=second)  # by the same graph
    again = write(model, PROMPTS, max_new_tokens=60, seed=5, prefix=first)
    monkeypatch.setattr(cuda_graph, "MIN_NEW_TOKENS", 10**6)
    plain = write(model, PROMPTS, max_new_tokens=60, seed=5, prefix=first)
    assert [t.ids for t in captured] == [t.ids for t in again] == [t.ids for t in plain]
    assert [t.ids for t in captured] != [t.ids for t in other]


@pytest.mark.parametrize("rows", [1, 5])
def test_half_precision_gives_one_text_a_seed(rows: int) -> None:
    torch.manual_seed(0)
    model = CONFIGS["gpt2"].build().to("cuda", torch.bfloat16)
    texts = [write(model, PROMPTS[:1] * rows, max_new_tokens=100, seed=3) for _ in range(4)]
    assert all(text == texts[0] for text in texts[1:])


@pytest.mark.parametrize("shape", [(2304, 768), (768, 3072), (1000, 130), (3, 8)])
def test_one_row_times_a_matrix(shape: tuple[int, int]) -> None:
    from kinfolk.nn import triton_kernels

    x, weight = (torch.randn(*s, device="cuda").bfloat16() for s in ((1, 1, shape[1]), shape))
    bias = torch.randn(shape[0], device="cuda").bfloat16()
    with torch.no_grad():
        assert triton_kernels.can_matvec(x, weight)
        found = triton_kernels.matvec(x, weight, bias).double()
    expected = x.double() @ weight.double().T + bias.double()
    assert (found - expected).norm() < 0.005 * expected.norm()


@pytest.mark.parametrize("written", [False, True], ids=["mask", "bias"])
@pytest.mark.parametrize("shape", [(1, 12, 576, 64), (3, 5, 77, 40)])
def test_one_query_a_row_attends(shape: tuple[int, int, int, int], written: bool) -> None:
    from kinfolk.nn import triton_kernels

    batch, heads, keys, width = shape
    query = torch.randn(batch, heads, 1, width, device="cuda")
    key, value = torch.randn(2, *shape, device="cuda")
    mask = torch.rand(batch, 1, 1, keys, device="cuda") < 0.6
    mask[..., 40:72] = False  # a block that nobody sees
    if written:
        mask = torch.where(mask, torch.randn(1, heads, 1, keys, device="cuda"), float("-inf"))
    found = triton_kernels.decode_attention(query, key, value, mask, 0.3)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
