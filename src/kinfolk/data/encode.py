"""Encode documents to token ids: a cache of words, lengths of sentences, a process pool."""

import os
import re
import signal
import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import compress
from multiprocessing import get_context, parent_process
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.data.corpus import EncodedDocuments
from kinfolk.data.documents import Document
from kinfolk.errors import UserError
from kinfolk.machine import available_cpus
from kinfolk.text import Tokenizer, sentence_ends
from kinfolk.text.segment import tokens_starting_words, word_segmenter
from kinfolk.types import IntArray

Bytes: TypeAlias = npt.NDArray[np.uint8]

# Classes of characters; NEWLINE is all white space that joins no word, tabs too, and SEPARATOR the
# position between two texts.
WORD, PUNCT, APOSTROPHE, SPACE, NEWLINE, SEPARATOR, OTHER = range(7)

MAX_MEAN_CHARS = 12  # of a word; texts with longer words hardly repeat them


def ascii_codes(text: str) -> Bytes:
    """Return each character as a byte; all beyond ASCII are 128."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return np.minimum(codes, 128).astype(np.uint8)


def char_classes(characters: Bytes, separators: IntArray) -> Bytes:
    """Return the class of each character; `separators` are the positions between two texts."""
    classes = np.frombuffer(bytearray(characters.tobytes().translate(_CLASSES)), np.uint8)
    classes[separators] = SEPARATOR
    return classes


def find_words(classes: Bytes, separators: IntArray) -> IntArray:
    """Return the start of each word; a separator is a word by itself."""
    pairs = 8 * np.concatenate([np.array([SEPARATOR], np.uint8), classes[:-1]]) + classes
    cuts = np.frombuffer(pairs.tobytes().translate(_CUTS), np.uint8)
    begins = cuts & _HERE
    begins[:-1] |= cuts[1:] >> 1
    begin = np.flatnonzero(begins.view(np.bool_))
    # Chinese has no spaces, and its words would not be found in the cache: a text stays whole.
    last = np.searchsorted(begin, separators)
    words = np.diff(last, prepend=-1)
    joined = np.repeat(np.diff(separators, prepend=-1) > MAX_MEAN_CHARS * words, words)
    joined[last] = joined[last - words + 1] = False
    return begin[~joined]


def ascii_words(classes: Bytes, starts: IntArray) -> npt.NDArray[np.bool_]:
    """Return which words consist of printable ASCII characters."""
    result = np.ones(len(starts), np.bool_)
    result[np.searchsorted(starts, np.flatnonzero(classes >= SEPARATOR), side="right") - 1] = False
    return result


def _char_class(c: str) -> int:
    if not c.isascii():
        return OTHER
    # An apostrophe may begin a token ('s), and join two halves of a word.
    known = {" ": SPACE, "\t": NEWLINE, "\n": NEWLINE, "\r": NEWLINE, "'": APOSTROPHE}
    ordinary = WORD if c.isalnum() else PUNCT if c.isprintable() else OTHER
    return known.get(c, ordinary)


_HERE, _BEFORE = 1, 2  # cut between two characters; cut before both


def _cuts() -> bytes:
    """Return where to cut, for each pair of classes."""
    solid, blank = {WORD, PUNCT, APOSTROPHE}, {SPACE, NEWLINE}
    table = bytearray(256)
    for before in range(7):
        for here in range(7):
            cut = SEPARATOR in (before, here)
            cut |= {before, here} == {WORD, PUNCT}
            cut |= before in solid and here in blank
            # The last character of white space is apart; a space joins the word after it.
            cut |= before == NEWLINE and here in solid
            apart = before in blank and here in solid
            table[8 * before + here] = _HERE * cut | _BEFORE * apart
    return bytes(table)


_CLASSES, _CUTS = bytes(_char_class(chr(i)) for i in range(256)), _cuts()

TABLE_SIZE = 1 << 19  # slots of 24 bytes
POOL_TOKENS = 1 << 20  # of 4 bytes
MAX_KEY_BYTES = 16  # of a word in the table

_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
# Odd numbers with half their bits set: the highest bits of a product depend on all of a word.
_MIX = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)


@dataclass(frozen=True)
class WordKeys:
    """The first eight bytes of each word and the next eight, as integers; 0 for longer words."""

    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]

    def __getitem__(self, which: IntArray) -> "WordKeys":
        return WordKeys(self.low[which], self.high[which])

    def slots(self) -> IntArray:
        """Return the slot of each word in the table."""
        mixed = (self.low ^ self.high * _MIX[0]) * _MIX[1]
        slots: IntArray = (mixed >> np.uint64(65 - TABLE_SIZE.bit_length())).astype(np.int64)
        return slots


def word_keys(characters: Bytes, starts: IntArray, lengths: IntArray) -> WordKeys:
    """Return the keys of words."""
    padded = np.concatenate([characters, np.zeros(MAX_KEY_BYTES, np.uint8)])
    eights = np.ndarray(len(padded) - 7, "<u8", padded.data, strides=(1,))
    sizes = np.where(lengths <= MAX_KEY_BYTES, lengths, 0)
    low = eights[starts] & _MASKS[np.minimum(sizes, 8)]
    return WordKeys(low, eights[starts + 8] & _MASKS[np.maximum(sizes - 8, 0)])


class WordTable:
    """A hash table from words to tokens; the first word of a slot keeps it until `clear`."""

    def __init__(self) -> None:
        self._low, self._high = np.zeros(TABLE_SIZE, np.uint64), np.zeros(TABLE_SIZE, np.uint64)
        # Start of the tokens in the pool, above the 8 bits of their number.
        self._entries = np.zeros(TABLE_SIZE, np.int64)
        self._pool = np.zeros(POOL_TOKENS, np.uint32)
        self._used = 0

    def find(self, keys: WordKeys) -> tuple[IntArray, IntArray]:
        """Return the start of each word's tokens in the pool and their number; -1 if unknown."""
        slots = keys.slots()
        known = (self._low[slots] == keys.low) & (self._high[slots] == keys.high) & (keys.low > 0)
        indices = np.where(known, self._entries[slots], -1)
        return indices >> 8, np.where(known, indices & 0xFF, -1)

    def tokens(self, indices: IntArray, sizes: IntArray) -> npt.NDArray[np.uint32]:
        """Return the tokens of words, concatenated; those of unknown words are arbitrary."""
        before = np.cumsum(sizes) - sizes
        return self._pool.take(
            np.repeat(indices - before, sizes) + np.arange(sizes.sum()), mode="clip"
        )

    def free(self, keys: WordKeys) -> npt.NDArray[np.bool_]:
        """Return which words can be added."""
        free: npt.NDArray[np.bool_] = (keys.low > 0) & (self._low[keys.slots()] == 0)
        return free

    def add(self, keys: WordKeys, words: Sequence[bytes]) -> bool:
        """Add the tokens of words; return False if the pool is full."""
        tokens = np.frombuffer(b"".join(words), np.uint32)
        end = self._used + len(tokens)
        if end > POOL_TOKENS:
            return False
        self._pool[self._used : end] = tokens
        sizes = np.fromiter(map(len, words), np.int64, len(words)) // 4
        slots = keys.slots()
        self._low[slots], self._high[slots] = keys.low, keys.high
        self._entries[slots] = (self._used + np.cumsum(sizes) - sizes) << 8 | sizes
        self._used = end
        return True

    def clear(self) -> None:
        """Remove all words."""
        self._low[:] = 0
        self._used = 0


