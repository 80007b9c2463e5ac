"""What every network and its config declare about themselves, and the types that mark their parts.

Training, generation and the hub ask these declarations. They never search parameter names and never
probe for attributes.
"""

from dataclasses import fields, replace
from typing import Any, Literal, Self

from torch import Tensor, nn

from kinfolk.batch import Inputs, LazyLogits, Output
from kinfolk.config import config, field

Architecture = Literal["encoder", "decoder", "encoder-decoder", "recurrent"]
# How it generates: the next token; the same about a source; into the blanks of a text (GLM); by
# asking for the token at a position (XLNet).
Decoding = Literal["causal", "encoder-decoder", "infilling", "two-stream"]


@config("pooling")
class Pooling:
    """How a member's hidden states become one vector of a text."""

    token: Literal["first", "last"] = field(
        default="first", help="token whose hidden state is read"
    )
    activation: Literal["tanh", "gelu"] | None = field(
        default=None, help="activation after a new dense layer; None has no such layer"
    )
    pooler: bool = field(default=False, help="use the family's own pretrained pooling layer")
    bias: bool = field(default=True, help="add a bias to the scores")


class ModelConfig:
    """A frozen dataclass that describes a network; these are the defaults of what it may declare.

    They are properties and no fields, so that a config without such a setting does not take one.
    """

    vocab_size: int

    @classmethod
    def network(cls) -> "type[LanguageModel]":
        """Return the class of the network that it describes."""
        raise NotImplementedError

    def build(self) -> "LanguageModel":
        """Build the network, with fresh weights."""
        raise NotImplementedError

    @property
    def pretrained(self) -> "ModelConfig":
        """The config of the pretrained network: itself, or what a task head stands on."""
        return self

    @property
    def max_length(self) -> int | None:
        """The longest input in tokens; None where there is no bound."""
        return None

    @property
    def head_dim(self) -> int | None:
        """The width of an attention head; None is the width divided by the heads."""
        return None

    @property
    def init_std(self) -> float:
        """The standard deviation of fresh matrices."""
        return 0.02

    def with_fields(self, **values: Any) -> Self:
        """Replace the fields that it has, and leave out the values of those that it has not."""
        declared = {field.name for field in fields(self)}  # type: ignore[arg-type]
        known = {name: value for name, value in values.items() if name in declared}
        return replace(self, **known)  # type: ignore[type-var]


class LanguageModel(nn.Module):
    """A network over tokens: it obeys the sight in its inputs and knows no objective."""

    config: Any
    token_embeddings: nn.Module  # input ids to vectors
    architecture: Architecture
    decoding: Decoding | None = None  # None: it does not generate
    can_fill: bool = False  # it predicts masked tokens or spans from both sides
    static_cache: bool = True  # one step over its cache has the same shapes as the next
    attention_windows: tuple[int, ...] = ()  # how far back its banded layers look
    pooling: Pooling | None = None  # how a head reads a whole text; None: it takes no head
    pretraining_only: tuple[str, ...] = ()  # attributes that a network with a task head lacks
    pooling_only: tuple[str, ...] = ()  # attributes that only a head over a whole text reads

    @property
    def pretrained(self) -> "LanguageModel":
        """The pretrained network: itself, or what a task head stands on."""
        return self

    def forward_lm(self, inputs: Inputs) -> Output:
        """Run what predicts tokens: the network itself, or its generator (ELECTRA)."""
        return self(inputs)

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the scores over the vocabulary, computed when they are asked for."""
        raise NotImplementedError


class LayerStack(nn.ModuleList):
    """Layers in the order in which they run; layer-wise learning rates number them from 1."""


class SharedLayers(nn.Module):
    """Layers that share their weights: they are numbered as one (ALBERT)."""


class WithBiases(nn.Module):
    """A module with biases of two or more axes, which their shape does not tell from matrices."""

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return these biases: they are exempt from weight decay."""
        raise NotImplementedError


def attention_windows(module: nn.Module) -> tuple[int, ...]:
    """Return the attention windows of the networks in a module, each once."""
    networks = [part for part in module.modules() if isinstance(part, LanguageModel)]
    return tuple({window: None for part in networks for window in part.attention_windows})
