"""The commands `translate` and `summarize`: an output for each line of a file."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kinfolk.cli.app import (
    DEVICE,
    FORCE,
    JSON,
    MODEL,
    NUM_SENTENCES,
    OUT,
    TOKENIZER,
    USE,
    command,
    option,
)
from kinfolk.cli.generate import METHOD, PRECISION, generation_config
from kinfolk.cli.options import UsageError, field_options, option_group, option_name
from kinfolk.cli.output import ProgressReporter, row_progress, saved_on_interrupt
from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.generation.config import GenerationConfig
from kinfolk.workflows.folders import (
    check_input_file,
    check_model_folder,
    check_new_file,
    check_parent_folder,
)
from kinfolk.workflows.model_use import check_seq2seq

if TYPE_CHECKING:
    from kinfolk.workflows.translation.languages import Route

Transform = Callable[[ProgressReporter], Iterator[str]]  # yields an output for each line


@dataclass(frozen=True)
class OwnOptions:
    """Options of one of the commands alone."""


@dataclass(frozen=True)
class TranslateOptions(OwnOptions):
    """Options of translate alone."""

    to: str | None = option(
        "LANGUAGE", "Language to translate into, of a model trained with --pair."
    )
    pivot: str | None = option("LANGUAGE", "Translate through this language, in two passes.")


@dataclass(frozen=True)
class SummarizeOptions(OwnOptions):
    """Options of summarize alone."""

    num_sentences: int | None = NUM_SENTENCES


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a file or of standard input."""
    from kinfolk.data.files import STDIN, decode_utf8, iter_lines, normalize_newlines, open_input

    if path == STDIN and sys.stdin.isatty():
        raise UserError("FILE is '-' but stdin is a terminal: pipe text in or pass a file")
    if path != STDIN:
        check_input_file(path)
    with open_input(path) as source:
        yield from iter_lines(source, normalize_newlines(decode_utf8(source)))


def read_source_lines(path: Path) -> list[str]:
    """Read the lines of a file, blank ones too; refuse one without text."""
    lines = list(read_lines(path))
    check_has_text(path, lines)
    return lines


def check_has_text(path: Path, texts: Iterable[str]) -> None:
    """Refuse a file whose texts are all blank."""
    from kinfolk.data.files import STDIN

    if not any(text.strip() for text in texts):
        name = "standard input" if path == STDIN else path
        raise UserError(f"{name} is empty: pass a file with text")


@contextmanager
def output(out: Path | None) -> Iterator[Callable[[str], int]]:
    """Yield a function that writes text to standard output, or to a file created atomically."""
    if out is None:
        yield sys.stdout.write
        return
    with new_file(out) as file:
        yield file.write


def extract_lines(
    model: Path,
    lines: list[str],
    options: OwnOptions,
    given: dict[str, Any],
    *,
    device: str,
    tokenizer: Path | None,
) -> Transform:
    """Return the function that chooses sentences of each line by an extractive model.

    `given` are options of generation, which do not apply to it.
    """
    from kinfolk.workflows.predict import load_predictor

    if names := [option_name(name) for name, value in given.items() if value is not None]:
        raise UsageError(
            f"{model} chooses sentences and generates no text: remove {', '.join(names)}"
        )
    predictor = load_predictor(model, device=device, tokenizer=tokenizer)
    if isinstance(options, SummarizeOptions) and options.num_sentences is not None:
        predictor = predictor.with_num_sentences(options.num_sentences)
    rows = [predictor.task.row_from_texts(line) for line in lines]

    def transform(progress: ProgressReporter) -> Iterator[str]:
        for prediction in predictor.predict(rows, watch=progress):
            yield " ".join(prediction.value.split())

    return transform


