"""All commands: importing their modules registers them on `app`, in the order of `--help`."""

# ruff: noqa: I001
from kinfolk.cli.app import app
from kinfolk.cli import quickstart, tokenizer, audit, prepare, pretrain, finetune, evaluate
from kinfolk.cli import writing, chat, lines, predict, members, export

__all__ = [
    "app",
    "audit",
    "chat",
    "evaluate",
    "export",
    "finetune",
    "lines",
    "members",
    "predict",
    "prepare",
    "pretrain",
    "quickstart",
    "tokenizer",
    "writing",
]
