"""Count how far the code is from the house that docs/architecture.md describes.

`python -m tests.measures` prints the table; `--markdown` prints it as docs/architecture.md has it.
"""

import ast
import collections
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "kinfolk"
FAMILIES = [
    "ngram",
    "transformer",
    "cove",
    "elmo",
    "cvt",
    "ulmfit",
    "gpt",
    "gpt2",
    "gpt3",
    "bert",
    "roberta",
    "albert",
    "electra",
    "t5",
    "transformer_xl",
    "xlnet",
    "glm",
]
# Words that an earlier version of this code had for things that the field has other words for.
PRIVATE = frozenset(
    [
        "Sight",
        "sight",
        "birth",
        "clock",
        "Visible",
        "places",
        "IGNORED",
        "look_near",
        "quieten",
        "widen",
        "turned",
        "Headed",
        "Ranker",
        "Member",
        "KIND",
        "PRESETS",
        "LADDER",
        "Piece",
        "Pieces",
        "pieces",
        "Feed",
        "Lanes",
        "Lessons",
        "Specials",
        "specials",
        "FRAMES",
        "lessons",
        "Sheet",
        "Habits",
        "Tuning",
        "thaw",
        "shake",
        "Wishes",
        "Judge",
    ]
)


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(["kinfolk", *(parts[:-1] if parts[-1] == "__init__" else parts)])


FILES = {module_name(path): path for path in ROOT.rglob("*.py")}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}


@cache
def parsed_modules() -> dict[str, ast.Module]:
    """Parse every module of the package."""
    return {name: ast.parse(text) for name, text in TEXTS.items()}


def imports(name: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports, also inside functions."""
    for node in ast.walk(parsed_modules()[name]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kinfolk":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in FILES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "kinfolk")


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def package(name: str) -> str:
    """Return the package, or the single file, that a module belongs to."""
    return [*name.split("."), "__init__"][1]


def names_with_several_homes() -> set[str]:
    """Return the public top-level names that two or more modules define."""
    homes: dict[str, set[str]] = collections.defaultdict(set)
    for name, tree in parsed_modules().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                homes[node.name].add(name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        homes[target.id].add(name)
    return {n for n, where in homes.items() if len(where) > 1 and not n.startswith("_")}


def private_words(trees: Iterable[ast.AST]) -> collections.Counter[str]:
    """Count the private words among the identifiers of some files."""
    found: collections.Counter[str] = collections.Counter()
    for tree in trees:
        for node in ast.walk(tree):
            values = [getattr(node, kind, None) for kind in ("name", "arg", "attr", "id")]
            found.update({value for value in values if isinstance(value, str)} & PRIVATE)
    return found


def measures() -> list[tuple[str, int, int]]:
    """Return what is counted, its value and its target."""
    sys.setrecursionlimit(10_000)
    graph = {m: {t for t in imports(m) if t in FILES and t != m} for m in FILES}
    packages: dict[str, set[str]] = collections.defaultdict(set)
    for name, targets in graph.items():
        packages[package(name)] |= {package(t) for t in targets} - {package(name)}
    everything = "\n".join(TEXTS.values())
    classes = collections.Counter(
        node.name
        for tree in parsed_modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    spread = max(sum(m.rpartition(".")[2] == family for m in FILES) for family in FAMILIES)
    return [
        ("source files", len(FILES), 175),
        ("source lines", sum(text.count("\n") for text in TEXTS.values()), 27_500),
        ("files named after one family, at most", spread, 1),
        ("classes called Run", classes["Run"], 1),
        ("collate functions", len(re.findall(r"^\s*def collate\(", everything, re.M)), 2),
        ("import cycles between modules", len(cycles(graph)), 0),
        ("import cycles between packages", len(cycles(packages)), 0),
        ("hasattr and getattr", len(re.findall(r"\b(?:has|get)attr\(", everything)), 30),
        ("type: ignore", everything.count("type: ignore"), 25),
        ("top-level names with two or more homes", len(names_with_several_homes()), 75),
        ("private words used as names", sum(private_words(parsed_modules().values()).values()), 0),
    ]


PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
IMPORT_HEAD = "| package | may import |"


def replace_table(text: str, head: str, table: str) -> str:
    """Return a page with the table that begins with a head replaced; it ends at a blank line."""
    before, found, after = text.partition(head)
    if not found:
        raise ValueError(f"no table begins with {head!r}")
    return before + table + "\n\n" + after.partition("\n\n")[2]


def measure_table(rows: list[tuple[str, int, int]]) -> str:
    """Return the measures in Markdown."""
    lines = [f"| {what} | {value:,} | {target:,} |" for what, value, target in rows]
    return "\n".join(["| measure | now | target |", "| --- | ---: | ---: |", *lines])


def import_table() -> str:
    """Return what each package may import in Markdown."""
    from tests.test_architecture import ALLOWED, BASE

    rows = []
    for package, allowed in ALLOWED.items():
        names = sorted(allowed - BASE if allowed >= BASE else allowed)
        listed = [f"`{name}`" for name in names]
        words = ["foundations", *listed] if allowed >= BASE else listed or ["nothing"]
        rows.append(f"| `{package}` | {', '.join(words)} |")
    return "\n".join([IMPORT_HEAD, "| --- | --- |", *rows])


def main() -> None:
    """Print the measures; with --write, put both tables into docs/architecture.md."""
    rows = measures()
    if "--write" in sys.argv:
        text = PAGE.read_text(encoding="utf-8")
        text = replace_table(text, "| measure | now | target |", measure_table(rows))
        PAGE.write_text(replace_table(text, IMPORT_HEAD, import_table()), encoding="utf-8")
        return
    for what, value, target in rows:
        missed = "" if value <= target else "missed"
        print(f"{what:45} {value:>7,}   target {target:>7,}   {missed}")


if __name__ == "__main__":
    main()
