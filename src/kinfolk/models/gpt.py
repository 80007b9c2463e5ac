"""GPT (Radford et al., 2018): the Transformer's decoder alone, pretrained on text as it comes.

Each token sees itself and the past, and the last hidden state predicts the next token. Norms
stand behind their residuals, as in the Transformer of 2017; places are learned.
"""

from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, KVCache, Output
from kinfolk.config import config, field
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import Attention
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Pooling
from kinfolk.nn.layers import FeedForward, PostNorm


@config("gpt")
class GPTConfig(ModelConfig):
    """The published model, unless told otherwise."""

    vocab_size: int = field(default=40478, ge=1, help="number of token ids")
    hidden_size: int = field(default=768, ge=1, help="size of the hidden states")
    num_layers: int = field(default=12, ge=1, help="number of layers")
    num_heads: int = field(default=12, ge=1, help="number of attention heads")
    max_length: int = field(default=512, ge=1, help="longest sequence, in tokens")
    activation: str = field(
        default="gelu_new", help="activation function of the feed-forward layer"
    )
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.1, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    layer_norm_eps: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")
    # Radford et al. 2018, section 4.1.
    init_std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return GPT

    def build(self) -> "GPT":
        """Make the network, with fresh weights."""
        return GPT(self)


class Layer(nn.Module):
    """Attention and feed-forward, each followed by a norm."""

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        attention = Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout)
        feed = FeedForward(c.hidden_size, 4 * c.hidden_size, c.activation)
        self.self_attention = PostNorm(
            attention, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        )
        self.feed_forward = PostNorm(feed, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout)

    def forward(
        self, x: Tensor, attend: AttentionBackend, cache: KVCache | None, layer_idx: int
    ) -> Tensor:
        return self.feed_forward(self.self_attention(x, attend, cache, layer_idx))


class GPT(LanguageModel):
    """Token and place tables and a stack of blocks; the token table also predicts."""

    config: GPTConfig
    token_embeddings: TokenEmbedding
    architecture = "decoder"
    decoding = "causal"
    pooling = Pooling(token="last", bias=False)

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(Layer(c) for _ in range(c.num_layers))
        init_weights_(self, std=c.init_std)

    def forward(self, inputs: Inputs) -> Output:
        x = self.dropout(
            self.token_embeddings(inputs.input_ids) + self.position_embeddings(inputs.position_ids)
        )
        attend = self.attention_fn(inputs)
        for layer, block in enumerate(self.layers):
            x = block(x, attend, inputs.cache, layer)
        return Output(x, inputs.cache)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the next token with the table that read the last."""
        return self.token_embeddings.lm_logits(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text.
SIZES = {
    name: GPTConfig(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        dropout=0.0,
        attention_dropout=0.0,
    )
    for name, size in STANDARD_SIZES.items()
} | {"gpt": GPTConfig()}
