"""The values that the page of an inspection shows, as plain numbers, texts and arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Probabilities = npt.NDArray[np.float32]
MaskArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class StreamView:
    """The tokens that one part of a network reads; every sequence has one entry per token."""

    name: str
    tokens: Sequence[str]
    input_ids: Sequence[int]
    sources: Sequence[int | None]  # the token of the text that stands here; None: a special token
    changes: Sequence[str]  # what happened to it: "", special, masked, replaced, kept, cut
    labels: Sequence[str | None]  # the token that is predicted here; None: nothing is
    label_ids: Sequence[int | None]
    label_sources: Sequence[int | None]
    # Of a discriminator, whose labels are no tokens: the tokens that samples stand for.
    originals: Sequence[int | None] = ()
    # Other integers of a token by their names: position_ids, token_type_ids, order ...
    integers: Mapping[str, Sequence[int]]
    starts: Sequence[int] = ()  # the first token of each later segment or document


@dataclass(frozen=True, kw_only=True)
class MaskView:
    """Which keys each query attends to."""

    name: str
    hint: str
    queries: str  # the name of the stream,
    keys: str
    mask: MaskArray  # (query, key)
    query_positions: Sequence[int]  # of each row in its stream
    axes: tuple[str, str] = ("query", "key")  # what a row is, and what a column is


@dataclass(frozen=True, kw_only=True)
class ObjectiveView:
    """What one objective makes of the text."""

    family: str
    title: str
    objective: str
    description: str
    streams: Sequence[StreamView]
    masks: Sequence[MaskView]
    spans: Sequence[tuple[int, int]] = ()  # characters of each token of the text
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    tables: Sequence["TableView"] = ()


@dataclass(frozen=True, kw_only=True)
class TableView:
    """A small table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class PredictionView:
    """The prediction at one place of the text."""

    token: str  # of the row
    read: str | None  # in its place to predict it: a mask, or nothing
    label: str | None  # that is predicted there; None: there is no label
    probability: float | None  # of the label
    loss: float | None  # in nats
    best: Sequence[tuple[str, float]]  # tokens and probabilities, the best first
    by_layer: Sequence[tuple[str, float, float | None]]  # best token, its probability, the label's

    @property
    def hidden(self) -> bool:
        """Whether the network does not read the token to predict it."""
        return self.read != self.token


@dataclass(frozen=True, kw_only=True)
class AttentionView:
    """The attention probabilities of every layer and head."""

    name: str
    probabilities: Probabilities  # (layers, heads, query, key)
    queries: Sequence[str]
    keys: Sequence[str]
    # Characters of the text that each of them stands for; None: a special token.
    query_spans: Sequence[tuple[int, int] | None]
    key_spans: Sequence[tuple[int, int] | None]
    row_starts: Sequence[int] = ()  # rows after the first, which attend to a memory
    memory: int = 0  # tokens before a row that are in its memory


@dataclass(frozen=True, kw_only=True)
class CurvesView:
    """Values at every token, by layer."""

    title: str
    hint: str
    unit: str
    tokens: Sequence[str]
    curves: Sequence[tuple[str, Sequence[float]]]  # name and value at every token


@dataclass(frozen=True, kw_only=True)
class TokenValuesView:
    """A value from 0 to 1 for every token."""

    title: str
    hint: str
    tokens: Sequence[str]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """What a trained model computes for the text."""

    name: str
    family: str
    hint: str
    lens_names: Sequence[str]  # of the layers of the logit lens
    predictions: Sequence[tuple[str, Sequence[PredictionView]]]  # by direction or network
    attention: Sequence[AttentionView]
    curves: Sequence[CurvesView]
    token_values: Sequence[TokenValuesView] = ()
    tables: Sequence[TableView] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class CostPart:
    """The parameters and the FLOPs of a part of a network."""

    name: str
    parameters: int
    parameter_formula: str
    flops: int  # of a forward pass
    flop_formula: str


@dataclass(frozen=True, kw_only=True)
class CostView:
    """What a network costs: parameters and FLOPs by part, memory by batch and length."""

    name: str
    tokens: int  # of the forward pass whose FLOPs are counted
    parts: Sequence[CostPart]
    lengths: Sequence[int]
    batches: Sequence[int]
    training_bytes: Sequence[Sequence[int]]  # by batch, then by length
    decoding_bytes: Sequence[Sequence[int]]  # the same; empty where it does not generate
    training_formula: str
    decoding_formula: str


@dataclass(frozen=True, kw_only=True)
class InspectPage:
    """The values that the page shows."""

    title: str
    text: str
    tokens: Sequence[tuple[str, tuple[int, int]]]  # of the text, with their characters
    objectives: Sequence[ObjectiveView]
    models: Sequence[ModelView]
    costs: Sequence[CostView]
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()  # what was left out, and why
    warnings: Sequence[str] = ()
