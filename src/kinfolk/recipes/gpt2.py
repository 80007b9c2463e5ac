"""GPT-2's pretraining: the next token, in rows of the whole context; `prefix` reads some first."""

from kinfolk.objectives.clm import CLM
from kinfolk.objectives.prefix import Prefix
from kinfolk.training.settings import Train

OBJECTIVES = {"clm": CLM, "prefix": Prefix}

TRAIN = Train(peak=1e-3, warmup=200)

# Radford et al. 2019 give the batch (512) and the context alone; rates and betas are those of
# Brown et al. 2020, table 2.1 and appendix B, for the model of the same size.
PAPER = Train(
    steps=300_000, batch=512, peak=6e-4, warmup=750, decay=0.1, betas=(0.9, 0.95), floor=0.1
)
