"""Tokenizers side by side: loaded, or learned here from the text they are measured on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kinfolk.data.documents import read_documents
from kinfolk.errors import UserError
from kinfolk.reports.tokenizers_page import Comparison, TokenizerRow
from kinfolk.text import train
from kinfolk.text.inspect import held_out, token_views, tokenizer_stats
from kinfolk.workflows.folders import load_tokenizer

VOCAB = 8192
SAMPLE = 240  # characters of the text that are kept in pieces


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
        TokenizerRow(name, one.kind, one.vocab_size, measured, token_views(one, kept[0]))
        for (name, one), measured in zip(found, measures, strict=True)
    ]
    return Comparison(rows=rows, held_out=bool(asked))


def parse_spec(said: str) -> tuple[str, int]:
    """Read KIND:VOCAB."""
    kind, _, vocab = said.partition(":")
    if kind not in train.KINDS or not (vocab.isdecimal() or ":" not in said):
        raise UserError(
            f"--train {said} names no tokenizer: write KIND:VOCAB, as bpe:{VOCAB}; the kinds are "
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
