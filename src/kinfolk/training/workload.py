"""What a run trains: the model, its data and its optimizer step.

Pretraining, fine-tuning and counting are workloads; `Run` knows no family, objective or task.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch.utils.data import Dataset

from kinfolk.batch import Batch, ComputesLoss, Loss, SegmentMemory
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel, has_static_shapes, reads_texts
from kinfolk.training.activation_checkpoint import checkpoint_activations
from kinfolk.training.attention_kernel import sparse_kernel
from kinfolk.training.compilation import CompiledModules, CompilePlan, plan_compilation
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.loader import WithSequenceOffsets, WithTexts, data_loader
from kinfolk.training.log import RunSample
from kinfolk.training.loop import Callback
from kinfolk.training.master_weights import MasterWeights
from kinfolk.training.optimizer import build_optimizer, lr_schedule, with_steps
from kinfolk.training.regularize import FGM, GradualUnfreezing
from kinfolk.training.step import Learner, Step, TrainStep
from kinfolk.training.time_budget import Decision
from kinfolk.training.watch import LossBaseline

if TYPE_CHECKING:
    from kinfolk.training.model_shard import ModelShard

LossFn = Callable[[Batch[Any]], Loss]


class Workload(ABC):
    """The model, the data, and how a run evaluates and saves them."""

    command: ClassVar[str]  # that resumes the run: pretrain or finetune
    longer: ClassVar[str] = "more --steps"  # how a new run is trained longer
    results: ClassVar[tuple[str, ...]] = ("report.html",)  # files that a finished run has

    train: TrainConfig
    model: LanguageModel  # on the device that it is trained on
    objective: ComputesLoss  # a pretraining objective, or a formulation of a task
    batches: Dataset[Batch[Any]]  # batch n is a function of the seed and n
    has_eval_data: bool
    fingerprints: Sequence[tuple[str, str]]  # path and hash of each data file or corpus

    processes = Processes()  # that train the model together
    shard: "ModelShard | None" = None  # of the model, if other processes hold the rest of it
    whole: Mapping[str, torch.Tensor] | None = None  # weights to save in place of the model's own

    memory: list[SegmentMemory] | None = None  # of each micro-batch, where rows continue
    layer_lr_decay: float = 1.0
    unfreezing: GradualUnfreezing | None = None
    attack: FGM | None = None
    early_stopping_patience: int = 0  # evaluations without improvement; 0 never stops
    save_best: bool = False  # save at every evaluation that is the best so far
    row_length: int | None = None  # of every batch; None where batches differ in shape
    usual_lengths: range | None = None  # of rows, where they differ: those that are replayed
    # Batches of few shapes, which are replayed, where shapes differ otherwise (fine-tuning).
    static_batches: Container[Batch[Any]] | None = None
    selects_by_loss: bool = True  # the best checkpoint is that of the lowest held-out loss
    # Its evaluation calls the model itself, not the loss alone: a sharded one is gathered for it.
    evaluates_model: bool = False
    dropped: Collection[int] = ()  # numbers of batches that are left out
    compile_plan = CompilePlan("no")  # of its step
    # How many steps a run with a budget of seconds has; () where its clock decides.
    decisions: Sequence[Decision] = ()

    @classmethod
    @abstractmethod
    def reopen(
        cls, recipe: Any, folder: Path, newest: Path | None, callbacks: Sequence[Callback]
    ) -> Self:
        """Build the workload of a run folder; the weights follow from its newest checkpoint."""

    @abstractmethod
    def write_recipe(self, folder: Path) -> None:
        """Write recipe.json and the other files that a resume reads."""

    @abstractmethod
    def evaluate(self, loss: LossFn) -> Mapping[str, Any]:
        """Return the metrics on held-out data, "eval_loss" among them."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Write the model, its tokenizer and the recipe."""

    @abstractmethod
    def load_weights(self, folder: Path) -> None:
        """Load the weights that `save_model` wrote."""

    @abstractmethod
    def write_report(self, folder: Path, *, finished: bool) -> None:
        """Write report.html and, for a finished run, the other files in `results`."""

    def make_step(self, folder: Path, device: torch.device, *, bfloat16: bool) -> Step:
        """Return what the run in this folder repeats: an optimizer step."""
        return optimizer_step(self, device, bfloat16=bfloat16)

    def micro_batches(self, start: int, *, pinned: bool) -> Iterator[Sequence[Batch[Any]]]:
        """Yield the micro-batches of each step from `start` on."""
        batches = WithTexts(self.batches) if reads_texts(self.model) else self.batches
        if self.train.attention == "varlen":
            batches = WithSequenceOffsets(batches)
        return data_loader(batches, self.train, start, pinned, self.processes, dropped=self.dropped)

    def batch_parts(self, number: int) -> list[Batch[Any]]:
        """Return the micro-batches of a batch of the data, the shares of all processes."""
        count = self.train.gradient_accumulation * self.processes.data_count
        return [self.batches[number * count + part] for part in range(count)]

    def decode(self, ids: Sequence[int]) -> str | None:
        """Return the text of tokens, None without a tokenizer."""
        return None

    def loss_baselines(self) -> Sequence[LossBaseline]:
        """Return the losses that the run should fall below, from the highest to the lowest."""
        return ()

    def duplicates(self) -> Mapping[str, float]:
        """Return the fraction of each corpus in documents that equal an earlier one."""
        return {}

    def samples(self) -> Sequence[RunSample]:
        """Return what the model makes of some text, the same at every checkpoint."""
        return ()

    def main_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that select the best checkpoint, besides the loss."""
        return {}

    def score(self, metrics: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the score that selects the best checkpoint; larger is better."""
        return (-metrics["eval_loss"],)


