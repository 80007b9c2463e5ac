r"""ARPA files of n-gram models, as KenLM and SRILM read and write them.

    \data\
    ngram 1=3
    ngram 2=2

    \1-grams:
    -0.30103	</s>
    -99	<s>	-0.30103
    -0.30103	cat	-0.1760913
    ...
    \end\

A line has the log10 of a probability, the tokens and, but for the longest n-grams, the log10 of the
back-off weight where it is not 0.
"""

import gzip
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from tokenizers import models

from kinfolk.errors import UserError
from kinfolk.families.ngram import MAX_ORDER, NGram, NGramConfig
from kinfolk.files import new_file
from kinfolk.text.formats import whitespace_words
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.types import FloatArray, IntArray

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
NEVER = -99.0  # log10 of the probability of <s>, which is never predicted
UNKNOWN = -100.0  # of <unk> in a file without it, as in KenLM
LINES = 1 << 16  # that are written at once
SEPARATORS = re.compile(r"[\s\x00]")  # white space within a token


def is_arpa(path: Path) -> bool:
    """Return whether a file has the name of an ARPA file, compressed or not."""
    return path.name.endswith((".arpa", ".arpa.gz"))


def read_arpa(path: Path, tokenizer: Tokenizer | None = None) -> tuple[NGram, Tokenizer]:
    """Read an n-gram model; without a tokenizer, its words are the tokens.

    With a tokenizer every word of the file must be one of its tokens.
    """
    file = ArpaReader(path)
    with file.open() as lines:
        sizes = file.header(lines)
        tables = [file.section(lines, order, size) for order, size in enumerate(sizes, start=1)]
        file.end(lines)
    words = [words[0] for words in tables[0][0]]
    if tokenizer is None:
        tokenizer = word_tokenizer(words)
    ids = token_ids(words, tokenizer, path)
    vocab_size = tokenizer.vocab_size
    model = NGram(
        NGramConfig(vocab_size=vocab_size, order=len(sizes), sizes=(vocab_size, *sizes[1:]))
    )
    keys: list[IntArray] = [np.arange(vocab_size)]
    for order, (grams, log_probs, backoffs) in enumerate(tables, start=1):
        table = model.tables[order - 1]
        if order == 1:
            probs, weights = unigrams(words, ids, log_probs, backoffs, vocab_size)
        else:
            numbers, at = file.keys(grams, ids, keys)
            keys.append(numbers)
            table.keys.copy_(torch.from_numpy(numbers))
            probs, weights = log_probs[at], backoffs[at]
        table.log_probs.data.copy_(torch.from_numpy(probs * math.log(10)))
        if order < len(sizes):
            table.backoffs.data.copy_(torch.from_numpy(weights * math.log(10)))
    return model.eval(), tokenizer


