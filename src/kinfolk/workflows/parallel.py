"""Sentence pairs that a model is trained or scored on, checked without importing torch."""

from dataclasses import dataclass
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

    def open_tokenizer(self) -> Tokenizer:
        """Load the tokenizer, or train one on both sides of the training pairs."""
        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        both = (text for pair in self.train.rows() for text in (pair.source, pair.target))
        size, is_default = self.vocab_size or VOCAB_SIZE, self.vocab_size is None
        return train_tokenizer(both, kind="bpe", vocab_size=size, fewer=is_default)


def parallel_data(
    *,
    source: Path | None = None,
    target: Path | None = None,
    pairs: Path | None = None,
    dev_source: Path | None = None,
    dev_target: Path | None = None,
    dev_pairs: Path | None = None,
    vocab_size: int | None = None,
    tokenizer: Path | None = None,
    source_prefix: str | None = None,
) -> ParallelData | None:
    """Return the sentence pairs of the command-line options; None if there are none."""
    train = _files("", source, target, pairs)
    dev = _files("dev-", dev_source, dev_target, dev_pairs)
    if train is None:
        others = (
            ("dev-pairs", dev),
            ("vocab-size", vocab_size),
            ("tokenizer", tokenizer),
            ("source-prefix", source_prefix),
        )
        if given := [name for name, value in others if value is not None]:
            raise UserError(f"--{given[0]} requires --source and --target, or --pairs")
        return None
    if vocab_size is not None and tokenizer is not None:
        raise UserError(
            "--vocab-size does not apply to an existing --tokenizer: remove one of them"
        )
    return ParallelData(
        train=train,
        dev=dev,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        prefix=source_prefix or "",
    )


def _files(
    dev: str, source: Path | None, target: Path | None, pairs: Path | None
) -> ParallelText | None:
    if (source is None) != (target is None):
        raise UserError(f"--{dev}source and --{dev}target must be given together")
    if pairs is not None and source is not None:
        raise UserError(f"give either --{dev}source and --{dev}target, or --{dev}pairs")
    only = source or pairs
    return None if only is None else ParallelText(only, target)
