"""Text every machine has: the documentation that comes with Python, a few megabytes of English."""

import ast
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from kinfolk.errors import UserError

SKIPPED = {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages"}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
MIN_DOCUMENT_CHARS = 200  # characters: less than a paragraph is no document


def demo_documents() -> Iterator[str]:
    """Yield the language reference, then a document for each module and class with docstrings."""
    sources = list(stdlib())
    if not sources:
        raise UserError(
            f"no Python sources in {sysconfig.get_path('stdlib')}: use a Python installation with "
            "the sources of its standard library, or your own text"
        )
    seen: set[str] = set()
    for name in sorted(topics):
        yield from deduplicated_document([clean(topics[name])], seen)
    for source in sources:
        for docstrings in groups(source):
            yield from deduplicated_document(docstrings, seen)


def write(folder: Path) -> Path:
    """Write every document as one block of lines, with an empty line between two documents."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "prose.txt"
    blocks = (re.sub(r"\n\s*\n", "\n", document) for document in demo_documents())
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8", newline="\n")
    return path


def stdlib() -> Iterator[Path]:
    """Yield the sources of the standard library in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names):
        if (root / f"{name}.py").is_file():
            yield root / f"{name}.py"
        for path in sorted((root / name).rglob("*.py")):
            if SKIPPED.isdisjoint(path.relative_to(root).parts):
                yield path


def groups(source: Path) -> Iterator[list[str]]:
    """Yield the docstrings of a module and its functions, then those of each class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the standard library
        tree = ast.parse(source.read_bytes())
    owners: list[ast.Module | ast.ClassDef] = [tree]
    owners += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for owner in owners:
        members = [node for node in owner.body if isinstance(node, FUNCTION)]
        docstrings = (ast.get_docstring(node) for node in (owner, *members))
        yield [clean(docstring) for docstring in docstrings if docstring]


def deduplicated_document(docstrings: list[str], seen: set[str]) -> Iterator[str]:
    """Yield the docstrings not seen before as one document, if they make a paragraph."""
    new = [docstring for docstring in dict.fromkeys(docstrings) if docstring not in seen]
    seen.update(new)
    document = "\n\n".join(new)
    if len(document) >= MIN_DOCUMENT_CHARS:
        yield document


def clean(text: str) -> str:
    """Keep paragraphs, and no control characters, spaces at line ends or longer gaps."""
    text = re.sub(r"[^\S\n]+$", "", text.expandtabs(), flags=re.MULTILINE)
    text = "".join(c for c in text if c == "\n" or c.isprintable())
    return re.sub(r"\n{3,}", "\n\n", text).strip()
