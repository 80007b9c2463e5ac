"""Gradual unfreezing (Howard and Ruder 2018, section 3.3): a network learns from the top down.

The last layer knows least of what all texts have in common. It learns alone at first; every so many
updates the layer below joins in, until all of them learn.
"""

from torch import nn

from kinfolk.errors import UserError
from kinfolk.training.layers import layer_index


class GradualUnfreezing:
    """Say before each update which layers learn: the top one, and one more every so many updates.

    It is a function of the update's number alone, so that a run resumes as it was. What is frozen
    has no gradient, and an optimiser leaves it alone, decay and all. The optimiser is built before
    the first call: it takes what can be learned at that time. A compiled learner is compiled anew
    for each thaw.
    """

    def __init__(self, model: nn.Module, every: int) -> None:
        if every < 1:
            raise UserError(f"a layer thaws every {every} steps: it must be at least 1")
        self.every = every
        found = layer_index(model)
        learnt = [(found[n], p) for n, p in model.named_parameters() if p.requires_grad]
        numbers = sorted({layer for layer, _ in learnt}, reverse=True)
        # Layers in which nothing can be learned take no turn.
        self.layer_groups = [[p for layer, p in learnt if layer == number] for number in numbers]

    def __call__(self, number: int) -> None:
        """Freeze and thaw for one update; `number` counts from 0."""
        thawed = 1 + number // self.every
        for stage, parameters in enumerate(self.layer_groups):
            for parameter in parameters:
                parameter.requires_grad_(stage < thawed)
