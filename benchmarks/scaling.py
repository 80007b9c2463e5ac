"""How the speed of kinfolk's training step grows with the model, the length and the batch.

    python benchmarks/scaling.py --device cuda -o scaling       under five minutes on an H200
    python benchmarks/scaling.py --device cpu -o scaling --sizes nano tiny --lengths 32 64

Three sweeps change one thing each: the size of the network, the length of rows (with as many tokens
in a step), and the number of rows. Timed is the step of a `Run`, forward, backward, clipping and
AdamW, on batches that are on the device (`kinfolk, no feed` of benchmarks/training.py), compiled
layer by layer in bfloat16 on CUDA, in float32 on the CPU. Counted are tokens of texts.

The roofline is measured on the same device: the FLOP/s of a bare product of large matrices, and the
bytes a second of a bare copy. A step cannot be faster than the slower of both allows:

    FLOPs of a token    those of the products of weights and tokens (6ND), without attention
    bytes of a token    the operands and results of these products, once each, and what the update
                        reads and writes of weights, gradients and moments (11 numbers a weight).
                        Attention, norms and activations are left out, and so are caches, which let
                        a small step move less than this

Written after each point are OUT/scaling.jsonl, a line for the machine and one for each point, and
OUT/scaling.html.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.reports import page
from kinfolk.reports.charts import Series, line_chart
from kinfolk.workflows.comparison.step_timing import many_compiled
from training import (
    ROUNDS,
    SEED,
    SPECIALS,
    WORKS,
    Measured,
    bytes_of,
    count_products,
    documents,
    measure_ceiling,
    ours,
    run_settings,
    shaped,
    text_tokens,
)

# Sizes, lengths and rows of the sweeps, and those that a sweep of something else has.
CUDA = (("mini", "small", "medium", "base", "gpt2-medium", "gpt2-large"), "base")
CUDA_LENGTHS, CUDA_ROWS = ((128, 256, 512, 1024, 2048, 4096), 1024), ((1, 4, 8, 16, 32, 64), 32)
CPU = (("nano", "tiny", "mini", "small"), "mini")
CPU_LENGTHS, CPU_ROWS = ((32, 64, 128, 256, 512), 128), ((1, 2, 4, 8, 16), 8)
UPDATE_NUMBERS = 11  # gradient: written, read by clipping; AdamW reads 4 and writes 3; 2 castings
COPIED = {"cuda": 2**30, "cpu": 2**26}  # numbers
POOL = 2  # batches

TEMPLATE = """\
{% extends "page.html" %}
{% from "macros.html" import facts_section, header, notes_list, section %}
{% block title %}{{ title }}{% endblock %}
{% block content %}
{{ header("benchmarks/scaling.py", title, "Tokens of text per second of whole training steps, \
beside what the bare matrix product and the bare copy of this device allow.") }}
{% if notes %}
{% call section("Left out") %}{{ notes_list(notes) }}{% endcall %}
{% endif %}
{% for heading, hint, chart in charts %}
{% call section(heading, hint) %}{{ chart }}{% endcall %}
{% endfor %}
{{ facts_section("Machine", facts) }}
{% endblock %}
"""


@dataclass(frozen=True)
class Machine:
    """What a point is compared with."""

    device: str
    precision: str
    threads: int
    torch: str
    product_flops: float  # a second, of a bare matrix product
    copy_bytes: float  # a second, read and written, of a bare copy


@dataclass(frozen=True)
class Measurement:
    """A point of a sweep."""

    sweep: str  # what changes: size, length or rows
    family: str
    size: str
    parameters: int
    length: int
    rows: int
    tokens_per_second: float
    spread: tuple[float, float]  # quartiles over the rounds
    flops_per_token: float
    bytes_per_token: float
    bound: float  # tokens per second that the roofline allows
    of_product: float  # share of the bare product
    memory_gb: float | None
    start_seconds: float
    compile_seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops_per_token / self.bytes_per_token

    @property
    def flops(self) -> float:
        """FLOP/s."""
        return self.flops_per_token * self.tokens_per_second


class ProductBytes(TorchDispatchMode):
    """Count the bytes of operands and results of products of matrices."""

    def __init__(self, itemsize: int) -> None:
        super().__init__()
        self.itemsize, self.total = itemsize, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        aten = torch.ops.aten
        if func.overloadpacket in (aten.mm, aten.addmm, aten.addmm_):
            tensors = [t for t in (*args, out) if isinstance(t, Tensor)]
            self.total += self.itemsize * sum(t.numel() for t in tensors)
        return out


def measure_copy(device: torch.device, seconds: float) -> float:
    """Return the bytes a second that a copy of a large tensor reads and writes."""
    source = torch.rand(COPIED[device.type], device=device)  # zeros may be pages without memory
    target, speeds = torch.empty_like(source), list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(speeds) < 3:
        began = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        speeds.append(2 * bytes_of([source]) / (time.perf_counter() - began))
    return statistics.median(speeds)


def measure_point(
    sweep: str,
    name: str,
    size: str,
    length: int,
    rows: int,
    *,
    machine: Machine,
    device: torch.device,
    seconds: float,
    vocab: int | None,
) -> Measurement:
    """Time the step of a run with one network and one shape of batch."""
    work = WORKS[name]()
    vocab = vocab or work.vocab
    kind = family(name).objective(work.way)
    objective: Any = kind(special_tokens=SPECIALS, vocab_size=vocab, max_length=length)
    texts = documents(int(1.25 * POOL * rows * length) + length, longest=length - 2, vocab=vocab)
    torch.manual_seed(SEED)
    model = shaped(work, size, (), vocab, length).build()
    parameters = sum(p.numel() for p in model.parameters())
    settings = ("compile=layers",) if device.type == "cuda" else ()
    train = run_settings(rows, settings)
    dataset = PackedDataset(objective, texts, batch_size=rows, seed=train.seed)
    with torch.device("meta"):
        traced = shaped(work, size, (), vocab, length).build()
    with ProductBytes(2 if device.type == "cuda" else 4) as moved:
        flops = count_products(traced, objective, dataset[0].to("meta"))[1]
    tokens = text_tokens(dataset, 0)
    flops_per_token = flops / tokens
    bytes_per_token = (moved.total + 4 * UPDATE_NUMBERS * parameters) / tokens
    run = Measured(model, objective, dataset, train, device)
    (side,) = ours(run, settings, POOL, device, feeds=False)
    side.warm_up()
    start = time.perf_counter()
    while time.perf_counter() - start < min(seconds / 2, 2.0):  # the clock of a GPU settles
        side.block(counted=False)
    start = time.perf_counter()
    while len(side.speeds) < ROUNDS or time.perf_counter() - start < seconds:
        side.block()
    speed = statistics.median(side.speeds)
    low, _, high = statistics.quantiles(side.speeds, n=4)
    figures = side.figures(flops_per_token, machine.product_flops)
    return Measurement(
        sweep=sweep,
        family=name,
        size=size,
        parameters=parameters,
        length=length,
        rows=rows,
        tokens_per_second=speed,
        spread=(low, high),
        flops_per_token=flops_per_token,
        bytes_per_token=bytes_per_token,
        bound=min(machine.product_flops / flops_per_token, machine.copy_bytes / bytes_per_token),
        of_product=flops_per_token * speed / machine.product_flops,
        memory_gb=figures["memory_gb"],
        start_seconds=figures["start_seconds"],
        compile_seconds=figures["compile_seconds"],
    )


def shapes(
    sizes: Sequence[str], lengths: Sequence[int], rows: Sequence[int], usual: tuple[str, int, int]
) -> Iterator[tuple[str, tuple[str, int, int]]]:
    """Yield the points of all sweeps: what changes, and size, length and rows."""
    size, length, count = usual
    for other in sizes:
        yield "size", (other, length, count)
    for other_length in lengths:
        yield "length", (size, other_length, max(1, length * count // other_length))
    for other_count in rows:
        yield "rows", (size, length, other_count)


def main(arguments: Sequence[str] | None = None) -> list[Measurement]:
    """Read the command line, measure, and write the lines and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--family", choices=("gpt2", "bert"), default="gpt2")
    parser.add_argument("--sizes", nargs="+", help="of the network")
    parser.add_argument("--lengths", nargs="+", type=int, help="of rows, in tokens")
    parser.add_argument("--rows", nargs="+", type=int, help="of a batch")
    parser.add_argument("--usual", nargs=3, metavar=("SIZE", "LENGTH", "ROWS"), help="elsewhere")
    parser.add_argument("--vocab", type=int, help="the published one by default")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring a point")
    told = parser.parse_args(arguments)
    cuda = torch.cuda.is_available() if told.device == "auto" else told.device == "cuda"
    if cuda and not torch.cuda.is_available():
        parser.error("this machine has no CUDA device that torch can use: use --device cpu")
    device = torch.device("cuda" if cuda else "cpu")
    sizes, size = CUDA if cuda else CPU
    lengths, length = CUDA_LENGTHS if cuda else CPU_LENGTHS
    rows, count = CUDA_ROWS if cuda else CPU_ROWS
    usual = (size, length, count)
    if told.usual:
        usual = (told.usual[0], int(told.usual[1]), int(told.usual[2]))
    machine = Machine(
        device=torch.cuda.get_device_name() if cuda else "CPU",
        precision="bfloat16" if cuda else "float32",
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        product_flops=measure_ceiling(device, 10.0 if cuda else min(0.5, told.seconds)),
        copy_bytes=measure_copy(device, min(0.5, told.seconds)),
    )
    told.out.mkdir(parents=True, exist_ok=True)
    points: list[Measurement] = []
    notes: list[str] = []
    measured: dict[tuple[str, int, int], Measurement] = {}  # a shape of all sweeps only once
    with (told.out / "scaling.jsonl").open("w", encoding="utf-8") as file, many_compiled():
        print(json.dumps(asdict(machine)), file=file, flush=True)
        sweeps = shapes(told.sizes or sizes, told.lengths or lengths, told.rows or rows, usual)
        for sweep, shape in sweeps:
            try:
                if shape not in measured:
                    measured[shape] = measure_point(
                        sweep,
                        told.family,
                        *shape,
                        machine=machine,
                        device=device,
                        seconds=told.seconds,
                        vocab=told.vocab,
                    )
                point = replace(measured[shape], sweep=sweep)
            except torch.OutOfMemoryError:
                notes.append(f"{describe(*shape)}: the device has not enough memory.")
                print(notes[-1], file=sys.stderr, flush=True)
            else:
                points.append(point)
                print(json.dumps(asdict(point)), file=file, flush=True)
                print(
                    f"{describe(*shape)}: {point.tokens_per_second:,.0f} tokens/s, "
                    f"{point.of_product:.1%} of the bare product, "
                    f"{point.tokens_per_second / point.bound:.1%} of the roofline",
                    flush=True,
                )
            page.write(render(machine, points, notes), told.out / "scaling.html")
            gc.collect()
            if cuda:
                torch.compiler.reset()
                torch.cuda.empty_cache()
    return points


