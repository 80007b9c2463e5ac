"""The commands `tokenizer train`, `show` and `compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Column
from rich.text import Text

from kinfolk.cli.app import (
    COLUMN,
    DATA,
    FIELD,
    FILES,
    FORCE,
    JSON,
    MAX_VOCAB,
    NEW_FOLDER,
    REPORT,
    app,
    command,
    flag,
    option,
    piped,
    readable,
)
from kinfolk.cli.options import option_group
from kinfolk.cli.output import (
    byte_progress,
    console,
    errors,
    note,
    print_json,
    print_line,
    print_table,
    saved_on_interrupt,
    table,
    visible,
)
from kinfolk.files import new_folder
from kinfolk.workflows.folders import check_new_folder, check_new_page

if TYPE_CHECKING:
    from kinfolk.text.token_views import TokenView
    from kinfolk.workflows.compare_tokenizers import Comparison

tokenizers = typer.Typer(help="Train, inspect and compare tokenizers.", no_args_is_help=True)
app.add_typer(tokenizers, name="tokenizer", rich_help_panel=DATA)

# Dark letters on pale colors are readable on any terminal; neighbors never share a color.
SHADES = ("black on #cfe3f5", "black on #fbe3c8")
SPECIAL, UNKNOWN = "black on #d9d9d9", "bold white on #b00020"


@dataclass(frozen=True)
class TrainingOptions:
    """How text is read and split into words to train a tokenizer on it."""

    lowercase: bool = flag("--lowercase", "Lowercase the text before training.")
    segmenter: str = option(
        "spaces|jieba|whitespace",
        "Word segmenter for the kind word; jieba for Chinese, whitespace for tokenized text.",
        default="spaces",
    )
    field: str | None = FIELD
    column: str | None = COLUMN


@command(
    "kinfolk tokenizer train notes/ --kind bpe --vocab-size 8192 -o tok",
    panel=None,
    name="train",
    group=tokenizers,
)
@option_group("options", TrainingOptions)
def train_tokenizer_command(
    files: list[Path] = FILES,
    out: Path = NEW_FOLDER,
    kind: str = typer.Option(
        "bpe",
        help="bpe (byte-level, GPT-2), word-bpe (GPT-1), wordpiece (BERT), unigram "
        "(SentencePiece; T5, ALBERT, XLNet), word, char or byte.",
    ),
    vocab_size: int = option(
        "N", "Vocabulary size, including special tokens.", default=8192, max=MAX_VOCAB
    ),
    languages: str | None = option(
        "LIST", "Languages to translate into, such as de,en,zh: one more token for each."
    ),
    *,
    options: TrainingOptions,
    json: bool = JSON,
) -> None:
    """Train a tokenizer with the special tokens of every family: all models can share it."""
    check_new_folder(out)
    from kinfolk.data.prepare import train_tokenizer

    with (
        saved_on_interrupt(lambda: f"nothing was written to {out}; run the same command again"),
        byte_progress("reading") as progress,
        new_folder(out) as folder,
    ):
        tokenizer = train_tokenizer(
            files,
            kind=kind,
            vocab_size=vocab_size,
            progress=progress.stage,
            on_message=(lambda sentence: None) if json else note,
            languages=languages.split(",") if languages else (),
            **vars(options),
        )
        tokenizer.save(folder)
    if json:
        print_json({"folder": out, "kind": kind, "vocab": tokenizer.vocab_size})
    else:
        print_line(f"trained {kind} tokenizer, vocabulary size {tokenizer.vocab_size:,}: {out}")


@command(
    'kinfolk tokenizer show runs/bert "The cat sat."', panel=None, name="show", group=tokenizers
)
def show_tokens_command(
    folder: Path = typer.Argument(
        ..., metavar="FOLDER", help="Tokenizer folder, model folder or run."
    ),
    text: str = typer.Argument("-", metavar="TEXT", help="Text, or - for stdin."),
    json: bool = JSON,
) -> None:
    """Show the tokens of a text with their ids.

    ␣ is a space, ⏎ a new line. Special tokens are grey, unknown ones red.
    """
    from kinfolk.text.token_views import token_views
    from kinfolk.text.tokenizer_stats import tokenizer_stats
    from kinfolk.workflows.folders import load_tokenizer

    tokenizer = load_tokenizer(folder)
    text = piped("text") if text == "-" else readable(text, "text")
    tokens = token_views(tokenizer, text)
    if json:
        print_json({"text": text, "pieces": [vars(token) for token in tokens]})
        return
    for line in _lines(tokens, console.width):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    (measures,) = tokenizer_stats([tokenizer], [text])
    counts = f"{len(tokens):,} tokens"
    if measures.words:
        counts += f" for {measures.words:,} words in {measures.bytes:,} bytes"
    if unknown := sum(token.unknown for token in tokens):
        counts += f", {unknown:,} unknown"
    console.print(counts, highlight=False)


def _lines(tokens: Sequence["TokenView"], width: int) -> list[Text]:
    """Return lines of tokens, each above its id; without colors a space still separates them."""
    lines: list[Text] = []
    used = width
    for number, token in enumerate(tokens):
        size = max(cell_len(token.text), len(str(token.id)))
        if used + 1 + size > width:
            lines += [Text(), Text()]
            used = -1  # no space before the first
        style = UNKNOWN if token.unknown else SPECIAL if token.special else SHADES[number % 2]
        gap = " " if used > 0 else ""
        lines[-2].append(gap).append(token.text + " " * (size - cell_len(token.text)), style)
        lines[-1].append(gap).append(str(token.id).ljust(size), "dim")
        used += 1 + size
    return lines


@command(
    "kinfolk tokenizer compare notes/ --train bpe:8192 --train unigram:8192 -o page.html",
    panel=None,
    name="compare",
    group=tokenizers,
)
@option_group("options", TrainingOptions)
def compare_tokenizers_command(
    files: list[Path] = FILES,
    tokenizer: list[Path] | None = option(
        "DIR", "Tokenizer folder, model folder or run. Repeatable."
    ),
    train: list[str] | None = option(
        "KIND:SIZE", "Train this tokenizer for the comparison, e.g. bpe:8192. Repeatable."
    ),
    out: Path | None = REPORT,
    force: bool = FORCE,
    *,
    options: TrainingOptions,
    json: bool = JSON,
) -> None:
    """Compare tokenizers on the same text: tokens per word, bytes per token, unknown rate.

    With `--train`, 10% of the documents are held out and used for the comparison: those that
    `prepare --holdout 0.1` holds out.
    """
    if out is not None:
        check_new_page(out, [*files, *(tokenizer or [])], force=force)
    from kinfolk.reports.page import write
    from kinfolk.reports.tokenizers_page import render
    from kinfolk.workflows.compare_tokenizers import compare_tokenizers

    with errors.status("reading") as status:
        comparison = compare_tokenizers(
            files,
            folders=tokenizer or [],
            train=train or [],
            on_message=lambda message: status.update(escape(visible(message))),
            **vars(options),
        )
    page = None if out is None else write(render(comparison), out)
    if json:
        print_json(_facts(comparison, page))
        return
    titles = ("vocab size", "tokens/word", *comparison.scripts, "bytes/token", "unknown")
    rows = table(
        Column("", no_wrap=True),
        *(Column(title, justify="right", no_wrap=True) for title in titles),
    )
    for row in comparison.rows:
        means = (row.tokens_per_word, *row.tokens_per_word_by_script, row.bytes_per_token)
        values = [f"{row.vocab_size:,}", *(f"{mean:.2f}" for mean in means)]
        rows.add_row(Text(row.name, "bold"), *values, f"{row.unknown_rate:.2%}")
    print_table(rows)
    print_line(f"on {comparison.text}")
    if page is not None:
        print_line(f"report: {page}")


def _facts(comparison: "Comparison", page: Path | None) -> dict[str, Any]:
    rows = [
        {
            "name": row.name,
            "kind": row.kind,
            "vocab": row.vocab_size,
            "tokens": row.tokens,
            "tokens_per_word": row.tokens_per_word,
            "tokens_per_word_by_script": dict(
                zip(comparison.scripts, row.tokens_per_word_by_script, strict=True)
            ),
            "bytes_per_token": row.bytes_per_token,
            "unknown_rate": row.unknown_rate,
        }
        for row in comparison.rows
    ]
    text = {name: vars(comparison)[name] for name in ("words", "bytes", "held_out")}
    return {**text, "tokenizers": rows, "page": page}
