"""The standard sizes that all families have, so that a comparison at one size is fair."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Config = TypeVar("Config")


class Size(NamedTuple):
    """Hidden size, layers and attention heads of a standard size."""

    hidden_size: int
    num_layers: int
    num_heads: int


# From tiny to base: the published small BERTs (Turc et al. 2019, table 1).
STANDARD_SIZES = {
    "nano": Size(64, 2, 2),
    "tiny": Size(128, 2, 2),
    "mini": Size(256, 4, 4),
    "small": Size(512, 4, 8),
    "medium": Size(512, 8, 8),
    "base": Size(768, 12, 12),
    "large": Size(1024, 24, 16),
}


def standard_sizes(
    config: Callable[..., Config],
    by_size: Callable[[Size], dict[str, Any]] | None = None,
    /,
    **fields: Any,
) -> dict[str, Config]:
    """Return the config of every standard size, with fields that are the same for all or follow it.

    `standard_sizes(GPT2Config, dropout=0.0)`, or with a function of the size:
    `standard_sizes(GPT3Config, lambda size: {"attention_window": size.hidden_size // 4})`.
    """
    return {
        name: config(**size._asdict(), **fields, **({} if by_size is None else by_size(size)))
        for name, size in STANDARD_SIZES.items()
    }
