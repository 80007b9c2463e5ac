"""Commands about tokenizers: `tokenizer train`, `show` and `compare`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from kinfolk.cli.app import AsJson, Files, app, console, errors, example, print_json
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.text.inspect import TokenView
    from kinfolk.workflows.compare_tokenizers import Comparison

tokenizers = typer.Typer(help="Train, look at and compare tokenizers.", no_args_is_help=True)
app.add_typer(tokenizers, name="tokenizer")

Field = Annotated[str | None, typer.Option(help="The field of JSON lines that is text.")]
Words = Annotated[str, typer.Option(help="How the kind word finds words: spaces or jieba.")]
Column = Annotated[str | None, typer.Option(help="The column of tables that is text.")]

# Dark letters on pale colours read well on any terminal; neighbours never share one.
SHADES = ("black on #cfe3f5", "black on #fbe3c8")
SPECIAL, UNKNOWN = "black on #d9d9d9", "bold white on #b00020"


@tokenizers.command(
    "train", epilog=example("kinfolk tokenizer train notes/ --kind bpe --vocab 8192 -o tok")
)
def train(
    files: Files,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write.")],
    kind: Annotated[
        str, typer.Option(help="bpe, word-bpe, wordpiece, unigram, word, char or byte.")
    ] = "bpe",
    vocab: Annotated[int, typer.Option(help="How many ids, special ones included.")] = 8192,
    lowercase: Annotated[bool, typer.Option(help="Read everything in lower case.")] = False,
    words: Words = "spaces",
    field: Field = None,
    column: Column = None,
    json: AsJson = False,
) -> None:
    """Learn a vocabulary from text, for every family member to share."""
    from kinfolk.data.documents import parts
    from kinfolk.text.train import train_tokenizer

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o")
    texts = parts(files, field=field, column=column)
    tokenizer = train_tokenizer(
        texts, kind=kind, vocab_size=vocab, lowercase=lowercase, segmenter=words
    )
    tokenizer.save(out)
    if json:
        print_json({"folder": str(out), "kind": kind, "vocab": tokenizer.vocab_size})
    else:
        print(f"{tokenizer.vocab_size:,} ids in {out}")


@tokenizers.command("show", epilog=example('kinfolk tokenizer show runs/bert "The cat sat."'))
def show(
    folder: Annotated[Path, typer.Argument(help="A tokenizer's folder, or a model's.")],
    text: Annotated[str, typer.Argument(help="The text; - reads what is piped in.")] = "-",
    json: AsJson = False,
) -> None:
    """Show a text in the pieces that a tokenizer cuts it into, each above its id.

    ␣ is a space, ⏎ a new line. Special tokens are grey, unknown ones red.
    """
    from kinfolk.text.inspect import token_views, tokenizer_stats
    from kinfolk.workflows.load import load_tokenizer

    tokenizer = load_tokenizer(folder)
    text = _piped() if text == "-" else text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError("the text is not UTF-8: convert it first") from None
    found = token_views(tokenizer, text)
    if json:
        print_json({"text": text, "pieces": [vars(chunk) for chunk in found]})
        return
    for line in _lines(found, console.width):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    (measures,) = tokenizer_stats([tokenizer], [text])
    said = f"{len(found):,} tokens"
    if measures.words:
        said += f" for {measures.words:,} words in {measures.bytes:,} bytes"
    if unknown := sum(chunk.unknown for chunk in found):
        said += f", {unknown:,} unknown"
    console.print(said, highlight=False)


def _piped() -> str:
    if sys.stdin.isatty():
        raise UserError("give a TEXT to show, or pipe one in")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"what was piped in is not UTF-8 at byte {error.start:,}") from None


def _lines(chunks: Sequence["TokenView"], width: int) -> list[Text]:
    """Lay pieces in lines, each above its id; without colours a space still parts them."""
    lines: list[Text] = []
    used = width
    for number, chunk in enumerate(chunks):
        size = max(cell_len(chunk.text), len(str(chunk.id)))
        if used + 1 + size > width:
            lines += [Text(), Text()]
            used = -1  # no space before the first
        style = UNKNOWN if chunk.unknown else SPECIAL if chunk.special else SHADES[number % 2]
        gap = " " if used > 0 else ""
        lines[-2].append(gap).append(chunk.text + " " * (size - cell_len(chunk.text)), style)
        lines[-1].append(gap).append(str(chunk.id).ljust(size), "dim")
        used += 1 + size
    return lines


@tokenizers.command(
    "compare",
    epilog=example(
        "kinfolk tokenizer compare notes/ --train bpe:8192 --train unigram:8192 -o page.html"
    ),
)
def compare(
    files: Files,
    tokenizer: Annotated[
        list[Path] | None, typer.Option(help="A tokenizer's folder, or a model's.")
    ] = None,
    train: Annotated[
        list[str] | None, typer.Option(metavar="KIND:VOCAB", help="One to learn: bpe:8192.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The page to write.")] = None,
    lowercase: Annotated[bool, typer.Option(help="Learn in lower case.")] = False,
    words: Words = "spaces",
    field: Field = None,
    column: Column = None,
    json: AsJson = False,
) -> None:
    """Measure tokenizers on the same text, side by side.

    Where some are learned here, a tenth of the documents is kept from them, and all are measured on
    that tenth: the tenth that `prepare --holdout 0.1` holds out.
    """
    from kinfolk.reports.page import write
    from kinfolk.reports.tokenizers_page import render
    from kinfolk.workflows.compare_tokenizers import compare

    with errors.status("reading") as status:
        found = compare(
            files,
            folders=tokenizer or [],
            learn=train or [],
            lowercase=lowercase,
            words=words,
            field=field,
            column=column,
            say=status.update,
        )
    page = None if out is None else write(render(found.page()), out)
    if json:
        print_json(_facts(found, page))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in ("ids", "tokens/word", *found.scripts, "bytes/token", "unknown"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in found.rows:
        m = row.measures
        scripts = (f"{m.fertility(script):.2f}" for script in found.scripts)
        numbers = (f"{m.tokens_per_word:.2f}", *scripts, f"{m.bytes_per_token:.2f}")
        table.add_row(
            Text(row.name, "bold"), f"{row.vocab_size:,}", *numbers, f"{m.unknown_rate:.2%}"
        )
    console.print(table)
    console.print(f"on {found.text}", highlight=False, soft_wrap=True)
    if page is not None:
        print(f"the charts are in {page}")


def _facts(found: "Comparison", page: Path | None) -> dict[str, Any]:
    first = found.rows[0].measures
    rows = []
    for row in found.rows:
        m = row.measures
        scripts = {script: m.fertility(script) for script in found.scripts}
        rows.append(
            {
                "name": row.name,
                "kind": row.kind,
                "vocab": row.vocab_size,
                "tokens": m.tokens,
                "tokens_per_word": m.tokens_per_word,
                "tokens_per_word_by_script": scripts,
                "bytes_per_token": m.bytes_per_token,
                "unknown_rate": m.unknown_rate,
            }
        )
    text = {"words": first.words, "bytes": first.bytes, "held_out": found.held_out}
    return {**text, "tokenizers": rows, "page": None if page is None else str(page)}
