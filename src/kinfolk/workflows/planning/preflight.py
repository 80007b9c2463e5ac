"""What a training run is about to take, said before its first step, and refused where it cannot be.

Only what is sure is refused: weights, gradients and moments of the optimizer are in memory at the
same time, and on a CPU, whose step is not compiled, what autograd saves is known to the byte.
Anything else is an estimate: where it is too much, there is a warning.
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kinfolk.data.disk_space import format_bytes
from kinfolk.errors import UserError
from kinfolk.families import family, index
from kinfolk.machine import available_memory, free_disk
from kinfolk.nn.language_model import LanguageModel, ModelConfig, executed_layers
from kinfolk.nn.meta import count_parameters, meta_network
from kinfolk.reports.page import plural
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.memory import resident_bytes
from kinfolk.training.trace import LayerTrace, StepTrace, moment_bytes, tensor_bytes
from kinfolk.training.workload import select_device, uses_bfloat16
from kinfolk.workflows.planning.memory import DeviceMemory, MemoryPlanner, device_memory
from kinfolk.workflows.planning.plan import EXTRA_CHECKPOINTS, OPTIMAL_TOKENS
from kinfolk.workflows.planning.step import PlannedStep
from kinfolk.workflows.planning.strategy import Strategy
from kinfolk.workflows.recipe import Recipe

MAX_EXACT_ROWS = 64  # of a micro-batch; more are estimated
NEAR = 0.25  # share of the memory above which activations are traced, if nobody reads the estimate
# Of what is known exactly, so that a rounded size never refuses a run that fits.
MARGIN = 0.95


@dataclass(frozen=True)
class Preflight:
    """The estimate of a run, in lines to print and warnings."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def warn(self) -> None:
        """Warn of what may not fit."""
        for sentence in self.warnings:
            warnings.warn(sentence, stacklevel=3)


@dataclass(frozen=True)
class Room:
    """Memory of the device of one process, and disk of the run, in bytes."""

    device: str
    memory: int
    disk: int
    held: int = 0  # memory that the process has before its first step, beside what is estimated

    @classmethod
    def here(cls, device: torch.device, out: Path, processes: Processes) -> "Room":
        """Return what this machine has; processes on one CPU share its memory."""
        if device.type != "cuda":
            memory = available_memory() // processes.local_count
            return cls("this machine", memory, free_disk(out), resident_bytes("VmRSS") or 0)
        own = processes.own_device(device)
        # What torch has reserved in this process is used again.
        free = torch.cuda.mem_get_info(own)[0] + torch.cuda.memory_reserved(own)
        return cls(torch.cuda.get_device_name(own), free, free_disk(out))

    def words(self, size: int) -> str:
        """Return an estimate beside what the process has already and what there is."""
        held = f" beside the {format_bytes(self.held)} of the process," if self.held else ""
        return f"{format_bytes(size)}{held} of {format_bytes(self.memory)}"


def run_strategy(train: TrainConfig, processes: Processes) -> Strategy:
    """Return how a run uses its processes."""
    return Strategy(
        devices=processes.count,
        parallel=train.parallel,
        tensor=processes.tensor,
        pipeline=processes.pipeline,
        checkpoint_activations=train.checkpoint_activations == "yes",
    )


