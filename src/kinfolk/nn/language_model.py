"""What every network and its config declare about themselves, and the types that mark their parts.

Training, generation and the hub ask these declarations. They never search parameter names and never
probe for attributes.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A frozen description of a network."""

    vocab: int

    @property
    def network(self) -> "type[LanguageModel]":
        """The class of the network that it describes."""
        raise NotImplementedError

    def build(self) -> "LanguageModel":
        """Build the network, with fresh weights."""
        raise NotImplementedError


class LanguageModel(nn.Module):
    """A network over tokens that was built from a config."""

    config: Any
    tokens: nn.Module  # input ids to vectors
    pretraining_only: tuple[str, ...] = ()  # attributes that a network with a task head lacks
    pooling_only: tuple[str, ...] = ()  # attributes that only a head over a whole text reads

    @property
    def backbone(self) -> "LanguageModel":
        """The pretrained network: itself, or what a task head stands on."""
        return self


class LayerStack(nn.ModuleList):
    """Layers in the order in which they run; layer-wise learning rates number them from 1."""


class SharedLayers(nn.Module):
    """Layers that share their weights: they are numbered as one (ALBERT)."""


class WithBiases(nn.Module):
    """A module with biases of two or more axes, which their shape does not tell from matrices."""

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return these biases: they are exempt from weight decay."""
        raise NotImplementedError
