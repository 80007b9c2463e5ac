"""All commands: importing their modules registers them on `app`."""

from kinfolk.cli import (
    answers,
    audit,
    chat,
    corpora,
    fill,
    folders,
    generate,
    quickstart,
    runs,
    tasks,
    tokenizers,
    translate,
)
from kinfolk.cli.app import app

__all__ = [
    "answers",
    "app",
    "audit",
    "chat",
    "corpora",
    "fill",
    "folders",
    "generate",
    "quickstart",
    "runs",
    "tasks",
    "tokenizers",
    "translate",
]
