"""ELECTRA's pretraining: find the tokens that a small generator replaced."""

from kinfolk.objectives.rtd import RTD
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"rtd": RTD}

TRAIN = TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999))

# Clark et al. 2020, table 6, the small model. The base one: a rate of 2e-4, 256 rows and 766,000
# steps; the large one: 2e-4, 2,048 rows, 400,000 steps and a quarter of the tokens hidden.
PAPER = TrainConfig(
    steps=1_000_000,
    batch_size=128,
    lr=5e-4,
    warmup=10_000,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
)
