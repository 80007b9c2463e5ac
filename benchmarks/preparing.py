"""How fast kinfolk prepares a corpus, beside `tokenizers` and `datasets`, with the same tokenizer.

    python benchmarks/preparing.py --json                   English Wikipedia beside the repository
    python benchmarks/preparing.py notes.txt --json         any text

Counted are **megabytes of text (UTF-8) a second**, a megabyte being a million bytes:

    kinfolk     all that `kinfolk prepare` does: the text file is read and cut into documents and
                sentences, encoded, and written with its index, by as many processes as cores
    tokenizers  `encode_batch` alone, a thousand documents a call, on as many threads; the documents
                lie in memory, and nothing is done with the ids
    datasets    `Dataset.map` of that call with `batched=True` and `num_proc` of as many processes,
                from memory to its own Arrow files

The tokenizer is byte-level BPE learned from the beginning of the text. Before anything is timed,
kinfolk's corpus must hold the very ids that `encode_batch` gives. Then the sides alternate, three
rounds or more. Speeds are medians over the rounds; a ratio is the median of the ratios in each
round, so that a machine that slows down slows all sides down. In the JSON, for each vocabulary:

    ratio, ratio_datasets   kinfolk's speed over that of `tokenizers`, of `datasets`
    work, work_datasets     the same by seconds of processors, which others on the machine move less
    spread                  the first and the third quartile of `ratio` over the rounds
    sides                   of each: megabytes_per_second; processors, seconds of them a megabyte
    bytes_per_token         what the corpus takes on the disk, over its tokens
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import read_documents
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, train_tokenizer

WIKI = Path(__file__).parents[2] / "shared" / "data" / "wiki_en" / "train.txt.xz"
LEARNED = 8_000_000  # characters that the vocabulary is learned from
BATCH = 1000  # documents
ROUNDS = 3  # at least


def collect(source: Path, size: int) -> list[str]:
    """Read documents until they have so many bytes together."""
    texts: list[str] = []
    for document in read_documents([source]):
        texts.append(document.text)
        size -= len(document.text.encode())
        if size <= 0:
            break
    return texts


def learn(texts: Sequence[str], vocab: int) -> Tokenizer:
    """Learn byte-level BPE from the beginning of the text."""
    sizes = np.cumsum([len(text) for text in texts])
    return train_tokenizer(
        texts[: int(np.searchsorted(sizes, LEARNED)) + 1], kind="bpe", vocab_size=vocab
    )


def encode_batches(texts: Sequence[str], backend: tokenizers.Tokenizer) -> None:
    """Encode with the bare library, on all its threads."""
    # `datasets` turns them off for its processes, and forgets to turn them on again.
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    for start in range(0, len(texts), BATCH):
        backend.encode_batch(texts[start : start + BATCH], add_special_tokens=False)


def map_dataset(dataset: Any, backend: tokenizers.Tokenizer, folder: Path, workers: int) -> None:
    """Encode with `datasets`."""

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        found = backend.encode_batch(batch["text"], add_special_tokens=False)
        return {"input_ids": [encoding.ids for encoding in found]}

    mapped = dataset.map(
        encode,
        batched=True,
        batch_size=BATCH,
        num_proc=workers,
        remove_columns=["text"],
        cache_file_name=str(folder / "mapped.arrow"),
        load_from_cache_file=False,
    )
    assert len(mapped) == len(dataset)


def check(corpus: Corpus, texts: Sequence[str], backend: tokenizers.Tokenizer) -> None:
    """Stop unless the corpus holds the ids of the bare library."""
    at = 0
    for start in range(0, len(texts), BATCH):
        found = backend.encode_batch(texts[start : start + BATCH], add_special_tokens=False)
        ids = np.concatenate([np.array(encoding.ids, np.int64) for encoding in found])
        if not np.array_equal(corpus.ids(at, at + len(ids)), ids):
            raise SystemExit("the two sides do not give the same ids")
        at += len(ids)
    if (corpus.tokens, corpus.documents) != (at, len(texts)):
        raise SystemExit("the two sides do not count the same tokens and documents")


def disk(folder: Path) -> int:
    """Return the bytes of a corpus, without its tokenizer."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Time a call: by the clock, and on all processors, its processes included."""
    start, before = time.perf_counter(), processors()
    run()
    return time.perf_counter() - start, processors() - before


