"""XLNet's pretraining: a sixth of a text, in an order drawn anew each time."""

from kinfolk.objectives.permutation import Permutation
from kinfolk.training.settings import Train

OBJECTIVES = {"permutation": Permutation}

# Deviation: texts stand by themselves, one or more in a row. The paper's rows are pairs of texts
# and go on from row to row, with a memory of half a row.
TRAIN = Train(peak=1e-3, warmup=200, betas=(0.9, 0.999))

# Yang et al. 2019, appendix A.4.1.
PAPER = Train(
    steps=500_000,
    batch=8192,
    peak=4e-4,
    warmup=40_000,
    schedule="linear",
    floor=0.0,
    decay=0.01,
    betas=(0.9, 0.999),
    epsilon=1e-6,
)
