"""The data of a comparison: one tokenizer and corpus for all, and the splits of labelled files.

RACE/corpus/                         text that was prepared here
RACE/corpora/KIND-SIZE/              with another tokenizer; NAME-HASH/ with one of a folder
RACE/tasks/TASK/test.jsonl           rows that are scored, and used for nothing else
RACE/tasks/TASK/train-16-seed0.jsonl nested subsets of the training rows; dev-16-seed0.jsonl
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

from kinfolk.data.corpus import Corpus
from kinfolk.data.disk_space import estimate_text_bytes, format_bytes
from kinfolk.data.documents import DocumentUnit, ReadOptions, read_documents
from kinfolk.data.files import file_sizes
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.reports.page import plural
from kinfolk.rng import Stream, generator, text_uniform
from kinfolk.tasks.dataset import TaskDataset, sample_rows, task_dataset
from kinfolk.tasks.formats.base import read_rows
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.formats.stored_rows import stored_rows, stored_rows_spec
from kinfolk.tasks.task import Task, task_class
from kinfolk.text import KINDS, Tokenizer, train_tokenizer
from kinfolk.text.train import ALL_SPECIAL_TOKENS
from kinfolk.types import OnMessage
from kinfolk.workflows.comparison.plan import ALL_LABELS, RaceOptions
from kinfolk.workflows.folders import load_tokenizer

HELD_OUT_BYTES = 200_000  # of text that is scored, by default
MAX_HOLDOUT, MIN_HOLDOUT = 0.1, 0.001
MIN_VOCAB, MAX_VOCAB = 512, 8192  # by default
BYTES_PER_TOKEN_TYPE = 2000  # of text for each entry of the vocabulary, by default
DEV_SHARE, TEST_SHARE = 0.1, 0.2  # of a file without test rows
MAX_RACE_DEV_ROWS = 500  # they are scored several times in a fine-tuning
SPLIT_FILE_NAMES = {"train": ("train",), "dev": ("dev", "valid", "val"), "test": ("test",)}
# Kinds of tokenizers of the papers. Word-level vocabularies, of Transformer-XL, ULMFiT and ELMo,
# have unknown words, whose bytes no model predicts: those families get byte-level BPE.
OWN_KINDS = {
    **dict.fromkeys(("bert", "electra", "glm", "cvt", "bilstm"), "wordpiece"),
    **dict.fromkeys(("t5", "albert", "xlnet"), "unigram"),
}


# Text


@dataclass(frozen=True)
class TextSource:
    """The text of a comparison: a prepared corpus, or files that are prepared in its folder."""

    paths: tuple[Path, ...]
    prepared: bool
    bytes: float  # about
    holdout: float
    document: DocumentUnit = "block"

    @classmethod
    def open(cls, options: RaceOptions) -> "TextSource":
        """Check what was given; nothing is written."""
        paths = tuple(Path(text) for text in options.corpus)
        if not paths:
            raise UserError("no corpus is given: name a corpus folder or text files with --corpus")
        corpora = [path for path in paths if (path / "corpus.json").is_file()]
        if corpora:
            check_corpus_options(options, corpora[0])
            corpus = Corpus.open(paths[0])
            return cls(paths, True, corpus.bytes, 0.0)
        sizes = file_sizes(list(paths))
        size = estimate_text_bytes(sizes)
        if not size:
            fault = "cannot be read twice" if size is None else "is empty"
            raise UserError(f"{paths[0]} {fault}: give files or folders of text")
        holdout = options.holdout
        if holdout is not None and not 0 < holdout < 1:
            raise UserError(f"--holdout must be between 0 and 1 (got {holdout:g})")
        if holdout is None:
            holdout = min(MAX_HOLDOUT, max(MIN_HOLDOUT, HELD_OUT_BYTES / size))
        return cls(paths, False, size, holdout, options.document)

    def tokenizer(self, kind: str, vocab_size: int | None) -> Tokenizer:
        """Train a tokenizer on the documents that are not held out."""
        if vocab_size is None:
            vocab_size = default_vocab_size(self.bytes)
        documents = read_documents(list(self.paths), ReadOptions(self.document))
        texts = (d.text for d in documents if text_uniform(d.text) >= self.holdout)
        first = next(texts, None)
        if first is None:
            raise UserError(
                f"--holdout {self.holdout:g} holds out the whole text, because its documents are "
                "few: use more text (documents of plain text are blocks between blank lines, or "
                "with --document file whole files)"
            )
        return train_tokenizer(chain([first], texts), kind=kind, vocab_size=vocab_size, fewer=True)

    def own_vocab_size(self) -> int:
        """Return a default size for every kind of tokenizer.

        WordPiece needs each character of the text twice: at the start of a word and inside.
        """
        documents = read_documents(list(self.paths), ReadOptions(self.document))
        characters = set[str]().union(*(document.text for document in documents))
        return max(default_vocab_size(self.bytes), len(ALL_SPECIAL_TOKENS) + 2 * len(characters))

    def prepare(self, tokenizer: Tokenizer, out: Path, on_message: OnMessage) -> Corpus:
        """Tokenize the text, a part of it held out."""
        if (out / "corpus.json").is_file():
            return Corpus.open(out)
        corpus = prepare(
            list(self.paths), tokenizer, out, holdout=self.holdout, document=self.document
        )
        on_message(
            f"corpus: {format_bytes(corpus.bytes)}, {plural(corpus.documents, 'document')}, "
            f"{corpus.tokens:,} tokens, vocabulary size {corpus.vocab_size:,}"
        )
        return corpus


def check_corpus_options(options: RaceOptions, corpus: Path) -> None:
    """Refuse options that need the text, where a prepared corpus is given."""
    if len(options.corpus) > 1:
        raise UserError(
            f"{corpus} is a prepared corpus and {len(options.corpus)} are given: give one, or text"
        )
    own = {
        "--own-tokenizers": options.own_tokenizers,
        "--tokenizer": options.tokenizer is not None,
        "--vocab-size": options.vocab_size is not None,
        "--holdout": options.holdout is not None,
        "tokenizer=": any(entrant.tokenizer for entrant in options.entrants),
    }
    for name, given in own.items():
        if given:
            raise UserError(
                f"{name} does not apply to {corpus}, which is tokenized already: give the text"
            )
    if not (corpus / "holdout").is_dir():
        raise UserError(
            f"corpus {corpus} has no held-out documents, which are scored: prepare it with "
            "kinfolk prepare --holdout 0.02, or give the text itself"
        )


def default_vocab_size(size: float) -> int:
    """Return a power of two that grows with the text."""
    exponent = math.floor(math.log2(max(size / BYTES_PER_TOKEN_TYPE, 1)))
    return min(MAX_VOCAB, max(MIN_VOCAB, 2**exponent))


def tokenizer_key(options: RaceOptions, family: str, own: str | None) -> str:
    """Return what names the tokenizer of an entrant: "" for the shared one."""
    if own is not None:
        kind, _, size = own.partition(":")
        if kind in KINDS and size.isdecimal():
            return own
        if Path(own).exists():
            return str(Path(own).resolve())
        raise UserError(
            f"tokenizer={own} is neither a folder nor KIND:SIZE, such as bpe:4096 (kinds: "
            f"{', '.join(KINDS)})"
        )
    return f"{OWN_KINDS.get(family, 'bpe')}:" if options.own_tokenizers else ""


def make_corpus(
    source: TextSource, options: RaceOptions, key: str, out: Path, on_message: OnMessage
) -> Corpus:
    """Return the corpus of a tokenizer, prepared in the folder where text was given."""
    if source.prepared:
        return Corpus.open(source.paths[0])
    folder = out / "corpus" if not key else out / "corpora" / corpus_slug(key)
    kind, _, size = key.partition(":")
    if not key and options.tokenizer is not None:
        tokenizer = load_tokenizer(options.tokenizer)
    elif key and kind not in KINDS:
        tokenizer = load_tokenizer(key)
    else:
        vocab = int(size) if size else options.vocab_size
        if vocab is None and options.own_tokenizers:
            vocab = source.own_vocab_size()
        tokenizer = source.tokenizer(kind or "bpe", vocab)
    return source.prepare(tokenizer, folder, on_message)


def corpus_slug(key: str) -> str:
    """Return the name of the folder of a corpus, another for each tokenizer.

    Tokenizer folders of one name at two places are different tokenizers.
    """
    kind, _, size = key.partition(":")
    if kind in KINDS:
        return f"{kind}-{size}" if size else kind
    digest = blake2b(key.encode(errors="surrogateescape"), digest_size=4).hexdigest()
    return f"{Path(key).name[:64]}-{digest}"


# Labelled files


@dataclass(frozen=True)
class TaskRows:
    """The rows of a labelled file, split."""

    name: str
    task: Task  # with the labels of all training rows
    train: list[Any]
    dev: list[Any]
    test: list[Any]
    notes: tuple[str, ...] = ()
    read_as: str = ""  # the format of the training file, in words

    @property
    def class_counts(self) -> dict[str, int]:
        """The number of training rows of each class; empty where rows have no class."""
        if self.task.output != "label":
            return {}
        return dict(Counter(str(self.task.reference(row)) for row in self.train).most_common())

    def label_sizes(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the sizes of training sets that are smaller than all rows and hold every class."""
        least = max(1, len(self.class_counts))
        sizes = [size for size in labels if size != ALL_LABELS]
        return (*(size for size in sizes if least <= int(size) < len(self.train)), ALL_LABELS)

    def labels_note(self, labels: Sequence[str]) -> str | None:
        """Return which sizes are too small to hold every class; None if all hold them."""
        classes = len(self.class_counts)
        small = [size for size in labels if size != ALL_LABELS and int(size) < classes]
        if not small:
            return None
        return (
            f"{self.name}: no training set of {' or '.join(small)} labels, because there are "
            f"{classes} classes, and each needs a row"
        )


