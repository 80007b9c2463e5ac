"""The command `plan`: FLOPs, hours, memory of a device and disk of a run, before it starts."""

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from kinfolk.cli.app import JSON, MAX_TOKENS, MAX_VOCAB, TRAIN, command, flag, option
from kinfolk.cli.options import COUNT_SUFFIXES, parse_count
from kinfolk.cli.output import numbers, print_facts, print_json, print_line, print_table, table
from kinfolk.errors import UserError
from kinfolk.families import check_name, index
from kinfolk.training.device_specs import CPU, DEVICES, check_device_name

if TYPE_CHECKING:
    from kinfolk.workflows.planning.check import StepCheck
    from kinfolk.workflows.planning.plan import TrainingPlan

MODEL_AND_DATA, DEVICES_PANEL = "Model and data", "Devices"


@command("kinfolk plan gpt2/base --tokens 3B --devices 8 --gpu h100 --parallel fsdp", panel=TRAIN)
def plan_command(
    context: typer.Context,
    model: str = typer.Argument(..., metavar="FAMILY/SIZE", help="See kinfolk members."),
    tokens: str = option("T", "Tokens to train on: 3e9 or 3B.", default=..., panel=MODEL_AND_DATA),
    objective: str | None = option("NAME", "Training objective.", panel=MODEL_AND_DATA),
    batch: int | None = option(
        "N", "Rows of a step (default: of the size).", min=1, max=2**24, panel=MODEL_AND_DATA
    ),
    length: int | None = option(
        "N", "Sequence length in tokens.", max=MAX_TOKENS, panel=MODEL_AND_DATA
    ),
    vocab_size: int | None = option(
        "N", "Entries of the vocabulary.", max=MAX_VOCAB, panel=MODEL_AND_DATA
    ),
    optimizer: str | None = option(
        "NAME", "adamw, adafactor, adamw_rms or muon.", panel=MODEL_AND_DATA
    ),
    corpus_tokens: str | None = option(
        "T", "Tokens of the corpus, if read repeatedly.", panel=MODEL_AND_DATA
    ),
    keep_checkpoints: int | None = option(
        "N", "Latest checkpoints kept.", min=1, max=2**20, panel=MODEL_AND_DATA
    ),
    devices: int = option("N", "Number of devices.", default=1, panel=DEVICES_PANEL),
    gpu: str = option(
        "NAME", f"{', '.join(DEVICES)} or {CPU}.", default="h200", panel=DEVICES_PANEL
    ),
    memory: float | None = option(
        "GB", "Memory of a device, if other than published.", panel=DEVICES_PANEL
    ),
    precision: str = option(
        "NAME", "auto, bfloat16 or float32.", default="auto", panel=DEVICES_PANEL
    ),
    parallel: str = option("ddp|fsdp", "Copies or shards.", default="ddp", panel=DEVICES_PANEL),
    tensor: int = option("N", "Devices that share a layer.", default=1, panel=DEVICES_PANEL),
    pipeline: int = option("N", "Stages of layers.", default=1, panel=DEVICES_PANEL),
    checkpoint_activations: bool = flag(
        "--checkpoint-activations", "Compute layers a second time, to save memory."
    ),
    grad_accum: int | None = option(
        "N", "Micro-batches of a step (default: the least that fits).", min=1, max=2**24
    ),
    mfu: float | None = option("X", "Share of the peak speed (default: as measured)."),
    price_per_hour: float | None = option("X", "Price of a device for an hour."),
    check: bool = flag("--check", "Run a few steps here, and compare."),
    json: bool = JSON,
) -> None:
    """Plan a pretraining run: FLOPs, hours, memory of a device, disk.

    Nothing is trained or allocated, whatever the size: the step is traced without weights. Memory
    is shown for each way to use the devices, without and with `--checkpoint-activations`, with the
    largest micro-batch that fits. `--check` runs a few real steps on this machine.
    """
    amount = parse_count(tokens, "--tokens")
    corpus = None if corpus_tokens is None else parse_count(corpus_tokens, "--corpus-tokens")
    check_device_name(gpu)  # this and the next are refused before torch is imported
    if model.partition("/")[0] in index():
        check_name(model)
    from kinfolk.workflows.planning.plan import plan as make_plan

    planned = make_plan(
        model,
        amount,
        devices=devices,
        gpu=gpu,
        memory=memory,
        precision=precision,
        objective=objective,
        batch_size=batch,
        length=length,
        vocab_size=vocab_size,
        gradient_accumulation=grad_accum,
        optimizer=optimizer,
        parallel=parallel,
        tensor=tensor,
        pipeline=pipeline,
        checkpoint_activations=checkpoint_activations,
        mfu=mfu,
        corpus_tokens=corpus,
        keep_checkpoints=keep_checkpoints,
        price_per_hour=price_per_hour,
    )
    checked = run_check(planned) if check else None
    if json:
        found: dict[str, Any] = planned.to_json()
        print_json(found if checked is None else found | {"check": asdict(checked)})
        return
    sources = {name: context.get_parameter_source(name) for name in ("gpu", "vocab_size")}
    show_plan(planned, {name for name, source in sources.items() if source_is_default(source)})
    if checked is not None:
        show_check(checked)