def optimizer_step(work: Workload, device: torch.device, *, bfloat16: bool) -> TrainStep:
    """Return the optimizer step of a workload, compiled where its settings say so."""
    train, model, cuda = work.train, work.model, device.type == "cuda"
    lr_schedule(train)  # refuses a warm-up that is longer than the run

    @lru_cache(maxsize=1)
    def schedule(steps: int) -> Callable[[int], float]:
        """Return the schedule of a number of steps, which the clock may have set."""
        return lr_schedule(with_steps(train, steps))

    learner = Learner(model, work.objective)
    row_length = static_row_length(work)
    parameters = sum(p.numel() for p in model.parameters())
    kind, replays = TrainStep, cuda and train.replays(parameters, replayed_row_length(work))
    plan = plan_compilation(
        train, cuda=cuda, row_length=row_length, parameters=parameters, replays=replays
    )
    fsdp = train.parallel == "fsdp"
    block_sparse = plan.mode != "no" and not fsdp and cuda and row_length is not None
    half = cuda and bfloat16
    kernel = sparse_kernel(model, train.attention, compiled=block_sparse, half=half)
    if train.master_weights == "yes":
        check_master_weights(work, bfloat16=bfloat16)
    if train.checkpoint_activations == "yes":
        checkpoint_activations(model)
    shards = None
    if fsdp:
        from kinfolk.training.sharding import Shards  # takes a second

        check_shardable(work)
        dynamic = row_length is None
        compiles = plan.mode != "no"
        shards = Shards(learner, device, work.processes, compiled=compiles, dynamic=dynamic)
    if work.processes.pipeline > 1:
        from kinfolk.training.pipeline import PipelineStep  # takes seconds

        kind = PipelineStep
    replays |= cuda and work.static_batches is not None
    if work.shard is not None:
        if train.cuda_graph == "yes":
            raise UserError(
                "train.cuda_graph=yes replays a step of one process, and other processes hold "
                "parts of this model: leave it at auto"
            )
        replays = False
    compiled = None
    if shards is None:
        whole: torch.nn.Module = learner if work.processes.is_last_stage else model
        compiled = CompiledModules.of(plan.mode, whole, dynamic=row_length is None)
    work.compile_plan = plan
    optimizer = build_optimizer(model, train, layer_lr_decay=work.layer_lr_decay)
    master_weights = None
    if train.master_weights == "yes":
        master_weights = MasterWeights(model, optimizer)
    return kind(
        learner,
        optimizer,
        lambda number: train.lr * schedule(work.train.steps)(number),
        clip=train.grad_clip,
        seed=train.seed,
        device=device,
        bfloat16=bfloat16,
        sparse_kernel=kernel,
        cuda_graph=replays,
        graph_lengths=work.usual_lengths,
        graph_batches=work.static_batches,
        memory=work.memory,
        unfreezing=work.unfreezing,
        attack=work.attack,
        # Reading loss and gradient norm waits for an accelerator; a step that saves waits
        # anyway. Values that are not finite in between are found when the log is written.
        checks=lambda number: not cuda or train.on_nan == "skip" or work.train.saves(number + 1),
        processes=work.processes,
        shards=shards,
        shard=work.shard,
        compiled=compiled,
        master_weights=master_weights,
    )


