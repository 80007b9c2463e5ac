"""Speed of fine-tuning on short texts, beside transformers: BERT with a head over two classes.

python benchmarks/finetuning_speed.py --device cuda --results speed.jsonl

A step is forward, backward, clipping of the gradient and a fused AdamW update on 32 texts of 8 to
40 random ids, about as many as sentences of SST-2 have. All sides have the same weights and no
dropout, bfloat16 autocast on CUDA and float32 on the CPU:

- `eager`: packed rows, a kernel at a time
- `replayed`: the same in a few static shapes, replayed as CUDA graphs, as `kinfolk finetune` runs
  (CUDA alone; on the CPU nothing is replayed, and the shapes are those of `eager`)
- `transformers`: a text a row, padded to the longest of the batch; `--compiled` measures it under
  torch.compile too

Ours are timed with the data loader of a run. The batches of transformers are ready in pinned
memory. Before anything is timed, the losses of both sides must agree in float32. Rounds alternate;
speeds are medians over the rounds, ratios medians of the ratios to `transformers` in each round.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from kinfolk import hub
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.tasks.formulations.base import Instance
from kinfolk.tasks.formulations.choose import model_config
from kinfolk.tasks.formulations.head import SequenceHead
from kinfolk.tasks.instances import TaskBatches
from kinfolk.tasks.static_shapes import StaticBatches, static_batches
from kinfolk.tasks.task import Task
from kinfolk.training.config import TrainConfig
from kinfolk.training.loader import data_loader
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep
from kinfolk.training.workload import select_device

CLS, SEP, ORDINARY = 1, 2, 3
ROUNDS = 5  # at least
RATE, CLIP = 1e-5, 1.0
Step = Callable[[], int]  # trains on one batch; returns its tokens of text


@dataclass(frozen=True)
class Setting:
    """The network, its formulation and the texts."""

    model: Any
    formulation: SequenceHead
    instances: Sequence[Instance]
    options: argparse.Namespace

    @property
    def device(self) -> torch.device:
        """The device of all sides."""
        return torch.device(self.options.device)

    def batches(self) -> TaskBatches:
        """Return the batches of a run."""
        return TaskBatches(self.formulation, [self.instances], batch=self.options.batch)


def make_setting(size: str, options: argparse.Namespace) -> Setting:
    """Return the network of a size, and random texts of 8 to 40 tokens with their classes."""
    task = Task(kind="classify", labels=("bad", "good"))
    formulation = SequenceHead(task=task, max_length=64)
    backbone = replace(families()["bert"].config(size), vocab_size=options.vocab)
    torch.manual_seed(0)
    model = model_config(formulation, backbone, dropout=0.0).build()
    rng, instances = np.random.default_rng(0), []
    for _ in range(options.texts):
        length = int(np.clip(rng.lognormal(np.log(16), 0.5), 8, 40))
        ids = np.array([CLS, *rng.integers(ORDINARY, options.vocab, length), SEP])
        example = Example(
            input_ids=ids,
            order=np.zeros_like(ids),
            token_type_ids=np.zeros_like(ids),
            read_positions=np.zeros(1, np.int64),
        )
        instances.append(Instance(examples=(example,), target=int(rng.integers(2))))
    return Setting(model, formulation, instances, options)


def text_tokens(instances: Sequence[Instance]) -> int:
    """Count the tokens of texts, without [CLS] and [SEP]."""
    return sum(instance.tokens - 2 for instance in instances)


def ours(setting: Setting, *, replayed: bool) -> Step:
    """Return the step of a run, with its data loader."""
    options, cuda = setting.options, setting.device.type == "cuda"
    train = TrainConfig(steps=1_000_000, batch_size=options.batch, lr=RATE, workers=options.workers)
    model = model_copy(setting)
    batches, static = setting.batches(), None
    if replayed:
        static = static_batches(setting.formulation, batches, 1000)
        batches.formulation = static
    step = TrainStep(
        Learner(model.train(), setting.formulation),
        build_optimizer(model, train),
        lambda number: RATE,
        clip=CLIP,
        seed=0,
        device=setting.device,
        bfloat16=cuda,
        cuda_graph=replayed and cuda,
        graph_batches=static,
        checks=lambda number: False,
    )
    loader = data_loader(batches, train, 0, cuda)
    done = 0

    def run() -> int:
        nonlocal done
        parts = next(loader)
        step(done, parts)
        done += 1
        return sum(part.counts["tokens"] - 2 * part.counts["label"] for part in parts)

    if replayed and cuda:
        record(step, batches, static)
    return run


def record(step: TrainStep, batches: TaskBatches, static: StaticBatches | None) -> None:
    """Record the graphs of all shapes, before the time is taken."""
    known: set[Any] = set()
    for number in range(1000):
        batch = batches[number]
        shape = batch.inputs.input_ids.shape
        if static is not None and shape not in known and batch in static:
            known.add(shape)
            step(0, [batch.pin_memory()])
        if static is not None and len(known) == len(static.shapes):
            return


def model_copy(setting: Setting) -> Any:
    """Return a network with the weights of the setting, on the device."""
    model = setting.model.config.build()
    model.load_state_dict(setting.model.state_dict())
    return model.to(setting.device)


def peer_model(setting: Setting) -> Any:
    """Return transformers' network with the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        hub.save(Path(folder), setting.model, None)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    return model.to(setting.device)


