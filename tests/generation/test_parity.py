"""The same weights write the same text in transformers."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from kinfolk.generation import GREEDY, generate
from kinfolk.hub import load_model

END = 1
SOURCES = [[9, 8, 7, END], [30, END], [5, 6, 7, 8, 9, 10, 11, END], [40, 41, END]]


def stir(model: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)


@pytest.mark.parity
@pytest.mark.parametrize("prompt", [[3], [3, 4, 5, 6], [20, 21]])
def test_gpt2_writes_what_transformers_writes(tmp_path: Path, prompt: list[int]) -> None:
    config = GPT2Config(
        vocab_size=50,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=40,
        bos_token_id=END,
        eos_token_id=END,
    )
    theirs = GPT2LMHeadModel(config).eval()
    stir(theirs)
    theirs.save_pretrained(tmp_path)
    (ours,) = generate(
        load_model(tmp_path),  # type: ignore[arg-type]
        [prompt],
        tokens=30,
        ends={END},
        sampling=GREEDY,
    )
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": 30, "pad_token_id": 0}
    out = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
    expected = out[0, len(prompt) :].tolist()
    assert ours.ids == [id for id in expected if id != END]
    assert ours.ended == (END in expected)
    assert len(ours.ids) > 3


@pytest.mark.parity
@pytest.mark.parametrize("version", ["relu", "gated-gelu"])
def test_t5_writes_what_transformers_writes(tmp_path: Path, version: str) -> None:
    config = T5Config(
        vocab_size=50,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        feed_forward_proj=version,
        decoder_start_token_id=0,
    )
    theirs = T5ForConditionalGeneration(config).eval()
    stir(theirs)
    theirs.save_pretrained(tmp_path)
    together = generate(
        load_model(tmp_path),  # type: ignore[arg-type]
        [[0]] * len(SOURCES),
        tokens=20,
        ends={END},
        sampling=GREEDY,
        sources=SOURCES,
    )
    for source, ours in zip(SOURCES, together, strict=True):
        ids = torch.tensor([source])
        out = theirs.generate(ids, do_sample=False, max_new_tokens=20)
        assert ours.ids == [id for id in out[0, 1:].tolist() if id != END]
    assert len({tuple(text.ids) for text in together}) > 1
