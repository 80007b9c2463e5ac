"""ALBERT's pretraining: hidden runs of words and the order of sentences; `mlm` for words alone."""

from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.sop import SOP
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"sop": SOP, "mlm": MLM}

TRAIN = TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999))

# Lan et al. 2019, section 4.1 (steps, batch, rate), and the released code (warmup, decay).
# Deviation: LAMB, which they use, is AdamW with each tensor's step scaled by the tensor's norm. Of
# the optimisers here `adamw_rms` is the one that scales so; the rate is theirs.
PAPER = TrainConfig(
    steps=125_000,
    batch_size=4096,
    optimizer="adamw_rms",
    lr=1.76e-3,
    warmup=3125,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
)
