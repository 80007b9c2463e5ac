"""The Transformer's training: a text from another, as in translation; or the spans of one text."""

from kinfolk.objectives.pairs import Pairs
from kinfolk.objectives.spans import Spans
from kinfolk.training.settings import Train

OBJECTIVES = {"pairs": Pairs, "spans": Spans}

TRAIN = Train(peak=1e-3, warmup=400, schedule="inverse_root", floor=0.0, decay=0.0)

# Vaswani et al. 2017, sections 5.1 to 5.3, the base model; a batch is 25,000 tokens of each side,
# here in rows of 512. The big one: 300,000 steps and a peak of 1024^-0.5 * 4000^-0.5.
PAPER = Train(
    steps=100_000,
    batch=49,
    schedule="inverse_root",
    peak=512**-0.5 * 4000**-0.5,
    floor=0.0,
    warmup=4000,
    decay=0.0,
    betas=(0.9, 0.98),
    epsilon=1e-9,
    clip=0.0,
)
