"""Training settings: steps, learning rate, batches, checkpoints; those of fine-tuning alone."""

from functools import partial
from typing import Literal

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.machine import available_cpus

Optimizer = Literal["adamw", "adafactor", "adamw_rms", "muon"]
Schedule = Literal["linear", "cosine", "inverse_root", "constant", "trapezoid", "slanted"]

# Fields under the heading that commands give their options.
batch_field, optimizer_field = partial(field, panel="Batches"), partial(field, panel="Optimizer")
schedule_field = partial(field, panel="Learning rate schedule")
checkpoint_field = partial(field, panel="Checkpoints and evaluation")
runtime_field = partial(field, panel="Runtime")

LOGGER_NAMES = ("wandb", "mlflow")
MAX_MINUTES = 1e7  # 19 years
MAX_STEPS = 2**40  # more than a year of a thousand steps a second
MAX_AUTO_WORKERS = 4  # data loader processes, unless a number is given

# Parameters times tokens of a micro-batch. Above it a replayed step is less than 10 % faster than a
# compiled one on an H200 (docs/benchmarks.md), and it keeps the gradients of every recorded shape.
MAX_GRAPH_WORK = 2 * 10**12
# Steps of a fine-tuning run: each of up to 8 shapes is run three times before it is recorded.
MIN_GRAPH_STEPS = 100


