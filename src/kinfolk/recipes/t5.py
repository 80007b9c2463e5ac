"""T5's training: the spans cut out of a text, or a text from another."""

from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.training.config import TrainConfig

OBJECTIVES = {"spans": SpanCorruption, "pairs": Seq2Seq}

# A plain AdamW stalls on T5's weights, whose sizes differ from tensor to tensor: its steps are
# scaled by them (see `AdamWRMS`).
TRAIN = TrainConfig(optimizer="adamw_rms", lr=2e-2, warmup=200, weight_decay=0.0)

# Raffel et al. 2020, section 3.1.2: Adafactor, 1 / sqrt(max(step, 10^4)).
PAPER = TrainConfig(
    steps=524_288,
    batch_size=128,
    optimizer="adafactor",
    schedule="inverse_root",
    lr=1e-2,
    min_lr_ratio=0.0,
    warmup=10_000,
    weight_decay=0.0,
)
