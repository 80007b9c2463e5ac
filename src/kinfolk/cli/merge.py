"""The command `merge`: shards of a corpus are joined."""

from pathlib import Path

import typer

from kinfolk.cli.app import DATA, JSON, NEW_FOLDER, command
from kinfolk.cli.output import byte_progress, note
from kinfolk.cli.prepare import show_corpus


@command("kinfolk merge corpus.shard-* -o corpus", panel=DATA)
def merge_command(
    shards: list[Path] = typer.Argument(
        ..., metavar="SHARDS...", help="All folders that `kinfolk prepare --shard` wrote."
    ),
    out: Path = NEW_FOLDER,
    json: bool = JSON,
) -> None:
    """Join the shards of a corpus to the bytes that one `kinfolk prepare` of all the text writes.

    All shards must be there, of the same files, tokenizer and options. An interrupted run leaves no
    corpus, and the same command starts again.
    """
    from kinfolk.data.merge import merge_shards

    with byte_progress("merging") as progress:
        corpus = merge_shards(
            shards,
            out,
            progress=progress,
            on_message=(lambda sentence: None) if json else note,
        )
    show_corpus(corpus, out, json=json)
