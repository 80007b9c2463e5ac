"""BERT's pretraining: hidden words and next sentences; `mlm` and `unilm` for hidden words alone."""

from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.unilm import UniLM
from kinfolk.training.settings import Train

OBJECTIVES = {"nsp": NSP, "mlm": MLM, "unilm": UniLM}

TRAIN = Train(peak=1e-3, warmup=200, betas=(0.9, 0.999))

# Devlin et al. 2018, appendix A.2.
PAPER = Train(
    steps=1_000_000,
    batch=256,
    peak=1e-4,
    warmup=10_000,
    schedule="linear",
    floor=0.0,
    decay=0.01,
    betas=(0.9, 0.999),
    epsilon=1e-6,
)
