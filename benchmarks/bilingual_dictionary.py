"""A bilingual dictionary from pairs of sentences, for `kinfolk finetune --dictionary`.

python benchmarks/bilingual_dictionary.py pairs.tsv -o en-zh.txt

The file has a sentence and its translation in two columns, also compressed (.gz, .xz). Both
directions of IBM Model 1 (Brown et al. 1993) are trained by EM; a word has the translation with the
highest product of both probabilities. Chinese is segmented by jieba. Written is a word and its
translation on each line, the most frequent words first.
"""

import argparse
import gzip
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from kinfolk.text.segment import HAN, word_starts

ITERATIONS = 5
MIN_COUNT = 2  # of a word that is translated
MIN_SCORE = 0.02  # product of both probabilities
CHINESE = re.compile(f"[{HAN}]")
OPEN = {".gz": gzip.open, ".xz": lzma.open}

Pair = tuple[list[str], list[str]]
Table = dict[str, dict[str, float]]  # probability of a translation by word


def read_pairs(path: Path) -> list[Pair]:
    """Read the words of both sides of each line, in lower case, without punctuation."""
    with OPEN.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [(words(row[0]), words(row[1])) for row in rows if len(row) > 1]


def words(sentence: str) -> list[str]:
    """Return the words of a sentence, Chinese ones by jieba."""
    starts = word_starts(sentence, "jieba" if CHINESE.search(sentence) else "spaces")
    parts = (sentence[a:b].strip().lower() for a, b in pairwise([*starts, len(sentence)]))
    return [part for part in parts if part[:1].isalnum()]


def ibm_model_1(pairs: Sequence[Pair], iterations: int = ITERATIONS) -> Table:
    """Return the probability of each target word given a source word, by EM."""
    table: Table = {}
    for iteration in range(iterations):
        counts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for source, target in pairs:
            given = ["", *source]  # the empty word
            for word in target:
                known = [table[s].get(word, 0.0) if iteration else 1.0 for s in given]
                total = sum(known)
                for s, share in zip(given, known, strict=True):
                    counts[s][word] += share / total
        table = {s: normalized(row) for s, row in counts.items()}
    return table


def normalized(counts: dict[str, float]) -> dict[str, float]:
    """Divide counts by their sum."""
    total = sum(counts.values())
    return {word: count / total for word, count in counts.items()}


def dictionary(pairs: Sequence[Pair]) -> dict[str, str]:
    """Return the best translation of each frequent word that has a likely one."""
    forward, backward = ibm_model_1(pairs), ibm_model_1([(b, a) for a, b in pairs])
    frequent = Counter(word for source, _ in pairs for word in source)
    best = {}
    for word, count in frequent.most_common():
        if count < MIN_COUNT:
            break
        scores = {t: p * backward[t].get(word, 0.0) for t, p in forward[word].items()}
        translation = max(scores, key=lambda t: scores[t])
        if scores[translation] >= MIN_SCORE:
            best[word] = translation
    return best


def main(arguments: Sequence[str] | None = None) -> None:
    """Read pairs, write the dictionary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    found = dictionary(read_pairs(given.pairs))
    lines = (f"{word}\t{translation}\n" for word, translation in found.items())
    given.out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(found):,} words")


if __name__ == "__main__":
    main()
