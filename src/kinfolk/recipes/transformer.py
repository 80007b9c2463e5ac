"""The Transformer's training: a text from another, as in translation; or the spans of one text."""

from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"pairs": Seq2Seq, "spans": SpanCorruption}

TRAIN = TrainConfig(
    lr=1e-3, warmup=400, schedule="inverse_root", min_lr_ratio=0.0, weight_decay=0.0
)

# Vaswani et al. 2017, sections 5.1 to 5.3, the base model; a batch is 25,000 tokens of each side,
# here in rows of 512. The big one: 300,000 steps and a peak of 1024^-0.5 * 4000^-0.5.
PAPER = TrainConfig(
    steps=100_000,
    batch_size=49,
    schedule="inverse_root",
    lr=512**-0.5 * 4000**-0.5,
    min_lr_ratio=0.0,
    warmup=4000,
    weight_decay=0.0,
    betas=(0.9, 0.98),
    eps=1e-9,
    grad_clip=0.0,
)
