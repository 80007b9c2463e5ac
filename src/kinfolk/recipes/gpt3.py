"""GPT-3's pretraining: the next token, in rows of the whole context."""

from kinfolk.objectives.clm import CLM
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"clm": CLM}

TRAIN = TrainConfig(lr=1e-3, warmup=200)

# Brown et al. 2020, appendix B, and table 2.1 for the model of 125M: 300 billion tokens in batches
# of half a million, 375 million of them to warm up. Larger ones take larger batches and lower
# rates: 350M 3e-4, 760M 2.5e-4, 1.3B 2e-4 and 1M tokens, 2.7B 1.6e-4, 6.7B 1.2e-4 and 2M,
# 13B 1e-4, 175B 0.6e-4 and 3.2M.
# Deviation: the rate comes down over the whole run; theirs has come down after 260 billion tokens.
PAPER = TrainConfig(
    steps=572_000,
    batch_size=256,
    lr=6e-4,
    warmup=715,
    weight_decay=0.1,
    betas=(0.9, 0.95),
    min_lr_ratio=0.1,
)
