"""Training speed of the LSTM language models, each beside a bare loop around `nn.LSTM`.

python benchmarks/recurrent_speed.py --device cuda --profile --results speed.jsonl
python benchmarks/recurrent_speed.py --device cuda --family elmo --hidden 512 --lstm 1024

A bare loop has the same layers, tied softmax, clipping and AdamW, carries its states from batch to
batch, and reads batches of random ids that were made before. Ours are timed with the data loader,
the step and the memory of a run:

- `stream`: documents as long as a stream, so that each row is one text
- `stream, documents of 300 tokens`: packed rows; the bare loop has a `PackedSequence`
- `bptt`: all dropout, penalties and varying lengths of the paper, in the bare loop too
- `... as CUDA graphs`: the same with train.cuda_graph=auto, the default of a run, beside the same
  bare loop; graphs are recorded before the time is taken

The last table has the operations that the host launches in a step of each.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset
from kinfolk.errors import UserError
from kinfolk.families.elmo import FAMILY as ELMO
from kinfolk.families.elmo import ELMo, ELMoConfig
from kinfolk.families.ulmfit import PUBLISHED, ULMFiTConfig
from kinfolk.objectives.bilm import BiLM
from kinfolk.objectives.bptt import BPTT
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig
from kinfolk.training.loader import WithTexts, data_loader
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep
from kinfolk.training.workload import select_device

SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=2, sep=3, mask=1)
DOCUMENT = 300  # tokens of a document where rows are packed
BATCHES = 16  # of a bare loop, in turn
Step = Callable[[], int]  # trains on one batch; returns its tokens
State = tuple[Tensor, Tensor]


@dataclass
class Rows:
    """A batch of a bare loop: (length, rows) ids, or the texts of packed rows."""

    ids: Tensor | PackedSequence
    labels: Tensor
    first: Tensor | None = None  # the first text of each row, which continues the row before
    last: Tensor | None = None  # the last text of each row
    owners: Tensor | None = None  # the text of each packed token
    follows: Tensor | None = None  # (longest - 1, texts): a token has one before it in its text

    def map(self, function: Callable[[Any], Any]) -> "Rows":
        """Apply a function to all tensors."""
        parts = (getattr(self, field.name) for field in fields(self))
        return Rows(*(None if part is None else function(part) for part in parts))

    def to(self, device: torch.device) -> "Rows":
        """Copy all tensors."""
        return self.map(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> "Rows":
        """Pin all tensors."""
        return self.map(lambda part: part.pin_memory())

    @property
    def data(self) -> Tensor:
        """The ids in the order in which layers read them."""
        return self.ids.data

    def locked_dropout(self, x: Tensor, rate: float) -> Tensor:
        """Drop the same features of all tokens of a text."""
        if not rate:
            return x
        if self.owners is None:
            return x * F.dropout(x.new_ones(1, *x.shape[1:]), rate)
        assert isinstance(self.ids, PackedSequence)
        texts = len(self.ids.unsorted_indices)
        return x * F.dropout(x.new_ones(texts, x.shape[1]), rate)[self.owners]

    def change(self, x: Tensor) -> Tensor:
        """Return the mean squared change of an activation from a token to the next."""
        if not isinstance(self.ids, PackedSequence):
            return (x[1:].float() - x[:-1].float()).square().mean()
        padded, _ = pad_packed_sequence(self.ids._replace(data=x))
        changes = (padded[1:].float() - padded[:-1].float()).square().mean(-1)
        return (changes * self.follows).sum() / len(x)

    def run(
        self, layer: nn.LSTM, x: Tensor, state: State | None, drop: float
    ) -> tuple[Tensor, Any]:
        """Run a layer, a part of its recurrent weights dropped; return its output and states."""
        packed = isinstance(self.ids, PackedSequence)
        texts = len(self.ids.unsorted_indices) if packed else x.shape[1]
        if packed and state is not None:
            assert self.first is not None
            empty = (part.new_zeros(1, texts, part.shape[2]) for part in state)
            h, c = (z.index_copy(1, self.first, s) for z, s in zip(empty, state, strict=True))
            state = h, c
        if drop and state is None:
            zeros = x.new_zeros(1, texts, layer.hidden_size)
            state = zeros, zeros
        if drop:
            w_ih, w_hh, *biases = layer.all_weights[0]
            weights = [w_ih, F.dropout(w_hh, drop), *biases]
            if packed:
                assert isinstance(self.ids, PackedSequence) and state is not None
                state = tuple(part[:, self.ids.sorted_indices] for part in state)
                sizes = self.ids.batch_sizes
                output, h, c = torch.lstm(x, sizes, state, weights, True, 1, 0.0, True, False)
                h, c = (part[:, self.ids.unsorted_indices] for part in (h, c))
            else:
                output, h, c = torch.lstm(x, state, weights, True, 1, 0.0, True, False, False)
        elif packed:
            assert isinstance(self.ids, PackedSequence)
            sequence, (h, c) = layer(self.ids._replace(data=x), state)
            output = sequence.data
        else:
            output, (h, c) = layer(x, state)
        if packed:
            h, c = h[:, self.last], c[:, self.last]
        return output, (h.detach(), c.detach())


def bare_batches(options: argparse.Namespace, document: int, lengths: Sequence[int]) -> list[Rows]:
    """Return rows of random ids; documents have this many tokens."""
    batches, begun = [], np.arange(options.batch) * 37 % document
    for length in lengths:
        ids = torch.randint(options.vocab, (options.batch, length + 1))
        if document >= 64 * options.length:
            batches.append(Rows(ids[:, :-1].T.contiguous(), ids[:, 1:].T.flatten()))
            continue
        texts, labels, first = [], [], []
        for row, start in zip(ids, begun, strict=True):
            cuts = [0, *range(document - int(start) % document, length, document), length]
            first.append(len(texts))
            texts += [row[a:b] for a, b in pairwise(cuts)]
            labels += [row[a + 1 : b + 1] for a, b in pairwise(cuts)]
        begun = begun + length
        last = [*(at - 1 for at in first[1:]), len(texts) - 1]
        owners = [torch.full_like(text, number) for number, text in enumerate(texts)]
        packed, targets, owner = (
            pack_sequence(part, enforce_sorted=False) for part in (texts, labels, owners)
        )
        sizes = torch.tensor([len(text) for text in texts])
        follows = torch.arange(1, int(sizes.max()))[:, None] < sizes
        ends = torch.tensor(first), torch.tensor(last)
        batches.append(Rows(packed, targets.data, *ends, owner.data, follows))
    return batches


class BareLSTM(nn.Module):
    """The AWD-LSTM as one writes it without a toolkit."""

    def __init__(self, c: ULMFiTConfig) -> None:
        super().__init__()
        self.config = c
        self.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        sizes = [c.hidden_size, *[c.lstm_size] * (c.num_layers - 1), c.hidden_size]
        self.layers = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(c.vocab_size))

    def forward(self, rows: Rows, states: list[Any]) -> tuple[Tensor, Tensor | float, list[Any]]:
        """Return the logits, the penalties and the states."""
        c, x, new = self.config, self.embeddings(rows.data), []
        if c.embedding_dropout:
            kept = F.dropout(x.new_ones(c.vocab_size), c.embedding_dropout)
            x = x * kept[rows.data][..., None]
        x = rows.locked_dropout(x, c.input_dropout)
        for number, (layer, state) in enumerate(zip(self.layers, states, strict=True), start=1):
            assert isinstance(layer, nn.LSTM)
            x, state = rows.run(layer, x, state, c.weight_dropout)
            new.append(state)
            if number < c.num_layers:
                x = rows.locked_dropout(x, c.dropout)
        hidden, penalty = rows.locked_dropout(x, c.output_dropout), 0.0
        if c.output_dropout:
            penalty = 2 * hidden.float().square().mean() + rows.change(x)
        return F.linear(hidden, self.embeddings.weight, self.bias), penalty, new


class BareBiLM(nn.Module):
    """ELMo as one writes it without a toolkit: every token is read by its characters."""

    table: Tensor

    def __init__(self, c: ELMoConfig) -> None:
        super().__init__()
        elmo = ELMo(c)
        self.reader, size = elmo.token_embeddings.cnn, c.projection_size
        self.register_buffer("table", elmo.token_embeddings.table.long())
        self.layers = nn.ModuleList(
            nn.LSTM(size, c.lstm_size, proj_size=size) for _ in range(2 * c.num_layers)
        )
        self.softmax = nn.Linear(size, c.vocab_size)

    def forward(self, rows: Rows, states: list[Any]) -> tuple[Tensor, float, list[Any]]:
        """Return the logits of both directions, no penalties, and the states."""
        outputs, new = [], []
        half = len(self.layers) // 2
        for first in (0, half):  # the backward model reads other ids, from the end of the text
            ids = rows.data if first == 0 else rows.data.flip(0)
            x = self.reader(self.table[ids.flatten()]).view(*ids.shape, -1)
            for number in range(half):
                layer = self.layers[first + number]
                assert isinstance(layer, nn.LSTM)
                out, state = rows.run(layer, x, states[first + number], 0.0)
                new.append(state)
                x = x + out if number else out
            outputs.append(x)
        return self.softmax(torch.stack(outputs)), 0.0, new


def bare(model: nn.Module, batches: Sequence[Rows], options: argparse.Namespace) -> Step:
    """Return the step of a bare loop."""
    device = torch.device(options.device)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if device.type == "cuda":
        batches = [batch.pin_memory() for batch in batches]
    states: list[Any] = [None] * sum(isinstance(part, nn.LSTM) for part in model.modules())
    done = 0

    def step() -> int:
        nonlocal states, done
        rows = batches[done % len(batches)].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bfloat16):
            logits, penalty, states = model(rows, states)
            labels = rows.labels.expand(logits.numel() // logits.shape[-1] // len(rows.labels), -1)
            loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten()) + penalty
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        return len(rows.labels)

    return step


def ours(
    c: Any, options: argparse.Namespace, objective: Any, document: int, *, cuda_graph: bool = False
) -> Step:
    """Return the step of a run, with its data; documents have this many tokens."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = c.build().to(device)
    total = options.batch * options.length * 64
    ids = np.random.default_rng(0).integers(4, c.vocab_size, total)
    count = max(options.batch, total // document)
    text = InMemoryDocuments.from_lists([[part.tolist()] for part in np.array_split(ids, count)])
    dataset = ContiguousDataset(objective, text, batch_size=options.batch)
    settings = TrainConfig(steps=1_000_000, batch_size=options.batch, workers=options.workers)
    parameters = sum(weight.numel() for weight in model.parameters())
    longest = (objective.usual_lengths or [objective.row_length])[-1]
    loader = data_loader(WithTexts(dataset), settings, 0, device.type == "cuda")
    train = TrainStep(
        Learner(model.train(), objective),
        build_optimizer(model, settings),
        lambda number: 1e-3,
        clip=1.0,
        seed=0,
        device=device,
        bfloat16=options.bfloat16,
        cuda_graph=cuda_graph and settings.replays(parameters, longest),
        graph_lengths=objective.usual_lengths,
        memory=[model.init_memory(options.batch)],
        checks=lambda number: device.type == "cpu",
    )
    done = 0

    def step() -> int:
        nonlocal done
        batches = next(loader)
        train(done, batches)
        done += 1
        return batches[0].counts[objective.loss_name]

    for _ in range(len(dataset) if cuda_graph else 0):  # an epoch has every length
        step()
    return step


def wait(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(steps: dict[str, Step], seconds: float, device: str) -> dict[str, list[float]]:
    """Return the tokens per second of each, in rounds that alternate between them.

    On a CPU the time of this process counts, so that other programs matter less.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    for step in steps.values():
        for _ in range(3):
            step()
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not all(speeds.values()):
        for name, step in steps.items():
            wait(device)
            begun = clock()
            tokens = sum(step() for _ in range(10 if device == "cuda" else 1))
            wait(device)
            speeds[name].append(tokens / (clock() - begun))
    return speeds


class OperationCounter(TorchDispatchMode):
    """Count the operations that the host dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations(step: Step) -> int:
    """Return how many operations the host launches in a step."""
    with OperationCounter() as counter:
        step()
    return counter.counts.total()


def profile(step: Step, device: str, count: int = 3) -> dict[str, Any]:
    """Return milliseconds of a step, and where the host and the device spend them.

    `host_ms` ends with the last launch; a step that reads from the device has it at `step_ms`.
    """
    wait(device)
    begun = time.perf_counter()
    for _ in range(count):
        step()
    launched = time.perf_counter()
    wait(device)
    ended = time.perf_counter()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(count):
            step()
        wait(device)
    found = profiler.key_averages()
    per_step = 1e-3 / count  # microseconds of all steps to milliseconds of one

    def top(key: Callable[[Any], float]) -> dict[str, float]:
        ranked = sorted(found, key=key, reverse=True)[:8]
        return {row.key[:60]: round(key(row) * per_step, 3) for row in ranked if key(row)}

    result: dict[str, Any] = {
        "step_ms": round((ended - begun) / count * 1e3, 3),
        "host_ms": round((launched - begun) / count * 1e3, 3),
        "device_ms": round(sum(row.self_device_time_total for row in found) * per_step, 3),
        "top_host_ms": top(lambda row: row.self_cpu_time_total),
        "top_device_ms": top(lambda row: row.self_device_time_total),
    }
    return result


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--family", default="ulmfit", choices=["ulmfit", "elmo"])
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--lstm", type=int, default=1152)
    parser.add_argument("--vocab", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=70)
    parser.add_argument("--workers", type=int, help="data loader processes of ours")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row of the table")
    parser.add_argument("--precision", default="", help="float32, bfloat16; default: both on CUDA")
    parser.add_argument("--only", default="", help="rows of the table whose name contains this")
    parser.add_argument("--profile", action="store_true", help="print the time of host and device")
    parser.add_argument("--results", type=Path, help="file of lines")
    return parser.parse_args()


Pairs = dict[str, Callable[[], tuple[Step, Step]]]  # a bare loop, and ours


def workloads(options: argparse.Namespace) -> Pairs:
    """Return what makes the steps of each row of the table."""
    whole, lengths = options.length * 64, [options.length] * BATCHES

    def pair(c: Any, network: type[nn.Module], kind: type[Any], document: int, graph: bool) -> Any:
        torch.manual_seed(0)
        objective = kind(
            special_tokens=SPECIALS, vocab_size=c.vocab_size, max_length=options.length
        )
        drawn = lengths
        if kind is BPTT:
            drawn = objective.segment_lengths(whole, np.random.default_rng(0))[:BATCHES].tolist()
        theirs = bare(network(c), bare_batches(options, document, drawn), options)
        return theirs, ours(c, options, objective, document, cuda_graph=graph)

    if options.family == "elmo":
        sizes = {"hidden_size": options.hidden, "lstm_size": options.lstm}
        small: Any = replace(ELMO.sizes["small"], vocab_size=options.vocab, **sizes)
        make = partial(pair, small, BareBiLM, BiLM)
        return {
            "bilm": partial(make, whole, False),
            f"bilm, documents of {DOCUMENT} tokens": partial(make, DOCUMENT, False),
        }
    paper = replace(PUBLISHED["ulmfit-wt103-fastai"], vocab_size=options.vocab)
    paper = replace(paper, hidden_size=options.hidden, lstm_size=options.lstm)
    rates = [name for name in vars(paper) if name.endswith("dropout")]
    plain = replace(paper, **dict.fromkeys(rates, 0.0))
    make = partial(pair, plain, BareLSTM, RecurrentCLM)
    rows = {
        "stream": partial(make, whole, False),
        f"stream, documents of {DOCUMENT} tokens": partial(make, DOCUMENT, False),
        "bptt with dropout and penalties": partial(pair, paper, BareLSTM, BPTT, whole, False),
        f"bptt, documents of {DOCUMENT} tokens": partial(
            pair, paper, BareLSTM, BPTT, DOCUMENT, False
        ),
    }
    if options.device == "cuda":
        rows["stream as CUDA graphs"] = partial(make, whole, True)
        rows["bptt as CUDA graphs"] = partial(pair, paper, BareLSTM, BPTT, whole, True)
    return rows


def run_row(make: Callable[[], tuple[Step, Step]], options: argparse.Namespace) -> dict[str, Any]:
    """Time one row of the table; return its speeds, and what the profiler found."""
    theirs, own = make()
    speeds = measure({"bare": theirs, "ours": own}, options.seconds, options.device)
    ratio = statistics.median(a / b for a, b in zip(speeds["ours"], speeds["bare"], strict=True))
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    line: dict[str, Any] = {"speed": medians["ours"], "bare": medians["bare"], "ratio": ratio}
    line["operations"], line["bare_operations"] = operations(own), operations(theirs)
    if options.profile:
        line["profile"] = {
            name: profile(step, options.device) for name, step in (("bare", theirs), ("ours", own))
        }
    return line


def print_profile(found: dict[str, dict[str, Any]]) -> None:
    """Print where a bare loop and ours spend their time."""
    for name, values in found.items():
        print(
            ", ".join(f"{key} {values[key]}" for key in values if not key.startswith("top_")), name
        )
        for key in ("top_host_ms", "top_device_ms"):
            for what, milliseconds in values[key].items():
                print(f"    {key[4:-3]} {milliseconds:8.3f} ms  {what}")


def main() -> None:
    options = parse()
    select_device(options.device)
    precisions = [options.precision] if options.precision else ["float32"]
    if not options.precision and options.device == "cuda":
        precisions.append("bfloat16")
    table, profiles = [], []
    for precision in precisions:
        options.bfloat16 = precision == "bfloat16"
        for name, make in workloads(options).items():
            if options.only not in name:
                continue
            line = {"precision": precision, "what": name, **run_row(make, options)}
            table.append(line)
            print(f"{precision}, {name}: {line['ratio']:.2f} of the bare loop", flush=True)
            if options.results:
                with options.results.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(line) + "\n")
            if options.profile:
                profiles.append((f"{precision}, {name}", line["profile"]))
    for title, found in profiles:
        print(f"\n{title}")
        print_profile(found)
    print("\n| what | precision | tokens/s | bare loop | ratio | operations | of the bare loop |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for line in table:
        speeds = f"{line['speed']:,.0f} | {line['bare']:,.0f} | {line['ratio']:.2f}"
        launched = f"{line['operations']} | {line['bare_operations']}"
        print(f"| {line['what']} | {line['precision']} | {speeds} | {launched} |")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
