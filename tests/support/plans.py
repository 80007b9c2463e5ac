"""The cost table of docs/deploy.md, from the commands that the page prints above it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.runs import command

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
SHOWN = ("ddp", "fsdp")  # strategies


def plan_commands() -> list[str]:
    """Return the commands that the table was made by."""
    return re.findall(r"^kinfolk (plan .*--json)$", PAGE.read_text("utf-8"), re.MULTILINE)


def cost_row(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run one of the commands and return its row."""
    said = command(monkeypatch, capsys)(*line.split())
    assert said.code == 0, said.err
    return table_row(json.loads(said.out))


def table_row(plan: dict[str, Any]) -> str:
    """Return the row of a plan."""
    values: dict[str, list[str]] = {name: [] for name in SHOWN}
    for memory in plan["strategies"]:
        if memory["words"] in values:
            mark = "" if memory["fits"] else "!"
            size = f"{memory['total'] / 1e9:,.1f}{mark} ({memory['rows']})"
            values[memory["words"]].append(size)
    cells = [
        str(plan["model"]),
        f"{plan['parameters'] / 1e9:,.3g}",
        f"{plan['tokens'] / 1e9:,.4g}",
        f"{plan['flops']:.3g}",
        f"{plan['gpu_hours']:,.{0 if plan['gpu_hours'] > 10 else 1}f}",
        f"{plan['devices']} x {plan['device']['name']}",
        f"{plan['days']:,.3g}",
        *(" / ".join(sizes) or "-" for sizes in values.values()),
    ]
    return f"| {' | '.join(cells)} |"
