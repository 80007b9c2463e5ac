"""Types without a class of their own, which several packages name."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
OnMessage: TypeAlias = Callable[[str], None]  # receives messages for the user
