"""The command `prepare`: text in, a corpus out."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from kinfolk.cli.app import AsJson, Files, app, errors, example, print_json
from kinfolk.errors import UserError


@app.command(epilog=example("kinfolk prepare notes/ --tokenizer tok --holdout 1% -o corpus"))
def prepare(
    files: Files,
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer's folder, or a model's.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The corpus folder to write.")],
    workers: Annotated[
        int | None,
        typer.Option(help="Processes; the bytes written are the same. As many as pay by default."),
    ] = None,
    per: Annotated[str, typer.Option(help="A document is a `block` or a `file`.")] = "block",
    field: Annotated[
        str | None, typer.Option(help="Where JSON lines keep their text: `text`, `meta.text`.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of a table with the text: a name or a number.")
    ] = None,
    holdout: Annotated[
        str, typer.Option(help="The share of documents kept for scoring: 0.005 or 0.5%.")
    ] = "0",
    words: Annotated[
        str | None,
        typer.Option(help="Note where words begin, by `spaces` or by `jieba` (Chinese)."),
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(help="Leave out documents seen before: `exact` or `near`.")
    ] = None,
    decontaminate: Annotated[
        list[Path] | None, typer.Option(help="A test file; what it holds is left out.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Turn text into a corpus: tokenised once, read by every run.

    A document is a block between blank lines, or a whole file with `--per file`; in a table, a row.
    With `--holdout` some documents, chosen by their own text, go to `CORPUS/holdout`, and runs
    score themselves on these. A preparation that was killed goes on when the command is given
    again.
    """
    from kinfolk.data.prepare import prepare
    from kinfolk.workflows.load import load_tokenizer

    if per not in ("block", "file"):
        raise UserError(f"--per {per}: a document is a block or a file")

    def say(sentence: str) -> None:
        if not json:
            errors.print(sentence, markup=False, highlight=False, soft_wrap=True)

    with _bar() as bar:
        task = bar.add_task("preparing", total=None)
        corpus = prepare(
            files,
            tokenizer=load_tokenizer(tokenizer),
            out=out,
            workers=workers,
            per="file" if per == "file" else "block",
            field=field,
            column=column,
            holdout=share(holdout),
            words=words,
            dedup=dedup,
            decontaminate=decontaminate or [],
            progress=lambda read, whole: bar.update(task, completed=read, total=whole),
            say=say,
        )
    facts = {"documents": corpus.documents, "tokens": corpus.tokens, "bytes": corpus.bytes}
    if json:
        print_json({"folder": str(out), **facts})
    else:
        said = ", ".join(f"{count:,} {name}" for name, count in facts.items())
        print(f"{said} in {out}")


def share(text: str) -> float:
    """Read a share, as a number or in percent."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise UserError(f"--holdout {text} is no share: give 0.005 or 0.5%") from error


def _bar() -> Progress:
    return Progress(
        "[progress.description]{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
