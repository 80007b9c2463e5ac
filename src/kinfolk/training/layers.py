"""The layers of a network, told by what its parameters are called and the order they are built in.

    tokens  places  norm | blocks.0 | blocks.1 | pooler  head
    0       0       0    | 1        | 2        | 3       3

Names alone would not do: a `norm` built before the blocks is the tables' (BERT), one built behind
them is the last (GPT-2). An encoder and a decoder count their blocks each by themselves, and blocks
that share their weights are one layer (ALBERT).
"""

import re

from torch import nn

BODY = "body."  # before the names of a member that has got a head
BLOCK = re.compile(r"((?:.*?\.)?)blocks\.(\d*)")  # the stack it stands in, and its number


def depth_of(model: nn.Module) -> int:
    """Return how many blocks stand on each other."""
    found = [BLOCK.match(name.removeprefix(BODY)) for name, _ in model.named_parameters()]
    return max((1 + int(block[2] or 0) for block in found if block), default=0)


def layers(model: nn.Module) -> dict[str, int]:
    """Return the layer of every parameter by its name."""
    names = [name for name, _ in model.named_parameters()]
    headed = any(name.startswith(BODY) for name in names)
    inner = [name.removeprefix(BODY) for name in names if not headed or name.startswith(BODY)]
    top = depth_of(model) + 1
    found = dict.fromkeys(names, top)  # what stands beside a body stands on it
    return found | {BODY * headed + name: layer for name, layer in _numbered(inner, top)}


def _numbered(names: list[str], top: int) -> list[tuple[str, int]]:
    """Go through the names in their order, and see for each whether its stack has begun."""
    stacks = {block[1] for name in names if (block := BLOCK.match(name))}
    begun: set[str] = set()
    found = []
    for name in names:
        if block := BLOCK.match(name):
            begun.add(block[1])
            found.append((name, 1 + int(block[2] or 0)))
            continue
        own = {stack for stack in stacks if name.startswith(stack)}
        behind = begun & own if own else begun
        found.append((name, top if behind else 0))
    return found
