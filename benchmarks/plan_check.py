"""How close the estimates of `kinfolk plan` are to real training steps.

    PYTHONPATH=src python benchmarks/plan_check.py --device cuda
    PYTHONPATH=src python benchmarks/plan_check.py --device cuda --only gpt2/base --json

Each work is a network with a batch of its usual shape. It is traced without weights, and then
trained for a few steps as `kinfolk pretrain` trains it: compiled and in bfloat16 on CUDA, in
float32 on a CPU. Printed beside each other, in MB:

    estimate    weights, gradients, moments, activations of a step that is not compiled, logits
    sure        weights, gradients and moments: what a run is refused by
    measured    torch.cuda.max_memory_allocated of the steps, with compiling and the CUDA graph; on
                a CPU weights, gradients, moments and what autograd saved, without logits
    ratio       estimate / measured
    FLOPs       of a step, estimated / counted by torch's counter on the device
    share       of the peak speed of the device, where its data sheet is known

Ends with the largest and the smallest ratio. Works that the device has not the memory for are left
out, and named.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from typing import Any

import torch

from kinfolk.errors import UserError
from kinfolk.training.device_specs import DEVICES
from kinfolk.training.workload import select_device
from kinfolk.workflows.planning.check import StepCheck, check_plan
from kinfolk.workflows.planning.plan import planned_step


@dataclass(frozen=True)
class Work:
    """A network and a micro-batch."""

    model: str
    rows: int
    length: int
    vocab: int
    objective: str | None = None


CUDA_WORKS = (
    Work("gpt2/tiny", 32, 128, 8192),
    Work("gpt2/small", 32, 512, 8192),
    Work("gpt2/base", 32, 1024, 50257),
    Work("gpt2/large", 8, 1024, 50257),
    Work("bert/tiny", 32, 128, 8192),
    Work("bert/base", 64, 512, 30522, "mlm"),
    Work("t5/base", 16, 512, 32128),
    Work("electra/base", 32, 512, 30522),
    Work("xlnet/base", 8, 512, 32000),
    Work("ulmfit/tiny", 32, 70, 8192),
)
CPU_WORKS = (
    Work("gpt2/nano", 4, 64, 500),
    Work("bert/nano", 4, 64, 500, "mlm"),
    Work("t5/nano", 4, 64, 500),
    Work("electra/nano", 4, 64, 500),
    Work("ulmfit/nano", 4, 64, 500),
)


def peak_speed(name: str) -> float | None:
    """Return the bfloat16 peak of a CUDA device by the name that it has."""
    words = name.lower().replace("-", " ").split()
    known = [spec for spec in DEVICES.values() if spec.name.split("-")[0] in words]
    return known[0].bfloat16 if known else None


def row(work: Work, check: StepCheck, peak: float | None) -> dict[str, Any]:
    """Return the figures of one work."""
    measured = check.peak
    if measured is None:
        assert check.activations is not None
        assert check.gradients is not None
        measured = check.weights + check.gradients + check.moments + check.activations
    estimate = check.estimate - (0 if check.peak is not None else check.estimated.logits)
    return {
        "model": work.model,
        "rows": work.rows,
        "length": work.length,
        "estimate": estimate,
        "sure": check.estimated.sure,
        "measured": measured,
        "ratio": estimate / measured,
        "flops_ratio": None if check.flops is None else check.estimated.flops / check.flops,
        "seconds": check.seconds,
        "share": None if peak is None else check.flops_per_second / peak,
    }


def main(arguments: list[str] | None = None) -> None:
    """Print estimates beside measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", help="one network: gpt2/base")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    select_device(given.device)
    cuda = given.device != "cpu"
    peak = peak_speed(torch.cuda.get_device_name()) if cuda else None
    rows, left_out = [], []
    for work in CUDA_WORKS if cuda else CPU_WORKS:
        if given.only not in (None, work.model):
            continue
        step = planned_step(
            work.model,
            objective=work.objective,
            length=work.length,
            vocab_size=work.vocab,
            cuda=cuda,
            bfloat16=cuda,
        )
        try:
            rows.append(row(work, check_plan(step, work.rows, device=given.device), peak))
        except (UserError, torch.OutOfMemoryError) as error:
            left_out.append({"model": work.model, "why": str(error).splitlines()[0]})
            continue
        if not given.json:
            found = rows[-1]
            numbers = (found[name] / 1e6 for name in ("estimate", "sure", "measured"))
            sizes = "  ".join(f"{number:10,.1f}" for number in numbers)
            flops = math.nan if found["flops_ratio"] is None else found["flops_ratio"]
            share = "" if found["share"] is None else f"  share {found['share']:.3f}"
            print(
                f"{work.model:14} {work.rows:3} x {work.length:<5} {sizes}  "
                f"ratio {found['ratio']:.3f}  FLOPs {flops:.4f}{share}",
                flush=True,
            )
    ratios = [found["ratio"] for found in rows]
    summary = {"works": rows, "left_out": left_out, "ratios": [min(ratios), max(ratios)]}
    if given.json:
        print(json.dumps(summary))
        return
    for missing in left_out:
        print(f"left out: {missing['model']}: {missing['why']}")
    print(f"estimate / measured: {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
