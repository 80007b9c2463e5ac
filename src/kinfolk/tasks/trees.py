"""Parse trees with a label on every node, a tree a line, as the Stanford Sentiment Treebank has it.

(3 (2 It) (4 works))        Labelled(("It works",), "3", 1)
"""

import re
from collections.abc import Iterator
from pathlib import Path

from kinfolk.errors import UserError
from kinfolk.tasks.records import read_lines
from kinfolk.tasks.rows import LabelledText

TREE = re.compile(r"\((\S+) .*\)")
LEAF = re.compile(r"\(\S+ ([^()\s]+)\)")
PTB_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def read(path: Path) -> Iterator[LabelledText]:
    """Stream the words of each tree with the label on its top."""
    for number, line in read_lines(path):
        if not (tree := line.strip()):
            continue
        match = TREE.fullmatch(tree)
        if match is None or tree.count("(") != tree.count(")"):
            raise UserError(
                f"line {number:,} of {path} is no tree: write (label (label word) ...), every "
                "bracket closed"
            )
        words = (PTB_BRACKETS.get(word, word) for word in LEAF.findall(tree))
        yield LabelledText((" ".join(words),), match[1], number)