def check_pretraining(
    recipe: Recipe,
    out: Path,
    *,
    processes: Processes = Processes(),
    room: Room | None = None,
    described: bool = True,
) -> Preflight:
    """Return the estimate of a pretraining run; refuse one that cannot fit.

    Where it is not `described`, activations are traced only if memory is scarce. `room` is that of
    this machine unless it is given.
    """
    train, device = recipe.train, select_device(recipe.train.device)
    room = Room.here(device, out, processes) if room is None else room
    corpora = [share.open() for share in recipe.corpora]
    step = PlannedStep(
        recipe.model,
        recipe.objective,
        cuda=device.type == "cuda",
        bfloat16=uses_bfloat16(train, device),
        optimizer=train.optimizer,
        documents=corpora[0],
    )
    rows = processes.rows(train.batch_size, train.gradient_accumulation)
    strategy = run_strategy(train, processes)
    trace = parameter_trace(step.model, train)
    traced = step.static and (described or trace.sure > NEAR * room.memory)
    if traced:
        trace = step.trace(rows) if rows <= MAX_EXACT_ROWS else step.estimate(rows)
    parts = train.gradient_accumulation
    memory = device_memory(strategy, trace, rows, parts, bfloat16=step.bfloat16)
    compiled = train.compiles(cuda=step.cuda, row_length=recipe.objective.max_length)
    known_sizes = traced and not step.cuda and not step.bfloat16 and not compiled
    at_forward = memory.weights + memory.moments + MARGIN * memory.activations * known_sizes
    planner = MemoryPlanner(step, train.batch_size, None, room.memory)
    cautions = list[str]()
    if max(MARGIN * memory.sure, at_forward) > room.memory:
        raise UserError(too_large(recipe.name, memory, round(at_forward), planner, room))
    if memory.total > room.memory:
        cautions.append(
            f"a step may take {format_bytes(memory.total)}, and {room.device} has "
            f"{format_bytes(room.memory)}: if it fails, use {lighter(memory, planner)}"
        )
    disk, caution = check_disk(trace, train, out, room)
    cautions += caution
    tokens = train.steps * train.batch_size * recipe.objective.max_length
    corpus = sum(text.tokens for text in corpora)
    known = "about" if traced else "at least"
    lines = (
        f"{recipe.name}: {step.parameters:,} parameters, {tokens:,} tokens in "
        f"{plural(tokens / max(corpus, 1), 'epoch')}, {tokens / max(step.parameters, 1):,.3g} per "
        f"parameter (compute-optimal: {OPTIMAL_TOKENS})",
        f"memory: {known} {room.words(memory.total)}; disk: {disk}",
    )
    return Preflight(lines, tuple(cautions))


def check_finetuning(
    model: LanguageModel,
    train: TrainConfig,
    out: Path,
    *,
    processes: Processes = Processes(),
    room: Room | None = None,
) -> Preflight:
    """Return the estimate of fine-tuning a model that is built; refuse what cannot fit.

    Shapes differ from batch to batch, so that activations are not in it.
    """
    device = select_device(train.device)
    trace = parameter_trace(model, train)
    if room is None:
        room = Room.here(device, out, processes)
        if train.parallel == "ddp" or device.type == "cpu":  # it is in this memory
            held = max(0, room.held - trace.weights)
            room = replace(room, memory=room.memory + trace.weights, held=held)
    parameters = count_parameters(model)
    sure = trace.sure // processes.count if train.parallel == "fsdp" else trace.sure
    memory = f"{format_bytes(sure)} of {format_bytes(room.memory)}"
    if MARGIN * sure > room.memory:
        given = run_strategy(train, processes)
        other = train.optimizer != "adafactor" and given.runs(model, "adafactor")
        adafactor = " or train.optimizer=adafactor" if other else ""
        raise UserError(
            f"weights, gradients and moments of {parameters:,} parameters take {memory} on "
            f"{room.device}: use a smaller model{adafactor}, or a device with more memory"
        )
    disk, cautions = check_disk(trace, train, out, room)
    line = f"{parameters:,} parameters; memory: {room.words(sure)}, and activations; disk: {disk}"
    return Preflight((line,), tuple(cautions))


def parameter_trace(model: LanguageModel, train: TrainConfig) -> StepTrace:
    """Return what is known without a step: the parameters, all with a gradient and moments."""
    trained = [p for p in model.parameters() if p.requires_grad]
    layers = executed_layers(model)
    return StepTrace(
        flops=0,
        weights=tensor_bytes([*model.parameters(), *model.buffers()]),
        gradients=tensor_bytes(trained),
        moments=sum(moment_bytes(train.optimizer, p) for p in trained),
        layers=tuple[LayerTrace, ...](),
        outside=0,
        casts=0,
        logits=0,
        layer_weights=tuple(tensor_bytes(layer.parameters()) for layer in layers),
        layer_matrices=tensor_bytes(p for m in layers for p in m.parameters() if p.ndim > 1),
    )


