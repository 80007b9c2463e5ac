"""N-gram counting, memory and queries against KenLM, each on one core.

python benchmarks/ngrams.py --kenlm BIN --megabytes 10 300 --order 5 --out ngrams.jsonl

BIN has KenLM's lmplz, build_binary and query. The text is drawn: phrases of words by Zipf's law,
so that n-grams repeat as in real text. Both sides count the same text to the same sizes, and score
the same held-out lines with the same perplexity. Times are those of the CPU (user and system), as
other programs may run; memory is the largest resident set of the process, and the largest part of
it that is not a mapped file. With --kenlm-python, the folder of KenLM's Python module, its queries
are measured too.

python benchmarks/ngrams.py --text FILE ... --megabytes 10 100 300 1000 --out memory.jsonl

counts lines of real text instead (plain, .gz or .xz; words between spaces, the 50,000 most frequent
and <unk>). More megabytes than the files have are copies of them in which a quarter of the words
are drawn from the text at random: three of four 5-grams of a copy are new, so that the number of
n-grams grows with the text.
"""

import argparse
import gzip
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kinfolk.data.corpus import Corpus, CorpusWriter, EncodedDocuments
from kinfolk.hub.arpa import word_tokenizer

VOCAB, PHRASES, LINE, HELD_OUT = 50_000, 400_000, 20, 400_000
CHANGED = 0.25  # of the words of a copy
LETTERS = "etaoinshrdlucmfw"
LineBlock: TypeAlias = tuple[np.ndarray, np.ndarray]  # ids, and the number of ids of each line
PYTHON_QUERY = """
import sys, time
sys.path.insert(0, sys.argv[1])
import kenlm
model, lines = kenlm.Model(sys.argv[2]), open(sys.argv[3]).read().splitlines()
times = []
for _ in range(3):
    began = time.process_time()
    sum(model.score(line) for line in lines)
    times.append(time.process_time() - began)
print(min(times))
"""


def words() -> list[str]:
    """Return words of four or more letters."""
    names = []
    for number in range(VOCAB):
        digits = f"{number + 16**3:x}"
        names.append("".join(LETTERS[int(digit, 16)] for digit in digits))
    return names


