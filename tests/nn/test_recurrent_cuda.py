"""LSTM layers on CUDA: cuDNN over whole and packed rows, with carried states."""

from dataclasses import replace

import pytest
import torch

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, Output
from kinfolk.families.ulmfit import FAMILY, ULMFiT
from kinfolk.nn.recurrent import MAX_ERROR, bfloat16_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [4] * 8, [-1, 7, 7, 7, 7, 8, 8, -1]])
WHOLE = torch.arange(3)[:, None].expand(3, 8)


def network(**rates: float) -> ULMFiT:
    torch.manual_seed(0)
    return replace(FAMILY.sizes["nano"], vocab_size=50, **rates).build()


def run(model: ULMFiT, ids: torch.Tensor, device: str) -> list[Output]:
    """Read a row and then its continuation."""
    tokens = torch.randint(50, ids.shape, generator=torch.Generator().manual_seed(1))
    inputs = Inputs(
        input_ids=tokens, attention_mask=AttentionMask.causal(ids), position_ids=tokens
    ).to(device)
    first = model(replace(inputs, memory=model.init_memory(len(ids))))
    last = ids[:, -1:].expand_as(ids).to(device)
    mask = AttentionMask.causal(last)
    return [first, model(replace(inputs, attention_mask=mask, memory=first.memory))]


@pytest.mark.parametrize("ids", [PACKED, WHOLE], ids=["packed", "whole"])
def test_cuda_equals_the_cpu(ids: torch.Tensor) -> None:
    expected = run(network().eval(), ids, "cpu")
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = run(network().eval().cuda(), ids, "cuda")
    for one, other in zip(found, expected, strict=True):
        assert one.memory is not None and other.memory is not None
        torch.testing.assert_close(one.hidden.cpu(), other.hidden, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            one.memory.hidden.cpu(), other.memory.hidden, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("ids", [PACKED, WHOLE], ids=["packed", "whole"])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_finite_under_autocast(ids: torch.Tensor, training: bool) -> None:
    model = network(weight_dropout=0.5, input_dropout=0.2, embedding_dropout=0.1).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        outputs = run(model.train(training), ids, "cuda")
    assert all(output.hidden.dtype == torch.float32 for output in outputs)
    sum(output.hidden.square().sum() for output in outputs).backward()  # type: ignore[union-attr]
    grads = [p.grad for layer in model.lstm_layers for p in layer.parameters()]
    assert all(grad is not None and grad.isfinite().all() and grad.any() for grad in grads)


def test_a_bfloat16_lstm_of_cudnn_has_the_gradients_of_float32() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    if not torch.cudnn_is_acceptable(torch.ones(1, device=device, dtype=torch.bfloat16)):
        pytest.skip("this torch has no bfloat16 LSTM of cuDNN")
    assert all(bfloat16_error(device, size) < MAX_ERROR for size in (64, 256))
