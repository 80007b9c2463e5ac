"""GPT-3 (Brown et al., 2020): GPT-2 in which every second layer attends to a band of the past.

Dense and banded layers alternate, as in the Sparse Transformer (Child et al., 2019): the first
layer attends to all of the past, the second to its last `attention_window` tokens, and so on.
"""

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.base import MAX_LR_TIMES_WIDTH, Family, standard_sizes
from kinfolk.families.gpt2 import GPT2, GPT2Config
from kinfolk.nn.language_model import MAX_TOKENS, model_field, network_of
from kinfolk.objectives.clm import CLM
from kinfolk.training.config import TrainConfig


@config("gpt3")
class GPT3Config(GPT2Config):
    """The smallest published model by default."""

    max_length: int = model_field("max_length", 2048)
    # Deviation: the paper does not give the width of its bands.
    attention_window: int = field(
        default=256, ge=1, le=MAX_TOKENS, help="number of tokens that a banded attention layer sees"
    )
    # The paper trains for less than one epoch and mentions no dropout.
    dropout: float = model_field("dropout", 0.0)
    attention_dropout: float = model_field("attention_dropout", 0.0)


@network_of(GPT3Config)
class GPT3(GPT2):
    """GPT-2's network with alternating dense and banded attention."""

    config: GPT3Config

    def __init__(self, c: GPT3Config) -> None:
        super().__init__(c)
        self.attention_windows = (c.attention_window,)

    def forward(self, inputs: Inputs) -> Output:
        x, dense = self.first_hidden(inputs), self.attention_fn(inputs)
        banded = self.attention_fn(inputs, window=self.config.attention_window)
        for i, (layer, positions) in enumerate(self.layers.with_read_positions(inputs)):
            attend = banded if i % 2 else dense
            x = layer(x, attend, inputs.cache, i, read_positions=positions)
        return Output(self.final_norm(x), inputs.cache)


def paper_training(lr: float, batch_size: int) -> TrainConfig:
    """Return the settings of a published size: 300 billion tokens, 375 million to warm up.

    Appendix B; rates and batches are those of table 2.1, in rows of 2,048 tokens.
    Deviation: the rate decays over the whole run; theirs over 260 billion tokens.
    """
    tokens = batch_size * 2048
    return TrainConfig(
        steps=round(300e6 / tokens) * 1000,
        batch_size=batch_size,
        lr=lr,
        warmup=round(375e6 / tokens),
        weight_decay=0.1,
        betas=(0.9, 0.95),
        min_lr_ratio=0.1,
    )


FAMILY = Family(
    name="gpt3",
    title="GPT-3",
    paper="Brown et al. 2020",
    year=2020,
    model=GPT3,
    # The bands of the standard sizes are a quarter of the hidden size: shorter than a row.
    # Deviation: table 2.1 gives the 1.3B model 24 heads of 128 in a width of 2048, and the 13B
    # model 40 of them in 5140. Heads that fill the width are 16 and 40 of 128, in 2048 and 5120.
    sizes=standard_sizes(GPT3Config, lambda size: {"attention_window": size.hidden_size // 4})
    | {
        "gpt3-125m": GPT3Config(),
        "gpt3-350m": GPT3Config(hidden_size=1024, num_layers=24, num_heads=16),
        "gpt3-760m": GPT3Config(hidden_size=1536, num_layers=24, num_heads=16),
        "gpt3-1.3b": GPT3Config(hidden_size=2048, num_layers=24, num_heads=16),
        "gpt3-2.7b": GPT3Config(hidden_size=2560, num_layers=32, num_heads=32),
        "gpt3-6.7b": GPT3Config(hidden_size=4096, num_layers=32, num_heads=32),
        "gpt3-13b": GPT3Config(hidden_size=5120, num_layers=40, num_heads=40),
        "gpt3-175b": GPT3Config(hidden_size=12288, num_layers=96, num_heads=96),
    },
    objectives={"clm": CLM},
    training=TrainConfig(lr=1e-3, warmup=200),
    max_lr_times_width=MAX_LR_TIMES_WIDTH,
    paper_training={
        "gpt3-125m": paper_training(6e-4, 256),
        "gpt3-350m": paper_training(3e-4, 256),
        "gpt3-760m": paper_training(2.5e-4, 256),
        "gpt3-1.3b": paper_training(2e-4, 512),
        "gpt3-2.7b": paper_training(1.6e-4, 512),
        "gpt3-6.7b": paper_training(1.2e-4, 1024),
        "gpt3-13b": paper_training(1e-4, 1024),
        "gpt3-175b": paper_training(0.6e-4, 1600),
    },
)
