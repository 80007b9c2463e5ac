"""Sentence pairs that a model is trained or scored on, checked without importing torch."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Self

from kinfolk.data.parallel_text import ParallelText, write_parallel_corpus
from kinfolk.errors import UserError
from kinfolk.metrics.text import sacrebleu_metrics
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.folders import load_tokenizer

JOINT_VOCAB_SIZE = 8192
DEV_FILE = "dev.jsonl"  # in the run: the pairs that BLEU is measured on
DIRECTION = re.compile(r"([A-Za-z]\w*)-([A-Za-z]\w*)", re.ASCII)  # en-de, eng_Latn-zho_Hans


@dataclass(frozen=True, kw_only=True)
class SentencePairs(ABC):
    """Files of sentence pairs, and the tokenizer for both sides."""

    vocab_size: int | None = None  # of a tokenizer trained on the pairs
    tokenizer: Path | None = None  # an existing tokenizer
    prefix: str = ""  # put before every source

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that are trained, one corpus for each; empty where none is named."""
        return ()

    @abstractmethod
    def check(self) -> None:
        """Refuse files that cannot be read or are not aligned."""

    @abstractmethod
    def training_files(self) -> Iterable[ParallelText]:
        """Return the files that a tokenizer is trained on."""

    @abstractmethod
    def write(self, tokenizer: Tokenizer, folder: Path) -> list[Path]:
        """Write the corpora and the dev pairs of a run; return the folders of the corpora."""

    def with_tokenizer_of(self, folder: str) -> Self:
        """Return the pairs for the tokenizer of a model folder, if no other is given."""
        if self.vocab_size is not None:
            raise UserError(
                f"--vocab-size does not apply to {folder}, which keeps its tokenizer: remove it"
            )
        return self if self.tokenizer is not None else replace(self, tokenizer=Path(folder))

    def open_tokenizer(self) -> Tokenizer:
        """Load the tokenizer, or train one on both sides of the training pairs."""
        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        pairs = chain.from_iterable(files.rows() for files in self.training_files())
        both = (text for pair in pairs for text in (pair.source, pair.target))
        size, is_default = self.vocab_size or JOINT_VOCAB_SIZE, self.vocab_size is None
        return train_tokenizer(both, kind="bpe", vocab_size=size, fewer=is_default)


@dataclass(frozen=True, kw_only=True)
class ParallelData(SentencePairs):
    """Sentence pairs in one direction, which need no tag."""

    train: ParallelText
    dev: ParallelText | None = None

    def check(self) -> None:
        """Refuse files that cannot be read or are not aligned."""
        if self.dev is not None:
            sacrebleu_metrics()
        for files in (self.train, self.dev):
            if files is not None:
                files.check()

    def training_files(self) -> Iterable[ParallelText]:
        """Return the files that a tokenizer is trained on."""
        return [self.train]

    def write(self, tokenizer: Tokenizer, folder: Path) -> list[Path]:
        """Write the corpus and the dev pairs of a run; return the folder of the corpus."""
        corpus = folder / "corpus"
        write_parallel_corpus(self.train, tokenizer, corpus, prefix=self.prefix)
        if self.dev is not None:
            write_parallel_corpus(self.dev, tokenizer, corpus / "holdout", prefix=self.prefix)
            pairs = (pair for _, pair in self.dev.pairs())
            rows = ({"source": self.prefix + pair.source, "target": pair.target} for pair in pairs)
            _write_rows(rows, folder / DEV_FILE)
        return [corpus]


@dataclass(frozen=True)
class LanguagePair:
    """Sentence pairs of two languages, from the first to the second.

    Both may be the same: sentences with noise and without, which are taken in that direction alone.
    """

    source: str
    target: str
    files: ParallelText

    @classmethod
    def parse(cls, text: str, option: str = "--pair") -> "LanguagePair":
        """Parse `en-de=train.en,train.de`, or `en-de=train.tsv` of a table."""
        name, _, files = text.partition("=")
        match, (source, *target) = DIRECTION.fullmatch(name), map(Path, files.split(","))
        if match is None or not files or len(target) > 1:
            raise UserError(
                f"{option} {text}: write two languages and their files, such as "
                "en-de=train.en,train.de or en-de=train.tsv"
            )
        return cls(match[1], match[2], ParallelText(source, next(iter(target), None)))

    @property
    def name(self) -> str:
        """The direction: en-de."""
        return f"{self.source}-{self.target}"

    @property
    def reverse(self) -> "LanguagePair":
        """The same pairs in the other direction."""
        files = replace(self.files, swapped=not self.files.swapped)
        return LanguagePair(self.target, self.source, files)


