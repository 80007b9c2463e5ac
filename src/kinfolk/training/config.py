"""How a run learns: everything about it that is neither the network nor the objective."""

from typing import Literal

from kinfolk.config import config, field
from kinfolk.errors import UserError

Optimiser = Literal["adamw", "adafactor", "adamw_rms"]
Schedule = Literal["linear", "cosine", "inverse_root", "constant", "trapezoid", "slanted"]

# Parameters times tokens of a micro-batch. Above it a replayed step is less than 10 % faster than a
# compiled one on an H200 (docs/benchmarks.md), and it keeps the gradients of every recorded shape.
MAX_GRAPH_WORK = 2 * 10**12


@config("train")
class TrainConfig:
    """Steps, rates, and what is kept."""

    steps: int = field(default=10_000, ge=1, help="number of optimizer steps")
    batch_size: int = field(default=32, ge=1, le=2**24, help="number of rows in a step")
    gradient_accumulation: int = field(
        default=1, ge=1, help="number of micro-batches that a step is split into"
    )
    optimizer: Optimiser = field(
        default="adamw", help="optimizer; adamw_rms multiplies each step by the RMS of its tensor"
    )
    schedule: Schedule = field(default="cosine", help="learning-rate schedule")
    lr: float = field(default=5e-4, gt=0, help="peak learning rate")
    min_lr_ratio: float = field(
        default=0.1, ge=0, le=1, help="last learning rate as a fraction of the peak"
    )
    warmup: int = field(default=500, ge=0, help="number of warm-up steps")
    decay_ratio: float = field(
        default=0.2, ge=0, le=1, help="fraction of the steps in which a trapezoid schedule decays"
    )
    weight_decay: float = field(default=0.01, ge=0, help="weight decay, of matrices only")
    betas: tuple[float, float] = field(
        default=(0.9, 0.98), ge=0, lt=1, help="coefficients of Adam's running averages"
    )
    eps: float = field(default=1e-8, ge=0, help="epsilon in the denominator of Adam")
    grad_clip: float = field(
        default=1.0, ge=0, help="largest norm of the gradient; 0 does not clip"
    )
    seed: int = field(
        default=0, ge=0, le=2**63 - 1, help="seed of initial weights, data order and dropout"
    )
    save_every: int = field(
        default=1000,
        ge=1,
        help="number of steps between checkpoints; the last step is always saved",
    )
    keep_checkpoints: int = field(default=2, ge=1, help="number of latest checkpoints to keep")
    eval_every: int = field(
        default=500, ge=1, help="number of steps between evaluations on held-out documents"
    )
    eval_batches: int = field(default=16, ge=1, help="number of batches in an evaluation")
    device: str = field(default="auto", help="device: auto, cpu or cuda")
    precision: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", help="number format of the forward pass; auto is bfloat16 on CUDA"
    )
    compile: Literal["auto", "yes", "no"] = field(
        default="auto", help="compile the model; auto is yes on CUDA"
    )
    cuda_graph: Literal["auto", "yes", "no"] = field(
        default="auto",
        help="replay the compiled step as a CUDA graph; "
        "auto is yes in pretraining where parameters times tokens of a micro-batch are up to 2e12",
    )
    workers: int = field(
        default=0, ge=0, le=1024, help="number of data loader processes; it changes no batch"
    )

    def __post_init__(self) -> None:
        if self.batch_size % self.gradient_accumulation:
            raise UserError(
                f"train.gradient_accumulation={self.gradient_accumulation} does not divide "
                f"train.batch_size={self.batch_size}"
            )

    def replays(self, parameters: int, length: int) -> bool:
        """Say whether a compiled step on rows of some length is replayed as a CUDA graph."""
        tokens = self.batch_size // self.gradient_accumulation * length
        small = parameters * tokens <= MAX_GRAPH_WORK
        return self.cuda_graph == "yes" or (self.cuda_graph == "auto" and small)

    def saves(self, step: int) -> bool:
        """Say whether a checkpoint is due after this many updates."""
        return step % self.save_every == 0 or step == self.steps
