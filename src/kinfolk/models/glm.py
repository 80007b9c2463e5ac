"""GLM (Du et al., 2021): GPT-2's blocks with two places a token, to read a text and fill blanks.

A token of the text stands at its own place, and at 0 within. A token of a blank stands at the place
of the mask that it fills, and at 1, 2, 3 ... within. So the length of a blank is not given away.
"""

import torch
from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.gpt2 import GPT2Config, decoder_layer
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_, mimetic_init_, scale_residual_init_
from kinfolk.nn.language_model import LanguageModel, LayerStack, Pooling

EMBEDDING_STD = 0.02  # the standard deviation of tables at the start (the released code)


@config("glm")
class GLMConfig(GPT2Config):
    """The published base model, unless told otherwise."""

    # BERT's tokens, the special tokens of blank infilling, and padding.
    vocab_size: int = field(default=30592, ge=1, help="number of token ids")
    max_length: int = field(default=512, ge=1, help="longest sequence, in tokens")
    init_std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")
    mimetic_init: bool = field(
        default=False, help="mimetic initialisation: attention starts on neighbouring tokens"
    )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return GLM

    def build(self) -> "GLM":
        """Make the network, with fresh weights."""
        return GLM(self)


class GLM(LanguageModel):
    """A token table and two of places, a stack of blocks, a last norm; the token table predicts."""

    config: GLMConfig
    token_embeddings: TokenEmbedding
    architecture = "decoder"
    decoding = "infilling"
    can_fill = True
    pooling = Pooling(token="first", activation="tanh")

    def __init__(self, c: GLMConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.hidden_size)
        self.block_position_embeddings = nn.Embedding(c.max_length, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(decoder_layer(c) for _ in range(c.num_layers))
        self.final_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        init_weights_(self, std=c.init_std, embedding_std=EMBEDDING_STD)
        scale_residual_init_(self.layers, 2 * c.num_layers)
        if c.mimetic_init:
            mimetic_init_(self.layers, self.position_embeddings, std=EMBEDDING_STD)

    def forward(self, inputs: Inputs) -> Output:
        within = (
            torch.zeros_like(inputs.input_ids)
            if inputs.block_position_ids is None
            else inputs.block_position_ids
        )
        x = (
            self.token_embeddings(inputs.input_ids)
            + self.position_embeddings(inputs.position_ids)
            + self.block_position_embeddings(within)
        )
        x = self.dropout(x)
        attend = self.attention_fn(inputs)
        for layer, block in enumerate(self.layers):
            x = block(x, attend, inputs.cache, layer)
        return Output(self.final_norm(x), inputs.cache)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the next token of a blank with the table that read the others."""
        return self.token_embeddings.lm_logits(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text, and starts as
# BERT's does: larger matrices, and tokens that look around themselves.
SIZES = {
    name: GLMConfig(
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
    "glm-base": GLMConfig(),
    "glm-large": GLMConfig(hidden_size=1024, num_layers=24, num_heads=16),
    "glm-410m": GLMConfig(hidden_size=1024, num_layers=30, num_heads=16),
    "glm-515m": GLMConfig(hidden_size=1152, num_layers=30, num_heads=18),
    "glm-2b": GLMConfig(
        vocab_size=50304, hidden_size=2048, num_layers=36, num_heads=32, max_length=1024
    ),
    "glm-10b": GLMConfig(
        vocab_size=50304, hidden_size=4096, num_layers=48, num_heads=64, max_length=1024
    ),
}
