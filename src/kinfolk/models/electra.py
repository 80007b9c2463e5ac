"""ELECTRA (Clark et al., 2020): a BERT that learns from every token which of them were replaced.

A small generator fills holes in a text, by likelihood; the discriminator reads what it wrote and
tells, token by token, what was there from what was not. Both read with the same tables. The
discriminator is the model; the generator is only needed while it learns.
"""

import torch
from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.bert import BertConfig, encoder_layer
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.models.albert import MaskedLMHead
from kinfolk.nn.attention import attention_backend
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_, mimetic_init_
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Pooling
from kinfolk.nn.layers import get_activation

EMBEDDING_STD = 0.02  # the standard deviation of tables at the start (the published code)


@config("electra")
class ElectraConfig(ModelConfig):
    """The published small model, unless told otherwise; the sizes are the discriminator's."""

    vocab_size: int = field(default=30522, ge=1, help="number of token ids")
    embedding_size: int = field(default=128, ge=1, help="size of the token embeddings")
    hidden_size: int = field(default=256, ge=1, help="size of the discriminator's hidden states")
    num_layers: int = field(default=12, ge=1, help="number of layers")
    num_heads: int = field(default=4, ge=1, help="number of attention heads")
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    generator_size: float = field(
        default=0.25, gt=0, help="size of the generator as a fraction of the discriminator's"
    )
    max_length: int = field(default=512, ge=1, help="longest sequence, in tokens")
    type_vocab_size: int = field(default=2, ge=1, help="number of token types")
    activation: str = field(default="gelu", help="activation function of the feed-forward layer")
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.1, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    layer_norm_eps: float = field(default=1e-12, gt=0, help="epsilon of the layer norms")
    init_std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")
    mimetic_init: bool = field(
        default=False, help="mimetic initialisation: attention starts on neighbouring tokens"
    )

    def __post_init__(self) -> None:
        width, heads = (
            round(self.generator_size * self.hidden_size),
            round(self.generator_size * self.num_heads),
        )
        heads = max(1, heads)
        if width < 1 or width % heads:
            raise UserError(
                f"model.generator_size={self.generator_size} makes a generator of width {width} in "
                f"{heads} heads, which do not divide it: use another share, like 0.25 or 0.5"
            )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Electra

    def build(self) -> "Electra":
        """Make both networks, with fresh weights."""
        return Electra(self)

    def encoder_config(self, share: float = 1.0) -> BertConfig:
        """Return the sizes of a stack of blocks: the discriminator's, or a share of it."""
        return BertConfig(
            hidden_size=round(share * self.hidden_size),
            num_layers=self.num_layers,
            num_heads=max(1, round(share * self.num_heads)),
            intermediate_size=round(share * (self.intermediate_size or 4 * self.hidden_size)),
            activation=self.activation,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            layer_norm_eps=self.layer_norm_eps,
        )


class Encoder(nn.Module):
    """BERT's blocks, behind a matrix where the tables have another width."""

    def __init__(self, c: BertConfig, embedding_size: int) -> None:
        super().__init__()
        self.config = c
        self.embedding_projection = (
            nn.Identity()
            if c.hidden_size == embedding_size
            else nn.Linear(embedding_size, c.hidden_size)
        )
        self.layers = LayerStack(encoder_layer(c) for _ in range(c.num_layers))

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        x = self.embedding_projection(x)
        attend = attention_backend(
            inputs, dropout=self.training and self.config.attention_dropout > 0
        )
        for block in self.layers:
            x = block(x, attend)
        return x


class DiscriminatorHead(nn.Module):
    """One number a token: above zero where it was replaced."""

    def __init__(self, c: ElectraConfig) -> None:
        super().__init__()
        self.activation = get_activation(c.activation)
        self.dense = nn.Linear(c.hidden_size, c.hidden_size)
        self.out = nn.Linear(c.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(self.activation(self.dense(hidden)))[..., 0]


class Electra(LanguageModel):
    """Three tables and a norm, read by a generator with its head and a discriminator with its."""

    config: ElectraConfig
    token_embeddings: TokenEmbedding
    architecture = "encoder"
    can_fill = True
    pooling = Pooling(token="first", activation="gelu")
    pretraining_only = ("generator", "mlm_head", "discriminator_head")

    def __init__(self, c: ElectraConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.embedding_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.embedding_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.embedding_size)
        self.embedding_norm = nn.LayerNorm(c.embedding_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.dropout)
        small = c.encoder_config(c.generator_size)
        self.generator = Encoder(small, c.embedding_size)
        self.mlm_head = MaskedLMHead(
            small.hidden_size, c.embedding_size, c.vocab_size, "gelu", c.layer_norm_eps
        )
        self.discriminator = Encoder(c.encoder_config(), c.embedding_size)
        self.discriminator_head = DiscriminatorHead(c)
        init_weights_(self, std=c.init_std, embedding_std=EMBEDDING_STD)
        if c.mimetic_init:
            init_weights_(self.generator, std=small.hidden_size**-0.5)
            mimetic_init_(self, self.position_embeddings, std=EMBEDDING_STD)

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.discriminator(self.embed(inputs), inputs))

    def forward_lm(self, inputs: Inputs) -> Output:
        """Run the generator."""
        return Output(self.generator(self.embed(inputs), inputs))

    def embed(self, inputs: Inputs) -> Tensor:
        """Read the tables: (batch, length, their width)."""
        segments = (
            torch.zeros_like(inputs.input_ids)
            if inputs.token_type_ids is None
            else inputs.token_type_ids
        )
        x = (
            self.token_embeddings(inputs.input_ids)
            + self.position_embeddings(inputs.position_ids)
            + self.token_type_embeddings(segments)
        )
        return self.dropout(self.embedding_norm(x))

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the hidden token from what the generator made of it."""
        return self.token_embeddings.lm_logits(self.mlm_head(hidden), self.mlm_head.bias)

    def discriminator_logits(self, hidden: Tensor) -> Tensor:
        """Score whether each token was replaced: (batch, length), above zero where it was."""
        return self.discriminator_head(hidden)


# Deviation: the shared ladder trains without dropout and starts as BERT's does. Its generators are
# half as wide as their discriminators, the upper end of what works best (section 3.2).
SIZES = {
    name: ElectraConfig(
        embedding_size=size.hidden_size,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        generator_size=0.5,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=size.hidden_size**-0.5,
        mimetic_init=True,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "electra-small": ElectraConfig(),
    "electra-base": ElectraConfig(
        embedding_size=768, hidden_size=768, num_heads=12, generator_size=1 / 3
    ),
    "electra-large": ElectraConfig(
        embedding_size=1024, hidden_size=1024, num_layers=24, num_heads=16
    ),
}
