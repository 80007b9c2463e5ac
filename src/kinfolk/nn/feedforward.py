"""What each token does by itself: two layers with a bend between, plain or gated."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.linear import Linear

# The names Hugging Face's configs use. "gelu" is the exact form by the error function, which BERT's
# authors ran; "gelu_new" is the tanh approximation, which GPT-2's and T5 1.1's ran.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": F.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return a bend by its name."""
    if name not in ACTIVATIONS:
        raise UserError(f"no activation {name!r}: there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """Widen, bend, narrow (Vaswani et al. 2017, section 3.3)."""

    def __init__(
        self, width: int, inner: int, bend: str, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.bend = activation(bend)
        self.widen = Linear(width, inner, bias=bias)
        self.drop = nn.Dropout(dropout)
        self.narrow = Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.drop(self.bend(self.widen(x))))


class GatedFeedForward(nn.Module):
    """Widen twice, and let one half gate the other (Shazeer 2020)."""

    def __init__(
        self, width: int, inner: int, bend: str, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.bend = activation(bend)
        self.gate = Linear(width, inner, bias=bias)
        self.widen = Linear(width, inner, bias=bias)
        self.drop = nn.Dropout(dropout)
        self.narrow = Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.drop(self.bend(self.gate(x)) * self.widen(x)))