def describe(size: str, length: int, rows: int) -> str:
    """Name a point."""
    return f"{size}, {rows} x {length}"


def render(machine: Machine, points: Sequence[Measurement], notes: Sequence[str]) -> str:
    """Return the page."""
    facts = [
        ("Device", machine.device),
        ("Precision", machine.precision),
        ("Bare product", f"{machine.product_flops / 1e12:,.3g} TFLOP/s"),
        ("Bare copy", f"{machine.copy_bytes / 1e9:,.0f} GB/s"),
        ("torch", machine.torch),
    ]
    if machine.precision == "float32":
        facts.append(("Threads", str(machine.threads)))
    title = "Training speed by size, length and batch"
    if points:
        title = f"Training speed of {family(points[0].family).title} by size, length and batch"
    charts = [sweep_chart(sweep, list(group)) for sweep, group in groupby(points, key=by_sweep)]
    charts.append(roofline(machine, points))
    template = page.environment().from_string(TEMPLATE)
    return template.render(title=title, charts=charts, facts=facts, notes=notes)


def by_sweep(point: Measurement) -> str:
    """Return what changes in the sweep of a point."""
    return point.sweep


def sweep_chart(sweep: str, points: Sequence[Measurement]) -> tuple[str, str, Markup]:
    """Draw tokens per second, and what the roofline allows; return heading, hint and chart."""
    headings: dict[str, tuple[str, str, Callable[[Measurement], float]]] = {
        "size": ("By model size", "parameters", lambda p: p.parameters),
        "length": ("By length of rows", "tokens in a row", lambda p: p.length),
        "rows": ("By batch", "rows", lambda p: p.rows),
    }
    heading, axis, value = headings[sweep]
    ordered = sorted(points, key=value)
    first, xs = ordered[0], [value(p) for p in ordered]
    hints = {
        "size": f"Batches of {first.rows} rows of {first.length} tokens.",
        "length": f"Size {first.size}, about {first.rows * first.length:,} tokens in a step.",
        "rows": f"Size {first.size}, rows of {first.length} tokens.",
    }
    series = [
        Series(
            "kinfolk",
            xs,
            [p.tokens_per_second for p in ordered],
            0,
            low=[p.spread[0] for p in ordered],
            high=[p.spread[1] for p in ordered],
        ),
        Series("roofline", xs, [p.bound for p in ordered], 1, dashed=True),
    ]
    chart = line_chart(
        series,
        x=axis,
        y="tokens per second",
        smooth=False,
        log_x=True,
        log_y=True,
        markers=True,
        digits=0,
    )
    return heading, hints[sweep], chart


