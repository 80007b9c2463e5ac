"""Commands about text: `tokenizer train` and `prepare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from kinfolk.cli.app import AsJson, app, errors, example, print_json
from kinfolk.errors import UserError

tokenizers = typer.Typer(help="Train tokenizers.", no_args_is_help=True)
app.add_typer(tokenizers, name="tokenizer")

Files = Annotated[list[Path], typer.Argument(help="Text files and folders; .gz, .xz, .zst too.")]


@tokenizers.command(
    "train", epilog=example("kinfolk tokenizer train notes/ --kind bpe --vocab 8192 -o tok")
)
def train(
    files: Files,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write.")],
    kind: Annotated[str, typer.Option(help="bpe, wordpiece, unigram, word, char or byte.")] = "bpe",
    vocab: Annotated[int, typer.Option(help="How many ids, special ones included.")] = 8192,
    lowercase: Annotated[bool, typer.Option(help="Read everything in lower case.")] = False,
    json: AsJson = False,
) -> None:
    """Learn a vocabulary from text, for every family member to share."""
    from kinfolk.data.sources import documents
    from kinfolk.text.vocabulary import train

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is already there: choose another -o")
    texts = (document.text for document in documents(files))
    tokenizer = train(texts, kind=kind, vocab=vocab, lowercase=lowercase)
    tokenizer.save(out)
    if json:
        print_json({"folder": str(out), "kind": kind, "vocab": tokenizer.vocab})
    else:
        print(f"{tokenizer.vocab:,} ids in {out}")


@app.command(epilog=example("kinfolk prepare notes/ --tokenizer tok --holdout 0.01 -o corpus"))
def prepare(
    files: Files,
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer's folder, or a model's.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The corpus folder to write.")],
    workers: Annotated[int, typer.Option(help="Processes; the bytes written are the same.")] = 1,
    per: Annotated[str, typer.Option(help="A document is a `block` or a `file`.")] = "block",
    holdout: Annotated[float, typer.Option(help="The share of documents kept for scoring.")] = 0.0,
    json: AsJson = False,
) -> None:
    """Turn text into a corpus: tokenised once, read by every run.

    A document is a block between blank lines, or a whole file with `--per file`. With `--holdout`
    some documents, chosen by their own text, go to `CORPUS/holdout`, and runs score themselves on
    these.
    """
    from kinfolk.data.prepare import prepare
    from kinfolk.recipes.opening import tokenizer_of

    if per not in ("block", "file"):
        raise UserError(f"--per {per}: a document is a block or a file")
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    seen = errors.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, transient=True, disable=not seen
    ) as bar:
        task = bar.add_task("reading", total=None)
        corpus = prepare(
            files,
            tokenizer=tokenizer_of(tokenizer),
            out=out,
            workers=workers,
            per="file" if per == "file" else "block",
            holdout=holdout,
            progress=lambda read, whole: bar.update(task, completed=read, total=whole),
        )
    facts = {"documents": corpus.documents, "tokens": corpus.tokens, "bytes": corpus.bytes}
    if json:
        print_json({"folder": str(out), **facts})
    else:
        said = ", ".join(f"{count:,} {name}" for name, count in facts.items())
        print(f"{said} in {out}")
