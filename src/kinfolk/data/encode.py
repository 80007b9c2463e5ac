"""Documents to token ids: word-level cache, sentence lengths, process pool."""

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

from kinfolk.data.corpus import EncodedDocuments, IntArray
from kinfolk.data.documents import Document
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, sentence_ends
from kinfolk.text.segment import tokens_starting_words, word_segmenter

Bytes: TypeAlias = npt.NDArray[np.uint8]

# The sorts of characters; LINE is all white space that joins no word, tabs too.
WORD, POINT, QUOTE, SPACE, LINE, STOP, ODD = range(7)

MAX_MEAN_CHARS = 12  # characters of a stretch, on average, above which few are seen again


def ascii_codes(text: str) -> Bytes:
    """Return each character in a byte; all beyond ASCII are 128."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    found: Bytes = np.minimum(codes, 128).astype(np.uint8)
    return found


def char_classes(characters: Bytes, stops: IntArray) -> Bytes:
    """Return the sort of each character; `stops` are the places between two texts."""
    found = np.frombuffer(bytearray(characters.tobytes().translate(_SORTS)), np.uint8)
    found[stops] = STOP
    return found


def starts(sorts: Bytes, stops: IntArray) -> IntArray:
    """Return where each stretch begins; a stop is one of its own."""
    pairs = 8 * np.concatenate([np.array([STOP], np.uint8), sorts[:-1]]) + sorts
    cuts = np.frombuffer(pairs.tobytes().translate(_CUTS), np.uint8)
    begins = cuts & _HERE
    begins[:-1] |= cuts[1:] >> 1
    found = np.flatnonzero(begins.view(np.bool_))
    # Chinese runs on without a space, and its stretches would not come back: it stays whole.
    last = np.searchsorted(found, stops)
    stretches = np.diff(last, prepend=-1)
    joined = np.repeat(np.diff(stops, prepend=-1) > MAX_MEAN_CHARS * stretches, stretches)
    joined[last] = joined[last - stretches + 1] = False
    return found[~joined]


def plain(sorts: Bytes, starts: IntArray) -> npt.NDArray[np.bool_]:
    """Tell which stretches hold nothing odd."""
    found = np.ones(len(starts), np.bool_)
    found[np.searchsorted(starts, np.flatnonzero(sorts >= STOP), side="right") - 1] = False
    return found


def _sorts() -> bytes:
    """Write down the sort of each byte."""

    def sort(c: str) -> int:
        if not c.isascii():
            return ODD
        # An apostrophe may begin a piece ('s), and join two halves of a word.
        known = {" ": SPACE, "\t": LINE, "\n": LINE, "\r": LINE, "'": QUOTE}
        if c in known:
            return known[c]
        return WORD if c.isalnum() else POINT if c.isprintable() else ODD

    return bytes(sort(chr(i)) for i in range(256))


_HERE, _BEFORE = 1, 2  # cut between two characters; cut in front of both


def _cuts() -> bytes:
    """Write down where to cut, for each pair of sorts."""
    solid, blank = {WORD, POINT, QUOTE}, {SPACE, LINE}
    table = bytearray(256)
    for before in range(7):
        for here in range(7):
            cut = STOP in (before, here)
            cut |= {before, here} == {WORD, POINT}
            cut |= before in solid and here in blank
            # The last of some white space is apart; it joins the word if it is a space.
            cut |= before == LINE and here in solid
            apart = before in blank and here in solid
            table[8 * before + here] = _HERE * cut | _BEFORE * apart
    return bytes(table)


_SORTS, _CUTS = _sorts(), _cuts()


TABLE_SIZE = 1 << 19  # of 24 bytes
POOL_TOKENS = 1 << 20  # tokens, of 4 bytes
MAX_KEY_BYTES = 16  # characters

_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
# Odd numbers with half their bits set: the highest bits of a product hang on all of a word.
_MIX = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)


@dataclass(frozen=True)
class WordKeys:
    """Words as numbers: their first eight bytes and the next; 0 and 0 where a word has none."""

    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]

    def __getitem__(self, which: IntArray) -> "WordKeys":
        return WordKeys(self.low[which], self.high[which])

    def slots(self) -> IntArray:
        """Return the one slot where each word may lie."""
        mixed = (self.low ^ self.high * _MIX[0]) * _MIX[1]
        slots: IntArray = (mixed >> np.uint64(65 - TABLE_SIZE.bit_length())).astype(np.int64)
        return slots


def keys(characters: Bytes, starts: IntArray, lengths: IntArray) -> WordKeys:
    """Read words as numbers, those that are short."""
    padded = np.concatenate([characters, np.zeros(MAX_KEY_BYTES, np.uint8)])
    eights = np.ndarray(len(padded) - 7, "<u8", padded.data, strides=(1,))
    sizes = np.where(lengths <= MAX_KEY_BYTES, lengths, 0)
    low = eights[starts] & _MASKS[np.minimum(sizes, 8)]
    return WordKeys(low, eights[starts + 8] & _MASKS[np.maximum(sizes - 8, 0)])


class WordTable:
    """Tokens by words. Who comes first has the slot, and the common words come first."""

    def __init__(self) -> None:
        self._low, self._high = np.zeros(TABLE_SIZE, np.uint64), np.zeros(TABLE_SIZE, np.uint64)
        self._places = np.zeros(
            TABLE_SIZE, np.int64
        )  # in the pool, above the 8 bits of their number
        self._pool = np.zeros(POOL_TOKENS, np.uint32)
        self._used = 0

    def find(self, keys: WordKeys) -> tuple[IntArray, IntArray]:
        """Return where the tokens of each word begin and how many they are: -1 where not known."""
        slots = keys.slots()
        known = (self._low[slots] == keys.low) & (self._high[slots] == keys.high) & (keys.low > 0)
        indices = np.where(known, self._places[slots], -1)
        return indices >> 8, np.where(known, indices & 0xFF, -1)

    def tokens(self, indices: IntArray, sizes: IntArray) -> npt.NDArray[np.uint32]:
        """Return the tokens of words, end to end; those of words that are not known are any."""
        before = np.cumsum(sizes) - sizes
        return self._pool.take(
            np.repeat(indices - before, sizes) + np.arange(sizes.sum()), mode="clip"
        )

    def free(self, keys: WordKeys) -> npt.NDArray[np.bool_]:
        """Tell which words can be added."""
        free: npt.NDArray[np.bool_] = (keys.low > 0) & (self._low[keys.slots()] == 0)
        return free

    def add(self, keys: WordKeys, found: Sequence[bytes]) -> bool:
        """Add words, or tell that there is no room for them."""
        tokens = np.frombuffer(b"".join(found), np.uint32)
        end = self._used + len(tokens)
        if end > POOL_TOKENS:
            return False
        self._pool[self._used : end] = tokens
        sizes = np.fromiter(map(len, found), np.int64, len(found)) // 4
        slots = keys.slots()
        self._low[slots], self._high[slots] = keys.low, keys.high
        self._places[slots] = (self._used + np.cumsum(sizes) - sizes) << 8 | sizes
        self._used = end
        return True

    def clear(self) -> None:
        """Forget all words."""
        self._low[:] = 0
        self._used = 0


KNOWN = 1 << 16  # words outside the slots; they take some 10 MB
MAX_CACHED_CHARS = 48  # characters; what is longer is hardly seen again
WORD_START_BIT = 1 << 31  # the bit of a token that begins a word, beside its id


@dataclass(frozen=True)
class PreTokenizerRule:
    """How a sort of tokenizer cuts a word of ASCII, and what its model sees of the pieces."""

    pattern: re.Pattern[str]
    space: str  # in place of the one before a word
    lower: bool = False


BYTE_LEVEL_PATTERN = re.compile(
    r"'(?:[stmd]|re|ve|ll)|Ġ?(?:[A-Za-z]+|[0-9]+|[^ĠA-Za-z0-9]+)|Ġ"
)  # as GPT-2
BERT = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


@dataclass(frozen=True)
class CachedWords:
    """The words of a text, and their tokens end to end."""

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
    """The ids of words. Those that are met are learned, and all forgotten once they are many."""

    def __init__(self, tokenizer: Tokenizer, words: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._segment = None if words is None else word_segmenter(words)
        self._way = _pretokenizer_rule(tokenizer.to_dict)
        self._model = tokenizer.model
        self._slots = WordTable()
        self._others: dict[str, bytes] = {}  # four bytes a token, as `Words.both`
        self._places: dict[str, list[int]] = {}  # of the tokens in long words of the last text

    def read(self, text: str, stops: IntArray) -> CachedWords:
        """Find the words of several texts, each with a character behind it that is not read."""
        seen = ascii_codes(text)
        kinds = char_classes(seen, stops)
        if self._way is None:
            kinds[kinds != STOP] = ODD
        first = starts(kinds, stops)
        lengths = np.diff(first, append=len(text))
        packed = keys(seen, first, np.where(plain(kinds, first), lengths, 0))
        indices, tokens = self._slots.find(packed)
        tokens[np.searchsorted(first, stops)] = 0
        new = np.flatnonzero(tokens < 0)
        spans = zip(first[new].tolist(), (first + lengths)[new].tolist(), strict=True)
        words = [text[start:end] for start, end in spans]
        once = dict(zip(words, new.tolist(), strict=True))  # one place where each stands
        found = self._spelled(once)
        spelled = [found[word] for word in words]
        tokens[new] = np.fromiter(map(len, spelled), np.int64, len(new)) // 4
        both = self._slots.tokens(indices, tokens)
        both[np.repeat(indices < 0, tokens)] = np.frombuffer(b"".join(spelled), np.uint32)
        self._insert(found, packed[np.array(list(once.values()), np.int64)])
        return CachedWords(first, tokens, both)

    def _spelled(self, words: Iterable[str]) -> dict[str, bytes]:
        """Look words up that are in no slot, or spell them."""
        self._places.clear()
        return {word: self._others.get(word) or self._encode_word(word) for word in words}

    def _insert(self, found: Mapping[str, bytes], packed: WordKeys) -> None:
        """Remember words, in the slots if they can be."""
        free = self._slots.free(packed)
        kept = list(compress(found.values(), free.tolist()))
        others = compress(found.items(), (~free).tolist())
        self._others.update((word, ids) for word, ids in others if len(word) <= MAX_CACHED_CHARS)
        if not self._slots.add(packed[np.flatnonzero(free)], kept) or len(self._others) > KNOWN:
            self._slots.clear()
            self._others.clear()

    def _encode_word(self, word: str) -> bytes:
        plain = word.isascii() and word.isprintable() and " " not in word[1:]
        if plain and self._way is not None and self._segment is None:
            return self._encode_ascii_word(word, self._way)
        ids, indices = self._tokenizer.offsets(word)
        if len(word) > MAX_CACHED_CHARS:
            self._places[word] = [start for start, _ in indices]
        if self._segment is None:
            return array("I", ids).tobytes()
        marks = tokens_starting_words(self._segment(word), indices).astype(np.uint32) * np.uint32(
            WORD_START_BIT
        )
        return (np.array(ids, np.uint32) | marks).tobytes()

    def _encode_ascii_word(self, word: str, way: PreTokenizerRule) -> bytes:
        """Give the pieces of a plain word straight to the model: it takes a third of the time."""
        seen = (word.lower() if way.lower else word).replace(" ", way.space)
        chunks = (seen,) if seen.isalpha() else way.pattern.findall(seen)
        tokenize = self._model.tokenize
        return array("I", [token.id for chunk in chunks for token in tokenize(chunk)]).tobytes()

    def starts(self, word: str) -> list[int]:
        """Return where each token of a word begins, in characters."""
        kept = self._places.get(word)
        return [start for start, _ in self._tokenizer.offsets(word)[1]] if kept is None else kept


def _pretokenizer_rule(state: Mapping[str, Any]) -> PreTokenizerRule | None:
    """Return how to cut text into words of their own for this tokenizer; None where unknown."""
    normal, cut, added = state["normalizer"], state["pre_tokenizer"] or {}, state["added_tokens"]
    # Such a token may stand across two words; special ones are plain text here.
    if not all(t["special"] and t["content"].split() == [t["content"]] for t in added):
        return None
    if state["model"].get("dropout"):
        return None
    match cut.get("type"), (normal or {}).get("type"):
        case "ByteLevel", None | "Lowercase":
            if cut["use_regex"] and not cut["add_prefix_space"]:
                return PreTokenizerRule(BYTE_LEVEL_PATTERN, "Ġ", lower=normal is not None)
        case "BertPreTokenizer", None | "BertNormalizer":
            return PreTokenizerRule(BERT, "", lower=normal is not None and normal["lowercase"])
    return None


LONGEST = 1 << 18  # characters encoded at once: the library takes a hundred bytes a token
_LINE = re.compile(r"\n(?=\S)")


class DocumentEncoder:
    """Encode documents and count the tokens of each sentence.

    With `words`, the name of a segmenter, it also says which tokens begin a word.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, words: str | None = None, type: npt.DTypeLike = np.int64
    ) -> None:
        self._lexicon = WordCache(tokenizer, words)
        self._marked, self._type = words is not None, type
        whole, first, second = (tokenizer.offsets(text)[0] for text in ("a\nb", "a\n", "b"))
        # Only some foreign tokenizers give a text other ids than its lines have.
        self._parts = whole == first + second

    def __call__(self, texts: Sequence[str]) -> EncodedDocuments:
        """Encode documents, each by itself."""
        parts = (
            (number, part)
            for number, text in enumerate(texts)
            for part in (_parts(text) if self._parts else [text])
        )
        found = [self._encode_group(group) for group in _groups(parts)] or [self._encode_group([])]
        ids, marks, lengths, owners = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        return EncodedDocuments(
            ids,
            lengths,
            np.bincount(owners, minlength=len(texts)),
            np.array([len(text.encode()) for text in texts], np.int64),
            marks if self._marked else None,
        )

    def _encode_group(self, group: Sequence[tuple[int, str]]) -> tuple[npt.NDArray[Any], ...]:
        """Encode parts of documents: ids, marks, lengths of sentences and whose each of them is."""
        text = "".join(f"{part}\n" for _, part in group)
        stops = np.cumsum(np.array([len(part) + 1 for _, part in group], np.int64)) - 1
        words = self._lexicon.read(text, stops)
        ends: list[int] = []  # of sentences, in characters since the first part
        owners: list[int] = []
        for (number, part), stop in zip(group, stops.tolist(), strict=True):
            own = sentence_ends(part)
            ends += [stop - len(part) + end for end in own]
            owners += [number] * len(own)
        lengths = np.diff(
            self._sentence_token_ends(text, words, np.array(ends, np.int64)), prepend=0
        )
        filled = lengths > 0
        whose = np.array(owners, np.int64)[filled]
        ids = words.ids.astype(self._type)
        return ids, words.begins, lengths[filled].astype(np.int32), whose

    def _sentence_token_ends(self, text: str, words: CachedWords, ends: IntArray) -> IntArray:
        """Count the tokens before each end; one that crosses it belongs to the sentence before."""
        before = np.cumsum(words.tokens) - words.tokens
        at = np.searchsorted(words.starts, ends)
        cuts = before[at]
        crossed = np.flatnonzero(words.starts[at] != ends)
        for own in np.split(crossed, np.flatnonzero(np.diff(at[crossed])) + 1):
            for word in (at[own[:1]] - 1).tolist():
                start, end = words.starts[word : word + 2].tolist()
                starts = self._lexicon.starts(text[start:end])
                cuts[own] = before[word] + np.searchsorted(starts, ends[own] - start, side="left")
        return cuts