def check_master_weights(work: Workload, *, bfloat16: bool) -> None:
    """Refuse runs whose weights cannot be rounded."""
    setting = "train.master_weights=yes"
    if not bfloat16:
        raise UserError(
            f"{setting} keeps the model in bfloat16, and this run computes in float32: use "
            "train.precision=bfloat16, or leave it at no"
        )
    if work.train.parallel == "fsdp" or work.shard is not None:
        raise UserError(
            f"{setting}: every process must hold the whole model; use train.parallel=ddp, "
            "train.tensor=1 and train.pipeline=1, or leave it at no"
        )
    if work.attack is not None:
        raise UserError(
            f"{setting}: --adversarial-epsilon adds to the embeddings less than bfloat16 can tell; "
            "use one of them"
        )
    if not has_static_shapes(work.model):
        raise UserError(
            f"{setting}: recurrent layers keep their weights outside of their parameters, which "
            "cannot be rounded; leave it at no"
        )


def check_shardable(work: Workload) -> None:
    """Refuse methods of fine-tuning that change whole parameters between two passes."""
    refused = {"--gradual-unfreezing": work.unfreezing, "--adversarial-epsilon": work.attack}
    for name, method in refused.items():
        if method is not None:
            raise UserError(
                f"train.parallel=fsdp divides the parameters that {name} changes between two "
                "passes: remove it, or use train.parallel=ddp"
            )


def static_row_length(work: Workload) -> int | None:
    """Return the length of all rows; None where shapes inside the network differ by batch."""
    if has_static_shapes(work.model):
        return work.row_length
    if work.train.cuda_graph == "yes" and not work.model.static_whole_rows:
        raise UserError(
            f"train.cuda_graph=yes: the shapes inside {work.model.family_name} depend on the texts "
            "of a batch, so its step cannot be replayed; leave it at auto"
        )
    return None


def replayed_row_length(work: Workload) -> int | None:
    """Return the greatest length of rows that a CUDA graph is recorded for; None where any may be.

    A recurrent network has static shapes in batches whose rows are one text each; the others are
    not replayed (`GraphedForwardBackward.accepts`).
    """
    if not has_static_shapes(work.model) and not work.model.static_whole_rows:
        return None
    return work.usual_lengths[-1] if work.usual_lengths else work.row_length


def uses_bfloat16(train: TrainConfig, device: torch.device) -> bool:
    """Return whether the forward pass of a run is in bfloat16."""
    return train.precision == "bfloat16" or (train.precision == "auto" and device.type == "cuda")


def select_device(device: torch.device | str) -> torch.device:
    """Return the device to run on; `auto` is CUDA if available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        selected = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}: use auto, cpu or cuda") from None
    if selected.type not in ("cpu", "cuda"):
        raise UserError(f"device {device!r} is not supported: use auto, cpu or cuda")
    if selected.type == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device on this machine: use --device cpu")
    return selected
