"""A family from outside the package: each token predicts the next one, without attention."""

from torch import Tensor

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.base import Family
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import LanguageModel, ModelConfig, Pooling, network_of
from kinfolk.nn.layers import FeedForward
from kinfolk.objectives.clm import CLM
from kinfolk.training.config import TrainConfig


@config("own_family")
class OwnConfig(ModelConfig):
    """A small network."""

    vocab_size: int = field(default=100, ge=1, help="number of token ids")
    hidden_size: int = field(default=16, ge=1, help="size of the hidden states")
    dropout: float = field(default=0.0, ge=0, lt=1, help="dropout rate")


@network_of(OwnConfig)
class OwnModel(LanguageModel):
    """Token embeddings and a feed-forward layer."""

    config: OwnConfig
    token_embeddings: TokenEmbedding
    architecture = "decoder"
    decoding = "causal"
    pooling = Pooling(token="last")

    def __init__(self, c: OwnConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.feed_forward = FeedForward(c.hidden_size, 2 * c.hidden_size, "relu", dropout=c.dropout)
        init_weights_(self, std=0.1)

    def forward(self, inputs: Inputs) -> Output:
        x = self.token_embeddings(inputs.input_ids)
        return Output(x + self.feed_forward(x), inputs.cache)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the next token."""
        return self.token_embeddings.lm_logits(hidden)


FAMILY = Family(
    name="own_family",
    title="Own",
    paper="Nobody 2026",
    year=2026,
    model=OwnModel,
    sizes={"nano": OwnConfig(), "tiny": OwnConfig(hidden_size=32)},
    objectives={"clm": CLM},
    training=TrainConfig(lr=1e-2, warmup=1),
)
