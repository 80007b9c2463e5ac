"""Transformer-XL's pretraining: the next token of rows that go on; `clm` for rows by themselves."""

from kinfolk.objectives.clm import CLM
from kinfolk.objectives.stream import Stream
from kinfolk.training.settings import Train

OBJECTIVES = {"stream": Stream, "clm": CLM}

TRAIN = Train(peak=1e-3, warmup=200)

# The released code: its script for the large model of WikiText-103, in rows of 384 tokens, and its
# defaults (Adam's betas, a clip of 0.25, no decay, a cosine down to nothing).
PAPER = Train(
    steps=4_000_000,
    batch=128,
    peak=2.5e-4,
    warmup=16_000,
    schedule="cosine",
    floor=0.0,
    decay=0.0,
    betas=(0.9, 0.999),
    clip=0.25,
)