def draw(tokens: int, seed: int) -> np.ndarray:
    """Draw ids: phrases of two to six words, the frequent ones often."""
    rng = np.random.default_rng(0)
    pool = (rng.zipf(1.15, 4 * PHRASES) - 1) % VOCAB
    starts = rng.integers(0, len(pool) - 6, PHRASES)
    sizes = rng.integers(2, 7, PHRASES)
    rng = np.random.default_rng(seed)
    chosen = (rng.zipf(1.2, tokens // 4 + 1) - 1) % PHRASES
    lengths = sizes[chosen]
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids: np.ndarray = pool[np.repeat(starts[chosen], lengths) + offsets][:tokens]
    return ids


@dataclass(frozen=True)
class Lines:
    """Lines of word ids; more tokens than it has are copies with changed words."""

    ids: np.ndarray
    sizes: np.ndarray
    tokens: int

    def blocks(self) -> Iterator[LineBlock]:
        """Yield the lines in blocks of a thousand."""
        ends = np.cumsum(self.sizes)
        done, copy = 0, 0
        while done < self.tokens:
            rng = np.random.default_rng(copy)
            for first in range(0, len(ends), 1000):
                sizes = self.sizes[first : first + 1000]
                ids = self.ids[ends[first] - sizes[0] : ends[first + len(sizes) - 1]]
                if copy:
                    changed = rng.random(len(ids)) < CHANGED
                    others = self.ids[rng.integers(0, len(self.ids), len(ids))]
                    ids = np.where(changed, others, ids)
                yield ids, sizes
                done += len(ids)
                if done >= self.tokens:
                    return
            copy += 1


def drawn_lines(ids: np.ndarray) -> Lines:
    """Return lines of equal length."""
    sizes = np.diff([*range(0, len(ids), LINE), len(ids)])
    return Lines(ids, sizes, len(ids))


def drawn_text(megabytes: int) -> tuple[Lines, Lines, list[str]]:
    """Return drawn lines to count, held-out lines and the words; the last is <unk>."""
    names = np.array(words())
    mean = float(np.mean([len(name) for name in names[draw(100_000, 1)]])) + 1
    ids, held = draw(int(megabytes * 1e6 / mean), 1), draw(HELD_OUT, 2)
    seen, ids = np.unique(ids, return_inverse=True)  # lmplz knows the words of the text only
    held = np.where(np.isin(held, seen), np.searchsorted(seen, held), len(seen))
    return drawn_lines(ids), drawn_lines(held), [*names[seen].tolist(), "<unk>"]


def read_lines(paths: Sequence[Path]) -> Iterator[list[str]]:
    """Yield the words of each line that has any."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    for path in paths:
        with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
            yield from filter(None, map(str.split, file))


def real_text(paths: Sequence[Path], megabytes: int) -> tuple[Lines, Lines, list[str]]:
    """Return lines of files to count, their last as held-out lines, and the words."""
    counts = Counter(chain.from_iterable(read_lines(paths)))
    names = [word for word, _ in counts.most_common(VOCAB) if word != "<unk>"]
    number = {word: n for n, word in enumerate(names)}
    names.append("<unk>")
    sizes, parts = list[int](), list[np.ndarray]()
    for line in read_lines(paths):
        sizes.append(len(line))
        parts.append(np.array([number.get(word, len(names) - 1) for word in line], np.int32))
    ids, line_sizes = np.concatenate(parts), np.array(sizes)
    counted = len(ids) - min(HELD_OUT, len(ids) // 10)
    cut = int(np.searchsorted(np.cumsum(line_sizes), counted, "right"))
    start = int(line_sizes[:cut].sum())
    held = Lines(ids[start:], line_sizes[cut:], len(ids) - start)
    letters = np.array([len(name.encode()) + 1 for name in names])
    tokens = int(megabytes * 1e6 / float(letters[ids[:start]].mean()))
    return Lines(ids[:start], line_sizes[:cut], tokens), held, names


def write_text(path: Path, lines: Lines, names: Sequence[str]) -> None:
    """Write lines of words."""
    table = np.array(names)
    with path.open("w", encoding="utf-8") as file:
        for ids, sizes in lines.blocks():
            for line in np.split(table[ids], np.cumsum(sizes)[:-1]):
                file.write(" ".join(line.tolist()) + "\n")


def write_corpus(folder: Path, lines: Lines, names: list[str]) -> tuple[int, int]:
    """Write lines as a corpus, each a document; return the tokens and the bytes of the words."""
    letters = np.array([len(name.encode()) + 1 for name in names])
    tokens, size = 0, 0
    with CorpusWriter(folder, word_tokenizer(names)) as writer:
        for ids, sizes in lines.blocks():
            one = np.ones(len(sizes), np.int64)
            document = EncodedDocuments(ids, sizes.astype(np.int32), one, one)
            writer.add(document, ["line"] * len(sizes))
            tokens, size = tokens + len(ids), size + int(letters[ids].sum())
    return tokens, size


def measured(command: list[Any], **streams: Any) -> tuple[float, float, float, float]:
    """Run a command on one core; return CPU and wall seconds, and two peaks in MB.

    The first is the largest resident set, the second the largest part of it without mapped files.
    """
    began, peak, own, done = time.monotonic(), 0, 0, 0
    pinned = ["taskset", "-c", "0", *map(str, command)]
    process = subprocess.Popen(pinned, **streams, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while not done:
        # Not ru_maxrss, which a process inherits from the one that started it.
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        if match := re.search(r"VmHWM:\s+(\d+) kB", status):
            peak = int(match[1])
        if match := re.search(r"RssAnon:\s+(\d+) kB", status):
            own = max(own, int(match[1]))
        time.sleep(0.02)
        done, code, used = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{' '.join(pinned)} failed")
    return used.ru_utime + used.ru_stime, time.monotonic() - began, peak / 1024, own / 1024


def count(corpus: Path, order: int, out: Path) -> None:
    """Count a corpus into a file: what the measured process does."""
    from kinfolk.data.ngram_counts import NGramCounter
    from kinfolk.families.ngram import NGramConfig
    from kinfolk.workflows.baselines import count_model, end_ids

    text = Corpus.open(corpus)
    bos, eos = end_ids(text)
    counter = NGramCounter(
        out / "counts", text.blocks, vocab_size=text.vocab_size, bos=bos, eos=eos
    )
    c = NGramConfig(vocab_size=text.vocab_size, order=order)
    model = count_model(counter, c, out / "model.safetensors")
    (out / "sizes.json").write_text(json.dumps([bos, eos, *model.config.sizes]))


def score(folder: Path, held: Lines) -> tuple[float, float]:
    """Score held-out lines with our model; return seconds and the perplexity."""
    import torch
    from safetensors.torch import load_file

    from kinfolk.families.ngram import NGram, NGramConfig
    from kinfolk.workflows.baselines import document_nll

    torch.set_num_threads(1)
    bos, eos, *sizes = json.loads((folder / "sizes.json").read_text())
    with torch.device("meta"):
        model = NGram(NGramConfig(vocab_size=sizes[0], order=len(sizes), sizes=tuple(sizes)))
    model.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
    lines = [line for ids, ends in held.blocks() for line in np.split(ids, np.cumsum(ends)[:-1])]
    seconds = []
    for _ in range(3):  # the first also reads the file
        began = time.process_time()
        losses = np.concatenate([*document_nll(model, lines, bos, eos)])
        seconds.append(time.process_time() - began)
    return min(seconds), float(np.exp(losses.mean()))


def query(binaries: Path, model: Path, text: Path) -> tuple[float, float]:
    """Score held-out lines with KenLM; return seconds without its start, and the perplexity."""
    times = []
    for source in (os.devnull, text):
        with Path(source).open() as lines, tempfile.TemporaryFile("w+") as said:
            command = [binaries / "query", "-v", "summary", model]
            times.append(measured(command, stdin=lines, stdout=said, stderr=said)[0])
            said.seek(0)
            summary = said.read()
    value = float(summary.split("Perplexity including OOVs:")[1].split()[0])
    return times[1] - times[0], value


def compare(
    text: tuple[Lines, Lines, list[str]],
    order: int,
    binaries: Path | None,
    module: Path | None,
    home: Path,
) -> dict[str, Any]:
    """Measure one text."""
    lines, held, names = text
    tokens, size = write_corpus(home / "corpus", lines, names)
    ours = home / "ours"
    ours.mkdir()
    own = [sys.executable, __file__, "--count", home / "corpus", "--order", order, "--at", ours]
    cpu, wall, peak, anonymous = measured(own)
    seconds, perplexity = score(ours, held)
    per_token = 1e6 / (held.tokens + len(held.sizes))
    row: dict[str, Any] = {
        "megabytes": round(size / 1e6, 1),
        "tokens": tokens,
        "order": order,
        "sizes": json.loads((ours / "sizes.json").read_text())[2:],
        "count_cpu_s": round(cpu, 1),
        "count_wall_s": round(wall, 1),
        "peak_mb": round(peak),
        "peak_own_mb": round(anonymous),
        "query_us": round(seconds * per_token, 3),
        "perplexity": round(perplexity, 3),
    }
    if binaries is not None:
        write_text(home / "text", lines, names)
        write_text(home / "held", held, names)
        with (home / "text").open() as source, (home / "x.arpa").open("wb") as arpa:
            command = [binaries / "lmplz", "-o", order, "-S", "1G", "-T", home]
            found = measured(command, stdin=source, stdout=arpa, stderr=subprocess.DEVNULL)
        row |= {"kenlm_count_cpu_s": round(found[0], 1), "kenlm_count_wall_s": round(found[1], 1)}
        row |= {"kenlm_peak_mb": round(found[2]), "count_ratio": round(cpu / found[0], 2)}
        build = [binaries / "build_binary", "probing", home / "x.arpa", home / "x.binary"]
        subprocess.run(build, check=True, capture_output=True)
        seconds, perplexity = query(binaries, home / "x.binary", home / "held")
        row |= {"kenlm_query_us": round(seconds * per_token, 3)}
        row |= {"kenlm_perplexity": round(perplexity, 3)}
        row |= {"query_ratio": round(row["query_us"] / row["kenlm_query_us"], 2)}
        if module is not None:
            scored = [sys.executable, "-c", PYTHON_QUERY, module, home / "x.binary", home / "held"]
            seconds = float(subprocess.run(scored, check=True, capture_output=True).stdout)
            row |= {"kenlm_python_us": round(seconds * per_token, 3)}
            row |= {"python_ratio": round(row["query_us"] / row["kenlm_python_us"], 2)}
    return row


def main(arguments: list[str] | None = None) -> None:
    """Measure every size, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10])
    parser.add_argument("--text", type=Path, nargs="+", help="files of real text to count")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--kenlm", type=Path, help="folder of lmplz, build_binary and query")
    parser.add_argument("--kenlm-python", type=Path, help="folder of the module kenlm")
    parser.add_argument("--out", type=Path, help="file that gets a JSON line for each size")
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.count is not None:
        count(options.count, options.order, options.at)
        return
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory(prefix="kinfolk-benchmark-") as home:
            text = real_text(options.text, megabytes) if options.text else drawn_text(megabytes)
            row = compare(text, options.order, options.kenlm, options.kenlm_python, Path(home))
        print(
            "\n".join(f"{name:20} {value}" for name, value in row.items()), end="\n\n", flush=True
        )
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
