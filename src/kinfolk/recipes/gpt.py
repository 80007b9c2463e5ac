"""GPT's pretraining: the next token, in rows of the whole context."""

from kinfolk.objectives.clm import CLM
from kinfolk.training.settings import Train

OBJECTIVES = {"clm": CLM}

TRAIN = Train(peak=1e-3, warmup=200)

# Radford et al. 2018, section 4.1; the steps are those that Devlin et al. 2018 report of it in
# appendix A.4, the betas those of the released code.
PAPER = Train(
    steps=1_000_000,
    batch=64,
    peak=2.5e-4,
    warmup=2000,
    floor=0.0,
    decay=0.01,
    betas=(0.9, 0.999),
)
