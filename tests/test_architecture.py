"""Imports point one way, foreign names stay outside, and every file introduces itself."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import kinfolk
from kinfolk.nn.language_model import Architecture, Decoding

ROOT = Path(kinfolk.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FAMILIES = sorted(p for p in (ROOT / "families").glob("*.py") if "FAMILY = " in p.read_text())
# A family imports another one only where its paper builds on the other's network.
DESCENT = {
    "albert": {"bert"},
    "electra": {"bert"},
    "glm": {"gpt", "gpt2"},
    "gpt2": {"gpt"},
    "gpt3": {"gpt2"},
    "roberta": {"bert"},
}

# Which packages each package may import, besides itself.
BASE = {
    "attention_mask",
    "batch",
    "config",
    "errors",
    "extensions",
    "files",
    "kv_cache",
    "machine",
    "packed_texts",
    "rng",
    "tensor_tree",
    "types",
    "version",
}
READING = BASE | {"text", "data"}
KNOWING = READING | {"nn", "families", "objectives", "tasks", "metrics"}
ALLOWED = {
    "errors": set(),
    "packed_texts": set(),
    "tensor_tree": set(),
    "attention_mask": {"errors", "packed_texts"},
    "kv_cache": {"errors", "attention_mask"},
    "batch": {"errors", "attention_mask", "kv_cache", "tensor_tree"},
    "config": {"errors", "extensions", "synonyms"},
    "synonyms": set(),
    "extensions": {"errors"},
    "rng": {"errors"},
    "files": set(),
    "types": set(),
    "machine": set(),
    "version": set(),
    "text": BASE,
    "nn": BASE,
    "data": BASE | {"text"},
    "families": BASE | {"text", "nn", "objectives", "training"},
    "objectives": READING | {"nn"},  # never families
    "metrics": READING,
    "tasks": READING | {"objectives", "metrics", "nn", "generation"},  # never families
    "training": BASE | {"nn"},  # never families, objectives, tasks or hub
    "generation": BASE | {"nn", "text"},  # nor here
    "hub": BASE | {"nn", "families", "text"},
    "reports": {"files"},  # pages take plain values
    "workflows": KNOWING | {"training", "generation", "hub", "reports"},  # never cli
    "cli": KNOWING | {"training", "generation", "hub", "workflows", "reports"},
}

# What comes with the package itself; anything else is optional or has no business here.
INSTALLED = {
    "jinja2",
    "numpy",
    "rich",
    "safetensors",
    "tensorboard",
    "tokenizers",
    "torch",
    "typer",
}
LATER = {"datasketch", "sacrebleu", "scipy"}  # installed too, and imported only where they are used


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[str]:
    """Yield the full name of every module a file imports, wherever in the file it does so."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} has a relative import"
            assert node.module is not None
            for alias in node.names:
                # `from kinfolk import hub` imports kinfolk.hub, but __version__ is no module.
                inner = node.module == "kinfolk" and not alias.name.startswith("__")
                yield f"kinfolk.{alias.name}" if inner else node.module


def at_once(path: Path) -> Iterator[str]:
    """Yield what a file imports as soon as it is imported: not inside functions."""
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        waiting += ast.iter_child_nodes(node)


def package(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def list_of(wrong: list[str]) -> str:
    """Return one line for each file that breaks a rule."""
    return "\n" + "\n".join(wrong)


def test_imports_point_one_way() -> None:
    wrong = []
    for path in FILES:
        own = package(path)
        if own in ("__init__", "__main__"):
            continue
        if own not in ALLOWED:
            wrong.append(f"{own} is a new package: say here what it may import")
            continue
        found = {m.split(".")[1] for m in imported(path) if m.startswith("kinfolk.")}
        if bad := found - ALLOWED[own] - {own}:
            wrong.append(f"{name(path)} imports {', '.join(sorted(bad))}")
    assert not wrong, list_of(wrong)


def test_training_knows_only_the_interface_of_networks() -> None:
    modules = {m for path in FILES if package(path) == "training" for m in imported(path)}
    assert {m for m in modules if m.startswith("kinfolk.nn")} == {"kinfolk.nn.language_model"}


def test_the_table_itself_has_no_way_back() -> None:
    pairs = {frozenset((a, b)) for a, some in ALLOWED.items() for b in some if a in ALLOWED[b]}
    assert not pairs


def test_transformers_is_imported_nowhere() -> None:
    wrong = [
        name(path)
        for path in FILES
        if any(module.split(".")[0] == "transformers" for module in imported(path))
    ]
    assert not wrong, list_of(wrong)


def test_optional_packages_are_imported_inside_functions_only() -> None:
    brought = {"markupsafe"}  # by jinja2
    wrong = []
    for path in FILES:
        known = INSTALLED | brought | set(sys.stdlib_module_names) | {"kinfolk"}
        if name(path) in ("nn/triton_kernels.py", "nn/training_kernels.py", "nn/block_sparse.py"):
            known = known | {"triton"}  # these are imported only where torch brought triton
        if bad := {m.split(".")[0] for m in at_once(path)} - known:
            wrong.append(f"{name(path)} imports {', '.join(sorted(bad))} at once")
    assert not wrong, list_of(wrong)


def test_what_is_installed_is_what_the_project_names() -> None:
    project = Path(__file__).parents[1] / "pyproject.toml"
    block = re.search(r"^dependencies = \[(.*?)^\]", project.read_text(), re.M | re.S)
    assert block is not None
    assert set(re.findall(r'"([\w-]+)', block[1])) == INSTALLED | LATER


def test_every_file_says_what_it_is() -> None:
    assert len(FILES) > 100
    wrong = [name(path) for path in FILES if not ast.get_docstring(tree(path))]
    assert not wrong, list_of(wrong)


def test_a_family_file_names_its_paper_and_fits_one_sitting() -> None:
    wrong = []
    for path in FAMILIES:
        family = __import__(f"kinfolk.families.{path.stem}", fromlist=["FAMILY"]).FAMILY
        first = (ast.get_docstring(tree(path)) or "-").splitlines()[0]
        authors = family.paper.removesuffix(f" {family.year}")
        if not first.startswith(f"{family.title} ({authors}, {family.year}): "):
            wrong.append(f"{name(path)} begins with {first!r}")
        if family.architecture not in get_args(Architecture):
            wrong.append(f"{name(path)} has the architecture {family.architecture!r}")
        if family.model.decoding not in (None, *get_args(Decoding)):
            wrong.append(f"{name(path)} decodes by {family.model.decoding!r}")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400:
            wrong.append(f"{name(path)} has {lines} lines")
    assert not wrong, list_of(wrong)


def test_a_family_imports_only_those_it_descends_from() -> None:
    names = {path.stem for path in FAMILIES}
    for path in FAMILIES:
        used = {m.rpartition(".")[2] for m in imported(path) if m.startswith("kinfolk.families.")}
        assert used & names <= DESCENT.get(path.stem, set()), name(path)
        settings = {m for m in imported(path) if m.startswith("kinfolk.training.")}
        assert settings <= {"kinfolk.training.config"}, name(path)