def _groups(parts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Gather parts to be encoded together."""
    group: list[tuple[int, str]] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part[1])
        if size >= LONGEST:
            yield group
            group, size = [], 0
    if group:
        yield group


def _parts(text: str) -> Iterator[str]:
    """Cut a very long text after the ends of lines, where sentences end and no token crosses."""
    start = 0
    while len(text) - start > LONGEST and (line := _LINE.search(text, start + LONGEST)):
        yield text[start : line.end()]
        start = line.end()
    yield text[start:]


MOST = 8  # processes, unless more are asked for
WORTH = 1 << 23  # bytes of text that make up for starting a process

Chunk = tuple[bool, list[Document]]  # whether these documents are held out


def default_num_workers(text: float | None) -> int:
    """Choose how many processes are worth starting for so many bytes of text."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST) if text is None or text > WORTH else 1


def encode_in_parallel(
    chunks: Iterable[Chunk], encoder: Callable[[], DocumentEncoder], workers: int
) -> Generator[tuple[Chunk, EncodedDocuments], None, None]:
    """Encode chunks in their order, with a few on their way to each worker and no more."""
    if workers == 1:
        encode = encoder()
        yield from ((chunk, encode(_texts(chunk))) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_init_worker, initargs=(encoder,)
    )
    sent: deque[tuple[Chunk, Future[EncodedDocuments]]] = deque()
    try:
        for chunk in chunks:
            sent.append((chunk, pool.submit(_encode_task, _texts(chunk))))
            if len(sent) > 2 * workers:
                first, future = sent.popleft()
                yield first, future.result()
        while sent:
            first, future = sent.popleft()
            yield first, future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker ended before its time, most likely for lack of memory: use fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _texts(chunk: Chunk) -> list[str]:
    return [document.text for document in chunk[1]]


_encode: DocumentEncoder  # in each worker


def _init_worker(encoder: Callable[[], DocumentEncoder]) -> None:
    global _encode
    # A parent that is killed closes no queue, and a worker would wait for ever.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker, one core
    _encode = encoder()


def _exit_with_parent() -> None:
    """Wait for the parent's end, and end too."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_task(texts: list[str]) -> EncodedDocuments:
    return _encode(texts)
