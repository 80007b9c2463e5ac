"""GLM (Du et al., 2021): GPT-2's layers with two positions per token, for blank infilling.

A token of the text has its own position, and 0 as its position within the block. A token of a blank
has the position of the mask token that it fills, and 1, 2, 3 ... within the block, so that the
length of a blank is unknown. objectives/blank_infilling.py shows both for an example.
"""

import torch
from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.base import MAX_LR_TIMES_WIDTH, Family, FastRates, mimetic_sizes
from kinfolk.families.gpt import GPTDecoder
from kinfolk.families.gpt2 import GPT2Config, gpt2_layer
from kinfolk.nn.init import init_weights_, mimetic_init_, scale_residual_init_
from kinfolk.nn.language_model import LayerStack, Pooling, model_field, network_of
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.training.config import TrainConfig

EMBEDDING_STD = 0.02  # of initial embeddings, as in the released code


@config("glm")
class GLMConfig(GPT2Config):
    """The published base model by default."""

    # BERT's 30,522 tokens, the special tokens of blank infilling, and unused rows up to a multiple
    # of 128.
    vocab_size: int = model_field("vocab_size", 30592)
    max_length: int = model_field("max_length", 512)
    init_std: float = model_field("init_std", 0.02)
    mimetic_init: bool = model_field("mimetic_init", False)
    two_dimensional_positions: bool = field(
        default=True,
        help="embed the position inside a blank too; without it, all tokens of a blank have the "
        "position of its mask token alone",
    )


@network_of(GLMConfig)
class GLM(GPTDecoder):
    """Token and two position embeddings, a stack of layers and a norm; the output layer is tied."""

    config: GLMConfig
    decoding = "infilling"
    takes_prefix = False  # learned prefixes stand before a text that is read from left to right
    can_fill = True
    pooling = Pooling(token="first", activation="tanh")

    def __init__(self, c: GLMConfig) -> None:
        super().__init__(c)
        self.block_position_embeddings = (
            nn.Embedding(c.max_length, c.hidden_size) if c.two_dimensional_positions else None
        )
        self.layers = LayerStack(gpt2_layer(c) for _ in range(c.num_layers))
        self.final_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        init_weights_(self, std=c.init_std, embedding_std=EMBEDDING_STD)
        scale_residual_init_(self.layers, 2 * c.num_layers)
        if c.mimetic_init:
            mimetic_init_(self.layers, self.position_embeddings, std=EMBEDDING_STD)

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the sum of the embeddings: (batch, length, hidden_size)."""
        if self.block_position_embeddings is None:
            return super().embed(inputs)
        block_position_ids = (
            torch.zeros_like(inputs.input_ids)
            if inputs.block_position_ids is None
            else inputs.block_position_ids
        )
        return super().embed(inputs) + self.block_position_embeddings(block_position_ids)

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.final_norm(self.run_layers(inputs)), inputs.cache)

    def apply_final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm after the last layer."""
        return self.final_norm(hidden)


PUBLISHED = {
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
# Steps and batch: Du et al. 2021, section 3.1; the rest: the released configuration of GLM large.
PAPER_TRAINING = TrainConfig(
    steps=200_000,
    batch_size=1024,
    lr=2e-4,
    warmup=10_000,
    min_lr_ratio=0.05,
    weight_decay=0.1,
    betas=(0.9, 0.98),
    eps=1e-6,
)

FAMILY = Family(
    name="glm",
    title="GLM",
    paper="Du et al. 2021",
    year=2021,
    model=GLM,
    sizes=mimetic_sizes(GLMConfig) | PUBLISHED,
    # Deviation: in the released code every text begins with [CLS]; here only those of tasks do, by
    # task_template.
    objectives={"blanks": BlankInfilling},
    training=TrainConfig(lr=1e-3, warmup=200),
    max_lr_times_width=MAX_LR_TIMES_WIDTH,
    fast_rates=FastRates(lr=8e-3, matrix_lr=0.02),
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
    task_template="bert",
)
