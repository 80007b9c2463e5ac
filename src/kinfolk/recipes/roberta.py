"""RoBERTa's pretraining: hidden words in full rows; `mlm` for rows within one document."""

from kinfolk.objectives.full_sentences import FullSentences
from kinfolk.objectives.mlm import MLM
from kinfolk.training.settings import Train

OBJECTIVES = {"full_sentences": FullSentences, "mlm": MLM}

TRAIN = Train(peak=1e-3, warmup=200)

# Liu et al. 2019, table 9, for the base model; the large one warms up for 30,000 steps to 4e-4.
PAPER = Train(
    steps=500_000,
    batch=8192,
    peak=6e-4,
    warmup=24_000,
    schedule="linear",
    floor=0.0,
    decay=0.01,
    epsilon=1e-6,
    clip=0.0,
)
