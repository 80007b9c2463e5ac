"""Compare tokenizers on one text: existing ones, and ones trained on the rest of the text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfolk.data.documents import ReadOptions, read_documents
from kinfolk.errors import UserError
from kinfolk.reports.tokenizers_page import SampleToken, TokenizerRow, TokenizersPage
from kinfolk.text.token_views import TokenView, token_views
from kinfolk.text.tokenizer_stats import TokenizerStats, held_out, tokenizer_stats
from kinfolk.text.train import KINDS, train_tokenizer
from kinfolk.workflows.folders import load_tokenizer

COMPARED_VOCAB_SIZE = 8192  # of --train KIND
SAMPLE = 240  # characters of the sample
MIN_SCRIPT_SHARE = 0.01  # of the words: scripts below it are not reported


@dataclass(frozen=True, kw_only=True)
class Comparison(TokenizersPage):
    """The page of tokenizers that were measured on one text, and the size of the text."""

    words: int
    bytes: int
    held_out: bool  # the text was held out from the tokenizers trained here


def compare_tokenizers(
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
    samples = [token_views(t, kept[0]) for _, t in tokenizers]
    labels = [(name, t.kind, t.vocab_size) for name, t in tokenizers]
    return comparison_of(labels, measures, samples, held_out=bool(specs))


def comparison_of(
    labels: Sequence[tuple[str, str, int]],  # name, kind and vocabulary size of each tokenizer
    measures: Sequence[TokenizerStats],
    samples: Sequence[Sequence[TokenView]],
    *,
    held_out: bool,
) -> Comparison:
    """Return the values of the page; scripts with few words have no column."""
    first = measures[0]
    counts = first.script_words.most_common()
    scripts = [script for script, words in counts if words >= MIN_SCRIPT_SHARE * first.words]
    rows = [
        TokenizerRow(
            name=name,
            kind=kind,
            vocab_size=vocab_size,
            tokens=stats.tokens,
            tokens_per_word=stats.tokens_per_word,
            tokens_per_word_by_script=[stats.fertility(script) for script in scripts],
            bytes_per_token=stats.bytes_per_token,
            unknown_rate=stats.unknown_rate,
            sample=[SampleToken(t.id, t.text, t.unknown, t.special) for t in sample],
        )
        for (name, kind, vocab_size), stats, sample in zip(labels, measures, samples, strict=True)
    ]
    text = f"{first.words:,} words in {first.bytes:,} bytes"
    if held_out:
        text += ", 10% of the documents, held out from the tokenizers trained here"
    return Comparison(
        text=text,
        scripts=scripts,
        rows=rows,
        words=first.words,
        bytes=first.bytes,
        held_out=held_out,
    )


def parse_spec(spec: str) -> tuple[str, int]:
    """Parse KIND:SIZE; the size is optional."""
    kind, _, size = spec.partition(":")
    if kind not in KINDS or not (size.isdecimal() or ":" not in spec):
        raise UserError(
            f"--train must be KIND:SIZE, e.g. bpe:{COMPARED_VOCAB_SIZE}, with a kind of "
            f"{', '.join(KINDS)} (got {spec})"
        )
    return kind, int(size or COMPARED_VOCAB_SIZE)


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
