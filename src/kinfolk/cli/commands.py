"""All commands: importing their modules registers them on `app`."""

from kinfolk.cli import (
    answers,
    audit,
    chat,
    corpora,
    folders,
    lines,
    quickstart,
    runs,
    tasks,
    tokenizers,
    writing,
)
from kinfolk.cli.app import app

__all__ = [
    "answers",
    "app",
    "audit",
    "chat",
    "corpora",
    "folders",
    "lines",
    "quickstart",
    "runs",
    "tasks",
    "tokenizers",
    "writing",
]
