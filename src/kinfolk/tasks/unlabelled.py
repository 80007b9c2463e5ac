"""UnlabelledText: text, or the rows of labelled files without their labels, for a task."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.tasks.dataset import TaskDataset, split_rows
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.formats.match import match_format
from kinfolk.tasks.rows import LabelledText, TaggedSentence
from kinfolk.tasks.task import task_class
from kinfolk.text.segment import split_sentences, word_starts

NO_FILES = "none"  # instead of a file: train on labels alone
CHINESE_SENTENCE = re.compile(r"\S+[，。！？；]\S*")  # in a column, a mark is a word of its own


@config("unlabelled_text")
class UnlabelledText:
    """Files of unlabelled text, and the labelled file whose task they are read for.

    A file in the format of the labelled file is read without its labels. Of plain text, a tagger
    reads each sentence, split into words at spaces and punctuation, Chinese into characters; other
    tasks read each line.
    """

    files: tuple[str, ...] = field(help="files of text, or of rows whose labels are not used")
    file_spec: FileSpec = field(help="format and task of the labelled file")
    pairs: bool = field(default=False, help="whether a row has two texts")

    @cached_property
    def rows(self) -> Sequence[Any]:
        """The rows of all files, without labels."""
        rows = [row for file in self._opened for row in self._read(file)]
        if not rows:
            raise UserError(f"{', '.join(self.files)}: no unlabelled text: give a file with text")
        return Sentences(rows) if self._tags else rows

    @cached_property
    def fingerprints(self) -> list[tuple[str, str]]:
        """The path and the fingerprint of each file."""
        return [(str(file), file.fingerprint) for file in self._opened]

    @cached_property
    def _opened(self) -> list[LabelledFile]:
        return [LabelledFile(file) for file in self.files]

    @property
    def _tags(self) -> bool:
        return task_class(self.file_spec.task).output == "tags"

    def _read(self, file: LabelledFile) -> Iterator[Any]:
        """Yield the rows of a file, or the words of its sentences with spaces between them."""
        spec = match_format(file, self.file_spec, labelled=False)
        if self._tags and (spec.format == "text_lines" or has_chinese_sentences(file)):
            for _, line in file.lines():
                yield from filter(None, map(split_words, split_sentences(line)))
        elif self._tags:
            yield from (" ".join(row.words) for row in read_rows(file, spec) if row.words)
        else:
            for row in read_rows(file, spec):
                self._check_texts(row, file)
                yield row
        file.release()

    def _check_texts(self, row: Any, file: LabelledFile) -> None:
        if len(row.texts) != 1 + self.pairs:
            raise UserError(
                f"row {row.number:,} of {file} has {len(row.texts)} texts, but the labelled rows "
                f"have {1 + self.pairs}: give unlabelled rows in the format of the labelled file"
            )


@config("text_lines")
class TextLines:
    """A file of text without labels, one text on each line."""

    path: str = field(help="file of text")

    @cached_property
    def file(self) -> LabelledFile:
        """The file."""
        return LabelledFile(self.path)

    @cached_property
    def splits(self) -> tuple[list[LabelledText], list[LabelledText]]:
        """The training texts and the dev texts, which are the same for every seed."""
        numbered = ((number, line.strip()) for number, line in self.file.lines())
        rows = [LabelledText((line,), None, number) for number, line in numbered if line]
        self.file.release()
        if not rows:
            raise UserError(f"{self.path} has no text: give a file with one text on each line")
        return split_rows(rows)

    @property
    def fingerprints(self) -> list[tuple[str, str]]:
        """The path and the fingerprint of the file."""
        return [(self.path, self.file.fingerprint)]


class Sentences(Sequence[TaggedSentence]):
    """Sentences without tags; each is kept as one string, which takes a tenth of the memory."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = sentences

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: Any) -> Any:
        """Return the words of a sentence."""
        return TaggedSentence(tuple(self.sentences[index].split(" ")), None, index + 1)


def unlabelled_text(files: Sequence[Path | str], datasets: Sequence[TaskDataset]) -> UnlabelledText:
    """Describe unlabelled text for the tasks of labelled files; a tagger decides how it is read."""
    check_text_files(files)
    specs = [dataset.file_spec for dataset in datasets]
    tags = (spec for spec in specs if task_class(spec.task).output == "tags")
    spec = next(tags, specs[0])
    first = datasets[specs.index(spec)].splits[0][0]
    return UnlabelledText(
        files=tuple(str(Path(file).resolve()) for file in files),
        file_spec=spec,
        pairs=not isinstance(first, TaggedSentence) and len(first.texts) == 2,
    )


def check_text_files(files: Sequence[Path | str]) -> None:
    """Refuse folders and files that do not exist."""
    for file in map(Path, files):
        if file.is_dir():
            raise UserError(
                f"{file} is a folder: give --unlabelled the text files themselves, such as those "
                "that a corpus was made from"
            )
        if not file.is_file():
            raise UserError(f"no such file: {file}")


def has_chinese_sentences(file: LabelledFile) -> bool:
    """Return whether a file has lines of Chinese text, which have no spaces, not of one word."""
    return any(CHINESE_SENTENCE.fullmatch(line.strip()) for line in file.sample_lines)


def split_words(sentence: str) -> str:
    """Return the words and punctuation marks of a sentence with spaces between them."""
    starts = word_starts(sentence, "spaces")
    return " ".join(
        "".join(sentence[start:end].split()) for start, end in pairwise([*starts, len(sentence)])
    )
