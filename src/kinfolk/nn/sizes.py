"""The ladder of sizes the whole family shares, so that a race is fair by name."""

from typing import NamedTuple


class Size(NamedTuple):
    """How wide, how deep, and in how many heads."""

    hidden_size: int
    num_layers: int
    num_heads: int


# From tiny to base: the published miniatures of BERT (Turc et al. 2019, table 1).
STANDARD_SIZES = {
    "nano": Size(64, 2, 2),
    "tiny": Size(128, 2, 2),
    "mini": Size(256, 4, 4),
    "small": Size(512, 4, 8),
    "medium": Size(512, 8, 8),
    "base": Size(768, 12, 12),
    "large": Size(1024, 24, 16),
}
