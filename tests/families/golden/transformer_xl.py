"""What transformers 4.35.2, the last to know Transformer-XL, says: written to a file beside this.

    python -m venv /tmp/old && /tmp/old/bin/pip install transformers==4.35.2 'numpy<2' torch==2.13.0
    /tmp/old/bin/python tests/families/golden/transformer_xl.py

Three segments of small networks with random weights, each after the memory of those before. The
memory begins empty, as in the authors' code; transformers by itself begins with one of zeros, which
it looks at.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import TransfoXLConfig, TransfoXLLMHeadModel  # type: ignore[attr-defined]

SMALL = {
    "vocab_size": 50,
    "d_model": 16,
    "d_embed": 16,
    "n_head": 2,
    "d_head": 6,
    "d_inner": 24,
    "n_layer": 2,
    "mem_len": 6,
    "clamp_len": -1,
    "same_length": False,
    "cutoffs": [],
    "div_val": 1,
    "dropout": 0.0,
    "dropatt": 0.0,
}
CASES: dict[str, dict[str, Any]] = {
    "one": {},
    "clusters": {"cutoffs": [12, 28]},
    "narrowing": {"cutoffs": [12, 28], "div_val": 2},
    "clamped": {"cutoffs": [20], "div_val": 4, "clamp_len": 3, "same_length": True},
}
DIFFERENTIATED = ("clusters", "narrowing")
ROWS, SEGMENTS, LENGTH = 2, 3, 5


def case(name: str) -> dict[str, Tensor]:
    """Run one network over the segments, and differentiate what it says of the last."""
    torch.manual_seed(0)
    model = TransfoXLLMHeadModel(TransfoXLConfig(**SMALL | CASES[name])).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn_like(weight)
    found = {f"weights/{name}": p.detach() for name, p in model.named_parameters()}
    ids = torch.randint(50, (SEGMENTS, ROWS, LENGTH))
    labels = torch.randint(50, (ROWS, LENGTH))
    found |= {"ids": ids, "labels": labels}
    mems = [torch.zeros(0, ROWS, 16) for _ in range(2)]
    for number, segment in enumerate(ids):
        said = model(segment, mems=mems, output_hidden_states=True)
        mems = said.mems
        found[f"hidden/{number}"] = said.hidden_states[-1]
        found[f"scores/{number}"] = said.prediction_scores
    loss = -said.prediction_scores.gather(2, labels[:, :, None]).sum()
    if name in DIFFERENTIATED:
        loss.backward()
        found |= {f"gradients/{name}": p.grad for name, p in model.named_parameters()}
    found |= {"loss": loss, "memory": torch.stack([m.transpose(0, 1) for m in mems])}
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


if __name__ == "__main__":
    tensors = {f"{name}/{k}": t for name in CASES for k, t in case(name).items()}
    path = Path(__file__).with_suffix(".safetensors")
    save_file(tensors, path, metadata={n: json.dumps(SMALL | o) for n, o in CASES.items()})
    print(f"{path}: {path.stat().st_size} bytes")