def roofline(machine: Machine, points: Sequence[Measurement]) -> tuple[str, str, Markup]:
    """Draw FLOP/s by FLOPs for each byte, below the roof; return heading, hint and chart."""
    ridge = machine.product_flops / machine.copy_bytes
    least = min([p.intensity for p in points] + [ridge / 8])
    most = max([p.intensity for p in points] + [8 * ridge])
    xs = [least, ridge, most]
    roof = [min(machine.product_flops, x * machine.copy_bytes) / 1e12 for x in xs]
    series = [Series("roof", xs, roof, 1, dashed=True)]
    for color, (sweep, group) in zip((0, 2, 3), groupby(points, key=by_sweep), strict=False):
        ordered = sorted(group, key=lambda p: p.intensity)
        speeds = [p.flops / 1e12 for p in ordered]
        series.append(Series(f"by {sweep}", [p.intensity for p in ordered], speeds, color))
    chart = line_chart(
        series,
        x="FLOPs for each byte",
        y="TFLOP/s",
        smooth=False,
        log_x=True,
        log_y=True,
        markers=True,
        digits=3,
    )
    hint = (
        "Left of the bend the copy of memory is the limit, right of it the product of matrices. "
        "Bytes are those of products and of the update, without attention, norms and activations."
    )
    return "Roofline", hint, chart


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
