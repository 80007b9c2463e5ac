"""The commands `translate` and `summarize`: an output for each line of a file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kinfolk.cli.app import AsJson, Device, ModelFolder, command, errors
from kinfolk.cli.generate import Method, Precision, generation_config
from kinfolk.cli.options import field_options
from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.generation.config import GenerationConfig
from kinfolk.workflows.folders import check_model_folder, check_new_file

File = Annotated[Path, typer.Argument(help="File with one text per line, or - for stdin.")]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", help="Output file. [default: standard output]")
]
Batch = Annotated[int, typer.Option(help="Lines per batch.")]
SUMMARY_PREFIX = "summarize: "  # Raffel et al. 2020, appendix D
SUMMARY_TOKENS = 100
FIELDS = ("max_new_tokens", "num_beams", "length_penalty")
MAX_NEW_TOKENS = "Maximum number of tokens per line"


@command("kinfolk translate runs/en-de talk.en -o talk.de --method beam", panel="Use")
@field_options(
    "settings",
    GenerationConfig,
    only=FIELDS,
    defaults={"max_new_tokens": "50 more than the source", "num_beams": "4 with --method beam"},
    help={"max_new_tokens": MAX_NEW_TOKENS},
)
def translate(
    model: ModelFolder,
    file: File,
    settings: dict[str, Any],
    out: Out = None,
    source_prefix: Annotated[
        str | None,
        typer.Option(help="Text before every input. [default: the prefix used in training]"),
    ] = None,
    method: Method = None,
    batch: Batch = 64,
    precision: Precision = "auto",
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Translate a file line by line with an encoder-decoder, in order."""
    config = generation_config(method, settings, default="greedy")
    transform(
        "translate",
        model,
        file,
        out,
        config,
        source_prefix=source_prefix,
        fixed_limit="max_new_tokens" in settings,
        batch_size=batch,
        precision=precision,
        device=device,
        json=json,
    )


@command("kinfolk summarize runs/t5 news.txt -o news.short", panel="Use")
@field_options(
    "settings",
    GenerationConfig,
    only=FIELDS,
    defaults={"num_beams": "4 with --method beam"},
    help={"max_new_tokens": MAX_NEW_TOKENS},
)
def summarize(
    model: ModelFolder,
    file: File,
    settings: dict[str, Any],
    out: Out = None,
    source_prefix: Annotated[
        str | None,
        typer.Option(
            help="Text before every input. [default: the prefix used in training, else "
            f"{SUMMARY_PREFIX!r}]"
        ),
    ] = None,
    method: Method = None,
    batch: Batch = 64,
    precision: Precision = "auto",
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Summarize each line of a file with an encoder-decoder, in order."""
    settings = {"max_new_tokens": SUMMARY_TOKENS} | settings
    config = generation_config(method, settings, default="greedy")
    transform(
        "summarize",
        model,
        file,
        out,
        config,
        source_prefix=source_prefix,
        default_prefix=SUMMARY_PREFIX,
        fixed_limit=True,
        batch_size=batch,
        precision=precision,
        device=device,
        json=json,
    )


def transform(
    verb: str,
    model: Path,
    file: Path,
    out: Path | None,
    config: GenerationConfig,
    *,
    source_prefix: str | None,
    default_prefix: str | None = None,
    fixed_limit: bool,
    batch_size: int,
    precision: str,
    device: str,
    json: bool,
) -> None:
    """Write the output of a model for each line of a file."""
    check_model_folder(model)
    if out is not None:
        check_new_file(out)
    lines = list(read_lines(file))

    from kinfolk.generation.generate import transform_lines
    from kinfolk.workflows.generate import load_seq2seq, task_prefix

    network, tokenizer = load_seq2seq(model, verb, device=device, precision=precision)
    prefix = task_prefix(model, source_prefix, default_prefix)
    with progress(verb, len(lines), shown=out is None) as advance, output(out) as write:
        outputs = transform_lines(
            network,
            tokenizer,
            lines,
            config,
            prefix=prefix,
            fixed_limit=fixed_limit,
            batch_size=batch_size,
            on_progress=advance,
        )
        for line, text in zip(lines, outputs, strict=True):
            if json:
                text = dumps({"source": line, "text": text}, ensure_ascii=False)
            write(f"{text}\n")


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a file or of standard input."""
    from kinfolk.data.files import STDIN, decode_utf8, iter_lines, normalize_newlines, open_input

    if path == STDIN and sys.stdin.isatty():
        raise UserError("FILE is '-' but stdin is a terminal: pipe text in or pass a file")
    if path != STDIN and not path.is_file():
        raise UserError(f"{path} does not exist: pass a file with one text per line")
    with open_input(path) as source:
        yield from iter_lines(source, normalize_newlines(decode_utf8(source)))


@contextmanager
def output(out: Path | None) -> Iterator[Callable[[str], int]]:
    """Yield what writes text: to standard output, or to a file that appears once it is whole."""
    if out is None:
        yield sys.stdout.write
        return
    with new_file(out) as file:
        yield file.write


@contextmanager
def progress(verb: str, lines: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, unless the outputs are printed there."""
    hidden = not errors.is_terminal or (shown and sys.stdout.isatty())
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # Outputs are printed to standard output, not above the bar.
    with Progress(*columns, console=errors, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task(verb, total=lines)
        yield lambda done: bar.advance(task, done)
