"""GPT's pretraining: the next token, in rows of the whole context."""

from kinfolk.objectives.clm import CLM
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"clm": CLM}

TRAIN = TrainConfig(lr=1e-3, warmup=200)

# Radford et al. 2018, section 4.1; the steps are those that Devlin et al. 2018 report of it in
# appendix A.4, the betas those of the released code.
PAPER = TrainConfig(
    steps=1_000_000,
    batch_size=64,
    lr=2.5e-4,
    warmup=2000,
    min_lr_ratio=0.0,
    weight_decay=0.01,
    betas=(0.9, 0.999),
)
