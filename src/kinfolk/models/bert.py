"""BERT (Devlin et al., 2018): the Transformer's encoder alone, reading both ways at once.

Every token sees every other; a token that was hidden is predicted from both its sides, and the
first token's vector says something about the whole text.
"""

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import Attention
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_, mimetic_init_
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Pooling
from kinfolk.nn.layers import FeedForward, PostNorm, get_activation

EMBEDDING_STD = 0.02  # the standard deviation of tables at the start (the published code)


@config("bert")
class BertConfig(ModelConfig):
    """The published base model, unless told otherwise."""

    vocab_size: int = field(default=30522, ge=1, help="number of token ids")
    hidden_size: int = field(default=768, ge=1, help="size of the hidden states")
    num_layers: int = field(default=12, ge=1, help="number of layers")
    num_heads: int = field(default=12, ge=1, help="number of attention heads")
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
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

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Bert

    def build(self) -> "Bert":
        """Make the network, with fresh weights."""
        return Bert(self)


class Layer(nn.Module):
    """Attention and feed-forward, each followed by a norm."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        attention = Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout)
        feed = FeedForward(c.hidden_size, c.intermediate_size or 4 * c.hidden_size, c.activation)
        self.self_attention = PostNorm(
            attention, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        )
        self.feed_forward = PostNorm(feed, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout)

    def forward(self, x: Tensor, attend: AttentionBackend) -> Tensor:
        return self.feed_forward(self.self_attention(x, attend))


class MaskedLMHead(nn.Module):
    """What a hidden state passes before it meets the token table again."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.activation = get_activation(c.activation)
        self.dense = nn.Linear(c.hidden_size, c.hidden_size)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(c.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))


class Bert(LanguageModel):
    """Three tables and a norm, a stack of blocks, and two heads: for tokens and for pairs."""

    config: BertConfig
    token_embeddings: TokenEmbedding
    architecture = "encoder"
    can_fill = True
    pooling = Pooling(token="first", pooler=True)
    pretraining_only = ("mlm_head", "seq_relationship")
    pooling_only = ("pooler",)

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.embedding_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(Layer(c) for _ in range(c.num_layers))
        self.mlm_head = MaskedLMHead(c)
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
        x = self.dropout(self.embedding_norm(x))
        attend = self.attention_fn(inputs)
        for block in self.layers:
            x = block(x, attend)
        return Output(x)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the hidden token with the table that read the others."""
        return self.token_embeddings.lm_logits(self.mlm_head(hidden), self.mlm_head.bias)

    def pool(self, hidden: Tensor) -> Tensor:
        """Turn the first token's hidden state into a vector of its text."""
        return torch.tanh(self.pooler(hidden))

    def seq_relationship_logits(self, hidden: Tensor) -> Tensor:
        """Score whether the second text follows the first (0) or comes from elsewhere (1)."""
        return self.seq_relationship(self.dropout(self.pool(hidden)))


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its matrices
# start larger and its tokens look around themselves first: a small BERT then learns much sooner.
SIZES = {
    name: BertConfig(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=size.hidden_size**-0.5,
        mimetic_init=True,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "bert-base-uncased": BertConfig(),
    "bert-base-cased": BertConfig(vocab_size=28996),
    "bert-base-chinese": BertConfig(vocab_size=21128),
    "bert-large-uncased": BertConfig(hidden_size=1024, num_layers=24, num_heads=16),
    "bert-large-cased": BertConfig(vocab_size=28996, hidden_size=1024, num_layers=24, num_heads=16),
}