def source_is_default(source: Any) -> bool:
    """Return whether an option was not given."""
    return source is None or source.name == "DEFAULT"


def run_check(plan: "TrainingPlan") -> "StepCheck":
    """Run a few steps of one replica of a plan on this machine."""
    import torch

    from kinfolk.workflows.planning.check import check_plan
    from kinfolk.workflows.planning.plan import planned_step

    if plan.memory.strategy.tensor > 1 or plan.memory.strategy.pipeline > 1:
        raise UserError("--check runs on one device: leave out --tensor and --pipeline")
    cuda = torch.cuda.is_available()
    step = planned_step(
        plan.model,
        objective=plan.objective,
        length=plan.length,
        vocab_size=plan.vocab_size,
        cuda=cuda,
        bfloat16=cuda and plan.precision == "bfloat16",
        optimizer=plan.optimizer,
    )
    return check_plan(step, plan.memory.rows)


def show_plan(plan: "TrainingPlan", defaults: Collection[str] = ()) -> None:
    """Print the figures, the memory of each strategy, and what they mean.

    `defaults` are the options that were not given: what was assumed for them is said.
    """
    from kinfolk.data.disk_space import format_bytes
    from kinfolk.reports.page import plural

    print_facts(
        [
            ("model", f"{plan.model}, {plan.objective}, {plan.optimizer}, {plan.precision}"),
            (
                "parameters",
                f"{short_count(plan.parameters)}, without embeddings "
                f"{short_count(plan.non_embedding_parameters)}",
            ),
            (
                "vocabulary",
                f"{plan.vocab_size:,} tokens"
                f"{', of the paper; --vocab-size N for yours' if 'vocab_size' in defaults else ''}",
            ),
            (
                "tokens",
                f"{short_count(plan.tokens)}, {plan.tokens_per_parameter:,.3g} per parameter, "
                f"{plural(plan.epochs, 'epoch')}",
            ),
            (
                "steps",
                f"{plan.steps:,} of {plural(plan.batch_size, 'row')} of {plan.length:,} tokens",
            ),
            ("FLOPs", f"{plan.flops:.3g}, {plan.flops_per_token:.3g} per token"),
            (
                "device",
                f"{plan.devices:,} x {plan.device.title}"
                f"{', the default; --gpu NAME for yours' if 'gpu' in defaults else ''}",
            ),
            ("time", f"{training_time(plan)}, of the steps alone"),
            ("share of peak", f"{plan.mfu:.3g}, {plan.mfu_source}"),
            *([] if plan.cost is None else [("cost", f"{plan.cost:,.2f}")]),
            (
                "disk",
                f"{format_bytes(plan.disk.total)}: corpus {format_bytes(plan.disk.corpus)}, "
                f"{plural(plan.disk.checkpoints, 'checkpoint')} of "
                f"{format_bytes(plan.disk.checkpoint)}",
            ),
            ("memory", memory_parts(plan)),
        ]
    )
    heading = f"memory of a device, of {plan.capacity / 1e9:,.1f} GB"
    rows = table("strategy", *numbers("rows", "GB", "rows", "recomputed GB"))
    cells = dict[str, list[str]]()
    for memory in plan.strategies:
        size = fit_mark(memory.total, plan.capacity)
        cells.setdefault(memory.strategy.words, []).extend((f"{memory.rows:,}", size))
    for words, shown in cells.items():
        rows.add_row(words, *shown, *[""] * (4 - len(shown)))
    print_table(rows, heading)
    if any("!" in size for shown in cells.values() for size in shown):
        print_line("! does not fit")
    print_line("recomputed: with --checkpoint-activations")
    for sentence in plan.sentences:
        print_line(f"- {sentence}")


