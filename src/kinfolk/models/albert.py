"""ALBERT (Lan et al., 2019): BERT with one set of weights for all its layers, and narrow tables.

Tokens have short vectors that one matrix widens, and every layer is the same layer again; so a
wide network has few parameters. Layers may also share in groups, or only one of their halves.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import Attention
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_, mimetic_init_
from kinfolk.nn.language_model import LanguageModel, ModelConfig, Pooling, SharedLayers
from kinfolk.nn.layers import FeedForward, PostNorm, get_activation

EMBEDDING_STD = 0.02  # the standard deviation of tables at the start (the published code)
Shared = Literal["all", "attention", "feed", "none"]


@config("albert")
class AlbertConfig(ModelConfig):
    """The published base model of version 2, unless told otherwise."""

    vocab_size: int = field(default=30000, ge=1, help="number of token ids")
    embedding_size: int = field(default=128, ge=1, help="size of the token embeddings")
    hidden_size: int = field(default=768, ge=1, help="size of the hidden states")
    num_layers: int = field(
        default=12, ge=1, help="number of times that a group of layers is applied"
    )
    sharing: Shared = field(
        default="all", help="which sublayers share weights over the layers of a group"
    )
    num_hidden_groups: int = field(
        default=1, ge=1, help="number of layer groups that share weights"
    )
    inner_group_num: int = field(
        default=1, ge=1, help="number of layers in a group, each with weights of its own"
    )
    num_heads: int = field(default=12, ge=1, help="number of attention heads")
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    max_length: int = field(default=512, ge=1, help="longest sequence, in tokens")
    type_vocab_size: int = field(default=2, ge=1, help="number of token types")
    activation: str = field(
        default="gelu_new", help="activation function of the feed-forward layer"
    )
    # Version 2 was trained without dropout.
    dropout: float = field(default=0.0, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.0, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    layer_norm_eps: float = field(default=1e-12, gt=0, help="epsilon of the layer norms")
    init_std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")
    mimetic_init: bool = field(
        default=False, help="mimetic initialisation: attention starts on neighbouring tokens"
    )

    def __post_init__(self) -> None:
        if self.num_hidden_groups > self.num_layers:
            raise UserError(
                f"model.num_hidden_groups={self.num_hidden_groups} is more than "
                f"model.num_layers={self.num_layers}: some groups would never be run; use fewer"
            )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Albert

    def build(self) -> "Albert":
        """Make the network, with fresh weights."""
        return Albert(self)

    def layer_modules(self) -> list[tuple[int, int]]:
        """Say which attention and which feed-forward each layer runs, by their numbers."""
        found = []
        for run in range(self.num_layers):
            group = int(
                run / (self.num_layers / self.num_hidden_groups)
            )  # as published, rounding and all
            for layer in range(self.inner_group_num):
                own, common = (
                    run * self.inner_group_num + layer,
                    group * self.inner_group_num + layer,
                )
                attention = common if self.sharing in ("all", "attention") else own
                found.append((attention, common if self.sharing in ("all", "feed") else own))
        return found


class AlbertLayers(SharedLayers):
    """As many attentions and feed-forwards as are different, run in the order of the layers."""

    def __init__(self, c: AlbertConfig) -> None:
        super().__init__()
        self.layer_modules = c.layer_modules()
        attends, feeds = (1 + max(numbers) for numbers in zip(*self.layer_modules, strict=True))
        self.attentions = nn.ModuleList(
            branch(Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout), c)
            for _ in range(attends)
        )
        self.feed_forwards = nn.ModuleList(
            branch(
                FeedForward(c.hidden_size, c.intermediate_size or 4 * c.hidden_size, c.activation),
                c,
            )
            for _ in range(feeds)
        )

    def forward(self, x: Tensor, attend: AttentionBackend) -> Tensor:
        for attention, feed_forward in self.layer_modules:
            x = self.feed_forwards[feed_forward](self.attentions[attention](x, attend))
        return x


def branch(inner: nn.Module, c: AlbertConfig) -> PostNorm:
    """Put a norm behind a part."""
    return PostNorm(inner, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout)


class MaskedLMHead(nn.Module):
    """What a hidden state passes before it meets the narrow token table again."""

    def __init__(
        self,
        hidden_size: int,
        embedding_size: int,
        vocab_size: int,
        activation: str,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.activation = get_activation(activation)
        self.dense = nn.Linear(hidden_size, embedding_size)
        self.norm = nn.LayerNorm(embedding_size, layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))


class Albert(LanguageModel):
    """Three narrow tables and a norm, what widens them, shared blocks, and two heads."""

    config: AlbertConfig
    token_embeddings: TokenEmbedding
    architecture = "encoder"
    can_fill = True
    pooling = Pooling(token="first", pooler=True)
    pretraining_only = ("mlm_head", "seq_relationship")
    pooling_only = ("pooler",)

    def __init__(self, c: AlbertConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.embedding_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.embedding_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.embedding_size)
        self.embedding_norm = nn.LayerNorm(c.embedding_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.dropout)
        self.embedding_projection = nn.Linear(c.embedding_size, c.hidden_size)
        self.layers = AlbertLayers(c)
        self.mlm_head = MaskedLMHead(
            c.hidden_size, c.embedding_size, c.vocab_size, c.activation, c.layer_norm_eps
        )
        self.pooler = nn.Linear(c.hidden_size, c.hidden_size)
        self.seq_relationship = nn.Linear(c.hidden_size, 2)
        init_weights_(self, std=c.init_std, embedding_std=EMBEDDING_STD)
        if c.mimetic_init:
            mimetic_init_(self.layers, self.position_embeddings, std=EMBEDDING_STD)

    def forward(self, inputs: Inputs) -> Output:
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
        x = self.embedding_projection(self.dropout(self.embedding_norm(x)))
        attend = self.attention_fn(inputs)
        return Output(self.layers(x, attend))

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the hidden token with the table that read the others."""
        return self.token_embeddings.lm_logits(self.mlm_head(hidden), self.mlm_head.bias)

    def pool(self, hidden: Tensor) -> Tensor:
        """Turn the first token's hidden state into a vector of its text."""
        return torch.tanh(self.pooler(hidden))

    def seq_relationship_logits(self, hidden: Tensor) -> Tensor:
        """Score whether two texts stand in their order (0) or were swapped (1)."""
        return self.seq_relationship(self.pool(hidden))


# Deviation: the shared ladder starts as BERT's does. Its tables are half as wide as the network on
# the small rungs, where 128 would be no narrower than it.
SIZES = {
    name: AlbertConfig(
        embedding_size=min(128, size.hidden_size // 2),
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        init_std=size.hidden_size**-0.5,
        mimetic_init=True,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "albert-base-v2": AlbertConfig(),
    "albert-large-v2": AlbertConfig(hidden_size=1024, num_layers=24, num_heads=16),
    "albert-xlarge-v2": AlbertConfig(hidden_size=2048, num_layers=24, num_heads=16),
    "albert-xxlarge-v2": AlbertConfig(hidden_size=4096, num_layers=12, num_heads=64),
}