def read_task(text: str, options: RaceOptions) -> TaskRows:
    """Read a labelled file, TRAIN,TEST, TRAIN,DEV,TEST or a folder of them, and split its rows."""
    files = task_files(text)
    dataset = training_file(files["train"], options)
    kind, rows = task_class(dataset.file_spec.task), labelled(dataset)
    given = {split: read_like(dataset, path) for split, path in files.items() if split != "train"}
    if "test" not in given:
        rows, given["test"] = hold_out(rows, TEST_SHARE)
    if "dev" not in given:
        rows, given["dev"] = hold_out(rows, DEV_SHARE)
    name, notes = task_name(text), []
    limits = {"train": options.train_rows, "dev": MAX_RACE_DEV_ROWS, "test": options.test_rows}
    splits = {"train": rows, **given}
    for split, limit in limits.items():
        if len(splits[split]) > limit:
            notes.append(f"{name}: {limit:,} of {len(splits[split]):,} {split} rows are used")
            splits[split] = sample_rows(splits[split], limit)
        if not splits[split]:
            raise UserError(f"{text} has no {split} rows: give more rows, or TRAIN,DEV,TEST")
    task = kind.from_rows(splits["train"], file=str(files["train"]))
    texts = {row.text for row in splits["train"]}
    if known := sum(row.text in texts for row in splits["test"]):
        notes.append(
            f"{name}: {known:,} of {len(splits['test']):,} test rows have the text of a training "
            "row, so that scores are too high"
        )
    read_as = dataset.file_spec.description
    return TaskRows(name, task, **splits, notes=tuple(notes), read_as=read_as)


