"""GLM (Du et al., 2021): GPT-2's blocks with two places a token, to read a text and fill blanks.

A token of the text stands at its own place, and at 0 within. A token of a blank stands at the place
of the mask that it fills, and at 1, 2, 3 ... within. So the length of a blank is not given away.
"""

import torch
from torch import Tensor, nn

from kinfolk.config import config, field
from kinfolk.models.gpt2 import Block, GPT2Config
from kinfolk.nn.language_model import LanguageModel, LayerStack, Summary
from kinfolk.nn.positions import look_near
from kinfolk.nn.residual import quieten
from kinfolk.nn.sizes import LADDER
from kinfolk.nn.table import Scores, Table, initialise
from kinfolk.types import Inputs, Output

TABLES = 0.02  # the standard deviation of tables at the start (the released code)


@config("glm")
class GLMConfig(GPT2Config):
    """The published base model, unless told otherwise."""

    # BERT's tokens, the special tokens of blank infilling, and padding.
    vocab: int = field(default=30592, ge=1, help="number of token ids")
    context: int = field(default=512, ge=1, help="longest sequence, in tokens")
    std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")
    near: bool = field(
        default=False, help="mimetic initialisation: attention starts on neighbouring tokens"
    )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return GLM

    def build(self) -> "GLM":  # type: ignore[override]
        """Make the network, with fresh weights."""
        return GLM(self)


class GLM(LanguageModel):
    """A token table and two of places, a stack of blocks, a last norm; the token table predicts."""

    config: GLMConfig
    tokens: Table
    architecture = "decoder"
    decoding = "infilling"
    can_fill = True
    summary = Summary(reads="first", bend="tanh")

    def __init__(self, c: GLMConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = Table(c.vocab, c.width)
        self.places = nn.Embedding(c.context, c.width)
        self.within = nn.Embedding(c.context, c.width)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = LayerStack(Block(c) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.width, c.epsilon)
        initialise(self, std=c.std, tables=TABLES)
        quieten(self.blocks, 2 * c.depth)
        if c.near:
            look_near(self.blocks, self.places, std=TABLES)

    def forward(self, inputs: Inputs) -> Output:
        within = torch.zeros_like(inputs.ids) if inputs.within is None else inputs.within
        x = self.tokens(inputs.ids) + self.places(inputs.places) + self.within(within)
        x = self.drop(x)
        visible = inputs.visible(dropout=self.training and self.config.attention_dropout > 0)
        for layer, block in enumerate(self.blocks):
            x = block(x, visible, inputs.state, layer)
        return Output(self.norm(x), inputs.state)

    def predict(self, hidden: Tensor) -> Scores:
        """Score the next token of a blank with the table that read the others."""
        return self.tokens.predict(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text, and starts as
# BERT's does: larger matrices, and tokens that look around themselves.
PRESETS = {
    name: GLMConfig(
        width=size.width,
        depth=size.depth,
        heads=size.heads,
        dropout=0.0,
        attention_dropout=0.0,
        std=size.width**-0.5,
        near=True,
    )
    for name, size in LADDER.items()
} | {
    "glm-base": GLMConfig(),
    "glm-large": GLMConfig(width=1024, depth=24, heads=16),
    "glm-410m": GLMConfig(width=1024, depth=30, heads=16),
    "glm-515m": GLMConfig(width=1152, depth=30, heads=18),
    "glm-2b": GLMConfig(vocab=50304, width=2048, depth=36, heads=32, context=1024),
    "glm-10b": GLMConfig(vocab=50304, width=4096, depth=48, heads=64, context=1024),
}
