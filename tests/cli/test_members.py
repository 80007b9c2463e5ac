"""The family is listed by the files there are, and every command explains itself."""

import json
from pathlib import Path

import pytest

import kinfolk.families as kinfolk_families
from support.loops import every_case
from support.runs import Kinfolk

FILES = {
    f.stem
    for f in Path(kinfolk_families.__path__[0]).glob("*.py")
    if "\n    objectives=" in f.read_text() or "\n    formulation=" in f.read_text()
}
QUICK = ("ngram", "gpt2", "t5")  # the others are slow
COMMANDS = (
    "members",
    "tokenizer train",
    "tokenizer show",
    "tokenizer compare",
    "audit",
    "prepare",
    "merge",
    "pretrain",
    "finetune",
    "prefixes",
    "verify-resume",
    "lr-find",
    "predict",
    "evaluate",
    "inspect",
    "isotropy",
    "probe",
    "neurons",
    "embed",
    "plan",
    "claims",
    "compare",
    "generate",
    "fill",
    "translate",
    "summarize",
    "chat",
    "export",
    "push",
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
    assert bert["objectives"] == ["nsp", "mlm", "sop", "unilm"]
    assert "fill" in bert["capabilities"] and "generate" not in bert["capabilities"]


def test_the_list_for_people_has_every_file(kinfolk: Kinfolk) -> None:
    said = kinfolk("members")
    assert all(name in said.out for name in FILES)


def test_80_columns_hold_whole_names(kinfolk: Kinfolk) -> None:
    """Also in a pipe, which this output is."""
    said = kinfolk("members")
    lines = said.out.splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    for entry in kinfolk_families.index().values():
        if entry.objectives:
            line = next(line for line in lines if line.split()[:1] == [entry.name])
            whole = (entry.architecture, ", ".join(entry.objectives), entry.paper)
            assert all(text in line for text in whole)


def test_a_family_is_listed_with_its_sizes_and_parameters(kinfolk: Kinfolk) -> None:
    said = kinfolk("members", "bert")
    rows = {line.split()[0]: line.split() for line in said.out.splitlines() if line}
    assert rows["bert-base-uncased"][1:] == ["110,106,428", "12", "768", "12", "512"]
    told = " ".join(said.out.split())
    assert "parameters: with 30,522 tokens, 28,996 in bert-base-cased, bert-large-cased" in told
    found = json.loads(kinfolk("members", "bert", "--json").out)
    assert found["parameters"]["bert-base-uncased"] == 110_106_428
    assert found["vocab_size"]["bert-base-uncased"] == 30_522
    assert "did you mean bert" in kinfolk("members", "brt").sentence


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(entry.name, marks=[] if entry.name in QUICK else pytest.mark.slow)
        for entry in kinfolk_families.index().values()
        if entry.objectives or entry.capabilities
    ],
)
def test_every_family_has_the_dimensions_of_its_sizes(name: str, kinfolk: Kinfolk) -> None:
    lines = kinfolk("members", name).out.splitlines()
    header = next(line for line in lines if line.startswith("size "))
    own = ("order",) if name == "ngram" else ("layers", "hidden size")
    assert all(column in header for column in ("parameters", *own))
    assert any(line.startswith("parameters: with ") for line in lines)


def test_a_family_without_pretraining_has_the_dimensions_of_its_sizes(kinfolk: Kinfolk) -> None:
    lines = kinfolk("members", "cvt").out.splitlines()
    assert next(line.split() for line in lines if line.startswith("cvt "))[2:4] == ["2", "2,048"]


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

    from kinfolk.cli import load_app

    group = get_command(load_app())
    commands = dict(group.commands)  # type: ignore[attr-defined]
    below = {f"tokenizer {name}" for name in commands.pop("tokenizer").commands}
    assert {*commands, *below} == set(COMMANDS)
    said = kinfolk("--help")
    assert all(name.split()[0] in said.out for name in COMMANDS)
