"""XLNet's pretraining: a sixth of a text, in an order drawn anew each time."""

from kinfolk.objectives.permutation_lm import PermutationLM
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"permutation": PermutationLM}

# Deviation: texts stand by themselves, one or more in a row. The paper's rows are pairs of texts
# and go on from row to row, with a memory of half a row.
TRAIN = TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999))

# Yang et al. 2019, appendix A.4.1.
PAPER = TrainConfig(
    steps=500_000,
    batch_size=8192,
    lr=4e-4,
    warmup=40_000,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
)
