"""Networks on torch's meta device: shapes and parameter counts, without memory for weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.language_model import LanguageModel, ModelConfig

# What sets initial weights. On the meta device there is nothing to set, and torch would import its
# compiler for it, which takes longer than to build a network.
SETTERS = frozenset(
    {
        *(Tensor.normal_, Tensor.uniform_, Tensor.add_),
        *(nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_),
        *(nn.init.xavier_normal_, nn.init.xavier_uniform_),
        *(nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.orthogonal_),
    }
)


class _UnsetWeights(TorchFunctionMode):
    """Leave tensors of the meta device as they are where they would be set."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function, or return the tensor that it would set."""
        kwargs = kwargs or {}
        if func in SETTERS:
            weight: Tensor = args[0] if args else kwargs["tensor"]
            if weight.is_meta:
                return weight
        if func is torch.randn_like:
            like: Tensor = args[0] if args else kwargs["input"]
            if like.is_meta:
                return like.new_empty(like.shape, dtype=kwargs.get("dtype"))
        return func(*args, **kwargs)


@contextmanager
def meta_device() -> Iterator[None]:
    """Make new tensors on the meta device, and set no initial weights."""
    with torch.device("meta"), _UnsetWeights():
        yield


def meta_network(config: ModelConfig) -> LanguageModel:
    """Return the network of a config without memory for its weights."""
    with meta_device():
        return config.build()


def count_parameters(model: nn.Module) -> int:
    """Count the parameters as papers do: once where tied, and no padding."""
    total = sum(p.numel() for p in model.parameters())
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding)]
    return total - sum((t.num_embeddings - t.vocab_size) * t.embedding_dim for t in tables)


def parameter_count(config: ModelConfig) -> int:
    """Return the number of parameters of a network, without allocating them."""
    return count_parameters(meta_network(config))