def register_command(
    verb: str,
    example: str,
    help: str,
    *,
    prefix: str | None = None,
    tokens: int | None = None,
    own: type[OwnOptions],
) -> None:
    """Register a command that writes the output of an encoder-decoder for each line of a file.

    `prefix` and `tokens` are the defaults of models without a prefix of their own, and of the
    maximum number of tokens, which else depends on the source.
    """
    default_prefix = "the prefix used in training" + (
        "" if prefix is None else f", else {prefix!r}"
    )
    defaults = {"num_beams": "4 with --method beam"}
    if tokens is None:
        defaults["max_new_tokens"] = "50 more than the source"

    def run(
        model: Path = MODEL,
        file: Path = typer.Argument(..., help="File with one text per line, or - for stdin."),
        out: Path | None = typer.Option(None, *OUT, help="Output file. [default: standard output]"),
        force: bool = FORCE,
        source_prefix: str | None = typer.Option(
            None, help=f"Text before every input. [default: {default_prefix}]"
        ),
        method: str | None = METHOD,
        batch: int = typer.Option(64, max=2**16, help="Lines per batch."),
        tokenizer: Path | None = TOKENIZER,
        precision: str = PRECISION,
        device: str = DEVICE,
        json: bool = JSON,
        *,
        own_options: OwnOptions,
        settings: dict[str, Any],
    ) -> None:
        values = settings if tokens is None else {"max_new_tokens": tokens} | settings
        config = generation_config(method, values, default="greedy")
        check_model_folder(model)
        check_seq2seq(model, verb)
        if out is not None:
            check_new_file(out, (file, model), force=force)
            check_parent_folder(out)
        lines = read_source_lines(file)

        from kinfolk.generation.generate import transform_lines
        from kinfolk.workflows.generate import load_seq2seq, task_prefix
        from kinfolk.workflows.predict import is_extractive
        from kinfolk.workflows.translation.languages import find_route

        transform: Transform
        route: Route = [()]
        if own is SummarizeOptions and is_extractive(model):
            given = {"source_prefix": source_prefix, "method": method, **settings}
            transform = extract_lines(
                model, lines, own_options, given, device=device, tokenizer=tokenizer
            )
        else:
            if isinstance(own_options, SummarizeOptions) and own_options.num_sentences is not None:
                raise UsageError(
                    "--num-sentences applies to models that choose sentences: use --max-tokens"
                )
            network, loaded = load_seq2seq(
                model, verb, device=device, precision=precision, tokenizer=tokenizer
            )
            if isinstance(own_options, TranslateOptions):
                route = find_route(model, loaded, own_options.to, own_options.pivot)

            def transform(progress: ProgressReporter) -> Iterator[str]:
                texts: Iterable[str] = lines
                for tags in route:
                    texts = transform_lines(
                        network,
                        loaded,
                        texts,
                        config,
                        prefix=task_prefix(model, source_prefix, prefix),
                        tags=tags,
                        fixed_limit="max_new_tokens" in values,
                        batch_size=batch,
                        on_progress=progress.advance,
                    )
                return iter(texts)

        printed = out is None and sys.stdout.isatty()
        with (
            saved_on_interrupt(lambda: "nothing was written; run the same command again"),
            row_progress(verb, len(lines) * len(route), hidden=printed) as progress,
            output(out) as write,
        ):
            outputs = transform(progress)
            for line, text in zip(lines, outputs, strict=True):
                if json:
                    text = dumps({"source": line, "text": text}, ensure_ascii=False)
                write(f"{text}\n")

    run.__doc__ = help
    options = field_options(
        "settings",
        GenerationConfig,
        only=("max_new_tokens", "num_beams", "length_penalty"),
        defaults=defaults,
        help={"max_new_tokens": "Maximum number of tokens per line"},
    )
    command(example, panel=USE, name=verb)(option_group("own_options", own)(options(run)))


register_command(
    "translate",
    "kinfolk translate runs/en-de talk.en -o talk.de --method beam",
    "Translate a file line by line with an encoder-decoder, in order.",
    own=TranslateOptions,
)
register_command(
    "summarize",
    "kinfolk summarize runs/t5 news.txt -o news.short",
    "Summarize each line of a file with an encoder-decoder, or by sentences of it, in order.",
    prefix="summarize: ",  # Raffel et al. 2020, appendix D
    tokens=100,
    own=SummarizeOptions,
)