def show_check(check: "StepCheck") -> None:
    """Print estimates beside what real steps took."""
    estimated = check.estimated
    rows = table(f"a step of {check.rows:,} rows", *numbers("estimated", "measured"))
    for name, expected, found in (
        ("FLOPs", estimated.flops, check.flops),
        ("weights", estimated.weights, check.weights),
        ("gradients", estimated.gradients, check.gradients),
        ("moments", estimated.moments, check.moments),
        ("activations", estimated.activations, check.activations),
        ("peak", check.estimate, check.peak),
    ):
        in_bytes = name != "FLOPs"
        rows.add_row(name, *(measured_cell(value, in_bytes) for value in (expected, found)))
    rows.add_row("seconds", "", f"{check.seconds:.4g}")
    rows.add_row("TFLOP/s", "", f"{check.flops_per_second / 1e12:,.3g}")
    print_table(rows, f"measured on {check.device}")


def measured_cell(value: int | None, in_bytes: bool) -> str:
    """Return a figure of a comparison; empty where it was not measured."""
    if value is None:
        return ""
    return f"{value / 1e6:,.1f} MB" if in_bytes else f"{value:.4g}"


def memory_parts(plan: "TrainingPlan") -> str:
    """Return the memory of the chosen strategy and its parts in words."""
    from kinfolk.data.disk_space import format_bytes
    from kinfolk.reports.page import plural

    memory, way = plan.memory, plan.memory.strategy.words
    lighter = ", recomputed" if memory.strategy.checkpoint_activations else ""
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "moments": memory.moments,
        "gathered": memory.gathered,
        "activations": memory.activations,
        "logits": memory.logits,
    }
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    return (
        f"{format_bytes(memory.total)} with {way}{lighter}, "
        f"{plural(memory.gradient_accumulation, 'micro-batch')} of "
        f"{plural(memory.rows, 'row')}: {named}"
    )


def fit_mark(size: int, capacity: int) -> str:
    """Return a size in GB, marked where a device has less."""
    return f"{size / 1e9:,.1f}{'!' if size > capacity else ''}"


def short_count(number: float) -> str:
    """Return a number with a suffix: 124.4M."""
    for suffix, scale in reversed(COUNT_SUFFIXES.items()):
        if number >= scale:
            return f"{number / scale:,.4g}{suffix}"
    return f"{number:g}"


def training_time(plan: "TrainingPlan") -> str:
    """Return the time of a run: of all devices together, if there are several, and elapsed."""
    together = f"{device_time(plan.gpu_hours)}, " if plan.devices > 1 else ""
    return f"{together}{elapsed(plan.days)}"


def counted(number: float, units: str) -> str:
    """Return a number with its unit, which is singular after 1: 1 second, 1.4 seconds."""
    text = rounded(number)
    return f"{text} {units.removesuffix('s') if text == '1' else units}"


def device_time(hours: float) -> str:
    """Return the time of all devices together: 16,332 device-hours, 1.4 device-seconds."""
    for unit, scale in (("hours", 1.0), ("minutes", 60.0), ("seconds", 3600.0)):
        number = hours * scale
        if number >= 1 or unit == "seconds":
            return counted(number, f"device-{unit}")
    raise AssertionError


def elapsed(days: float) -> str:
    """Return a time in the unit that it is read in."""
    units = {"years": 1 / 365, "days": 1.0, "hours": 24.0, "minutes": 1440.0, "seconds": 86400.0}
    for unit, scale in units.items():
        if days * scale >= 2 or unit == "seconds":
            return counted(days * scale, unit)
    raise AssertionError


def rounded(number: float) -> str:
    """Return a number without an exponent: 16,332, 5.32, 0.04."""
    if number < 0.01:
        return "under 0.01"
    return f"{number:,.0f}" if number >= 1000 else f"{number:,.3g}"
