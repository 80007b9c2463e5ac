"""Learning-rate schedules: the share of the peak rate at each step, a pure function of the step.

linear        up, then straight down to the floor
cosine        up, then half a cosine down to the floor
inverse_root  up, then as 1 / sqrt(step), never below the floor (Vaswani et al. 2017)
constant      up, then level
trapezoid     up, level, then straight down to the floor over the last share of the steps
slanted       up over the warm-up, or a tenth of the steps, then straight down; from and to 1 / 32,
              whatever the floor (Howard and Ruder 2018, section 3.2)
"""

import math
from collections.abc import Callable
from typing import get_args

from kinfolk.errors import UserError
from kinfolk.training.config import Schedule

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

STLR_RATIO = 1 / 32  # Howard and Ruder 2018, section 3.2: the ratio of the peak to the lowest rate


def lr_schedule(
    name: Schedule, *, steps: int, warmup: int, decay_ratio: float = 0.2, min_lr_ratio: float = 0.0
) -> Callable[[int], float]:
    """Return the factor on the peak rate as a function of the step; step 0 is the first update."""
    if warmup > steps:
        raise UserError(
            f"the warm-up is {warmup} of {steps} steps; it must be from 0 to {steps}: "
            "lower the warm-up or run longer"
        )
    if name == "slanted":
        warmup, min_lr_ratio = warmup or max(1, steps // 10), STLR_RATIO
    last = steps - 1
    top = max(warmup - 1, 0)  # the step that has the whole peak rate

    def fall(step: int, start: float) -> float:
        """Return 1 until `start`, then less and less, exactly 0 at the last step."""
        if step <= start:
            return 1.0
        return 1.0 - (step - start) / (last - start) if step < last else 0.0

    def factor(step: int) -> float:
        if step < top:
            climb = (step + 1) / warmup
            return min_lr_ratio + (1 - min_lr_ratio) * climb if name == "slanted" else climb
        match name:
            case "linear" | "slanted":
                return min_lr_ratio + (1 - min_lr_ratio) * fall(step, top)
            case "cosine":
                # Measured from the bottom, so that the end is exact: cos(pi) is -1.
                return (
                    min_lr_ratio
                    + (1 - min_lr_ratio) * (1 + math.cos(math.pi * (1 - fall(step, top)))) / 2
                )
            case "inverse_root":
                return max(min_lr_ratio, math.sqrt((top + 1) / (step + 1)))
            case "trapezoid":
                return min_lr_ratio + (1 - min_lr_ratio) * fall(
                    step, max(top, last - decay_ratio * steps)
                )
            case "constant":
                return 1.0

    return factor
