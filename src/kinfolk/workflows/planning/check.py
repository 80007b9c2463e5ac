"""A few real steps of a planned run, to compare its estimates with what they take."""

import dataclasses
import gc
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from kinfolk.batch import Batch, with_texts
from kinfolk.errors import UserError
from kinfolk.machine import available_memory
from kinfolk.nn.language_model import LanguageModel, has_static_shapes, reads_texts
from kinfolk.training.attention_kernel import sparse_kernel
from kinfolk.training.compilation import CompiledModules, CompileMode
from kinfolk.training.config import TrainConfig
from kinfolk.training.first_estimate import WARMUP_STEPS
from kinfolk.training.flops import FlopCounter
from kinfolk.training.meters import peak_memory, reset_peak_memory
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep
from kinfolk.training.trace import SavedTensors, StepTrace, tensor_bytes
from kinfolk.training.workload import select_device
from kinfolk.workflows.planning.step import PlannedStep

TIMED_STEPS = 5


@dataclass(frozen=True)
class StepCheck:
    """An estimate, and what real steps took; sizes in bytes."""

    device: str
    rows: int
    estimated: StepTrace
    weights: int
    moments: int
    # Counted in a step that is not compiled; None where CUDA has not the memory for it.
    flops: int | None
    gradients: int | None
    activations: int | None  # that autograd saved; None on CUDA too, where the step is compiled
    peak: int | None  # allocated on CUDA; None on a CPU, whose peak is that of the whole process
    seconds: float  # of a step

    @property
    def estimate(self) -> int:
        """The estimate of the peak."""
        trace = self.estimated
        return trace.sure + trace.activations + trace.casts + trace.logits

    @property
    def flops_per_second(self) -> float:
        """The speed of the steps."""
        return self.estimated.flops / self.seconds


def check_plan(
    step: PlannedStep,
    rows: int,
    *,
    device: torch.device | str = "auto",
    train: TrainConfig | None = None,
) -> StepCheck:
    """Run a few steps of micro-batches of so many rows on this machine and measure them."""
    device, train = select_device(device), train or TrainConfig()
    cuda = device.type == "cuda"
    estimated = step.trace(rows)
    free = torch.cuda.mem_get_info(device)[0] if cuda else available_memory()
    if estimated.sure + estimated.activations > free:
        size = (estimated.sure + estimated.activations) / 1e9
        raise UserError(
            f"--check: a step takes about {size:,.1f} GB, and {device.type} has {free / 1e9:,.1f} "
            "GB free: use a smaller --batch, or a larger --grad-accum"
        )
    train = dataclasses.replace(train, optimizer=step.optimizer, warmup=0)
    reset_peak_memory(device)
    before = torch.cuda.memory_allocated(device) if cuda else 0
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.manual_seed(train.seed)
        model = step.build().to(device)
        model.train()
        run = train_step(step, model, train, device)
        batch = step.batch(rows)
        if reads_texts(model):
            batch = with_texts(batch)
        if step.objective.recurrent:
            init_memory: Any = model.init_memory
            run.memory = [init_memory(rows)]
        seconds = []
        for number in range(WARMUP_STEPS + TIMED_STEPS):
            start = time.perf_counter()
            run(number, [batch])
            if cuda:
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
        peak = peak_memory(device) - before if cuda else None
        state = [t for values in run.optimizer.state.values() for t in values.values()]
        weights = tensor_bytes([*model.parameters(), *model.buffers()])
        moments = tensor_bytes(state)
        eager, carried = None, run.memory
        del run, state
        gc.collect()
        batch = batch.with_memory(None if carried is None else carried[0]).to(device)
        try:
            eager = count_eager(step, model, batch)
        except torch.OutOfMemoryError:  # a compiled step needs less
            model.zero_grad(set_to_none=True)
    return StepCheck(
        device=torch.cuda.get_device_name(device) if cuda else "cpu",
        rows=rows,
        estimated=estimated,
        weights=weights,
        moments=moments,
        flops=None if eager is None else eager.flops,
        gradients=None if eager is None else eager.gradients,
        activations=None if eager is None or cuda else eager.activations,
        peak=peak,
        seconds=sorted(seconds[WARMUP_STEPS:])[TIMED_STEPS // 2],
    )


def train_step(
    step: PlannedStep, model: LanguageModel, train: TrainConfig, device: torch.device
) -> TrainStep:
    """Return the optimizer step of a pretraining run, compiled where such a run compiles it."""
    cuda = device.type == "cuda"
    length = step.objective.max_length if has_static_shapes(model) else None
    learner = Learner(model, step.objective)
    mode: CompileMode = "model" if train.compiles(cuda=cuda, row_length=length) else "no"
    compiled = CompiledModules.of(mode, learner, dynamic=length is None)
    block_sparse = compiled is not None and cuda and length is not None
    half = cuda and step.bfloat16
    kernel = sparse_kernel(model, train.attention, compiled=block_sparse, half=half)
    return TrainStep(
        learner,
        build_optimizer(model, train),
        lambda number: train.lr,
        clip=train.grad_clip,
        seed=train.seed,
        device=device,
        bfloat16=step.bfloat16,
        sparse_kernel=kernel,
        cuda_graph=cuda and train.replays(step.parameters, length),
        checks=lambda number: False,
        compiled=compiled,
    )


@dataclass(frozen=True)
class Counted:
    """What a step that is not compiled takes."""

    flops: int
    gradients: int
    activations: int


def count_eager(step: PlannedStep, model: LanguageModel, batch: Batch[Any]) -> Counted:
    """Count FLOPs, gradients and what autograd saves in a step that is not compiled."""
    saved = SavedTensors(model, model.feature_size)
    device = batch.inputs.input_ids.device.type
    with FlopCounter() as counter:
        with (
            saved_tensors_hooks(saved.save, lambda tensor: tensor),
            torch.autocast(device, torch.bfloat16, enabled=step.bfloat16),
        ):
            mean = step.objective.loss(model, batch).mean(batch.counts)
        torch.autograd.backward(mean)
    gradients = tensor_bytes([p for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    alone, _, outside = saved.sizes(leaving=())
    return Counted(counter.total, gradients, outside + sum(alone.values()))
