"""The speed of `kinfolk embed` against a bare forward pass over the same packed batches.

    python benchmarks/embedding.py MODEL TEXTS [--device cuda] [--rounds 7] [--texts 2000]

Both run in turn, and the medians are compared. The bare pass has its batches ready on the device:
it neither tokenizes nor packs nor pools. `embed` does all of it, up to vectors in memory.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kinfolk.batch import Inputs
from kinfolk.workflows.vectors.embed import TEXTS_PER_CHUNK, Embedder

TARGET = 0.9  # of the speed of the bare pass


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the time of a call, up to the end of what it started on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def packed_batches(embedder: Embedder, texts: list[str]) -> list[Inputs]:
    """Return the batches that `embed` makes of texts."""
    found = []
    for start in range(0, len(texts), TEXTS_PER_CHUNK):
        examples = [embedder.example(text)[0] for text in texts[start : start + TEXTS_PER_CHUNK]]
        found += [inputs for _, inputs, _, _ in embedder.batches(examples)]
    return found


def main() -> None:
    """Measure both, in turn, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, help="file with one text per line")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--max-texts", type=int, default=2000)
    given = parser.parse_args()
    lines = [line for line in given.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = lines[: given.max_texts]
    embedder = Embedder.open(given.model, device=given.device)
    batches = packed_batches(embedder, texts)

    @torch.no_grad()
    def bare() -> None:
        for inputs in batches:
            embedder.network.all_layer_outputs(inputs)

    runs = {"forward": bare, "embed": lambda: embedder.embed(texts)}
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(given.rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, embedder.device))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = [a / b for a, b in zip(times["forward"], times["embed"], strict=True)]
    print(
        json.dumps(
            {
                "texts": len(texts),
                "batches": len(batches),
                "forward_seconds": medians["forward"],
                "embed_seconds": medians["embed"],
                "speed_of_bare_pass": medians["forward"] / medians["embed"],
                "median_of_ratios": statistics.median(ratios),
                "target": TARGET,
            }
        )
    )


if __name__ == "__main__":
    main()
