"""GLM's pretraining: the blanks of a text, short ones, whole sentences, or all the rest of it."""

from kinfolk.objectives.blanks import Blanks
from kinfolk.training.settings import Train

OBJECTIVES = {"blanks": Blanks}

TRAIN = Train(peak=1e-3, warmup=200)

# Du et al. 2021, section 3.1, for steps and batch; the rest is the released configuration of the
# large model.
PAPER = Train(
    steps=200_000,
    batch=1024,
    peak=2e-4,
    warmup=10_000,
    floor=0.05,
    decay=0.1,
    betas=(0.9, 0.98),
    epsilon=1e-6,
)
