"""A plan of a pretraining run: what it costs, and what fits, before anything is trained.

Nothing is allocated: the network is built on the meta device, and its step is traced there.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from torch import nn

from kinfolk.config import did_you_mean, type_name
from kinfolk.errors import UserError
from kinfolk.families import check_indexed, check_name, families, family, index
from kinfolk.nn.embeddings import AdaptiveEmbedding, TokenEmbedding
from kinfolk.training.config import Optimizer
from kinfolk.training.device_specs import CPU, DeviceSpec, check_device_name
from kinfolk.workflows.planning.memory import (
    MAX_TENSOR,
    DeviceMemory,
    MemoryPlanner,
    divisors,
)
from kinfolk.workflows.planning.speed import device_spec, usual_share, with_memory
from kinfolk.workflows.planning.step import SPECIAL_TOKENS, PlannedStep
from kinfolk.workflows.planning.strategy import Strategy
from kinfolk.workflows.recipe import default_length

OPTIMAL_TOKENS = 20  # of a parameter, for the least loss of a compute budget: Hoffmann et al. 2022
MAX_PLANNED_TOKENS = 10**18
# Bytes of a GPU that no tensor can have: the context of CUDA, libraries, fragments.
RESERVED = 10**9
SENTENCE_BYTES, SENTENCE_TOKENS = 12, 24  # of the index of a corpus, and of English text
EXTRA_CHECKPOINTS = 2  # the best one, and the one being written

Precision = Literal["bfloat16", "float32"]


@dataclass(frozen=True)
class DiskUse:
    """Bytes on disk."""

    corpus: int
    checkpoint: int  # weights, and moments of the optimizer
    checkpoints: int  # as many as are kept at a time

    @property
    def total(self) -> int:
        """All of them."""
        return self.corpus + self.checkpoint * self.checkpoints


@dataclass(frozen=True)
class TrainingPlan:
    """What a pretraining run takes; sizes in bytes."""

    model: str
    objective: str
    optimizer: str
    parameters: int
    non_embedding_parameters: int
    tokens: float
    batch_size: int
    length: int
    vocab_size: int
    steps: int
    epochs: float
    flops_per_token: float
    flops: float
    precision: Precision
    device: DeviceSpec
    devices: int
    mfu: float  # share of the peak speed, of the FLOPs above
    mfu_source: str
    gpu_hours: float
    days: float
    cost: float | None  # None without a price
    memory: DeviceMemory  # of the chosen strategy
    fits: bool
    strategies: tuple[DeviceMemory, ...]  # each without activation checkpointing, then with it
    capacity: int  # bytes of a device that training may use
    disk: DiskUse
    alternative: DeviceMemory | None  # that fits, where the chosen strategy does not
    smaller_size: str | None  # of the family, that fits in place of it
    sentences: tuple[str, ...]

    @property
    def tokens_per_parameter(self) -> float:
        """How many tokens are read for each parameter."""
        return self.tokens / self.parameters

    def to_json(self) -> dict[str, Any]:
        """Return all figures as JSON has them."""

        def shown(memory: DeviceMemory) -> dict[str, Any]:
            fits = memory.total <= self.capacity
            words = {"words": memory.strategy.words, "total": memory.total, "fits": fits}
            return asdict(memory) | words

        return asdict(self) | {
            "tokens_per_parameter": self.tokens_per_parameter,
            "disk": asdict(self.disk) | {"total": self.disk.total},
            "memory": shown(self.memory),
            "strategies": [shown(memory) for memory in self.strategies],
            "alternative": None if self.alternative is None else shown(self.alternative),
        }


def plan(
    model: str,
    tokens: float,
    *,
    devices: int = 1,
    gpu: str = "h200",
    memory: float | None = None,  # GB of a device
    precision: str = "auto",
    objective: str | None = None,
    batch_size: int | None = None,
    length: int | None = None,
    vocab_size: int | None = None,
    gradient_accumulation: int | None = None,
    optimizer: str | None = None,
    parallel: str = "ddp",
    tensor: int = 1,
    pipeline: int = 1,
    checkpoint_activations: bool = False,
    mfu: float | None = None,
    corpus_tokens: float | None = None,
    keep_checkpoints: int | None = None,
    price_per_hour: float | None = None,
) -> TrainingPlan:
    """Plan a pretraining run: parameters, FLOPs, hours, memory of a device, disk.

    `plan("gpt3/gpt3-175b", tokens=300e9, devices=1024, gpu="h100", parallel="fsdp")`

    Nothing is trained or allocated. Batch size, length and optimizer are those of the size unless
    they are given; `mfu` is the share of the device's peak speed.
    """
    check_amounts(tokens, corpus_tokens, mfu, price_per_hour)
    check_device_name(gpu)
    chosen_precision = check_choice("precision", precision, ("auto", "bfloat16", "float32"))
    check_choice("parallel", parallel, ("ddp", "fsdp"))
    check_planned(model)
    family_name, _, size = model.partition("/")
    chosen, size = family(family_name), size or "tiny"
    if chosen.model.gradient_free is not None:
        raise UserError(f"{family_name} is counted, without gradients: there is nothing to plan")
    train = chosen.train(size)
    rows = train.batch_size if batch_size is None else batch_size
    if rows < 1:
        raise UserError(f"--batch must be at least 1 (got {rows})")
    strategy = Strategy(
        *(devices, "fsdp" if parallel == "fsdp" else "ddp", tensor, pipeline),
        checkpoint_activations=checkpoint_activations,
    )
    strategy.check(rows, gradient_accumulation)
    device = device_spec(gpu)
    if memory is not None:
        device = with_memory(device, memory)
    if chosen_precision == "auto":
        chosen_precision = "float32" if gpu == CPU or device.bfloat16 is None else "bfloat16"
    peak = device.peak(chosen_precision)
    step = planned_step(
        f"{family_name}/{size}",
        objective=objective,
        length=length,
        vocab_size=vocab_size,
        cuda=gpu != CPU,
        bfloat16=chosen_precision == "bfloat16",
        optimizer=train.optimizer if optimizer is None else optimizer,
    )
    capacity = device.memory - (0 if gpu == CPU else RESERVED)
    planner = MemoryPlanner(step, rows, gradient_accumulation, capacity)
    planner.check(strategy)
    used = planner.memory(strategy)
    fits = planner.fits(used)
    other = None if fits else next(planner.alternatives(strategy), None)
    smaller = None if fits or other is not None else smaller_size(model, planner, strategy)
    trace = step.estimate(used.rows)
    flops_per_token = trace.flops / used.rows / step.tokens_per_row
    share, source = usual_share(gpu, chosen.architecture, step.parameters)
    if mfu is not None:
        share, source = mfu, "as given"
    slower = recompute_factor(strategy, trace.flops, sum(part.flops for part in trace.layers))
    slower *= 1 + (strategy.pipeline - 1) / used.gradient_accumulation
    hours = tokens * flops_per_token * slower / (peak * share) / 3600
    unique = tokens if corpus_tokens is None else min(corpus_tokens, tokens)
    kept = train.keep_checkpoints if keep_checkpoints is None else keep_checkpoints
    plan = TrainingPlan(
        model=f"{family_name}/{size}",
        objective=type_name(step.objective),
        optimizer=step.optimizer,
        parameters=step.parameters,
        non_embedding_parameters=step.parameters - embedding_parameters(step.model),
        tokens=tokens,
        batch_size=rows,
        length=step.objective.max_length,
        vocab_size=step.config.vocab_size,
        steps=math.ceil(tokens / (rows * step.tokens_per_row)),
        epochs=tokens / unique,
        flops_per_token=flops_per_token,
        flops=tokens * flops_per_token,
        precision="bfloat16" if chosen_precision == "bfloat16" else "float32",
        device=device,
        devices=devices,
        mfu=share,
        mfu_source=source,
        gpu_hours=hours,
        days=hours / devices / 24,
        cost=None if price_per_hour is None else hours * price_per_hour,
        memory=used,
        fits=fits,
        strategies=tuple(usual_strategies(planner, strategy)),
        capacity=capacity,
        disk=disk_use(step, unique, kept),
        alternative=other,
        smaller_size=smaller,
        sentences=(),
    )
    return replace(plan, sentences=tuple(sentences_about(plan)))


def planned_step(
    model: str,
    *,
    objective: str | None = None,
    length: int | None = None,
    vocab_size: int | None = None,
    cuda: bool,
    bfloat16: bool,
    optimizer: str = "adamw",
) -> PlannedStep:
    """Return the step of FAMILY/SIZE with the defaults of a pretraining run."""
    family_name, _, size = model.partition("/")
    chosen = family(family_name)
    config, objective_type = chosen.config(size), chosen.objective(objective)
    length = default_length(config) if length is None else length
    if length < 8:
        raise UserError(f"--length must be at least 8 (got {length})")
    smallest = max(SPECIAL_TOKENS.ids) + 2
    if vocab_size is not None and vocab_size < smallest:
        raise UserError(f"--vocab-size must be at least {smallest} (got {vocab_size})")
    ids = config.vocab_size if vocab_size is None else vocab_size
    pad = SPECIAL_TOKENS.pad
    config = config.with_fields(
        vocab_size=ids, max_length=length, decoder_start_token_id=pad, padding_idx=pad
    )
    named: Any = check_choice("optimizer", optimizer, get_args(Optimizer))
    return PlannedStep(
        config,
        objective_type(special_tokens=SPECIAL_TOKENS, vocab_size=ids, max_length=length),
        cuda=cuda,
        bfloat16=bfloat16,
        optimizer=named,
    )


def check_planned(model: str) -> None:
    """Refuse what is no FAMILY/SIZE; name only families that have a plan."""
    family_name, _, _ = model.partition("/")
    if family_name in index():
        return check_name(model)
    check_indexed(family_name)
    trained = [name for name, known in families().items() if known.model.gradient_free is None]
    close = did_you_mean(family_name, trained)
    raise UserError(f"{model} is no family: kinfolk plan takes FAMILY/SIZE; {close}")


def check_amounts(
    tokens: float, corpus_tokens: float | None, mfu: float | None, price: float | None
) -> None:
    """Refuse amounts out of range."""
    for name, value in (("tokens", tokens), ("corpus-tokens", corpus_tokens)):
        if value is not None and not 1 <= value <= MAX_PLANNED_TOKENS:
            raise UserError(f"--{name} must be from 1 to {MAX_PLANNED_TOKENS:.0e} (got {value:g})")
    if mfu is not None and not 0 < mfu <= 1:
        raise UserError(f"--mfu must be a share of the peak, above 0 and up to 1 (got {mfu:g})")
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"--price-per-hour must be at least 0 (got {price:g})")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return a value, if it is one of some choices."""
    if value not in choices:
        raise UserError(f"--{name} must be one of {', '.join(choices)} (got {value!r})")
    return value


