"""GPT-2's pretraining: the next token, in rows of the whole context; `prefix` reads some first."""

from kinfolk.objectives.clm import CLM
from kinfolk.objectives.prefix_lm import PrefixLM
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"clm": CLM, "prefix": PrefixLM}

TRAIN = TrainConfig(lr=1e-3, warmup=200)

# Radford et al. 2019 give the batch (512) and the context alone; rates and betas are those of
# Brown et al. 2020, table 2.1 and appendix B, for the model of the same size.
PAPER = TrainConfig(
    steps=300_000,
    batch_size=512,
    lr=6e-4,
    warmup=750,
    weight_decay=0.1,
    betas=(0.9, 0.95),
    min_lr_ratio=0.1,
)
