"""What the parity tests share: random weights, ragged rows, and how near is near enough."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.nn.embeddings import TokenEmbedding

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LENGTHS = (9, 5, 7)  # of the rows of a ragged batch


@torch.no_grad()
def shake(model: nn.Module, *, seed: int = 0, by: float = 0.1) -> Any:
    """Move every weight, norms and biases too, so that no two can be confused unseen."""
    draws = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight += by * torch.randn(weight.shape, generator=draws)
    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            module.weight[module.vocab_size :] = 0.0
    return model.eval()


def ids(vocab: int, *, length: int = max(LENGTHS), rows: int = len(LENGTHS)) -> Tensor:
    """Draw tokens."""
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(1))


def ragged(lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    """Return the document numbers of rows padded on the right: 0, and -1 for padding."""
    places = torch.arange(max(lengths)).expand(len(lengths), -1)
    return torch.where(places < torch.tensor(lengths)[:, None], 0, -1)


def inputs(tokens: Tensor, attention_mask: AttentionMask, **more: Any) -> Inputs:
    """Wrap rows whose places count from their first slot."""
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    return Inputs(input_ids=tokens, attention_mask=attention_mask, position_ids=places, **more)


def near(ours: Tensor, theirs: Tensor, *, within: float = 1e-5) -> None:
    """Compare two tensors of numbers around one."""
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1, "too small a number proves nothing"
    difference = (ours - theirs).abs().max().item()
    print(f"difference {difference:.1e} of {theirs.abs().max():.2f}")
    assert difference < within


def open_without_a_word(kind: Any, folder: Path) -> Any:
    """Open a folder with transformers; every weight must be in its place."""
    model, said = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(said.values()), said
    return model.eval()


def parameters(model: nn.Module) -> int:
    """Count what a paper counts: not the rows that only align a table."""
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding)]
    padding = sum((t.weight.shape[0] - t.vocab_size) * t.weight.shape[1] for t in tables)
    return sum(p.numel() for p in model.parameters()) - padding


def same_gradients(ours: dict[str, Tensor], theirs: nn.Module) -> None:
    """Compare the gradients of every parameter, by Hugging Face's names."""
    expected = {k: p.grad for k, p in theirs.named_parameters() if p.grad is not None}
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp(min=1e-3)  # a key's bias has only rounding
        assert ((ours[name] - gradient).abs().max() / scale) < 1e-4, name
