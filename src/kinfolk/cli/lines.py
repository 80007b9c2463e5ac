"""Commands that write a line about each line of a file: `translate` and `summarize`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kinfolk.cli import methods
from kinfolk.cli.app import Device, app, errors, example
from kinfolk.cli.methods import ModelPath, Precision
from kinfolk.errors import UserError
from kinfolk.files import new_file

if TYPE_CHECKING:
    from kinfolk.generation.methods import DecodingMethod

File = Annotated[Path, typer.Argument(help="Texts, one a line; - reads what is piped in.")]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", help="The file to write; else they are printed.")
]
Batch = Annotated[int, typer.Option(help="Lines at a time.")]
SUMMARY = "summarize: "  # Raffel et al. 2020, appendix D
SHORT = 100  # tokens of a summary


@app.command(epilog=example("kinfolk translate runs/en-de talk.en -o talk.de --method beam"))
def translate(
    model: ModelPath,
    file: File,
    out: Out = None,
    prefix: Annotated[
        str | None, typer.Option(help="What stands before every text; else as it was learned.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Of a line, at most; else 50 more than its source.")
    ] = None,
    method: methods.MethodName = "greedy",
    beam_size: methods.BeamSize = None,
    length_penalty: methods.LengthPenalty = None,
    batch: Batch = 64,
    precision: Precision = "auto",
    device: Device = "auto",
) -> None:
    """Translate a file line by line, with an encoder-decoder; the order is kept."""
    chosen = methods.method(method, beam_size=beam_size, length_penalty=length_penalty)
    rewrite(
        "translate",
        model,
        file,
        out,
        chosen,
        prefix=prefix,
        tokens=max_tokens,
        batch=batch,
        precision=precision,
        device=device,
    )


@app.command(epilog=example("kinfolk summarize runs/t5 news.txt -o news.short"))
def summarize(
    model: ModelPath,
    file: File,
    out: Out = None,
    prefix: Annotated[
        str | None,
        typer.Option(help=f"What stands before every text; else as learned, or {SUMMARY!r}."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Of a line, at most.")] = SHORT,
    method: methods.MethodName = "greedy",
    beam_size: methods.BeamSize = None,
    length_penalty: methods.LengthPenalty = None,
    batch: Batch = 64,
    precision: Precision = "auto",
    device: Device = "auto",
) -> None:
    """Summarise each line of a file, with an encoder-decoder; the order is kept."""
    chosen = methods.method(method, beam_size=beam_size, length_penalty=length_penalty)
    rewrite(
        "summarize",
        model,
        file,
        out,
        chosen,
        prefix=prefix,
        usual=SUMMARY,
        tokens=max_tokens,
        batch=batch,
        precision=precision,
        device=device,
    )


def rewrite(
    verb: str,
    model: Path,
    file: Path,
    out: Path | None,
    method: "DecodingMethod",
    *,
    prefix: str | None,
    usual: str | None = None,
    tokens: int | None,
    batch: int,
    precision: str,
    device: str,
) -> None:
    """Write a line about each line of a file."""
    from kinfolk.workflows.generate import generate_lines, load_seq2seq, task_prefix

    if out is not None and out.exists():
        raise UserError(f"{out} is already there: choose another -o")
    texts = list(read(file))
    network, tokenizer = load_seq2seq(model, verb, device=device, precision=precision)
    asked = task_prefix(model, prefix, usual)
    with watching(verb, len(texts), shown=out is None) as watch, writing(out) as write:
        for line in generate_lines(
            network,
            tokenizer,
            texts,
            prefix=asked,
            method=method,
            tokens=tokens,
            batch=batch,
            watch=watch,
        ):
            write(line + "\n")


def read(path: Path) -> Iterator[str]:
    """Read the lines of a file, or of what is piped in."""
    from kinfolk.data.files import STDIN, decode_utf8, iter_lines, normalize_newlines, open_input

    if path == STDIN and sys.stdin.isatty():
        raise UserError("- is text that is piped in: pipe some, or name a file")
    if path != STDIN and not path.is_file():
        raise UserError(f"{path} does not exist: give a file with a text a line")
    with open_input(path) as source:
        yield from iter_lines(source, normalize_newlines(decode_utf8(source)))


@contextmanager
def writing(out: Path | None) -> Iterator[Callable[[str], int]]:
    """Lend what writes lines: to the output, or to a file that is there once it is whole."""
    if out is None:
        yield sys.stdout.write
        return
    with new_file(out) as file:
        yield file.write


@contextmanager
def watching(verb: str, lines: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show how far it is, on a terminal where no lines are shown."""
    hidden = not errors.is_terminal or (shown and sys.stdout.isatty())
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # What is printed goes where it should, not above the bar.
    with Progress(*columns, console=errors, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task(verb, total=lines)
        yield lambda done: bar.advance(task, done)
