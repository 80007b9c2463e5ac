"""The layers that most families share: linear, feed-forward, residual connections, Transformer."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import gather_positions
from kinfolk.errors import UserError
from kinfolk.kv_cache import KVCache
from kinfolk.nn import cpu_products

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from kinfolk.nn import triton_kernels

# The names Hugging Face's configs use. "gelu" is the exact form by the error function, which BERT's
# authors ran; "gelu_new" is the tanh approximation, which GPT-2's and T5 1.1's ran.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "gelu_python": F.gelu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation function by its name."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"activation {name!r} is not supported (supported: {', '.join(ACTIVATIONS)})"
        )
    return ACTIVATIONS[name]


def linear_or_matvec(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply vectors with a matrix, (rows, width): (..., rows)."""
    if HAS_TRITON and triton_kernels.can_matvec(x, weight):
        return triton_kernels.matvec(x, weight, bias)
    return cpu_products.linear(x, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` with a Triton kernel for inference on a single row in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        return linear_or_matvec(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Several linear layers over one input as one: the rows of their weights one below another."""

    def __init__(self, in_features: int, sizes: Sequence[int], *, bias: bool = True) -> None:
        super().__init__(in_features, sum(sizes), bias=bias)
        self.sizes = tuple(sizes)


# How the weight of a part of a module is divided among processes. The rows of "qkv" and "kv" are
# blocks of queries, keys and values, each of which is divided.
Split = Literal["columns", "qkv", "kv", "rows"]


class TensorParallel(nn.Module):
    """A module that several processes may hold together, each some of its heads or hidden units."""

    tensor_plan: ClassVar[Mapping[str, Split]]  # by the name of the part

    def divided_size(self) -> tuple[str, int]:
        """Return what is divided, and how many there are."""
        raise NotImplementedError


class SlicedLinear(nn.Linear):
    """A linear layer whose weight is multiplied in parts or transposed: it stays in float32."""


class FeedForward(TensorParallel):
    """Two linear layers with an activation between (Vaswani et al. 2017, section 3.3)."""

    tensor_plan: ClassVar[Mapping[str, Split]] = {"up_proj": "columns", "down_proj": "rows"}

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

    def divided_size(self) -> tuple[str, int]:
        """Return the hidden units."""
        return "hidden units of a feed-forward layer", self.up_proj.out_features


class GatedFeedForward(TensorParallel):
    """A feed-forward layer whose hidden units are multiplied by a gate.

    GEGLU with the activation gelu, SwiGLU with silu (Shazeer 2020).
    """

    tensor_plan: ClassVar[Mapping[str, Split]] = {
        "gate_proj": "columns",
        "up_proj": "columns",
        "down_proj": "rows",
    }

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

    def divided_size(self) -> tuple[str, int]:
        """Return the hidden units."""
        return "hidden units of a feed-forward layer", self.up_proj.out_features


class PreNorm(nn.Module):
    """A residual connection with the norm before the sublayer (GPT-2, T5)."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.sublayer = sublayer
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        y = self.sublayer(self.norm(x), *args)
        return x + (self.dropout(y) if self.training else y)


class PostNorm(nn.Module):
    """A residual connection with the norm after the sum (the 2017 Transformer, BERT)."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.dropout = nn.Dropout(dropout)
        self.norm = norm

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        y = self.sublayer(x, *args)
        return self.norm(x + (self.dropout(y) if self.training else y))


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention where there is any, and feed-forward, each with a residual.

    `residual` wraps each sublayer: `PreNorm` or `PostNorm` with the norm and the dropout of a
    family. Of the last layer, the feed-forward sublayer may run at `read_positions` alone: no other
    token reads its output.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        *,
        residual: Callable[[nn.Module], PreNorm | PostNorm],
        cross_attention: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.self_attention = residual(attention)
        self.cross_attention = None if cross_attention is None else residual(cross_attention)
        self.feed_forward = residual(feed_forward)

    def forward(
        self,
        x: Tensor,
        attend: AttentionBackend,
        cache: KVCache | None = None,
        layer_idx: int = 0,
        encoder_states: tuple[Tensor, AttentionBackend] | None = None,
        read_positions: Tensor | None = None,
    ) -> Tensor:
        x = self.self_attention(x, attend, cache, layer_idx)
        if self.cross_attention is not None and encoder_states is not None:
            x = self.cross_attention(x, *encoder_states, cache, layer_idx)
        if read_positions is not None:
            x = gather_positions(x, read_positions)[None]
        return self.feed_forward(x)
