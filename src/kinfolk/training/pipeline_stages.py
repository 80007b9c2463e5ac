"""The stages of a pipeline: a network cut by its layers."""

from typing import Any

from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel, LayerStack
from kinfolk.training.optimizer import layer_index, num_layers


class OtherStage(nn.Module):
    """A module that another process of the pipeline computes: it returns its input."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return x


def check_depth(model: LanguageModel, count: int) -> None:
    """Refuse a network that cannot be cut into this many stages."""
    if not model.pipelined:
        raise UserError(
            f"train.pipeline={count} does not apply to {model.family_name}: only networks of one "
            "stack of layers that hand on nothing but hidden states are cut into stages; leave "
            "train.pipeline at 1"
        )
    if count > num_layers(model):
        raise UserError(
            f"train.pipeline={count} is more than the {num_layers(model)} layers of "
            f"{model.family_name}: choose at most one stage for each layer"
        )


def cut_depth(model: LanguageModel, stage: int, count: int) -> None:
    """Leave one stage of a network: embeddings in the first, heads in the last, layers in each.

    Embeddings that are the output layer, too, are in both. The names of parameters stay.
    """
    layers, last, number = num_layers(model), stage == count - 1, layer_index(model)
    own = range(layers * stage // count, layers * (stage + 1) // count)
    tied = None if "token_embeddings" in model.input_only else model.token_embeddings
    for name, child in [*model.named_children()]:
        if isinstance(child, LayerStack):
            for layer in set(range(layers)).difference(own):
                child[layer] = OtherStage()
            continue
        first = next((number[f"{name}.{path}"] for path, _ in child.named_parameters()), None)
        kept = first is None or (stage == 0 if first == 0 else last) or (child is tied and last)
        if not kept:
            setattr(model, name, OtherStage())