def padded(instances: Sequence[Instance]) -> dict[str, Tensor]:
    """Return the arguments of transformers: a text a row, padded to the longest."""
    texts = [instance.examples[0].input_ids for instance in instances]
    longest = max(map(len, texts))
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.from_numpy(text)
        mask[row, : len(text)] = 1
    labels = torch.tensor([instance.target for instance in instances])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def theirs(setting: Setting, *, compiled: bool) -> Step:
    """Return the step of a loop around transformers' network; its batches are ready."""
    model, cuda = peer_model(setting).train(), setting.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    network = torch.compile(model, dynamic=True) if compiled else model
    source = setting.batches()
    made = []
    for number in range(setting.options.ready):
        instances = source.instances(number)
        arguments = padded(instances)
        if cuda:
            arguments = {name: value.pin_memory() for name, value in arguments.items()}
        made.append((arguments, text_tokens(instances)))
    batches: Iterator[Any] = cycle(made)

    def run() -> int:
        arguments, tokens = next(batches)
        moved = {n: v.to(setting.device, non_blocking=True) for n, v in arguments.items()}
        with torch.autocast(setting.device.type, torch.bfloat16, cuda):
            loss = network(**moved).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return tokens

    return run


@torch.no_grad()
def check(setting: Setting) -> tuple[float, float]:
    """Return the loss of a batch by both sides, which must agree."""
    instances = setting.batches().instances(0)
    model, peer = model_copy(setting).eval(), peer_model(setting).eval()
    batch = setting.formulation.make_batch(instances).to(setting.device)
    loss = setting.formulation.loss(model, batch).mean(batch.counts).item()
    arguments = {name: value.to(setting.device) for name, value in padded(instances).items()}
    other = peer(**arguments).loss.item()
    assert abs(loss - other) < 1e-3, f"the losses differ: {loss} and {other}"
    return loss, other


def measure(steps: dict[str, Step], seconds: float, device: torch.device) -> dict[str, list[float]]:
    """Return the tokens per second of each, in rounds that alternate between them."""
    cuda = device.type == "cuda"

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    for step in steps.values():
        for _ in range(20 if cuda else 1):
            step()
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(speeds.values()))) < ROUNDS:
        for name, step in steps.items():
            wait()
            begun = time.perf_counter()
            tokens = sum(step() for _ in range(20 if cuda else 1))
            wait()
            speeds[name].append(tokens / (time.perf_counter() - begun))
    return speeds


def run_size(size: str, options: argparse.Namespace) -> dict[str, Any]:
    """Time all sides of one size."""
    setting = make_setting(size, options)
    losses = check(setting)
    steps = {
        "transformers": theirs(setting, compiled=False),
        "eager": ours(setting, replayed=False),
    }
    if setting.device.type == "cuda":
        steps["replayed"] = ours(setting, replayed=True)
    if options.compiled:
        steps["transformers, compiled"] = theirs(setting, compiled=True)
    speeds = measure(steps, options.seconds, setting.device)
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, speeds["transformers"], strict=True))
        for name, found in speeds.items()
    }
    parameters = sum(p.numel() for p in setting.model.parameters())
    return {
        "size": size,
        "parameters": parameters,
        "tokens_per_second": {name: statistics.median(found) for name, found in speeds.items()},
        "ratio": ratios,
        "rounds": len(speeds["eager"]),
        "loss": losses,
    }


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--sizes", default="mini,small,base" if cuda else "mini")
    parser.add_argument("--vocab", type=int, default=30_522)
    parser.add_argument("--batch", type=int, default=32, help="texts of a step")
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--ready", type=int, default=100, help="batches of transformers, in turn")
    parser.add_argument("--workers", type=int, help="data loader processes of ours")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each size")
    parser.add_argument("--compiled", action="store_true", help="compile transformers too")
    parser.add_argument("--json", action="store_true", help="end with all figures as JSON")
    parser.add_argument("--results", type=Path, help="file of lines")
    return parser.parse_args()


def main() -> None:
    """Print a table, a row for each size."""
    options = parse()
    select_device(options.device)
    found = []
    for size in options.sizes.split(","):
        found.append(run_size(size, options))
        if options.results:
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[-1]) + "\n")
    names = list(found[0]["tokens_per_second"])
    print(
        f"| BERT | parameters | {' | '.join(names)} | {' | '.join(n + ', ratio' for n in names)} |"
    )
    print(f"| --- | ---: {'| ---: ' * 2 * len(names)}|")
    for line in found:
        speeds = " | ".join(f"{line['tokens_per_second'][name]:,.0f}" for name in names)
        ratios = " | ".join(f"{line['ratio'][name]:.2f}" for name in names)
        print(f"| `{line['size']}` | {line['parameters'] / 1e6:.1f} M | {speeds} | {ratios} |")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
