"""The layers of a network, told by its stacks of layers and the order in which it builds its parts.

    tokens  places  norm | blocks.0 | blocks.1 | pooler  head
    0       0       0    | 1        | 2        | 3       3

A stack is a `LayerStack` or `SharedLayers`, whatever attribute holds it. A norm built before the
stack is that of the embeddings (BERT), one built behind it is the last (GPT-2). An encoder and a
decoder number their layers separately, and layers that share their weights are one (ALBERT).
"""

from dataclasses import dataclass

from torch import nn

from kinfolk.nn.language_model import LanguageModel, LayerStack, SharedLayers


@dataclass(frozen=True)
class _Stack:
    owner: str  # the path of the module that holds the stack; its parts are before it or behind
    layers: tuple[str, ...]  # the path of each layer


def num_layers(model: nn.Module) -> int:
    """Return how many layers the highest stack has."""
    return max((len(stack.layers) for stack in _stacks(_backbone(model))), default=0)


def layer_index(model: nn.Module) -> dict[str, int]:
    """Return the layer of every parameter by its name."""
    body, top = _backbone(model), num_layers(model) + 1
    stacks, begun = _stacks(body), set[_Stack]()
    inner: dict[nn.Parameter, int] = {}
    for name, parameter in body.named_parameters():
        inside = [
            (stack, 1 + number)
            for stack in stacks
            for number, layer in enumerate(stack.layers)
            if _within(name, layer)
        ]
        if inside:
            stack, inner[parameter] = inside[0]
            begun.add(stack)
            continue
        own = {stack for stack in stacks if _within(name, stack.owner)}
        inner[parameter] = top if (begun & own if own else begun) else 0
    # The parameters of a head are not the backbone's: they are on top of it.
    return {name: inner.get(parameter, top) for name, parameter in model.named_parameters()}


def _backbone(model: nn.Module) -> nn.Module:
    return model.pretrained if isinstance(model, LanguageModel) else model


def _stacks(model: nn.Module) -> list[_Stack]:
    found = []
    for path, module in model.named_modules():
        owner = path.rpartition(".")[0]
        if isinstance(module, LayerStack) and len(module):
            found.append(_Stack(owner, tuple(f"{path}.{number}" for number in range(len(module)))))
        if isinstance(module, SharedLayers):
            found.append(_Stack(owner, (path,)))
    return found


def _within(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")