MAX_CACHED_WORDS = 1 << 16  # outside the table; they take some 10 MB
MAX_CACHED_CHARS = 48  # of a word; longer ones hardly repeat
WORD_START_BIT = 1 << 31  # set in the id of a token that begins a word


@dataclass(frozen=True)
class PreTokenizerRule:
    """How a pre-tokenizer splits an ASCII word for its model."""

    pattern: re.Pattern[str]
    space: str  # replaces the space before a word
    lower: bool = False


# As GPT-2.
BYTE_LEVEL_PATTERN = re.compile(r"'(?:[stmd]|re|ve|ll)|Ġ?(?:[A-Za-z]+|[0-9]+|[^ĠA-Za-z0-9]+)|Ġ")
BERT_PATTERN = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


@dataclass(frozen=True)
class CachedWords:
    """The words of a text, and the concatenated tokens of all of them."""

    starts: IntArray  # of words, in characters
    tokens: IntArray  # in each word
    tagged_ids: npt.NDArray[np.uint32]  # the ids, with the highest bit set where a word begins

    @property
    def ids(self) -> npt.NDArray[np.uint32]:
        return self.tagged_ids & np.uint32(WORD_START_BIT - 1)

    @property
    def begins(self) -> npt.NDArray[np.bool_]:
        return self.tagged_ids >= WORD_START_BIT


