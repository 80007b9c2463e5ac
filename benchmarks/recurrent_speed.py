"""Training speed of the LSTM language models against a bare loop around `nn.LSTM`.

python benchmarks/recurrent_speed.py --device cuda
python benchmarks/recurrent_speed.py --device cuda --family elmo --hidden 512 --lstm 1024

The bare loop has the same layers, tied softmax, clipping and AdamW, carries its states from batch
to batch, and reads rows of random ids without documents, dropout or penalties. Ours are timed with
the data set, the step and the memory of a run: on documents as long as a stream, on documents of
300 tokens (packed rows), and as the paper trains (dropout, penalties, varying lengths).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset
from kinfolk.families.elmo import FAMILY as ELMO
from kinfolk.families.elmo import ELMo, ELMoConfig
from kinfolk.families.ulmfit import PUBLISHED, ULMFiTConfig
from kinfolk.objectives.bilm import BiLM
from kinfolk.objectives.bptt import BPTT
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep

BARE = "bare nn.LSTM loop"
Step = Callable[[], int]  # trains on one batch; returns its tokens


class BareLSTM(nn.Module):
    """The network as one writes it without a toolkit."""

    def __init__(self, c: ULMFiTConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        sizes = [c.hidden_size, *[c.lstm_size] * (c.num_layers - 1), c.hidden_size]
        self.layers = nn.ModuleList(nn.LSTM(*pair) for pair in pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(c.vocab_size))

    def forward(self, ids: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        x, new = self.embeddings(ids), []
        for layer, state in zip(self.layers, states, strict=True):
            x, state = layer(x, state)
            new.append(tuple(part.detach() for part in state))
        return F.linear(x, self.embeddings.weight, self.bias), new


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

    def forward(self, ids: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        outputs, new = [], []
        half = len(self.layers) // 2
        for first in (0, half):  # the backward model reads other ids, from the end of the text
            read = ids if first == 0 else ids.flip(0)
            x = self.reader(self.table[read.flatten()]).view(*ids.shape, -1)
            for number in range(half):
                out, state = self.layers[first + number](x, states[first + number])
                new.append(tuple(part.detach() for part in state))
                x = x + out if number else out
            outputs.append(x)
        return self.softmax(torch.stack(outputs)), new


def bare(model: nn.Module, options: argparse.Namespace) -> Step:
    """Return the step of the bare loop."""
    device = torch.device(options.device)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    shape = 16, options.length + 1, options.batch
    batches = torch.randint(options.vocab, shape)
    states: list[Any] = [None] * sum(isinstance(part, nn.LSTM) for part in model.modules())
    done = 0

    def step() -> int:
        nonlocal states, done
        ids = batches[done % 16].to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bfloat16):
            logits, states = model(ids[:-1], states)
            labels = ids[1:].expand(logits.shape[:-1])  # of one direction or of both
            loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        return options.length * options.batch

    return step


def ours(c: Any, options: argparse.Namespace, kind: type[Any], document: int) -> Step:
    """Return the step of a run, with its data; documents have this many tokens."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = c.build().to(device)
    specials = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=2, sep=3, mask=1)
    objective = kind(special_tokens=specials, vocab_size=c.vocab_size, max_length=options.length)
    total = options.batch * options.length * 64
    ids = np.random.default_rng(0).integers(4, c.vocab_size, total)
    count = max(options.batch, total // document)
    text = InMemoryDocuments.from_lists([[part.tolist()] for part in np.array_split(ids, count)])
    dataset = ContiguousDataset(objective, text, batch_size=options.batch)
    train = TrainStep(
        Learner(model.train(), objective),
        build_optimizer(model, TrainConfig()),
        lambda number: 1e-3,
        clip=1.0,
        seed=0,
        device=device,
        bfloat16=options.bfloat16,
        memory=[model.init_memory(options.batch)],
        checks=lambda number: device.type == "cpu",
    )
    done = 0

    def step() -> int:
        nonlocal done
        batch = dataset[done]
        train(done, [batch.pin_memory() if device.type == "cuda" else batch])
        done += 1
        return batch.counts[objective.loss_name]

    return step


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


def wait(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--family", default="ulmfit", choices=["ulmfit", "elmo"])
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--lstm", type=int, default=1152)
    parser.add_argument("--vocab", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=70)
    parser.add_argument("--seconds", type=float, default=15.0, help="for each precision")
    parser.add_argument("--precision", default="", help="float32, bfloat16; default: both on CUDA")
    parser.add_argument("--results", type=Path, help="file of lines")
    return parser.parse_args()


def workloads(options: argparse.Namespace) -> dict[str, Step]:
    """Return the steps to time, the bare loop first."""
    whole = options.length * 64
    torch.manual_seed(0)
    if options.family == "elmo":
        sizes = {"hidden_size": options.hidden, "lstm_size": options.lstm}
        small: Any = replace(ELMO.sizes["small"], vocab_size=options.vocab, **sizes)
        return {
            BARE: bare(BareBiLM(small), options),
            "bilm": ours(small, options, BiLM, whole),
            "bilm, documents of 300 tokens": ours(small, options, BiLM, 300),
        }
    paper = replace(PUBLISHED["ulmfit-wt103-fastai"], vocab_size=options.vocab)
    paper = replace(paper, hidden_size=options.hidden, lstm_size=options.lstm)
    rates = [name for name in vars(paper) if name.endswith("dropout")]
    plain = replace(paper, **dict.fromkeys(rates, 0.0))
    return {
        BARE: bare(BareLSTM(plain), options),
        "stream": ours(plain, options, RecurrentCLM, whole),
        "stream, documents of 300 tokens": ours(plain, options, RecurrentCLM, 300),
        "bptt with dropout and penalties": ours(paper, options, BPTT, whole),
    }


def main() -> None:
    options = parse()
    precisions = [options.precision] if options.precision else ["float32"]
    if not options.precision and options.device == "cuda":
        precisions.append("bfloat16")
    print("| precision | what | tokens/s | of the bare loop |\n| --- | --- | ---: | ---: |")
    for precision in precisions:
        options.bfloat16 = precision == "bfloat16"
        speeds = measure(workloads(options), options.seconds, options.device)
        for name, found in speeds.items():
            pairs = zip(found, speeds[BARE], strict=True)
            ratio, speed = statistics.median(a / b for a, b in pairs), statistics.median(found)
            print(f"| {precision} | {name} | {speed:,.0f} | {ratio:.2f} |", flush=True)
            if options.results:
                line = {"precision": precision, "what": name, "speed": speed, "ratio": ratio}
                with options.results.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
