"""BERT's pretraining: hidden words and next sentences; `mlm` and `unilm` for hidden words alone."""

from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.unilm import UniLM
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"nsp": NSP, "mlm": MLM, "unilm": UniLM}

TRAIN = TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999))

# Devlin et al. 2018, appendix A.2.
PAPER = TrainConfig(
    steps=1_000_000,
    batch_size=256,
    lr=1e-4,
    warmup=10_000,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
)
