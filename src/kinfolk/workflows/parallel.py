"""Sentence pairs that a model is trained or scored on, checked without importing torch."""

from dataclasses import dataclass, replace
from pathlib import Path

from kinfolk.data.parallel_text import ParallelText
from kinfolk.errors import UserError
from kinfolk.metrics.text import library
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.folders import load_tokenizer

VOCAB_SIZE = 8192


@dataclass(frozen=True, kw_only=True)
class ParallelData:
    """Files of sentence pairs, and the tokenizer for both sides."""

    train: ParallelText
    dev: ParallelText | None = None
    vocab_size: int | None = None  # of a tokenizer trained on the pairs
    tokenizer: Path | None = None  # an existing tokenizer
    prefix: str = ""  # put before every source

    def check(self) -> None:
        """Refuse files that cannot be read or are not aligned."""
        if self.dev is not None:
            library()
        for files in (self.train, self.dev):
            if files is not None:
                files.check()

    def with_tokenizer_of(self, folder: str) -> "ParallelData":
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
        both = (text for pair in self.train.rows() for text in (pair.source, pair.target))
        size, is_default = self.vocab_size or VOCAB_SIZE, self.vocab_size is None
        return train_tokenizer(both, kind="bpe", vocab_size=size, fewer=is_default)