def training_file(path: Path, options: RaceOptions) -> TaskDataset:
    """Return the dataset of a training file, whose format is that of the other splits."""
    dataset = task_dataset(path, columns=options.columns)
    if task_class(dataset.file_spec.task).output == "likelihood":
        raise UserError(
            f"{path} was read as text without labels: give a table with a text and a label (TSV, "
            "CSV, JSON lines), and text itself as --corpus"
        )
    return dataset


def task_name(text: str) -> str:
    """Return the name of a task: its file or folder, the folder of a file that is only a split."""
    path = Path(text.split(",")[0])
    is_split = path.name.split(".")[0] in SPLIT_FILE_NAMES["train"] and not path.is_dir()
    return (path.resolve().parent.name if is_split else "") or path.name


def task_files(text: str) -> dict[str, Path]:
    """Return the files of the splits that a user names."""
    folder = Path(text)
    if folder.is_dir():
        found = {
            split: next((p for p in sorted(folder.iterdir()) if p.name.startswith(names)), None)
            for split, names in SPLIT_FILE_NAMES.items()
        }
        files = {split: path for split, path in found.items() if path is not None}
        if "train" not in files:
            raise UserError(f"{folder} has no file train.*: name the files, TRAIN,DEV,TEST")
        return files
    parts = [text] if folder.exists() else text.split(",")
    splits = {1: ("train",), 2: ("train", "test"), 3: ("train", "dev", "test")}.get(len(parts))
    if splits is None:
        raise UserError(f"--task {text} names {len(parts)} files: give TRAIN, TRAIN,TEST or all 3")
    files = dict(zip(splits, map(Path, parts), strict=True))
    for path in files.values():
        if not path.is_file():
            raise UserError(f"no such file: {path}")
    return files


