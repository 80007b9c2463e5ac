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
from typing import Literal

from kinfolk.errors import UserError
from kinfolk.nn.language_model import ModelConfig
from kinfolk.training.trace import StepTrace
from kinfolk.workflows.plan_step import PlannedStep

Parallel = Literal["ddp", "fsdp"]
MAX_DEVICES = 2**20
MAX_TENSOR = 8  # devices of a machine: tensor parallelism needs their fast links


@dataclass(frozen=True)
class Strategy:
    """How a model is trained on several devices."""

    devices: int = 1
    parallel: Parallel = "ddp"
    tensor: int = 1
    pipeline: int = 1
    checkpoint_activations: bool = False

    @property
    def replicas(self) -> int:
        """The number of shares that the rows of a step are divided into."""
        return self.devices // (self.tensor * self.pipeline)

    @property
    def words(self) -> str:
        """The strategy in words: `fsdp, tensor 8, pipeline 4`."""
        parts = [
            self.parallel if self.replicas > 1 else "",
            f"tensor {self.tensor}" if self.tensor > 1 else "",
            f"pipeline {self.pipeline}" if self.pipeline > 1 else "",
        ]
        return ", ".join(part for part in parts if part) or "one device"

    @property
    def options(self) -> str:
        """The options of `kinfolk plan` that choose it."""
        parts = [
            f"--devices {self.devices}",
            f"--parallel {self.parallel}" if self.parallel != "ddp" else "",
            f"--tensor {self.tensor}" if self.tensor > 1 else "",
            f"--pipeline {self.pipeline}" if self.pipeline > 1 else "",
            "--checkpoint-activations" if self.checkpoint_activations else "",
        ]
        return " ".join(part for part in parts if part)

    def check(self, config: ModelConfig, batch_size: int) -> None:
        """Refuse devices, heads or layers that cannot be divided like this."""
        heads, layers = config.num_heads, vars(config).get("num_layers", 1)
        for name, value in (("devices", self.devices), ("tensor", self.tensor)):
            if not 1 <= value <= MAX_DEVICES:
                raise UserError(f"--{name} must be from 1 to {MAX_DEVICES:,} (got {value})")
        if heads % self.tensor:
            raise UserError(
                f"--tensor {self.tensor} does not divide the {heads} attention heads of "
                f"{config.family_name}: use a divisor of {heads}"
            )
        if not 1 <= self.pipeline <= layers:
            raise UserError(
                f"--pipeline must be from 1 to the {layers} layers of the network (got "
                f"{self.pipeline})"
            )
        shares = self.tensor * self.pipeline
        if shares > self.devices:
            raise UserError(
                f"--tensor {self.tensor} and --pipeline {self.pipeline} need {shares} devices, and "
                f"there are {self.devices}: raise --devices, or lower one of them"
            )
        if self.devices % shares:
            raise UserError(
                f"--devices {self.devices} is no multiple of --tensor {self.tensor} times "
                f"--pipeline {self.pipeline}: use a multiple of {shares}"
            )
        if batch_size % self.replicas:
            raise UserError(
                f"--batch {batch_size} cannot be shared equally by {self.replicas} replicas of the "
                f"model: use a multiple of {self.replicas}, or other --devices"
            )


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

    weights = outside + divided(in_layers) / stages
    held, gathered = weights / max(trace.weights, 1), 0.0  # share of the parameters
    casts = held * trace.casts
    if strategy.parallel == "fsdp" and strategy.replicas > 1:
        held, casts = held / strategy.replicas, 0.0  # gathered in that format
        largest = divided(max(trace.layer_weights, default=0))
        gathered = (2 * outside + 3 * largest) * (0.5 if bfloat16 else 1.0)
    in_flight = min(stages, gradient_accumulation) / stages
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

    def memory(self, strategy: Strategy) -> DeviceMemory:
        """Return the memory with the largest micro-batch that fits, else with one row."""
        share = self.batch_size // strategy.replicas
        if self.gradient_accumulation is not None:
            if share % self.gradient_accumulation:
                raise UserError(
                    f"--grad-accum {self.gradient_accumulation} does not divide the {share} rows "
                    "of a replica: use a divisor of them"
                )
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
            try:
                other.check(self.step.config, self.batch_size)
            except UserError:
                continue
            if self.fits(memory := self.memory(other)):
                yield memory

    def candidates(self, strategy: Strategy) -> Iterator[Strategy]:
        """Yield other ways on as many devices, then on more."""
        sharded = replace(strategy, parallel="fsdp")
        yield replace(strategy, checkpoint_activations=True)
        yield sharded
        yield replace(sharded, checkpoint_activations=True)
        for tensor in (2, 4, MAX_TENSOR):
            yield replace(sharded, tensor=tensor, checkpoint_activations=True)
        devices = 2 * strategy.devices
        while devices <= min(MAX_DEVICES, self.batch_size * strategy.tensor * strategy.pipeline):
            yield replace(sharded, devices=devices, checkpoint_activations=True)
            devices *= 2
        for devices in (2**n for n in range(1, 15)):
            if devices > strategy.devices:
                more = replace(sharded, devices=devices, checkpoint_activations=True)
                yield replace(more, tensor=MAX_TENSOR)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, from 1 on."""
    return [n for n in range(1, number + 1) if number % n == 0]
