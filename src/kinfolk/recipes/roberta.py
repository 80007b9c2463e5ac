"""RoBERTa's pretraining: hidden words in full rows; `mlm` for rows within one document."""

from kinfolk.objectives.full_sentences import FullSentences
from kinfolk.objectives.mlm import MLM
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"full_sentences": FullSentences, "mlm": MLM}

TRAIN = TrainConfig(lr=1e-3, warmup=200)

# Liu et al. 2019, table 9, for the base model; the large one warms up for 30,000 steps to 4e-4.
PAPER = TrainConfig(
    steps=500_000,
    batch_size=8192,
    lr=6e-4,
    warmup=24_000,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    eps=1e-6,
    grad_clip=0.0,
)