def check_disk(
    trace: StepTrace, train: TrainConfig, out: Path, room: Room
) -> tuple[str, Iterable[str]]:
    """Return the disk that checkpoints take in words, and warnings; refuse what cannot fit.

    A run writes a checkpoint before it removes the oldest. Those that it has already are not
    written again.
    """
    size = trace.weights + trace.moments
    there = len([*(out / "checkpoints").glob("step-*")])
    saves = math.ceil(train.steps / train.save_every)
    sure = min(saves, train.keep_checkpoints + 1) - there
    most = min(saves, train.keep_checkpoints + EXTRA_CHECKPOINTS) - there
    words = f"{plural(most, 'checkpoint')} of {format_bytes(size)} of {format_bytes(room.disk)}"
    if most <= 0:
        words = "no more checkpoints"
    way_out = "free some space, lower train.keep_checkpoints, or choose a folder on another disk"
    if MARGIN * size * sure > room.disk:
        raise UserError(
            f"the run writes {plural(sure, 'checkpoint')} of {format_bytes(size)}, and the "
            f"disk of {out} has {format_bytes(room.disk)} free: {way_out}"
        )
    if size * most > room.disk:
        return words, [
            f"the disk of {out} has {format_bytes(room.disk)} free, and "
            f"{plural(most, 'checkpoint')} may be kept at a time, with the best one, of "
            f"{format_bytes(size)} each: {way_out}"
        ]
    return words, ()


def too_large(
    name: str, memory: DeviceMemory, at_forward: int, planner: MemoryPlanner, room: Room
) -> str:
    """Return the sentence about a run that cannot fit, with what would."""
    if MARGIN * memory.sure <= room.memory:
        return (
            f"{name}: a step of {memory.rows:,} rows keeps {format_bytes(at_forward)}, and "
            f"{room.device} has {format_bytes(room.memory)}: use {lighter(memory, planner)}"
        )
    step, own = planner.step, planner.step.config
    divisible = Strategy(parallel="fsdp").runs(step.model, step.optimizer)
    counts = sharded_devices(memory, room) if divisible else ()
    ways = [f"fsdp on {count} devices" for count in counts]
    ways += [f"the smaller size {smaller}" for smaller in smaller_sizes(name, own, memory, room)]
    ways += ["a device with more memory"]
    return (
        f"{name}: weights, gradients and moments take {format_bytes(memory.sure)}, and "
        f"{room.device} has {format_bytes(room.memory)}: use {' or '.join(ways)}"
    )


def lighter(memory: DeviceMemory, planner: MemoryPlanner) -> str:
    """Return how the same step takes less memory: micro-batches, or checkpoints of activations."""
    fitting = planner.memory(memory.strategy) if planner.step.static else memory
    parts = fitting.gradient_accumulation
    recomputed = replace(memory.strategy, checkpoint_activations=True)
    again = "" if memory.strategy.checkpoint_activations else ", or train.checkpoint_activations"
    if not recomputed.runs(planner.step.model, planner.step.optimizer):
        again = ""
    if fitting.rows < memory.rows and planner.fits(fitting):
        return f"train.gradient_accumulation={parts}{again}"
    return f"a smaller batch with more gradient accumulation{again}"


def sharded_devices(memory: DeviceMemory, room: Room) -> Iterable[int]:
    """Yield the least number of devices, a power of two, whose shares would fit."""
    count = 2 ** math.ceil(math.log2(max(2, memory.sure / max(room.memory, 1))))
    if count <= 2**14:
        yield count


def smaller_sizes(name: str, own: ModelConfig, memory: DeviceMemory, room: Room) -> Iterable[str]:
    """Yield the largest smaller size of the family whose weights, gradients and moments fit."""
    family_name, _, _ = name.partition("/")
    if family_name not in index():
        return
    per_byte, fitting = memory.sure / max(memory.weights, 1), list[tuple[int, str]]()
    for size, config in family(family_name).sizes.items():
        if config.hidden_size < own.hidden_size:
            same = config.with_fields(vocab_size=own.vocab_size, max_length=own.max_length)
            weights = tensor_bytes(meta_network(same).parameters())
            fitting += [(weights, size)] if weights * per_byte <= room.memory else []
    if fitting:
        yield f"{family_name}/{max(fitting)[1]}"


def announce(preflight: Preflight, callbacks: Iterable[Any]) -> None:
    """Pass the lines to the callbacks of a run, and warn."""
    for line in preflight.lines:
        for callback in callbacks:
            callback.on_message(line)
    preflight.warn()
