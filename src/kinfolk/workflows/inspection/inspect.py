"""Look inside a model: what it computes for a text, by name, for plots and for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

from kinfolk.errors import UserError
from kinfolk.generation.prompts import check_ids
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.folders import load_tokenizer
from kinfolk.workflows.generate import to_inference
from kinfolk.workflows.inspection.layouts import Layout, layout_of_ids, layout_of_text
from kinfolk.workflows.inspection.network import (
    LensPredictions,
    NetworkValues,
    ValueArray,
    network_values,
    prediction_arrays,
)
from kinfolk.workflows.load import load


@dataclass(frozen=True, eq=False)
class Inspection:
    """What a model computes for a text: arrays by name, with one entry per token.

    `inspection["attention"]` is (layers, heads, query, key); `names` lists the others.
    """

    family: str
    input_ids: tuple[int, ...]  # of the row that makes predictions
    encoder_ids: tuple[int, ...]  # of the encoder, if there is one
    labels: tuple[int | None, ...]  # predicted at each place
    # The token of the text at each place of both rows, None elsewhere; empty without a text.
    sources: tuple[int | None, ...]
    encoder_sources: tuple[int | None, ...]
    arrays: Mapping[str, ValueArray]
    predictions: Mapping[str, LensPredictions] = field(default_factory=dict)
    values: NetworkValues = field(default_factory=NetworkValues)

    def __getitem__(self, name: str) -> ValueArray:
        if name not in self.arrays:
            raise UserError(f"no array {name!r}: choose one of {', '.join(self.names)}")
        return self.arrays[name]

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self.arrays)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={array.shape}" for name, array in self.arrays.items())
        return f"Inspection({self.family}, {len(self.input_ids)} tokens, {shapes})"


def inspect(
    model: LanguageModel | Path | str,
    text: str | Sequence[int],
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    target: str | Sequence[int] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Inspection:
    """Return what a model computes for a text: `inspect("runs/gpt2", "The cat sat")["attention"]`.

    The model is a folder, or the network that `kinfolk.load` returns, with its tokenizer. A list of
    token ids is read as it is; a text gets the special tokens of the family. An encoder-decoder
    reads the text, and `target` is what its decoder predicts; without one, spans of the text are
    cut out by `seed`, or a target is generated. The network is left as it was, and where it was;
    `device` is for the model of a folder.
    """
    if isinstance(tokenizer, Path | str):
        tokenizer = load_tokenizer(tokenizer)
    if isinstance(model, Path | str):
        model, tokenizer = load(model, tokenizer)
        to_inference(model, device=device, precision="fp32")
    layout = lay_out(model, text, tokenizer, target, seed)
    check_length(model, layout)
    check_ids(model, [*layout.input_ids, *layout.encoder_ids], "text")
    mask_id = None if tokenizer is None else tokenizer.special_tokens.mask
    values = network_values(model, layout, mask_id)
    return Inspection(
        model.family_name,
        tuple(layout.input_ids),
        tuple(layout.encoder_ids),
        tuple(layout.labels),
        tuple(layout.sources),
        tuple(layout.encoder_sources),
        values.arrays | prediction_arrays(values.predictions),
        values.predictions,
        values,
    )


def lay_out(
    model: LanguageModel,
    text: str | Sequence[int],
    tokenizer: Tokenizer | None,
    target: str | Sequence[int] | None,
    seed: int,
) -> Layout:
    """Lay out a text, or token ids, as the model reads them."""
    device = next(model.parameters()).device
    if isinstance(text, str):
        if tokenizer is None:
            raise UserError(
                "a text needs the tokenizer of the model: inspect(model, text, tokenizer)"
            )
        if not text.strip():
            raise UserError("the text is empty: give some words")
        if target is not None and not isinstance(target, str):
            raise UserError("the target of a text is a text: give a string")
        return layout_of_text(model.pretrained, text, tokenizer, target, seed, device)
    if isinstance(target, str):
        raise UserError("the target of token ids is token ids: give a list")
    if not len(text):
        raise UserError("there are no token ids: give some")
    given: list[object] = [*text, *(target or ())]
    strange = [i for i in given if isinstance(i, bool) or not isinstance(i, Integral)]
    if strange:
        raise UserError(f"{strange[0]!r} is no token id: give integers, or the text as a string")
    check_ids(model, [*text, *(target or ())], "text")
    return layout_of_ids(model.pretrained, text, target, device)


def check_length(model: LanguageModel, layout: Layout) -> None:
    """Refuse a row that is longer than the context."""
    longest = max(len(layout.input_ids), len(layout.encoder_ids))
    limit = model.config.max_length
    if limit is not None and longest > limit:
        raise UserError(
            f"the text has {longest} tokens, and the context of the model has {limit}: use a "
            "shorter text"
        )