def labelled(dataset: TaskDataset) -> list[Any]:
    """Return the rows of a file that have a label."""
    kind = task_class(dataset.file_spec.task)
    rows = [row for row in dataset.rows if kind.reference(row) is not None]
    if not rows:
        raise UserError(f"{dataset.train} has no labelled rows: training needs some")
    return rows


def read_like(dataset: TaskDataset, path: Path) -> list[Any]:
    """Return the labelled rows of another split, in the format of the training file."""
    kind = task_class(dataset.file_spec.task)
    rows = read_rows(LabelledFile(path), dataset.file_spec)
    return [row for row in rows if kind.reference(row) is not None]


def hold_out(rows: list[Any], share: float) -> tuple[list[Any], list[Any]]:
    """Split rows, the same ones every time; rows with one text stay together."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.text or row.texts_and_labels].append(number)
    keys, count = [*groups], max(1, round(share * len(rows)))
    held: set[int] = set()
    for index in generator(0, Stream.SPLIT).permutation(len(keys)).tolist():
        if len(held) < count < len(rows):
            held.update(groups[keys[index]])
    parts: tuple[list[Any], list[Any]] = [], []
    for number, row in enumerate(rows):
        parts[number in held].append(row)
    return parts


def nested_order(task: Task, rows: Sequence[Any], seed: int) -> list[Any]:
    """Return rows in an order whose beginnings are stratified samples: one of each class first."""
    shuffled = [rows[i] for i in generator(seed, Stream.SUBSAMPLE).permutation(len(rows)).tolist()]
    if task.output != "label":
        return shuffled
    classes = [str(task.reference(row)) for row in shuffled]
    counts, seen = Counter(classes), Counter[str]()
    keys = []
    for name in classes:
        keys.append(0.0 if not seen[name] else (seen[name] + 0.5) / counts[name])
        seen[name] += 1
    return [shuffled[n] for n in sorted(range(len(shuffled)), key=keys.__getitem__)]


def write_splits(task: TaskRows, folder: Path, labels: Sequence[str], seeds: int) -> None:
    """Write the test rows, and the training and dev rows of each seed and size."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_rows(task.test, folder / "test.jsonl")
    for seed in range(seeds):
        orders = {
            split: nested_order(task.task, rows, seed)
            for split, rows in (("train", task.train), ("dev", task.dev))
        }
        for size in labels:
            for split, rows in orders.items():
                chosen = rows if size == ALL_LABELS else rows[: int(size)]
                _write_rows(chosen, folder / f"{split}-{size}-seed{seed}.jsonl")


def _write_rows(rows: Sequence[Any], path: Path) -> None:
    with new_file(path, "wb") as file:
        file.write(stored_rows(rows))


def read_stored(path: Path, kind: str) -> list[Any]:
    """Read the rows of a split."""
    return [*read_rows(LabelledFile(path), stored_rows_spec(kind))]


def stored_dataset(folder: Path, kind: str, labels: str, seed: int) -> TaskDataset:
    """Return the training and dev rows of a seed and a size."""
    train, dev = (
        str((folder / f"{split}-{labels}-seed{seed}.jsonl").resolve()) for split in ("train", "dev")
    )
    return TaskDataset(train=train, dev=dev, file_spec=stored_rows_spec(kind))
