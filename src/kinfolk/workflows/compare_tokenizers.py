"""Compare tokenizers on one text: existing ones, and ones trained on the rest of the text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfolk.data.documents import ReadOptions, read_documents
from kinfolk.errors import UserError
from kinfolk.reports.tokenizers_page import SampleToken, TokenizerRow, TokenizersPage
from kinfolk.text.inspect import (
    TokenizerStats,
    TokenView,
    held_out,
    token_views,
    tokenizer_stats,
)
from kinfolk.text.train import KINDS, train_tokenizer
from kinfolk.workflows.folders import load_tokenizer

VOCAB_SIZE = 8192  # of --train KIND
SAMPLE = 240  # characters of the sample
MIN_SCRIPT_SHARE = 0.01  # of the words: scripts below it are not reported


@dataclass(frozen=True)
class MeasuredTokenizer:
    """A tokenizer, its statistics on the text, and the tokens of the sample."""

    name: str
    kind: str
    vocab_size: int
    measures: TokenizerStats
    sample: Sequence[TokenView] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Tokenizers that were measured on one text."""

    rows: Sequence[MeasuredTokenizer]
    held_out: bool  # the text was held out from the tokenizers trained here

    @property
    def scripts(self) -> list[str]:
        """The scripts that are frequent enough to report, most words first."""
        first = self.rows[0].measures
        return [
            script
            for script, words in first.script_words.most_common()
            if words >= MIN_SCRIPT_SHARE * first.words
        ]

    @property
    def text(self) -> str:
        """The size of the text."""
        words, size = self.rows[0].measures.words, self.rows[0].measures.bytes
        kept = ", 10% of the documents, held out from the tokenizers trained here"
        return f"{words:,} words in {size:,} bytes{kept if self.held_out else ''}"

    def page(self) -> TokenizersPage:
        """Gather the values of the page."""
        rows = [
            TokenizerRow(
                name=row.name,
                kind=row.kind,
                vocab_size=row.vocab_size,
                tokens=row.measures.tokens,
                tokens_per_word=row.measures.tokens_per_word,
                tokens_per_word_by_script=[row.measures.fertility(s) for s in self.scripts],
                bytes_per_token=row.measures.bytes_per_token,
                unknown_rate=row.measures.unknown_rate,
                sample=[SampleToken(t.id, t.text, t.unknown, t.special) for t in row.sample],
            )
            for row in self.rows
        ]
        return TokenizersPage(text=self.text, scripts=self.scripts, rows=rows)


def compare(
    files: Sequence[Path],
    *,
    folders: Sequence[Path] = (),
    train: Sequence[str] = (),
    lowercase: bool = False,
    segmenter: str = "spaces",
    field: str | None = None,
    column: str | None = None,
    on_message: Callable[[str], None] = lambda message: None,
) -> Comparison:
    """Measure tokenizers on the same text: those in `folders`, and those to `train` ("bpe:8192").

    With `train`, 10% of the documents are held out, and all tokenizers are measured on these.
    """
    specs = [parse_spec(spec) for spec in train]
    if not folders and not specs:
        raise UserError("no tokenizers to compare: name them with --tokenizer or --train")
    if specs and Path("-") in files:
        raise UserError("stdin can be read only once: --train needs files")
    tokenizers = list(zip(names(folders), map(load_tokenizer, folders), strict=True))

    def texts(held: bool) -> Iterator[str]:
        documents = read_documents(files, ReadOptions(field=field, column=column))
        return (d.text for d in documents if not specs or held_out(d.text) == held)

    for name, (kind, vocab_size) in zip(train, specs, strict=True):
        on_message(f"training {name}")
        trained = train_tokenizer(
            texts(False),
            kind=kind,
            vocab_size=vocab_size,
            lowercase=lowercase,
            segmenter=segmenter if kind == "word" else "spaces",
        )
        tokenizers.append((name, trained))
    on_message("measuring")
    kept: list[str] = []
    measures = tokenizer_stats([t for _, t in tokenizers], keep_first(texts(True), kept))
    if not measures[0].tokens:
        raise UserError(
            "no document is in the held-out 10%: use more text"
            if specs
            else "the text has no words to measure: use another text"
        )
    rows = [
        MeasuredTokenizer(name, t.kind, t.vocab_size, stats, token_views(t, kept[0]))
        for (name, t), stats in zip(tokenizers, measures, strict=True)
    ]
    return Comparison(rows=rows, held_out=bool(specs))


def parse_spec(spec: str) -> tuple[str, int]:
    """Parse KIND:SIZE; the size is optional."""
    kind, _, size = spec.partition(":")
    if kind not in KINDS or not (size.isdecimal() or ":" not in spec):
        raise UserError(
            f"--train must be KIND:SIZE, e.g. bpe:{VOCAB_SIZE}, with a kind of {', '.join(KINDS)} "
            f"(got {spec})"
        )
    return kind, int(size or VOCAB_SIZE)


def names(folders: Sequence[Path]) -> list[str]:
    """Name tokenizers by their folders, with the path where two folders share a name."""
    short = [folder.resolve().name for folder in folders]
    return [
        str(folder) if short.count(name) > 1 else name
        for folder, name in zip(folders, short, strict=True)
    ]


def keep_first(texts: Iterable[str], kept: list[str]) -> Iterator[str]:
    """Yield texts, and append the beginning of the first to `kept`."""
    for text in texts:
        if not kept:
            space = text.rfind(" ", 0, SAMPLE)
            kept.append(text if len(text) <= SAMPLE else text[: space if space > 0 else SAMPLE])
        yield text
