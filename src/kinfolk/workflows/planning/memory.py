"""Memory of one device in training: by data, tensor and pipeline parallelism, and their mixtures.

Sizes follow from the trace of one step. Assumed of each way:

- ddp: every device has all weights, gradients and moments.
- fsdp: they are divided by the devices that share the data. The parameters outside of layers and
  two layers are whole at a time, and the gradients of one layer, in the format of the products.
- tensor: matrices of layers, and what layers save of their inside, are divided. Hidden states,
  norms and embeddings are whole on every device.
- pipeline: layers are divided into as many stages. The first stage holds the activations of as many
  micro-batches as there are stages; embeddings and output layer are counted in one stage.
- checkpoint_activations: a layer keeps its inputs; its inside is computed a second time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kinfolk.errors import UserError
from kinfolk.training.trace import StepTrace
from kinfolk.workflows.planning.step import PlannedStep
from kinfolk.workflows.planning.strategy import MAX_DEVICES, Strategy

MAX_TENSOR = 8  # devices of a machine: tensor parallelism needs their fast links
MAX_MORE = 2**13  # times as many devices that may be named as what would fit


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device, at most; `rows` are those of a micro-batch of one replica."""

    strategy: Strategy
    rows: int
    gradient_accumulation: int
    weights: int
    gradients: int
    moments: int
    gathered: int  # parameters and gradients that fsdp makes whole at a time
    activations: int  # and copies of the weights in bfloat16
    logits: int

    @property
    def sure(self) -> int:
        """What any step has in memory at once."""
        return self.weights + self.gradients + self.moments

    @property
    def total(self) -> int:
        """The estimate of all."""
        return self.sure + self.gathered + self.activations + self.logits


def device_memory(
    strategy: Strategy, trace: StepTrace, rows: int, gradient_accumulation: int, *, bfloat16: bool
) -> DeviceMemory:
    """Estimate the memory of a device from the trace of a micro-batch of so many rows."""
    tensor, stages = strategy.tensor, strategy.pipeline
    in_layers = sum(trace.layer_weights)
    outside = max(0, trace.weights - in_layers)
    matrices = min(trace.layer_matrices, in_layers)

    def divided(layer: float) -> float:
        """Return a layer's share on one device of those that divide its matrices."""
        return layer * (1 - matrices / max(in_layers, 1) * (1 - 1 / tensor))

    deepest = -(-depth // stages) / depth if (depth := len(trace.layer_weights)) else 1 / stages
    weights = outside + divided(in_layers) * deepest
    held, gathered = weights / max(trace.weights, 1), 0.0  # share of the parameters
    casts = held * trace.casts
    if strategy.parallel == "fsdp" and strategy.replicas > 1:
        held, casts = held / strategy.replicas, 0.0  # gathered in that format
        largest = divided(max(trace.layer_weights, default=0))
        gathered = (2 * outside + 3 * largest) * (0.5 if bfloat16 else 1.0)
    in_flight = min(stages, gradient_accumulation) * deepest
    saved = [layer.saved - layer.split * (1 - 1 / tensor) for layer in trace.layers]
    if strategy.checkpoint_activations:
        kept = sum(layer.inputs for layer in trace.layers) * in_flight + max(saved, default=0)
    else:
        kept = sum(saved) * in_flight
    return DeviceMemory(
        strategy=strategy,
        rows=rows,
        gradient_accumulation=gradient_accumulation,
        weights=round(held * trace.weights),
        gradients=round(held * trace.gradients),
        moments=round(held * trace.moments),
        gathered=round(gathered),
        activations=round(trace.outside + kept + casts),
        logits=trace.logits,
    )


@dataclass(frozen=True)
class MemoryPlanner:
    """Chooses micro-batches so that a step fits into the memory of a device."""

    step: PlannedStep
    batch_size: int
    gradient_accumulation: int | None  # None: the least that fits
    capacity: int  # bytes of a device that training may use

    def fits(self, memory: DeviceMemory) -> bool:
        """Return whether the estimate is within the memory of a device."""
        return memory.total <= self.capacity

    def check(self, strategy: Strategy) -> None:
        """Refuse a strategy that a run of this step refuses."""
        strategy.check(self.batch_size, self.gradient_accumulation)
        strategy.check_network(self.step.model, self.step.optimizer)

    def accepts(self, strategy: Strategy) -> bool:
        """Return whether a run of this step accepts a strategy."""
        try:
            self.check(strategy)
        except UserError:
            return False
        return True

    def memory(self, strategy: Strategy) -> DeviceMemory:
        """Return the memory with the largest micro-batch that fits, else with one row."""
        share = self.batch_size // strategy.replicas
        if self.gradient_accumulation is not None:
            return self.with_rows(strategy, share // self.gradient_accumulation)
        found = self.with_rows(strategy, 1)
        # A pipeline with fewer micro-batches than stages leaves most of its devices idle.
        most = max(1, share // strategy.pipeline)
        for rows in divisors(share):
            if not 1 < rows <= most:
                continue
            if not self.fits(larger := self.with_rows(strategy, rows)):
                break
            found = larger
        return found

    def with_rows(self, strategy: Strategy, rows: int) -> DeviceMemory:
        """Return the memory with micro-batches of so many rows."""
        parts = self.batch_size // strategy.replicas // rows
        trace = self.step.estimate(rows)
        return device_memory(strategy, trace, rows, parts, bfloat16=self.step.bfloat16)

    def alternatives(self, strategy: Strategy) -> Iterator[DeviceMemory]:
        """Yield other strategies that fit, the closest to a given one first."""
        for other in dict.fromkeys(self.candidates(strategy)):
            if self.accepts(other) and self.fits(memory := self.memory(other)):
                yield memory

    def candidates(self, strategy: Strategy) -> Iterator[Strategy]:
        """Yield other ways on as many devices, then on more."""
        sharded = replace(strategy, parallel="fsdp", tensor=1, pipeline=1)
        copies = replace(strategy, parallel="ddp", checkpoint_activations=True)
        lighter = replace(sharded, checkpoint_activations=True)
        yield from (replace(strategy, checkpoint_activations=True), sharded, lighter)
        yield from split_layers(replace(copies, checkpoint_activations=False))
        yield from split_layers(copies)
        devices = 2 * strategy.devices
        while devices <= min(MAX_DEVICES, MAX_MORE * strategy.devices):
            yield replace(lighter, devices=devices)
            yield from split_layers(replace(copies, devices=devices))
            devices *= 2


def split_layers(strategy: Strategy) -> Iterator[Strategy]:
    """Yield a strategy with layers shared by more devices, in more stages, and both."""
    widths, depths = (2, 4, MAX_TENSOR), (2, 4, 8, 16, 32, 64)
    yield from (replace(strategy, tensor=n, pipeline=1) for n in widths)
    yield from (replace(strategy, tensor=1, pipeline=n) for n in depths)
    yield from (replace(strategy, tensor=MAX_TENSOR, pipeline=n) for n in depths)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, from 1 on."""
    return [n for n in range(1, number + 1) if number % n == 0]