def processors() -> float:
    """Return the seconds of processors used so far; finer than the hundredths of `os.times`."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def measure(texts: Sequence[str], vocab: int, workers: int, rounds: int) -> dict[str, Any]:
    """Check that both sides give the same ids, then time them in turn."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    began = time.perf_counter()
    tokenizer = learn(texts, vocab)
    size = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder / "tokenizer")
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
        backend.encode_special_tokens = True  # their names in the text are text, on both sides
        file = folder / "text.txt"
        file.write_text("\n\n".join(texts), encoding="utf-8")
        dataset = Dataset.from_dict({"text": list(texts)})

        def kinfolk() -> Corpus:
            shutil.rmtree(folder / "corpus", ignore_errors=True)
            return prepare([file], tokenizer=tokenizer, out=folder / "corpus", workers=workers)

        corpus = kinfolk()
        check(corpus, texts, backend)
        sides: dict[str, Callable[[], object]] = {
            "tokenizers": lambda: encode_batches(texts, backend),
            "datasets": lambda: map_dataset(dataset, backend, folder, workers),
            "kinfolk": kinfolk,
        }
        times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, run in sides.items():
                times[side].append(seconds(run))
        query_order, spread = ratios(times, 0)
        work, _ = ratios(times, 1)
        return {
            "ratio": query_order["tokenizers"],
            "ratio_datasets": query_order["datasets"],
            "work": work["tokenizers"],
            "work_datasets": work["datasets"],
            "spread": spread,
            "rounds": rounds,
            "sides": {
                side: {
                    "megabytes_per_second": round(size / statistics.median(t for t, _ in found), 3),
                    "processors": round(statistics.median(t for _, t in found) / size, 3),
                }
                for side, found in times.items()
            },
            "bytes_per_token": round(disk(folder / "corpus") / corpus.tokens, 3),
            "megabytes": round(size, 1),
            "tokens": corpus.tokens,
            "documents": corpus.documents,
            "vocab": vocab,
            "seconds": round(time.perf_counter() - began, 1),
        }


def ratios(
    times: dict[str, list[tuple[float, float]]], which: int
) -> tuple[dict[str, float], list[float]]:
    """Return how many times each side takes kinfolk's time, and the spread for the first side."""
    found = {
        side: [
            theirs[which] / ours[which] for theirs, ours in zip(t, times["kinfolk"], strict=True)
        ]
        for side, t in times.items()
    }
    quartiles = np.quantile(found["tokenizers"], [0.25, 0.75])
    medians = {side: round(statistics.median(values), 3) for side, values in found.items()}
    return medians, [round(float(q), 3) for q in quartiles]


def table(found: dict[str, Any]) -> str:
    """Write the figures of one vocabulary for a reader."""
    speeds = ", ".join(
        f"{side} {figures['megabytes_per_second']:.2f} MB/s"
        for side, figures in found["sides"].items()
    )
    low, high = found["spread"]
    return (
        f"vocabulary {found['vocab']:,}, {found['megabytes']:.0f} MB, the same ids: {speeds}\n"
        f"  kinfolk / tokenizers {found['ratio']:.2f} ({low:.2f} to {high:.2f}), "
        f"/ datasets {found['ratio_datasets']:.2f}; by processors {found['work']:.2f} and "
        f"{found['work_datasets']:.2f}; {found['rounds']} rounds, "
        f"{found['bytes_per_token']:.2f} bytes a token on the disk, {found['seconds']:.0f} s in all"
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Read the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="?", type=Path, default=WIKI, help="a file or a folder")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--vocab", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--megabytes", type=float, default=50, help="of text; all, if it has less")
    parser.add_argument("--workers", type=int, help="processes and threads; as many as cores")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"{ROUNDS} or more")
    told = parser.parse_args(arguments)
    workers = told.workers or len(os.sched_getaffinity(0))
    # Before the library's threads start; processes of `datasets` and kinfolk have one each.
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    texts = collect(told.text, int(told.megabytes * 1e6))
    found: dict[str, Any] = {}
    for vocab in told.vocab:
        found[str(vocab)] = measure(texts, vocab, workers, max(ROUNDS, told.rounds))
        print(table(found[str(vocab)]), flush=True)
    figures = {
        "ratio": min(f["ratio"] for f in found.values()),
        "ratio_datasets": min(f["ratio_datasets"] for f in found.values()),
        "work": min(f["work"] for f in found.values()),
        "work_datasets": min(f["work_datasets"] for f in found.values()),
        **found,
        "workers": workers,
        "tokenizers": tokenizers.__version__,
    }
    if told.json:
        print(json.dumps(figures), flush=True)
    return figures


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
