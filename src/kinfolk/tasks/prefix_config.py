"""Settings of contrastive prefixes (Qian et al. 2022); nothing here imports torch."""

from kinfolk.config import config, field
from kinfolk.errors import UserError

MAX_ATTRIBUTES = 2**10


@config("prefix_config")
class PrefixConfig:
    """The size of prefixes, and the weights of their losses."""

    prefix_length: int = field(default=10, ge=1, le=2**12, help="number of slots of a prefix")
    embedding_size: int = field(
        default=128, ge=1, le=2**14, help="size of the embeddings that prefixes are computed from"
    )
    length: int = field(
        default=64, ge=2, le=2**24, help="number of tokens of a text; longer ones are cut"
    )
    lm_weight: float = field(
        default=0.8, ge=0, le=1e6, help="weight of the likelihood of a text after its own prefix"
    )
    discriminative_weight: float = field(
        default=0.2,
        ge=0,
        le=1e6,
        help="with labels: weight of -log p(text | its prefix) / sum of p(text | each prefix)",
    )
    kl_weight: float = field(
        default=0.1,
        ge=0,
        le=1e6,
        help="without labels: weight of the divergence of the guessed attributes from equal ones",
    )
    contrastive_weight: float = field(
        default=0.2,
        ge=0,
        le=1e6,
        help="without labels: weight of the margin between the prefix of a text and the others",
    )
    margin: float = field(
        default=0.8,
        ge=0,
        le=1,
        help="without labels: difference of probability between that prefix and the others",
    )

    def __post_init__(self) -> None:
        if not self.lm_weight and not self.discriminative_weight:
            raise UserError(
                "lm_weight=0 and discriminative_weight=0 leave nothing to learn: raise one of them"
            )