def embedding_parameters(model: nn.Module) -> int:
    """Count the parameters of tables of embeddings, without padding."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    rows = {
        id(table.weight): (
            table.vocab_size if isinstance(table, TokenEmbedding) else table.num_embeddings
        )
        * table.embedding_dim
        for table in tables
    }
    clusters = [m for m in model.modules() if isinstance(m, AdaptiveEmbedding)]
    return sum(rows.values()) + sum(len(cluster.bias) for cluster in clusters)


def recompute_factor(strategy: Strategy, flops: int, layer_flops: int) -> float:
    """Return how many more FLOPs a step does that computes its layers a second time."""
    return 1 + layer_flops / flops if strategy.checkpoint_activations else 1.0


def disk_use(step: PlannedStep, corpus_tokens: float, keep_checkpoints: int) -> DiskUse:
    """Return the disk that the corpus and the checkpoints take."""
    trace = step.estimate(1)
    per_token = 2 if step.config.vocab_size <= 1 << 16 else 4
    corpus = corpus_tokens * (per_token + SENTENCE_BYTES / SENTENCE_TOKENS)
    return DiskUse(
        round(corpus), trace.weights + trace.moments, keep_checkpoints + EXTRA_CHECKPOINTS
    )


def usual_strategies(planner: MemoryPlanner, chosen: Strategy) -> Iterator[DeviceMemory]:
    """Yield the memory of each way that a run accepts, without and with checkpointing."""
    devices = chosen.devices
    shares = [n for n in divisors(devices) if n <= MAX_TENSOR]
    tensor = [way for n in shares if planner.accepts(way := Strategy(devices, tensor=n))]
    layers = int(vars(planner.step.config).get("num_layers", 1))
    depths = [n for n in shares if layers % n == 0]  # stages of as many layers wait least
    stages = [way for n in depths if planner.accepts(way := Strategy(devices, pipeline=n))]
    both = [replace(way, pipeline=n) for way in tensor[-1:] for n in depths]
    ways = (
        Strategy(devices),
        Strategy(devices, "fsdp"),
        *tensor[-1:],
        *stages[-1:],
        *[way for way in both if planner.accepts(way)][-1:],
        replace(chosen, checkpoint_activations=False),
    )
    seen = set[str]()
    for way in ways:
        if way.words in seen or not planner.accepts(way):
            continue
        seen.add(way.words)
        lighter = replace(way, checkpoint_activations=True)
        yield from (planner.memory(each) for each in (way, lighter) if planner.accepts(each))


def smaller_size(model: str, planner: MemoryPlanner, strategy: Strategy) -> str | None:
    """Return the largest smaller size of the family that fits, with activation checkpointing."""
    family_name, _, size = model.partition("/")
    sizes, given = family(family_name).sizes, planner.step
    own, lighter = sizes[size or "tiny"], replace(strategy, checkpoint_activations=True)
    smaller = [name for name, config in sizes.items() if config.hidden_size < own.hidden_size]
    for name in sorted(smaller, key=lambda name: -sizes[name].hidden_size):
        step = planned_step(
            f"{family_name}/{name}",
            objective=type_name(given.objective),
            length=given.objective.max_length,
            vocab_size=given.config.vocab_size,
            cuda=given.cuda,
            bfloat16=given.bfloat16,
            optimizer=given.optimizer,
        )
        if 4 * step.parameters / strategy.devices > planner.capacity:  # weights, at least
            continue
        other = replace(planner, step=step)
        way = lighter if other.accepts(lighter) else strategy
        if other.accepts(way) and other.fits(other.memory(way)):
            return f"{family_name}/{name}"
    return None


def sentences_about(plan: TrainingPlan) -> Iterator[str]:
    """Yield what the figures mean: tokens for each parameter, and what would fit."""
    ratio = plan.tokens_per_parameter
    optimum = f"about {OPTIMAL_TOKENS} give the least loss for the FLOPs (Hoffmann et al. 2022)"
    if ratio < 0.75 * OPTIMAL_TOKENS:
        meaning = "a smaller network on more tokens would have a lower loss at the same cost"
    elif ratio <= 1.5 * OPTIMAL_TOKENS:
        meaning = "network and tokens match"
    else:
        meaning = "more than that: the network costs less to use, and its loss more to train"
    yield f"{ratio:,.3g} tokens per parameter; {optimum}, found with decoders: {meaning}"
    memory = plan.memory
    size, most = f"{memory.total / 1e9:,.1f} GB", f"{plan.capacity / 1e9:,.1f} GB"
    if plan.fits:
        return
    way = memory.strategy.words
    yield f"{way} does not fit: {size} with micro-batches of {memory.rows}, of {most}"
    if (other := plan.alternative) is not None:
        yield f"would fit, with {other.total / 1e9:,.1f} GB: {other.strategy.options}"
    elif plan.smaller_size is not None:
        again = any(way.strategy.checkpoint_activations for way in plan.strategies)
        lighter = " with --checkpoint-activations" if again else ""
        yield f"a smaller size would fit: {plan.smaller_size}{lighter}"
    else:
        yield "nothing that was tried fits: use a GPU with more memory, or a shorter --length"
