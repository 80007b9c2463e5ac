"""The family is listed by the files there are, and every command explains itself."""

import json
from pathlib import Path

import kinfolk.families
from little import Kinfolk
from loops import every_case

FILES = {
    f.stem
    for f in Path(kinfolk.families.__path__[0]).glob("*.py")
    if "\n    objectives=" in f.read_text()
}
COMMANDS = (
    "members",
    "tokenizer train",
    "tokenizer show",
    "tokenizer compare",
    "audit",
    "prepare",
    "pretrain",
    "finetune",
    "predict",
    "evaluate",
    "generate",
    "fill",
    "translate",
    "summarize",
    "chat",
    "export",
    "import",
    "quickstart",
)


def test_the_list_for_programs_has_every_file(kinfolk: Kinfolk) -> None:
    said = kinfolk("members", "--json")
    members = json.loads(said.out)
    assert {member["name"] for member in members} == FILES
    assert len(members) == len(FILES)
    bert = next(member for member in members if member["name"] == "bert")
    assert bert["architecture"] == bert["kind"] == "encoder"
    assert bert["objectives"] == ["nsp", "mlm", "unilm"]
    assert "fill" in bert["capabilities"] and "generate" not in bert["capabilities"]


def test_the_list_for_people_has_every_file(kinfolk: Kinfolk) -> None:
    said = kinfolk("members")
    assert all(name in said.out for name in FILES)


def test_every_command_shows_an_example(kinfolk: Kinfolk) -> None:
    with every_case() as case:
        for command in COMMANDS:
            with case(command):
                said = kinfolk(*command.split(), "--help")
                assert said.code == 0
                assert "Example" in said.out
                assert f"kinfolk {command}" in " ".join(said.out.split())


def test_help_names_every_command_that_is_tested_here(kinfolk: Kinfolk) -> None:
    from typer.main import get_command

    from kinfolk.cli.commands import app

    group = get_command(app)
    commands = dict(group.commands)  # type: ignore[attr-defined]
    below = {f"tokenizer {name}" for name in commands.pop("tokenizer").commands}
    assert {*commands, *below} == set(COMMANDS)
    said = kinfolk("--help")
    assert all(name.split()[0] in said.out for name in COMMANDS)
