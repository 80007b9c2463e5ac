"""GLM's pretraining: the blanks of a text, short ones, whole sentences, or all the rest of it."""

from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"blanks": BlankInfilling}

TRAIN = TrainConfig(lr=1e-3, warmup=200)

# Du et al. 2021, section 3.1, for steps and batch; the rest is the released configuration of the
# large model.
PAPER = TrainConfig(
    steps=200_000,
    batch_size=1024,
    lr=2e-4,
    warmup=10_000,
    min_lr_ratio=0.05,
    weight_decay=0.1,
    betas=(0.9, 0.98),
    eps=1e-6,
)
