"""GPT-3 (Brown et al., 2020): GPT-2, in which every second layer sees only a band of the past.

Dense and banded layers take turns, as in the Sparse Transformer (Child et al., 2019): the first
layer sees all of the past, the second its last `attention_window` tokens, and so on.
"""

from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.gpt2 import GPT2Config, decoder_layer
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import select_backend
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_, scale_residual_init_
from kinfolk.nn.language_model import LanguageModel, LayerStack, Pooling


@config("gpt3")
class GPT3Config(GPT2Config):
    """The published smallest model, unless told otherwise."""

    max_length: int = field(default=2048, ge=1, help="longest sequence, in tokens")
    # Deviation: the paper does not say how wide its bands are.
    attention_window: int = field(
        default=256, ge=1, help="number of tokens that a banded attention layer sees"
    )
    # Less than one pass over the text, and no dropout is spoken of.
    dropout: float = field(default=0.0, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.0, ge=0, lt=1, help="dropout rate of attention probabilities"
    )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return GPT3

    def build(self) -> "GPT3":
        """Make the network, with fresh weights."""
        return GPT3(self)


class GPT3(LanguageModel):
    """Token and place tables, blocks that take turns, a norm; the token table also predicts."""

    config: GPT3Config
    token_embeddings: TokenEmbedding
    architecture = "decoder"
    decoding = "causal"
    pooling = Pooling(token="last", bias=False)

    def __init__(self, c: GPT3Config) -> None:
        super().__init__()
        self.config = c
        self.attention_windows = (c.attention_window,)
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(decoder_layer(c) for _ in range(c.num_layers))
        self.final_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        init_weights_(self, std=0.02)
        scale_residual_init_(self.layers, 2 * c.num_layers)

    def forward(self, inputs: Inputs) -> Output:
        x = self.dropout(
            self.token_embeddings(inputs.input_ids) + self.position_embeddings(inputs.position_ids)
        )
        seen, dropped = inputs.full_key_mask(), self.training and self.config.attention_dropout > 0
        dense = select_backend(inputs.attention_mask, seen, dropout=dropped)
        banded = select_backend(
            inputs.attention_mask, seen, dropout=dropped, window=self.config.attention_window
        )
        for layer, block in enumerate(self.layers):
            x = block(x, banded if layer % 2 else dense, inputs.cache, layer)
        return Output(self.final_norm(x), inputs.cache)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the next token with the table that read the last."""
        return self.token_embeddings.lm_logits(hidden)


# The ladder's bands are a quarter as wide as its vectors: less than a row, so that they matter.
# Deviation: table 2.1 gives the 1.3B model 24 heads of 128 in a width of 2048, and the 13B model 40
# of them in 5140. Heads that fill the width are 16 and 40 of 128, in 2048 and 5120.
SIZES = {
    name: GPT3Config(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        attention_window=size.hidden_size // 4,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "gpt3-125m": GPT3Config(),
    "gpt3-350m": GPT3Config(hidden_size=1024, num_layers=24, num_heads=16),
    "gpt3-760m": GPT3Config(hidden_size=1536, num_layers=24, num_heads=16),
    "gpt3-1.3b": GPT3Config(hidden_size=2048, num_layers=24, num_heads=16),
    "gpt3-2.7b": GPT3Config(hidden_size=2560, num_layers=32, num_heads=32),
    "gpt3-6.7b": GPT3Config(hidden_size=4096, num_layers=32, num_heads=32),
    "gpt3-13b": GPT3Config(hidden_size=5120, num_layers=40, num_heads=40),
    "gpt3-175b": GPT3Config(hidden_size=12288, num_layers=96, num_heads=96),
}
