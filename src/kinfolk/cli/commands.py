"""All commands: importing their modules registers them on `app`."""

from kinfolk.cli import (
    audit,
    chat,
    evaluate,
    export,
    fill,
    finetune,
    generate,
    members,
    predict,
    prepare,
    pretrain,
    quickstart,
    tokenizer,
    translate,
)
from kinfolk.cli.app import app

__all__ = [
    "app",
    "audit",
    "chat",
    "evaluate",
    "export",
    "fill",
    "finetune",
    "generate",
    "members",
    "predict",
    "prepare",
    "pretrain",
    "quickstart",
    "tokenizer",
    "translate",
]