@config("train")
class TrainConfig:
    """Settings of a training run that belong neither to the network nor to the objective."""

    steps: int = batch_field(default=10_000, ge=1, le=MAX_STEPS, help="number of optimizer steps")
    minutes: float | None = batch_field(
        default=None,
        gt=0,
        le=MAX_MINUTES,
        help="minutes of optimizer steps, in place of their number: without starting, compiling, "
        "evaluations and checkpoints; the schedule follows the clock",
    )
    batch_size: int = batch_field(
        default=32, ge=1, le=2**24, help="number of rows in an optimizer step"
    )
    gradient_accumulation: int = batch_field(
        default=1, ge=1, le=2**24, help="number of micro-batches that a step is split into"
    )
    optimizer: Optimizer = optimizer_field(
        default="adamw",
        help="optimizer; adamw_rms multiplies each step by the RMS of its tensor, muon "
        "orthogonalizes the updates of the matrices of layers",
    )
    matrix_lr: float = optimizer_field(
        default=0.02,
        gt=0,
        le=1e3,
        help="peak learning rate of the matrices of layers with optimizer=muon; all other "
        "parameters have train.lr",
    )
    schedule: Schedule = schedule_field(default="cosine", help="learning-rate schedule")
    lr: float = schedule_field(default=5e-4, gt=0, help="peak learning rate")
    min_lr_ratio: float = schedule_field(
        default=0.1, ge=0, le=1, help="last learning rate as a fraction of the peak"
    )
    warmup: int = schedule_field(default=500, ge=0, le=MAX_STEPS, help="number of warm-up steps")
    decay_ratio: float = schedule_field(
        default=0.2, ge=0, le=1, help="fraction of the steps in which a trapezoid schedule decays"
    )
    weight_decay: float = optimizer_field(
        default=0.01,
        ge=0,
        le=10,
        help="weight decay, of matrices only",
    )
    betas: tuple[float, float] = optimizer_field(
        default=(0.9, 0.98), ge=0, lt=1, help="coefficients of Adam's running averages"
    )
    eps: float = optimizer_field(
        default=1e-8,
        gt=0,  # with 0, parameters whose gradient is 0 become NaN
        le=1,
        help="epsilon in the denominator of Adam",
    )
    grad_clip: float = optimizer_field(
        default=1.0, ge=0, le=1e9, help="largest norm of the gradient; 0 does not clip"
    )
    seed: int = runtime_field(
        default=0, ge=0, le=2**63 - 1, help="seed of initial weights, data order, masks and dropout"
    )
    save_every: int = checkpoint_field(
        default=1000,
        ge=1,
        le=MAX_STEPS,
        help="number of steps between checkpoints; the last step is always saved",
    )
    keep_checkpoints: int = checkpoint_field(
        default=2, ge=1, le=MAX_STEPS, help="number of latest checkpoints to keep"
    )
    eval_every: int = checkpoint_field(
        default=500,
        ge=1,
        le=MAX_STEPS,
        help="number of steps between evaluations on held-out documents",
    )
    eval_batches: int = checkpoint_field(
        default=16, ge=1, le=2**20, help="number of batches in an evaluation"
    )
    device: str = runtime_field(default="auto", help="device: auto, cpu or cuda")
    precision: Literal["auto", "float32", "bfloat16"] = runtime_field(
        default="auto", help="number format of the forward pass; auto is bfloat16 on CUDA"
    )
    master_weights: Literal["yes", "no"] = runtime_field(
        default="no",
        help="keep the model in bfloat16 and float32 master weights in the optimizer, in place of "
        "converting weights in every step",
    )
    attention: Literal["auto", "triton", "varlen", "flex", "sdpa"] = runtime_field(
        default="auto",
        help="kernel of attention in packed rows: triton is our block-sparse one (CUDA, bfloat16, "
        "no bias on the scores); varlen is FlashAttention over the documents of a "
        "batch, where each token attends to its document, causally or not (CUDA, bfloat16); flex "
        "is FlexAttention, in a compiled model, and sdpa a dense mask; auto is flex in a compiled "
        "model on CUDA, in others triton where it can be, else sdpa",
    )
    compile: Literal["auto", "yes", "layers", "no"] = runtime_field(
        default="auto",
        help="compile the model: yes or on is the whole, layers each layer by itself, which starts "
        "sooner, no or off nothing; auto chooses by the length of a run in pretraining on CUDA "
        "without fsdp, and is no otherwise",
    )
    cuda_graph: Literal["auto", "yes", "no"] = runtime_field(
        default="auto",
        help="replay the step as a CUDA graph; "
        "auto is yes where parameters times tokens of a micro-batch are up to 2e12: in pretraining "
        "where rows have one length, or lengths around one (bptt), in fine-tuning of 100 steps or "
        "more where the shapes inside of the loss are static",
    )
    parallel: Literal["ddp", "fsdp"] = runtime_field(
        default="ddp",
        help="what each process of torchrun holds: ddp all weights, fsdp a share of weights, "
        "gradients and optimizer states",
    )
    checkpoint_activations: Literal["yes", "no"] = runtime_field(
        default="no",
        help="compute the activations of each layer again in the backward pass, to save memory",
    )
    tensor: int = runtime_field(
        default=1,
        ge=1,
        le=2**16,
        help="number of processes that hold the width of every layer together (tensor parallel); "
        "torchrun starts a multiple of it",
    )
    pipeline: int = runtime_field(
        default=1,
        ge=1,
        le=2**12,
        help="number of stages that the layers are cut into, one process each, which compute the "
        "micro-batches of a step in turn (pipeline parallel)",
    )
    workers: int | None = runtime_field(
        default=None,
        ge=0,
        le=256,
        help="number of data loader processes, which changes no batch; "
        "by default 0 on a CPU, and 1 to 4 on CUDA",
    )
    on_nan: Literal["stop", "skip", "rollback"] = runtime_field(
        default="stop",
        help="what to do if a loss or gradient is not finite: stop; skip the batch; or roll back "
        "to the last checkpoint and leave the batch out",
    )
    loggers: tuple[str, ...] = runtime_field(
        default=(), help="logger beside TensorBoard: wandb or mlflow; may be repeated"
    )

    def __post_init__(self) -> None:
        for name in self.loggers:
            if name not in LOGGER_NAMES:
                raise UserError(
                    f"train.loggers={name}: it must be {' or '.join(LOGGER_NAMES)}; TensorBoard is "
                    "always written"
                )
        if self.batch_size % self.gradient_accumulation:
            raise UserError(
                f"train.gradient_accumulation={self.gradient_accumulation} does not divide "
                f"train.batch_size={self.batch_size}"
            )
        if self.parallel == "fsdp" and self.optimizer in ("adafactor", "muon"):
            raise UserError(
                f"train.optimizer={self.optimizer} reads whole matrices, which "
                "train.parallel=fsdp divides: use adamw_rms or adamw, or train.parallel=ddp"
            )
        if self.parallel == "fsdp" and self.tensor * self.pipeline > 1:
            raise UserError(
                f"train.parallel=fsdp divides the weights of whole layers, and train.tensor="
                f"{self.tensor} and train.pipeline={self.pipeline} give processes parts of the "
                "model: use one of them"
            )
        if self.cuda_graph == "yes" and not self.can_replay:
            reason = "train.parallel=fsdp exchanges weights inside of the step"
            if self.parallel == "ddp":
                reason = "train.checkpoint_activations=yes sets random numbers inside of the step"
            raise UserError(f"train.cuda_graph=yes: {reason}, which cannot be replayed; use auto")

    @property
    def can_replay(self) -> bool:
        """Whether a step can be replayed as a CUDA graph."""
        return self.parallel == "ddp" and self.checkpoint_activations == "no"

    def loader_processes(self, *, cuda: bool) -> int:
        """Return the number of data loader processes.

        A step on a CPU leaves no core to them. Beside a GPU the process that launches kernels would
        have to make the next batch first: 6 to 11 ms of a step of 28 for an LSTM on an H200.
        """
        if self.workers is not None:
            return self.workers
        return max(1, min(MAX_AUTO_WORKERS, available_cpus() // 4)) if cuda else 0

    def compiles(self, *, cuda: bool, row_length: int | None) -> bool:
        """Return whether the model may be compiled; `row_length` is None where lengths differ.

        A short run of `auto` is not (`plan_compilation`).
        Compiling for varying lengths takes longer than it saves in fine-tuning: 200 steps of
        bert/tiny took 13.3 s eager and 43.8 s compiled on an H200.
        """
        if self.compile == "auto" and self.parallel == "fsdp":
            return False  # layer by layer if asked for
        if self.compile == "auto":
            return cuda and row_length is not None
        return self.compile != "no"

    def replays(self, parameters: int, row_length: int | None) -> bool:
        """Return whether a step is replayed as a CUDA graph, compiled or not."""
        if not self.can_replay:
            return False
        if self.cuda_graph != "auto" or row_length is None:
            return self.cuda_graph == "yes"
        tokens = self.batch_size // self.gradient_accumulation * row_length
        return parameters * tokens <= MAX_GRAPH_WORK

    @property
    def may_replay_static(self) -> bool:
        """Whether steps of fine-tuning are replayed where the network is small enough."""
        worth = self.cuda_graph == "yes" or self.steps >= MIN_GRAPH_STEPS
        return self.can_replay and self.cuda_graph != "no" and worth

    def replays_static(self, parameters: int, positions: int) -> bool:
        """Return whether steps of fine-tuning are replayed: batches have up to these positions."""
        small = self.cuda_graph == "yes" or parameters * positions <= MAX_GRAPH_WORK
        return self.may_replay_static and small

    def saves(self, step: int) -> bool:
        """Return whether a checkpoint is due after this many steps."""
        return step % self.save_every == 0 or step == self.steps


@config("finetune_config")
class FineTuneConfig:
    """Settings of fine-tuning alone."""

    epochs: float | None = field(
        default=None,
        gt=0,
        le=1e6,
        help="number of passes over the training rows; by default 3, and more for few rows",
    )
    layer_lr_decay: float = field(
        default=1.0,
        gt=0,
        le=1,
        help="learning rate of each layer relative to the one above (layer-wise decay)",
    )
    gradual_unfreezing: bool = field(
        default=False, help="unfreeze one more layer every epoch, from the top (gradual unfreezing)"
    )
    noisy_tune: float = field(
        default=0.0,
        ge=0,
        le=10,
        help="noise added to the initial weights, relative to their deviation (NoisyTune)",
    )
    adversarial_epsilon: float = field(
        default=0.0,
        ge=0,
        le=1e3,
        help="size of adversarial perturbations of the embeddings (FGM); 0 for none",
    )
    dropout: float | None = field(
        default=None,
        ge=0,
        lt=1,
        help="dropout rate of the network and its head; by default those of the model",
    )
    early_stopping_patience: int = field(
        default=0,
        ge=0,
        le=MAX_STEPS,
        help="number of evaluations without improvement before stopping; 0 never stops",
    )
    class_weights: Literal["none", "balanced"] = field(
        default="none", help="class weights: balanced weighs rare classes more"
    )
    mixing_temperature: float = field(
        default=1.0,
        gt=0,
        le=1e6,
        help="temperature of the mixture of several files; a high one mixes equally",
    )
    pooling: Literal["token", "mean"] = field(
        default="token",
        help="what a head over a text reads: the family's token, or the mean of all tokens, for "
        "which transformers has no class",
    )
    evals_per_epoch: int = field(
        default=1, ge=1, le=2**20, help="number of evaluations on the dev rows in an epoch"
    )
