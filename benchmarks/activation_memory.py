"""Memory and speed of a GPT-2 with activation checkpointing, and sharded in one process.

python benchmarks/activation_memory.py --device cuda
python benchmarks/activation_memory.py --device cuda --size medium --compile

Each variant trains the same network on the same batches for a few steps; all losses must agree:

- `plain`: what a run does by default, without compiling
- `checkpointed`: train.checkpoint_activations=yes
- `sharded`: train.parallel=fsdp in one process, which gathers and divides its weights all the same
- `sharded, checkpointed`: both
- `sharded, compiled`, with --compile: each layer compiled, as by train.compile=yes

Peak memory is that of one step: weights, gradients, optimizer states and activations. On a CPU it
is what a step allocates, without weights and optimizer states, in float32.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from kinfolk.batch import Batch
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.objectives.clm import CLM
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.activation_checkpoint import checkpoint_activations
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.sharding import Shards
from kinfolk.training.step import Learner, TrainStep
from kinfolk.training.workload import select_device

SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=2, cls=2, sep=2, mask=1)
# Layers, hidden size, heads: those of the published models, and one for tests.
SIZES = {
    "xl": (48, 1600, 25),
    "medium": (24, 1024, 16),
    "small": (12, 256, 4),
    "test": (4, 32, 2),
}
AGREES = 1e-3  # relative difference of losses in bfloat16, whose sums may be rounded otherwise
AGREES_FLOAT32 = 1e-5


@dataclass(frozen=True)
class Variant:
    """A way to train the same network."""

    name: str
    checkpointed: bool = False
    sharded: bool = False
    compiled: bool = False


VARIANTS = (
    Variant("plain"),
    Variant("checkpointed", checkpointed=True),
    Variant("sharded", sharded=True),
    Variant("sharded, checkpointed", checkpointed=True, sharded=True),
)
COMPILED = Variant("sharded, compiled", sharded=True, compiled=True)


@dataclass(frozen=True)
class Figures:
    """What a variant needs, and the losses of its steps."""

    name: str
    peak_bytes: int
    tokens_per_second: float
    losses: tuple[float, ...]


def make_batches(options: argparse.Namespace) -> list[Batch[Any]]:
    """Return packed rows of random ids, one batch a step."""
    objective = CLM(special_tokens=SPECIALS, vocab_size=options.vocab, max_length=options.length)
    numbers = torch.Generator().manual_seed(0)
    rows = options.batch * (options.steps + 1)
    text = torch.randint(3, options.vocab, (rows, options.length - 1), generator=numbers)
    documents = InMemoryDocuments.from_lists([[row] for row in text.tolist()])
    dataset = PackedDataset(objective, documents, batch_size=options.batch, seed=0)
    return [dataset[number] for number in range(options.steps)]


@contextmanager
def training_step(variant: Variant, options: argparse.Namespace) -> Iterator[TrainStep]:
    """Yield the optimizer step of a new network, whose weights are the same in every variant."""
    layers, hidden, heads = SIZES[options.size]
    device = torch.device(options.device)
    config = GPT2Config(
        vocab_size=options.vocab,
        max_length=options.length,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        dropout=options.dropout,
        attention_dropout=0.0,
    )
    torch.manual_seed(0)
    with device:
        model = config.build().train()
    if variant.checkpointed:
        checkpoint_activations(model)
    objective = CLM(special_tokens=SPECIALS, vocab_size=options.vocab, max_length=options.length)
    learner = Learner(model, objective)
    shards = None
    if variant.sharded:
        shards = Shards(learner, device, Processes(), compiled=variant.compiled)
    train = TrainConfig(lr=1e-4, warmup=0)
    try:
        yield TrainStep(
            learner,
            build_optimizer(model, train),
            lambda number: train.lr,
            clip=train.grad_clip,
            seed=0,
            device=device,
            bfloat16=device.type == "cuda",
            checks=lambda number: False,
            shards=shards,
        )
    finally:
        if shards is not None:
            shards.close()


def measure(
    variant: Variant, batches: Sequence[Batch[Any]], options: argparse.Namespace
) -> Figures:
    """Train on every batch; time all steps but the first, and take the peak of the last."""
    cuda = options.device == "cuda"
    tokens = options.batch * options.length
    with training_step(variant, options) as step:
        losses = [step(0, [batches[0]]).loss]  # allocates the states of the optimizer
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        losses += [step(n, [batch]).loss for n, batch in enumerate(batches[1:], 1)]
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        peak = peak_memory(lambda: step(len(batches), [batches[0]]), cuda=cuda)
    gc.collect()  # modules refer to themselves: without it, the next network would not fit
    speed = tokens * (len(batches) - 1) / seconds
    return Figures(variant.name, peak, speed, tuple(loss.item() for loss in losses))


def peak_memory(call: Callable[[], object], *, cuda: bool) -> int:
    """Return the peak of a call: on CUDA of all memory, on a CPU of what it allocates."""
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def disagreement(figures: Figures, plain: Figures) -> float:
    """Return the largest difference of a loss from that of plain training, relative to it."""
    pairs = zip(figures.losses, plain.losses, strict=True)
    return max(abs(loss - other) / abs(other) for loss, other in pairs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--size", default="xl", choices=SIZES)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true", help="measure compiled layers, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    select_device(options.device)
    batches = make_batches(options)
    found: list[Figures] = []
    for variant in (*VARIANTS, *([COMPILED] if options.compile else [])):
        found.append(measure(variant, batches, options))
        figures, plain = found[-1], found[0]
        print(
            f"{figures.name:24}  peak {figures.peak_bytes / 2**30:8.3f} GiB "
            f"({figures.peak_bytes / plain.peak_bytes:4.0%})  "
            f"{figures.tokens_per_second:10,.0f} tokens/s  "
            f"losses {' '.join(f'{loss:.5f}' for loss in figures.losses)}  "
            f"differ by {disagreement(figures, plain):.1e}",
            flush=True,
        )
    if options.json:
        print(json.dumps([vars(figures) for figures in found]))
    bound = AGREES if options.device == "cuda" else AGREES_FLOAT32
    for figures in found:
        if disagreement(figures, found[0]) > bound:
            raise SystemExit(f"{figures.name}: losses are not those of plain training")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
