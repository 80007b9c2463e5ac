"""ALBERT's pretraining: hidden runs of words and the order of sentences; `mlm` for words alone."""

from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.sop import SOP
from kinfolk.training.settings import Train

OBJECTIVES = {"sop": SOP, "mlm": MLM}

TRAIN = Train(peak=1e-3, warmup=200, betas=(0.9, 0.999))

# Lan et al. 2019, section 4.1 (steps, batch, rate), and the released code (warmup, decay).
# Deviation: LAMB, which they use, is AdamW with each tensor's step scaled by the tensor's norm. Of
# the optimisers here `adamw_rms` is the one that scales so; the rate is theirs.
PAPER = Train(
    steps=125_000,
    batch=4096,
    optimiser="adamw_rms",
    peak=1.76e-3,
    warmup=3125,
    schedule="linear",
    floor=0.0,
    decay=0.01,
    betas=(0.9, 0.999),
    epsilon=1e-6,
)
