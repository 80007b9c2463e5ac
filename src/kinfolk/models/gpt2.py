"""GPT-2 (Radford et al., 2019): GPT with each norm moved inside its residual, and one at the end.

A decoder: each token sees itself and the past, and the last hidden state predicts the next token.
"""

from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, KVCache, Output
from kinfolk.config import config, field
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import Attention
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_, scale_residual_init_
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Pooling
from kinfolk.nn.layers import FeedForward, PreNorm


@config("gpt2")
class GPT2Config(ModelConfig):
    """The published small model, unless told otherwise."""

    vocab_size: int = field(default=50257, ge=1, help="number of token ids")
    hidden_size: int = field(default=768, ge=1, help="size of the hidden states")
    num_layers: int = field(default=12, ge=1, help="number of layers")
    num_heads: int = field(default=12, ge=1, help="number of attention heads")
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    max_length: int = field(default=1024, ge=1, help="longest sequence, in tokens")
    activation: str = field(
        default="gelu_new", help="activation function of the feed-forward layer"
    )
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.1, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    layer_norm_eps: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return GPT2

    def build(self) -> "GPT2":
        """Make the network, with fresh weights."""
        return GPT2(self)


class Layer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        attention = Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout)
        feed = FeedForward(c.hidden_size, c.intermediate_size or 4 * c.hidden_size, c.activation)
        self.self_attention = PreNorm(
            attention, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        )
        self.feed_forward = PreNorm(feed, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout)

    def forward(
        self, x: Tensor, attend: AttentionBackend, cache: KVCache | None, layer_idx: int
    ) -> Tensor:
        return self.feed_forward(self.self_attention(x, attend, cache, layer_idx))


class GPT2(LanguageModel):
    """Token and place tables, a stack of blocks, a last norm; the token table also predicts."""

    config: GPT2Config
    token_embeddings: TokenEmbedding
    architecture = "decoder"
    decoding = "causal"
    pooling = Pooling(token="last", bias=False)

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(Layer(c) for _ in range(c.num_layers))
        self.final_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        init_weights_(self, std=0.02)
        scale_residual_init_(self.layers, 2 * c.num_layers)

    def forward(self, inputs: Inputs) -> Output:
        x = self.dropout(
            self.token_embeddings(inputs.input_ids) + self.position_embeddings(inputs.position_ids)
        )
        attend = self.attention_fn(inputs)
        for layer, block in enumerate(self.layers):
            x = block(x, attend, inputs.cache, layer)
        return Output(self.final_norm(x), inputs.cache)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the next token with the table that read the last."""
        return self.token_embeddings.lm_logits(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text.
SIZES = {
    name: GPT2Config(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        dropout=0.0,
        attention_dropout=0.0,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(hidden_size=1024, num_layers=24, num_heads=16),
    "gpt2-large": GPT2Config(hidden_size=1280, num_layers=36, num_heads=20),
    "gpt2-xl": GPT2Config(hidden_size=1600, num_layers=48, num_heads=25),
}