@dataclass(frozen=True, kw_only=True)
class MultilingualData(SentencePairs):
    """Sentence pairs of several languages; a tag before each source names the target language.

    Johnson et al. 2017, section 3. Dev pairs may have a direction that is not trained.
    """

    train: tuple[LanguagePair, ...]
    dev: tuple[LanguagePair, ...] = ()
    one_way: bool = False  # else each pair is trained and scored in both directions
    fixed_vocabulary: bool = False  # tags must be in the tokenizer: the network has no room for new

    @cached_property
    def train_directions(self) -> tuple[LanguagePair, ...]:
        """The pairs in every direction that is trained."""
        return self.in_directions(self.train)

    @cached_property
    def dev_directions(self) -> tuple[LanguagePair, ...]:
        """The pairs in every direction that is scored."""
        return self.in_directions(self.dev)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that are trained, one corpus for each."""
        return tuple(pair.name for pair in self.train_directions)

    def in_directions(self, pairs: Sequence[LanguagePair]) -> tuple[LanguagePair, ...]:
        """Return the pairs in both directions, or as given; each direction may occur once."""
        chosen: list[LanguagePair] = []
        for pair in pairs:
            alone = self.one_way or pair.source == pair.target
            chosen += [pair] if alone else [pair, pair.reverse]
        names = [pair.name for pair in chosen]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(
                f"the direction {twice[0]} is given twice: join the files of a pair, or pass "
                "--one-way to train each pair in the given direction alone"
            )
        return tuple(chosen)

    def check(self) -> None:
        """Refuse files that cannot be read or are not aligned, and languages without training."""
        targets = {pair.target for pair in self.train_directions}
        languages = targets | {pair.source for pair in self.train_directions}
        for pair in self.dev_directions:
            for language, known in ((pair.source, languages), (pair.target, targets)):
                if language not in known:
                    raise UserError(
                        f"--dev-pair {pair.name}: {language} is in no --pair (languages: "
                        f"{', '.join(sorted(known))})"
                    )
        if self.dev:
            sacrebleu_metrics()
        for pair in (*self.train, *self.dev):
            pair.files.check()

    def training_files(self) -> Iterable[ParallelText]:
        """Return the files that a tokenizer is trained on."""
        return [pair.files for pair in self.train]

    def with_tokenizer_of(self, folder: str) -> Self:
        """Return the pairs for the tokenizer of a model folder, whose vocabulary is fixed."""
        return replace(super().with_tokenizer_of(folder), fixed_vocabulary=True)

    def open_tokenizer(self) -> Tokenizer:
        """Load the tokenizer, or train one, with a tag for each target language."""
        tokenizer = super().open_tokenizer()
        targets = sorted({pair.target for pair in self.train_directions})
        missing = [name for name in targets if name not in tokenizer.language_tags]
        if self.fixed_vocabulary and missing:
            raise UserError(
                f"the tokenizer of {self.tokenizer} has no token <2{missing[0]}>: train it with "
                f"kinfolk tokenizer train --languages {','.join(targets)}"
            )
        return tokenizer.with_language_tags(missing)

    def write(self, tokenizer: Tokenizer, folder: Path) -> list[Path]:
        """Write a corpus for each direction and the dev pairs; return the folders."""
        dev = {pair.name: pair.files for pair in self.dev_directions}
        corpora = []
        for pair in self.train_directions:
            corpus, tag = folder / "corpus" / pair.name, tokenizer.language_tags[pair.target]
            write_parallel_corpus(pair.files, tokenizer, corpus, tag=tag)
            if (held_out := dev.get(pair.name)) is not None:
                write_parallel_corpus(held_out, tokenizer, corpus / "holdout", tag=tag)
            corpora.append(corpus)
        if dev:
            rows = (
                {"direction": name, "source": pair.source, "target": pair.target}
                for name, files in dev.items()
                for _, pair in files.pairs()
            )
            _write_rows(rows, folder / DEV_FILE)
        return corpora


def _write_rows(rows: Iterator[dict[str, str]], path: Path) -> None:
    """Write the pairs that BLEU is measured on into the run, for a resume."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
