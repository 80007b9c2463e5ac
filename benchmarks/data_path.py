"""How long one core takes to make a batch: what a data worker of `kinfolk pretrain` does.

    python benchmarks/data_path.py corpus
    python benchmarks/data_path.py corpus --shapes 32x1024 64x512 --objectives clm mlm
    python benchmarks/data_path.py corpus --shapes 32x128 --objectives nsp --profile

`corpus` is a folder of `kinfolk prepare`. For each objective, with the settings of the families
that have it, and each shape (rows x tokens) there is a line:

    batch        milliseconds in which PackedDataset[n] or ContiguousDataset[n] makes a batch:
                 examples, masks, packing into rows, tensors
    tokens/s     tokens of text in it over these, in millions
    worker       milliseconds that the data loader adds in its worker: the batch goes to shared
                 memory, and its description through a pipe
    main         milliseconds that it takes of the process that trains, for a batch of a worker

Batches follow each other from the first of a run. Seconds are those of a process on its CPU, so
that other programs disturb them little; every figure is the median over rounds of `--batches`
batches (`--loaded` of the data loader), in which all objectives take turns. Reading the corpus and
packing, which a run does once, are left out. The pairs of `pairs` are neighbouring sentences of the
corpus. With `--profile` the functions in which the time goes are printed after each line.
"""

import argparse
import cProfile
import io
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.chunks import IntArray
from kinfolk.data.corpus import Corpus, CorpusWriter, EncodedDocuments
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.training.config import TrainConfig
from kinfolk.training.loader import data_loader
from kinfolk.workflows.recipe import recipe

SHAPES = ("32x1024", "64x512", "32x128", "128x128")
TOP = 25  # functions of a profile
LONGEST = 60  # tokens of a side of a pair
LOADED_BEFORE = 20  # batches of a data loader before those that are timed
HEAD = ("objective", "families", "shape", "batch", "tokens/s", "worker", "main")


@dataclass(kw_only=True)
class Work:
    """The batches of one objective in one shape, and what was measured."""

    objective: str
    shape: str
    dataset: PackedDataset | ContiguousDataset
    families: list[str]
    next: int = 0
    seconds: list[float] = field(default_factory=list)  # a batch, of each round
    worker_seconds: list[float] = field(default_factory=list)
    main_seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # of text, of each batch

    def round(self, batches: int, loaded: int) -> None:
        """Make some batches, and load some that are made already."""
        numbers = range(self.next, self.next + batches)
        self.next += batches
        began = time.process_time()
        made = [self.dataset[number] for number in numbers]
        ended = time.process_time()
        self.seconds.append((ended - began) / batches)
        self.tokens += [text_tokens(self.dataset, number) for number in numbers]
        worker, main = loader_seconds(made, loaded)
        self.worker_seconds.append(worker)
        self.main_seconds.append(main)

    def figures(self) -> dict[str, Any]:
        """Return what was measured."""
        seconds = statistics.median(self.seconds)
        return {
            "objective": self.objective,
            "families": self.families,
            "shape": self.shape,
            "batch_ms": round(1e3 * seconds, 3),
            "tokens_per_second": round(statistics.mean(self.tokens) / seconds),
            "worker_ms": round(1e3 * statistics.median(self.worker_seconds), 3),
            "main_ms": round(1e3 * statistics.median(self.main_seconds), 3),
        }


class Timed(Dataset[Batch[Any]]):
    """Batches that are made already, with the seconds of the process that reads them."""

    def __init__(self, batches: Sequence[Batch[Any]]) -> None:
        self.batches = batches

    def __getitem__(self, number: int) -> Batch[Any]:
        batch = self.batches[number % len(self.batches)]
        return replace(batch, counts={"ns": time.process_time_ns()})


def loader_seconds(batches: Sequence[Batch[Any]], count: int) -> tuple[float, float]:
    """Return the seconds for a batch that the data loader takes, in its worker and here."""
    train = TrainConfig(steps=LOADED_BEFORE + count, workers=1)
    steps = data_loader(Timed(batches), train, 0, pinned=False)
    marks = list[tuple[int, int]]()
    for (batch,) in steps:
        marks.append((batch.counts["ns"], time.process_time_ns()))
    first, last = np.array(marks[LOADED_BEFORE - 1]), np.array(marks[-1])
    worker, main = (last - first) / count / 1e9
    return float(worker), float(main)


