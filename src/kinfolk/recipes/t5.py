"""T5's training: the spans cut out of a text, or a text from another."""

from kinfolk.objectives.pairs import Pairs
from kinfolk.objectives.spans import Spans
from kinfolk.training.settings import Train

OBJECTIVES = {"spans": Spans, "pairs": Pairs}

# A plain AdamW stalls on T5's weights, whose sizes differ from tensor to tensor: its steps are
# scaled by them (see `AdamWRMS`).
TRAIN = Train(optimiser="adamw_rms", peak=2e-2, warmup=200, decay=0.0)

# Raffel et al. 2020, section 3.1.2: Adafactor, 1 / sqrt(max(step, 10^4)).
PAPER = Train(
    steps=524_288,
    batch=128,
    optimiser="adafactor",
    schedule="inverse_root",
    peak=1e-2,
    floor=0.0,
    warmup=10_000,
    decay=0.0,
)