class WordCache:
    """A cache of the token ids of words, which is cleared when it is full."""

    def __init__(self, tokenizer: Tokenizer, words: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._segment = None if words is None else word_segmenter(words)
        self._rule = _pretokenizer_rule(tokenizer.to_dict)
        self._model = tokenizer.model
        self._table = WordTable()
        self._others: dict[str, bytes] = {}  # tagged ids of four bytes
        self._offsets: dict[str, list[int]] = {}  # of the tokens in long words of the last text

    def encode(self, text: str, separators: IntArray) -> CachedWords:
        """Encode several texts, each followed by a separator, word by word."""
        codes = ascii_codes(text)
        classes = char_classes(codes, separators)
        if self._rule is None:
            classes[classes != SEPARATOR] = OTHER
        first = find_words(classes, separators)
        lengths = np.diff(first, append=len(text))
        packed = word_keys(codes, first, np.where(ascii_words(classes, first), lengths, 0))
        indices, tokens = self._table.find(packed)
        tokens[np.searchsorted(first, separators)] = 0
        new = np.flatnonzero(tokens < 0)
        spans = zip(first[new].tolist(), (first + lengths)[new].tolist(), strict=True)
        words = [text[start:end] for start, end in spans]
        distinct = dict(zip(words, new.tolist(), strict=True))  # with one of their indices
        self._offsets.clear()
        encoded = {word: self._others.get(word) or self._encode_word(word) for word in distinct}
        in_order = [encoded[word] for word in words]
        tokens[new] = np.fromiter(map(len, in_order), np.int64, len(new)) // 4
        tagged_ids = self._table.tokens(indices, tokens)
        tagged_ids[np.repeat(indices < 0, tokens)] = np.frombuffer(b"".join(in_order), np.uint32)
        self._insert(encoded, packed[np.array(list(distinct.values()), np.int64)])
        return CachedWords(first, tokens, tagged_ids)

    def _insert(self, encoded: Mapping[str, bytes], packed: WordKeys) -> None:
        """Add words to the table, or to the dictionary where their slot is taken."""
        free = self._table.free(packed)
        kept = list(compress(encoded.values(), free.tolist()))
        others = compress(encoded.items(), (~free).tolist())
        self._others.update((word, ids) for word, ids in others if len(word) <= MAX_CACHED_CHARS)
        if (
            not self._table.add(packed[np.flatnonzero(free)], kept)
            or len(self._others) > MAX_CACHED_WORDS
        ):
            self._table.clear()
            self._others.clear()

    def _encode_word(self, word: str) -> bytes:
        plain = word.isascii() and word.isprintable() and " " not in word[1:]
        if plain and self._rule is not None and self._segment is None:
            return self._encode_ascii_word(word, self._rule)
        ids, offsets = self._tokenizer.offsets(word)
        if len(word) > MAX_CACHED_CHARS:
            self._offsets[word] = [start for start, _ in offsets]
        if self._segment is None:
            return array("I", ids).tobytes()
        begins = tokens_starting_words(self._segment(word), offsets).astype(np.uint32)
        return (np.array(ids, np.uint32) | begins * np.uint32(WORD_START_BIT)).tobytes()

    def _encode_ascii_word(self, word: str, rule: PreTokenizerRule) -> bytes:
        """Pass the pre-tokens of a word to the model directly, in a third of the time."""
        text = (word.lower() if rule.lower else word).replace(" ", rule.space)
        pretokens = (text,) if text.isalpha() else rule.pattern.findall(text)
        tokenize = self._model.tokenize
        return array("I", [token.id for part in pretokens for token in tokenize(part)]).tobytes()

    def starts(self, word: str) -> list[int]:
        """Return where each token of a word begins, in characters."""
        kept = self._offsets.get(word)
        return [start for start, _ in self._tokenizer.offsets(word)[1]] if kept is None else kept


def _pretokenizer_rule(state: Mapping[str, Any]) -> PreTokenizerRule | None:
    """Return the rule by which a tokenizer splits words; None for other pre-tokenizers."""
    normal, cut, added = state["normalizer"], state["pre_tokenizer"] or {}, state["added_tokens"]
    # An added token may span two words; special ones are plain text here.
    if not all(t["special"] and t["content"].split() == [t["content"]] for t in added):
        return None
    if state["model"].get("dropout"):
        return None
    match cut.get("type"), (normal or {}).get("type"):
        case "ByteLevel", None | "Lowercase":
            if cut["use_regex"] and not cut["add_prefix_space"]:
                return PreTokenizerRule(BYTE_LEVEL_PATTERN, "Ġ", lower=normal is not None)
        case "BertPreTokenizer", None | "BertNormalizer":
            return PreTokenizerRule(
                BERT_PATTERN, "", lower=normal is not None and normal["lowercase"]
            )
    return None


MAX_ENCODE_CHARS = 1 << 18  # encoded at once: the library takes a hundred bytes per token
_LINE = re.compile(r"\n(?=\S)")


class DocumentEncoder:
    """Encode documents and count the tokens of each sentence.

    With `words`, the name of a segmenter, it also finds the tokens that begin a word.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, words: str | None = None, type: npt.DTypeLike = np.int64
    ) -> None:
        self._cache = WordCache(tokenizer, words)
        self._with_words, self._type = words is not None, type
        whole, first, second = (tokenizer.offsets(text)[0] for text in ("a\nb", "a\n", "b"))
        # Some foreign tokenizers give a text other ids than its lines.
        self._splits_lines = whole == first + second

    def __call__(self, texts: Sequence[str]) -> EncodedDocuments:
        """Encode documents, each independently of the others."""
        parts = (
            (number, part)
            for number, text in enumerate(texts)
            for part in (_parts(text) if self._splits_lines else [text])
        )
        groups = [self._encode_group(group) for group in _groups(parts)] or [self._encode_group([])]
        ids, begins, lengths, owners = (
            np.concatenate(column) for column in zip(*groups, strict=True)
        )
        return EncodedDocuments(
            ids,
            lengths,
            np.bincount(owners, minlength=len(texts)),
            np.array([len(text.encode()) for text in texts], np.int64),
            begins if self._with_words else None,
        )

    def _encode_group(self, group: Sequence[tuple[int, str]]) -> tuple[npt.NDArray[Any], ...]:
        """Encode parts of documents: ids, word starts, lengths of sentences and their documents."""
        text = "".join(f"{part}\n" for _, part in group)
        separators = np.cumsum(np.array([len(part) + 1 for _, part in group], np.int64)) - 1
        words = self._cache.encode(text, separators)
        ends: list[int] = []  # of sentences, in characters since the first part
        owners: list[int] = []
        for (number, part), stop in zip(group, separators.tolist(), strict=True):
            own = sentence_ends(part)
            ends += [stop - len(part) + end for end in own]
            owners += [number] * len(own)
        token_ends = self._sentence_token_ends(text, words, np.array(ends, np.int64))
        lengths = np.diff(token_ends, prepend=0)
        filled = lengths > 0
        documents = np.array(owners, np.int64)[filled]
        ids = words.ids.astype(self._type)
        return ids, words.begins, lengths[filled].astype(np.int32), documents

    def _sentence_token_ends(self, text: str, words: CachedWords, ends: IntArray) -> IntArray:
        """Return the tokens before each end; one that crosses it belongs to the sentence before."""
        before = np.cumsum(words.tokens) - words.tokens
        at = np.searchsorted(words.starts, ends)
        cuts = before[at]
        crossed = np.flatnonzero(words.starts[at] != ends)
        for own in np.split(crossed, np.flatnonzero(np.diff(at[crossed])) + 1):
            for word in (at[own[:1]] - 1).tolist():
                start, end = words.starts[word : word + 2].tolist()
                starts = self._cache.starts(text[start:end])
                cuts[own] = before[word] + np.searchsorted(starts, ends[own] - start, side="left")
        return cuts


def _groups(parts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Group parts that are encoded together."""
    group: list[tuple[int, str]] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part[1])
        if size >= MAX_ENCODE_CHARS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _parts(text: str) -> Iterator[str]:
    """Split a very long text after line ends, where sentences end and no token crosses."""
    start = 0
    while len(text) - start > MAX_ENCODE_CHARS:
        line = _LINE.search(text, start + MAX_ENCODE_CHARS)
        if line is None:
            break
        yield text[start : line.end()]
        start = line.end()
    yield text[start:]