def text_tokens(dataset: PackedDataset | ContiguousDataset, number: int) -> int:
    """Count the tokens of text in a batch; rows that continue have an end token for each text."""
    if isinstance(dataset, ContiguousDataset):
        return int((dataset[number].inputs.attention_mask.document_ids >= 0).sum())
    places = range(number * dataset.batch_size, (number + 1) * dataset.batch_size)
    orders = [divmod(place, len(dataset.packing)) for place in places]
    rows = [dataset.packing[int(dataset.epoch_order(epoch)[row])] for epoch, row in orders]
    chunks = np.concatenate(rows)
    return int((dataset.chunks.stop - dataset.chunks.start)[chunks].sum())


def sentence_pairs(corpus: Corpus, folder: Path) -> Corpus:
    """Write a corpus of the neighbouring sentences of every document, as pairs."""
    pairs = list[IntArray]()
    for start, stop in pairwise(corpus.starts.tolist()):
        ends = np.cumsum(corpus.sentences(start, stop))[:-1]
        some = [s[:LONGEST] for s in np.split(corpus.ids(start, stop), ends)]
        pairs += some[: len(some) // 2 * 2]
    count = len(pairs) // 2
    lengths = np.array([*map(len, pairs)], np.int32)
    twos, zeros = np.full(count, 2), np.zeros(count, np.int64)
    with CorpusWriter(folder, corpus.tokenizer()) as writer:
        writer.append(EncodedDocuments(np.concatenate(pairs), lengths, twos, zeros))
    return Corpus.open(folder)


def works(corpus: Corpus, shape: str, chosen: Sequence[str], folder: Path) -> Iterator[Work]:
    """Yield the batches of every objective, once for families with the same settings of it."""
    rows, _, length = shape.partition("x")
    found: dict[str, Work] = {}
    for member in families().values():
        ways = () if member.model.gradient_free is not None else member.objectives
        for way in ways:
            if chosen and way not in chosen:
                continue
            objective = recipe(
                f"{member.name}/nano", corpus, objective=way, length=int(length)
            ).objective
            if repr(objective) in found:
                found[repr(objective)].families.append(member.name)
                continue
            texts = sentence_pairs(corpus, folder) if isinstance(objective, Seq2Seq) else corpus
            kind: Callable[..., Any] = ContiguousDataset if objective.recurrent else PackedDataset
            dataset = kind(objective, texts, batch_size=int(rows))
            found[repr(objective)] = Work(
                objective=way, shape=shape, dataset=dataset, families=[member.name]
            )
    yield from found.values()


def row(cells: Sequence[str]) -> str:
    """Return a row of the table."""
    return f"| {' | '.join(cells)} |"


def line(found: dict[str, Any]) -> str:
    """Return the line of the table that has these figures."""
    return row(
        [
            found["objective"],
            ", ".join(found["families"]),
            found["shape"],
            f"{found['batch_ms']:.2f} ms",
            f"{found['tokens_per_second'] / 1e6:.2f} M",
            f"{found['worker_ms']:.2f} ms",
            f"{found['main_ms']:.2f} ms",
        ]
    )


def profile(work: Work, batches: int) -> str:
    """Return the functions in which the time of making batches goes."""
    profiler, text = cProfile.Profile(), io.StringIO()
    profiler.enable()
    for number in range(work.next, work.next + batches):
        work.dataset[number]
    profiler.disable()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(TOP)
    return "\n".join(text.getvalue().splitlines()[2:])


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="folder of kinfolk prepare")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWSxLENGTH")
    parser.add_argument(
        "--objectives", nargs="+", default=[], metavar="NAME", help="all by default"
    )
    parser.add_argument("--batches", type=int, default=8, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loaded", type=int, default=200, help="batches by a worker, of a round")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--out", type=Path, help="append a line of JSON for each line of the table")
    told = parser.parse_args(arguments)
    torch.set_num_threads(1)  # as in a data worker
    corpus = Corpus.open(told.corpus)
    print(row(HEAD))
    print(row(["---"] * 3 + ["---:"] * 4), flush=True)
    figures = []
    for shape in told.shapes:
        with tempfile.TemporaryDirectory() as folder:
            chosen = [*works(corpus, shape, told.objectives, Path(folder) / "pairs")]
            for _ in range(told.rounds):
                for work in chosen:
                    work.round(told.batches, told.loaded)
            for work in chosen:
                figures.append(work.figures())
                print(line(figures[-1]), flush=True)
                if told.profile:
                    print(profile(work, told.batches), flush=True)
                if told.out is not None:
                    with told.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(figures[-1]) + "\n")
    return figures


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
