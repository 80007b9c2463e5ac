"""Learning-rate schedules: the factor on the peak rate, a pure function of the step.

linear        warm-up, then linear decay to min_lr_ratio
cosine        warm-up, then half a cosine to min_lr_ratio
inverse_root  warm-up, then 1 / sqrt(step), at least min_lr_ratio (Vaswani et al. 2017)
constant      warm-up, then constant
trapezoid     warm-up, constant, then linear decay to min_lr_ratio in the last decay_ratio of steps
slanted       warm-up (default: 10% of the steps), then linear decay; from and to 1 / 32 instead of
              min_lr_ratio (Howard and Ruder 2018, section 3.2)
"""

import math
from collections.abc import Callable
from typing import get_args

from kinfolk.errors import UserError
from kinfolk.training.config import Schedule

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

STLR_RATIO = 1 / 32  # Howard and Ruder 2018, section 3.2: ratio of the lowest rate to the peak


def lr_schedule(
    name: Schedule, *, steps: int, warmup: int, decay_ratio: float = 0.2, min_lr_ratio: float = 0.0
) -> Callable[[int], float]:
    """Return the factor on the peak rate as a function of the step; step 0 is the first update."""
    if warmup > steps:
        raise UserError(
            f"train.warmup={warmup} exceeds train.steps={steps}: lower the warm-up or train longer"
        )
    if name == "slanted":
        warmup, min_lr_ratio = warmup or max(1, steps // 10), STLR_RATIO
    last = steps - 1
    top = max(warmup - 1, 0)  # the first step at the peak rate

    def decay(step: int, start: float) -> float:
        """Return 1 until `start`, then a linear decay to exactly 0 at the last step."""
        if step <= start:
            return 1.0
        return 1.0 - (step - start) / (last - start) if step < last else 0.0

    def factor(step: int) -> float:
        if step < top:
            ramp = (step + 1) / warmup
            return min_lr_ratio + (1 - min_lr_ratio) * ramp if name == "slanted" else ramp
        match name:
            case "linear" | "slanted":
                return min_lr_ratio + (1 - min_lr_ratio) * decay(step, top)
            case "cosine":
                # Exact at the end: cos(pi) is -1.
                return (
                    min_lr_ratio
                    + (1 - min_lr_ratio) * (1 + math.cos(math.pi * (1 - decay(step, top)))) / 2
                )
            case "inverse_root":
                return max(min_lr_ratio, math.sqrt((top + 1) / (step + 1)))
            case "trapezoid":
                return min_lr_ratio + (1 - min_lr_ratio) * decay(
                    step, max(top, last - decay_ratio * steps)
                )
            case "constant":
                return 1.0

    return factor
