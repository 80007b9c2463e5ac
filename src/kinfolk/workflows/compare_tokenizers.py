"""Compare tokenizers: given ones, and ones that are trained on the text they are measured on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfolk.data.documents import read_documents
from kinfolk.errors import UserError
from kinfolk.reports.tokenizers_page import SampleToken, TokenizerRow, TokenizersPage
from kinfolk.text import train
from kinfolk.text.inspect import (
    TokenizerStats,
    TokenView,
    held_out,
    token_views,
    tokenizer_stats,
)
from kinfolk.workflows.folders import load_tokenizer

VOCAB = 8192
SAMPLE = 240  # characters of the text that are shown as tokens
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
    held_out: bool  # whether the text was kept from those that were trained here

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
        kept = ", a tenth of the documents, kept from those that were learned here"
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
    learn: Sequence[str] = (),
    lowercase: bool = False,
    words: str = "spaces",
    field: str | None = None,
    column: str | None = None,
    say: Callable[[str], None] = lambda doing: None,
) -> Comparison:
    """Measure tokenizers on the same text: those in `folders`, and some to `learn` ("bpe:8192").

    Where some are learned, a tenth of the documents is kept from them, and all are measured on it.
    """
    asked = [parse_spec(one) for one in learn]
    if not folders and not asked:
        raise UserError("nothing to compare: name tokenizers with --tokenizer or --train")
    if asked and Path("-") in files:
        raise UserError("what is piped in can be read once only: give files to learn from")
    found = list(zip(names(folders), map(load_tokenizer, folders), strict=True))

    def texts(held: bool) -> Iterator[str]:
        every = (one.text for one in read_documents(files, field=field, column=column))
        return (text for text in every if not asked or held_out(text) == held)

    for name, (kind, vocab) in zip(learn, asked, strict=True):
        say(f"learning {name}")
        learned = train.train_tokenizer(
            texts(False),
            kind=kind,
            vocab_size=vocab,
            lowercase=lowercase,
            segmenter=words if kind == "word" else "spaces",
        )
        found.append((name, learned))
    say("measuring")
    kept: list[str] = []
    measures = tokenizer_stats([one for _, one in found], keep_first(texts(True), kept))
    if not measures[0].tokens:
        raise UserError(
            "no document fell to the tenth that is measured: give more text"
            if asked
            else "the text holds no words to measure: give other text"
        )
    rows = [
        MeasuredTokenizer(name, one.kind, one.vocab_size, measured, token_views(one, kept[0]))
        for (name, one), measured in zip(found, measures, strict=True)
    ]
    return Comparison(rows=rows, held_out=bool(asked))


def parse_spec(spec: str) -> tuple[str, int]:
    """Parse KIND:VOCAB."""
    kind, _, vocab = spec.partition(":")
    if kind not in train.KINDS or not (vocab.isdecimal() or ":" not in spec):
        raise UserError(
            f"--train {spec} names no tokenizer: write KIND:VOCAB, as bpe:{VOCAB}; the kinds are "
            f"{', '.join(train.KINDS)}"
        )
    return kind, int(vocab or VOCAB)


def names(folders: Sequence[Path]) -> list[str]:
    """Name tokenizers by their folders, with the path where two folders share a name."""
    short = [folder.resolve().name for folder in folders]
    return [
        str(folder) if short.count(name) > 1 else name
        for folder, name in zip(folders, short, strict=True)
    ]


def keep_first(texts: Iterable[str], kept: list[str]) -> Iterator[str]:
    """Pass texts on, and keep the beginning of the first."""
    for text in texts:
        if not kept:
            space = text.rfind(" ", 0, SAMPLE)
            kept.append(text if len(text) <= SAMPLE else text[: space if space > 0 else SAMPLE])
        yield text
