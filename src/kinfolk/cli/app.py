"""The commands, and what they share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(
    name="kinfolk",
    help="Pretrain, use and fairly compare every family of pretrained language model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Files = Annotated[
    list[Path],
    typer.Argument(
        help="Text, .jsonl, .tsv, .csv or .parquet; folders, 'patterns*', - or hf:NAME."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def example(text: str) -> str:
    """Write the example under a command's help."""
    return f"Example: `{text}`"


def print_json(value: Any) -> None:
    """Print JSON and nothing else."""
    print(json.dumps(value, ensure_ascii=False))


from kinfolk.cli import (  # noqa: E402  # the commands register themselves on `app`
    audit,
    corpora,
    folders,
    quickstart,
    runs,
    tokenizers,
    writing,
)

__all__ = ["app", "audit", "corpora", "folders", "quickstart", "runs", "tokenizers", "writing"]