MAX_WORKERS = 8  # processes, unless more are chosen
MIN_POOL_BYTES = 1 << 23  # of text that pay for starting processes

DocumentGroup = tuple[bool, list[Document]]  # whether these documents are held out


def default_num_workers(text: float | None) -> int:
    """Return the number of worker processes for this many bytes of text."""
    return min(available_cpus(), MAX_WORKERS) if text is None or text > MIN_POOL_BYTES else 1


def encode_in_parallel(
    groups: Iterable[DocumentGroup], encoder: Callable[[], DocumentEncoder], workers: int
) -> Generator[tuple[DocumentGroup, EncodedDocuments], None, None]:
    """Encode groups of documents in their order; at most two per worker wait."""
    if workers == 1:
        encode = encoder()
        yield from ((group, encode(_texts(group))) for group in groups)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_init_worker, initargs=(encoder,)
    )
    sent: deque[tuple[DocumentGroup, Future[EncodedDocuments]]] = deque()
    try:
        for group in groups:
            sent.append((group, pool.submit(_encode_task, _texts(group))))
            if len(sent) > 2 * workers:
                first, future = sent.popleft()
                yield first, future.result()
        while sent:
            first, future = sent.popleft()
            yield first, future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process died, most likely for lack of memory: use fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _texts(group: DocumentGroup) -> list[str]:
    return [document.text for document in group[1]]


_encode: DocumentEncoder  # in each worker


def _init_worker(encoder: Callable[[], DocumentEncoder]) -> None:
    global _encode
    # A parent that is killed closes no queue, and a worker would wait forever.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it and ends the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker, one core
    _encode = encoder()


def _exit_with_parent() -> None:
    """Exit when the parent process ends."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_task(texts: list[str]) -> EncodedDocuments:
    return _encode(texts)
