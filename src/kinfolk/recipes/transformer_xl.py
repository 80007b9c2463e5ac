"""Transformer-XL's pretraining: the next token of rows that go on; `clm` for rows by themselves."""

from kinfolk.objectives.clm import CLM
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"stream": RecurrentCLM, "clm": CLM}

TRAIN = TrainConfig(lr=1e-3, warmup=200)

# The released code: its script for the large model of WikiText-103, in rows of 384 tokens, and its
# defaults (Adam's betas, a clip of 0.25, no decay, a cosine down to nothing).
PAPER = TrainConfig(
    steps=4_000_000,
    batch_size=128,
    lr=2.5e-4,
    warmup=16_000,
    schedule="cosine",
    min_lr_ratio=0.0,
    weight_decay=0.0,
    betas=(0.9, 0.999),
    grad_clip=0.25,
)