def word_tokenizer(words: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of words that are divided by white space, numbered as in the file."""
    known = dict.fromkeys([*words, UNK, BOS, EOS])
    vocab = {word: id for id, word in enumerate(known)}
    backend = whitespace_words(models.WordLevel(vocab, unk_token=UNK))
    backend.add_special_tokens([UNK, BOS, EOS])
    return Tokenizer(backend, {"unk": UNK, "bos": BOS, "eos": EOS})


def token_ids(words: Sequence[str], tokenizer: Tokenizer, path: Path) -> dict[str, int]:
    """Return the id of each word of a file in a tokenizer."""
    names = {name: id for id, name in enumerate(token_names(tokenizer))}
    special_tokens = tokenizer.special_tokens
    start = special_tokens.eos if special_tokens.bos is None else special_tokens.bos
    roles = {BOS: start, EOS: special_tokens.eos, UNK: special_tokens.unk}
    known = {role: id for role, id in roles.items() if id is not None} | names
    known |= {role: id for role, id in roles.items() if id is not None and role in (BOS, EOS)}
    for word in words:
        if word not in known:
            raise UserError(
                f"{path}: {word!r} is not a token of the tokenizer: use the one that the model was "
                "counted with, or none"
            )
    return {word: known[word] for word in words}


def unigrams(
    words: Sequence[str],
    ids: dict[str, int],
    log_probs: FloatArray,
    backoffs: FloatArray,
    vocab_size: int,
) -> tuple[FloatArray, FloatArray]:
    """Return the values of all tokens; those that the file lacks have the one of <unk>."""
    unknown = words.index(UNK) if UNK in words else None
    rest = UNKNOWN if unknown is None else log_probs[unknown]
    probs, weights = np.full(vocab_size, rest), np.zeros(vocab_size)
    for word, log_prob, backoff in zip(words, log_probs, backoffs, strict=True):
        # One token may begin and end a text: it is predicted as </s>, and precedes as <s>.
        if word != BOS or ids.get(EOS) != ids[BOS]:
            probs[ids[word]] = log_prob
        if word != EOS or ids.get(BOS) != ids[EOS]:
            weights[ids[word]] = backoff
    return probs, weights


class ArpaReader:
    """The parts of one file, each refused with its line where it is wrong."""

    def __init__(self, path: Path) -> None:
        self.path, self.line = path, 0

    def open(self) -> IO[str]:
        """Open the file, which may be compressed."""
        opened: Any = gzip.open if self.path.suffix == ".gz" else open
        file: IO[str] = opened(self.path, "rt", encoding="utf-8")
        return file

    def error(self, problem: str) -> UserError:
        """Return the error about a line."""
        return UserError(f"{self.path}, line {self.line}: {problem}; write the file again")

    def lines(self, source: IO[str]) -> Iterator[str]:
        """Yield the lines that are not empty."""
        try:
            for line in source:
                self.line += 1
                if stripped := line.strip():
                    yield stripped
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise self.error(f"the file cannot be read ({error})") from error

    def header(self, source: IO[str]) -> list[int]:
        r"""Read the number of n-grams of each order, up to the first section."""
        for line in self.lines(source):
            if line == "\\data\\":
                break
        else:
            raise self.error("there is no \\data\\: it is not an ARPA file")
        sizes: list[int] = []
        for line in self.lines(source):
            if match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line):
                if int(match[1]) != len(sizes) + 1:
                    raise self.error(f"the orders must be 1, 2, 3 ... (got {line!r})")
                sizes.append(int(match[2]))
            else:
                self._check_title(line, 1)
                break
        if not 1 <= len(sizes) <= MAX_ORDER:
            raise self.error(f"it has order {len(sizes)}, and 1 to {MAX_ORDER} are supported")
        return sizes

    def section(
        self, source: IO[str], order: int, size: int
    ) -> tuple[list[list[str]], FloatArray, FloatArray]:
        """Read the n-grams of an order: tokens, log probabilities, log weights."""
        grams: list[list[str]] = []
        values = np.zeros((2, size))
        if order > 1:
            self._check_title(next(self.lines(source), "the end of the file"), order)
        for number, line in enumerate(islice(self.lines(source), size)):
            parts = re.split(r"[ \t]+", line)
            if line.startswith("\\"):
                raise self.error(f"the section \\{order}-grams: ends after {number:,} of {size:,}")
            if len(parts) not in (order + 1, order + 2):
                raise self.error(f"a number, {order} tokens and a number are expected")
            try:
                values[0, number] = float(parts[0])
                values[1, number] = float(parts[order + 1]) if len(parts) > order + 1 else 0.0
            except ValueError as error:
                raise self.error(f"{str(error).rpartition(': ')[2]} is not a number") from None
            if not np.isfinite(values[:, number]).all() or values[0, number] > 0:
                raise self.error(f"{parts[0]} is not the logarithm of a probability")
            grams.append(parts[1 : order + 1])
        if len(grams) < size:
            raise self.error(f"the section \\{order}-grams: ends after {len(grams):,} of {size:,}")
        return grams, values[0], values[1]

    def _check_title(self, line: str, order: int) -> None:
        if line != f"\\{order}-grams:":
            raise self.error(f"\\{order}-grams: is expected, not {line[:40]!r}")

    def end(self, source: IO[str]) -> None:
        r"""Check that \end\ follows the last section."""
        line = next(self.lines(source), "the end of the file")
        if line != "\\end\\":
            raise self.error(f"\\end\\ is expected, not {line[:40]!r}")

    def keys(
        self, grams: Sequence[Sequence[str]], ids: dict[str, int], tables: Sequence[IntArray]
    ) -> tuple[IntArray, IntArray]:
        """Return the sorted keys of n-grams, and the index of each in the file."""
        vocab_size = len(tables[0])
        try:
            tokens = np.array([[ids[word] for word in gram] for gram in grams], np.int64)
        except KeyError as error:
            raise UserError(f"{self.path}: {error} has no 1-gram; write the file again") from None
        tokens = tokens.reshape(len(grams), len(tables) + 1)
        contexts = tokens[:, 0]
        for size, table in enumerate(tables[1:], start=1):
            wanted = contexts * vocab_size + tokens[:, size]
            contexts = np.searchsorted(table, wanted)
            if missing := np.flatnonzero(np.take(table, contexts, mode="clip") != wanted).tolist():
                gram, context = (" ".join(grams[missing[0]][:n]) for n in (None, size + 1))
                raise UserError(
                    f"{self.path}: the n-gram {gram!r} has no {size + 1}-gram {context!r} before "
                    "its end; write the file again"
                )
        keys = contexts * vocab_size + tokens[:, -1]
        order = np.argsort(keys)
        keys = keys[order]
        if (double := np.flatnonzero(keys[1:] == keys[:-1])).size:
            gram = " ".join(grams[order[double[0]]])
            raise UserError(f"{self.path}: {gram!r} occurs twice; write the file again")
        return keys, order


def token_names(tokenizer: Tokenizer) -> list[str]:
    r"""Return the name of each token in a file; white space within it is written as \u0020."""
    special_tokens = tokenizer.special_tokens
    names = [
        SEPARATORS.sub(lambda space: f"\\u{ord(space[0]):04x}", tokenizer.id_to_token(id))
        for id in range(tokenizer.vocab_size)
    ]
    if special_tokens.unk is not None and UNK not in names:
        names[special_tokens.unk] = UNK
    if special_tokens.bos is not None:
        names[special_tokens.bos] = BOS
    if special_tokens.eos is not None:
        names[special_tokens.eos] = EOS
    return names


def write_arpa(model: NGram, tokenizer: Tokenizer, path: Path) -> Path:
    """Write an n-gram model as an ARPA file."""
    names = token_names(tokenizer)
    if len(set(names)) < len(names):
        double = next(name for n, name in enumerate(names) if name in names[:n])
        raise UserError(f"two tokens would both be {double!r} in {path}: use another tokenizer")
    special_tokens = tokenizer.special_tokens
    start = special_tokens.eos if special_tokens.bos is None else special_tokens.bos
    if start is None:
        special_tokens.require("eos")
    sizes = [len(table.log_probs) for table in model.tables]
    sizes[0] = len(names) + (start == special_tokens.eos)  # <s> besides </s>
    with new_file(path) as file:
        counts = "".join(f"ngram {order}={size}\n" for order, size in enumerate(sizes, start=1))
        file.write(f"\\data\\\n{counts}")
        for order in range(1, len(sizes) + 1):
            file.write(f"\n\\{order}-grams:\n")
            file.writelines(gram_lines(model, names, order, start))
        file.write("\n\\end\\\n")
    return path


def gram_lines(model: NGram, names: Sequence[str], order: int, start: int | None) -> Iterable[str]:
    """Yield the lines of an order."""
    table, vocab_size = model.tables[order - 1], len(names)
    is_longest = order == len(model.tables)
    size = vocab_size if order == 1 else len(table.log_probs)
    for first in range(0, size, LINES):
        part = slice(first, min(first + LINES, size))
        probs = (table.log_probs[part].double() / math.log(10)).tolist()
        weights = [0.0] * len(probs)
        if not is_longest:
            weights = (table.backoffs[part].double() / math.log(10)).tolist()
        tokens = gram_tokens(model, order, part)
        for prob, weight, ids in zip(probs, weights, tokens.tolist(), strict=True):
            words = [names[id] for id in ids]
            if order > 1 and ids[0] == start:
                words[0] = BOS
            backoff = f"\t{weight:.7g}" if weight else ""
            if order == 1 and ids[0] == start and words[0] != BOS:
                yield f"{prob:.7g}\t{words[0]}\n"  # it ends a text, and begins one as <s>
                prob, words = NEVER, [BOS]
            yield f"{prob:.7g}\t{' '.join(words)}{backoff}\n"


def gram_tokens(model: NGram, order: int, part: slice) -> torch.Tensor:
    """Return the ids of a range of n-grams: (n-grams, order)."""
    vocab_size = model.config.vocab_size
    indices, columns = torch.arange(part.start, part.stop), list[torch.Tensor]()
    for table in reversed(model.tables[1:order]):
        keys = table.keys[indices]
        columns.insert(0, keys % vocab_size)
        indices = keys // vocab_size
    return torch.stack([indices, *columns], dim=1)
