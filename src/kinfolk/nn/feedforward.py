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


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return a bend by its name."""
    if name not in ACTIVATIONS:
        raise UserError(f"no activation {name!r}: there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """Widen, bend, narrow (Vaswani et al. 2017, section 3.3)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = get_activation(activation)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.dropout(self.activation(self.up_proj(x))))


class GatedFeedForward(nn.Module):
    """Widen twice, and let one half gate the other (Shazeer 2020)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = get_activation(activation)
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.dropout(self.activation(self.gate_proj(x)) * self.up_proj(x)))
