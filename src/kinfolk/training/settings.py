"""How a run learns: everything about it that is neither the network nor the objective."""

from dataclasses import dataclass
from typing import Literal

from kinfolk.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Train:
    """Steps, rates, and what is kept."""

    steps: int = 10_000
    batch: int = 32  # rows a step
    accumulate: int = 1  # micro-batches a step is split into, to save memory
    optimiser: str = "adamw"  # or adafactor, adamw_rms
    schedule: str = "cosine"  # or linear, inverse_root, constant, trapezoid, slanted
    peak: float = 5e-4  # the highest rate
    floor: float = 0.1  # the last rate, as a share of the peak
    warmup: int = 500  # steps up to the peak
    cooldown: float = 0.2  # the share of steps a trapezoid takes to come down
    decay: float = 0.01  # of weights, matrices only
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-8
    clip: float = 1.0  # the largest norm of the gradient; 0 for none
    seed: int = 0
    save_every: int = 1000  # steps; the last step is always saved
    keep: int = 2  # newest checkpoints
    evaluate_every: int = 500  # steps, where the corpus has held-out documents
    evaluate_batches: int = 16
    device: str = "auto"  # or cpu, cuda
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto is bfloat16 on CUDA
    compile: Literal["auto", "yes", "no"] = "auto"  # auto is yes on CUDA
    capture: Literal["yes", "no"] = "no"  # yes replays a compiled step on CUDA as one graph
    workers: int = 0  # processes that make batches; their number changes nothing but speed

    def __post_init__(self) -> None:
        counts = ("steps", "batch", "accumulate", "save_every", "keep")
        for name in (*counts, "evaluate_every", "evaluate_batches"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name}={getattr(self, name)}: it must be at least 1")
        if self.workers < 0 or self.warmup < 0 or self.clip < 0:
            raise UserError("train.workers, train.warmup and train.clip cannot be negative")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"train.seed={self.seed}: it must be from 0 to 2^63 - 1")
        if self.batch % self.accumulate:
            raise UserError(
                f"train.accumulate={self.accumulate} does not divide train.batch={self.batch}"
            )

    def saves(self, step: int) -> bool:
        """Say whether a checkpoint is due after this many updates."""
        return step % self.save_every == 0 or step == self.steps
