"""Transformer-XL after prompts of thousands of tokens: the same text, in bounded memory."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import SegmentMemory
from kinfolk.families import transformer_xl
from kinfolk.families.transformer_xl import TransformerXL, TransformerXLConfig
from kinfolk.generation.decode import Decoder
from support.decoding import asked
from support.peers import inputs, shake
from support.runs import Home

SMALL = TransformerXLConfig(
    vocab_size=70, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, mem_len=128,
    cutoffs=(), div_val=1, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
SEGMENT = 7  # tokens


class LargestTensor(TorchDispatchMode):
    """Keep the bytes of the largest tensor that any operation returns."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, Tensor):
                self.bytes = max(self.bytes, part.untyped_storage().nbytes())
        return result


@pytest.fixture
def model() -> TransformerXL:
    torch.manual_seed(0)
    built = shake(SMALL.build(), by=0.2).double().eval()
    assert isinstance(built, TransformerXL)
    return built


def prompt(tokens: int) -> list[int]:
    return [1 + place * place % 67 for place in range(tokens)]


@torch.no_grad()
def test_no_tensor_grows_with_the_square_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(SMALL, num_layers=1).build().eval()
    monkeypatch.setattr(transformer_xl, "MAX_PREFILL_SCORES", 2**20)
    decoder = Decoder(model, asked([prompt(3000)], max_new_tokens=4))
    with LargestTensor() as largest:
        decoder.append(decoder.next_logits().argmax(-1))
        assert decoder.next_logits().isfinite().all()
    assert 2**20 < largest.bytes <= 3 * 4 * 2**20  # all scores of a layer are 72 MB


@torch.no_grad()
@pytest.mark.parametrize("most", [2**25, 2000])
def test_a_prompt_gives_the_logits_of_its_segments_and_of_its_tokens(
    most: int, model: TransformerXL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer_xl, "MAX_PREFILL_SCORES", most)
    ids = prompt(100)
    whole = Decoder(model, asked([ids])).next_logits()[0]

    decoder = Decoder(model, asked([ids[:1]], max_new_tokens=100))
    for id in ids[1:]:
        decoder.next_logits()
        decoder.append(torch.tensor([id]))
    torch.testing.assert_close(decoder.next_logits()[0], whole, rtol=0, atol=1e-5)

    memory: SegmentMemory | None = model.init_memory(1)
    for start in range(0, len(ids), SEGMENT):
        part = torch.tensor([ids[start : start + SEGMENT]])
        mask = AttentionMask.causal(torch.zeros_like(part).int(), start=start)
        output = model(inputs(part, mask, memory=memory))
        memory = output.memory
    last = model.lm_logits(output.hidden[:, -1]).logits()[0].float()
    torch.testing.assert_close(last, whole, rtol=0, atol=1e-5)


# Runs the command and prints the most memory that it had, in KiB. The figure of the system for a
# process that has ended is no smaller than the process that started it.
PEAK = """
import atexit, re, sys
from pathlib import Path
from kinfolk.cli import main
status = lambda: re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
atexit.register(lambda: print(status(), file=sys.stderr))
main()
"""


@pytest.mark.slow
def test_the_command_reads_four_prompts_of_3000_words_in_little_memory(tmp_path: Path) -> None:
    home = Home.make(tmp_path / "home")
    run = home.run("transformer_xl")
    words = home.text.read_text(encoding="utf-8").split() * 2
    file = tmp_path / "prompts.jsonl"
    texts = [" ".join(words[start : start + 3000]) for start in range(4)]
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    command = [sys.executable, "-c", PEAK, "generate", str(run), "--prompts", str(file)]
    command += ["--max-tokens", "4", "--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [json.loads(line)["prompt"] for line in done.stdout.splitlines()] == texts
    peak = int(done.stderr.split()[-1])  # KiB
    assert peak < 2**20  # several times as much where all scores are held at once
