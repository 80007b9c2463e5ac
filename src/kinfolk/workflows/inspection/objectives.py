"""What each objective of a family makes of a text: inputs, labels, positions, attention masks."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import IntArray
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.families.base import Family
from kinfolk.generation.prompts import eval_mode
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from kinfolk.nn.meta import meta_network
from kinfolk.objectives.bilm import BiLM, backward_example
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.permutation_lm import PermutationLM
from kinfolk.objectives.rtd import RTD, RTDTargets, replace_tokens, sample_tokens
from kinfolk.objectives.sop import SOP
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.reports.inspect_view import MaskArray, ObjectiveView, StreamView
from kinfolk.text.token_views import readable_tokens
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.inspection.draws import Draw, InspectedText, draw_examples
from kinfolk.workflows.inspection.masks import mask_views
from kinfolk.workflows.inspection.notes import (
    blank_names,
    count_notes,
    drawn_notes,
    position_notes,
)

NSP_LABELS = (
    "0, the second text follows the first",
    "1, the second text is from elsewhere, in place of what follows",
)
SOP_LABELS = ("0, both texts are in order", "1, both texts were swapped")


def inspect_objective(
    family: Family,
    name: str,
    config: ModelConfig,
    text: InspectedText,
    seed: int = 0,
    model: LanguageModel | None = None,
) -> tuple[ObjectiveView, Draw]:
    """Return what an objective of a family makes of a text, and the examples it is made of.

    Of a trained ELECTRA the generator samples tokens, by the random numbers of the examples.
    """
    draw = draw_examples(family.objective(name), text, seed)
    check_context(family.name, config, draw)
    alone = draw.objective.encoder_alone and bool(config.network.decoder_modules)
    streams = stream_views(draw, text.tokenizer, encoder_alone=alone)
    generator = model if model is None or not missing_lm_head(model) else None
    if isinstance(draw.objective, RTD):
        streams.append(discriminator_stream(draw, text.tokenizer, streams[0], generator))
    network = meta_network(config)
    blanks = isinstance(draw.objective, BlankInfilling)
    names = blank_names(draw.objective.special_tokens) if blanks else {}
    streams = [shown_stream(stream, network, names) for stream in streams]
    view = ObjectiveView(
        family=family.name,
        title=family.title,
        objective=name,
        description=described(type(draw.objective)),
        streams=streams,
        masks=mask_views(draw, config),
        facts=facts_of(draw),
        notes=[
            *draw.notes,
            *count_notes(draw.objective, streams, sampled=generator is not None),
            *drawn_notes(draw, text.tokenizer, names),
            *position_notes(network),
        ],
    )
    return view, draw


def shown_stream(
    stream: StreamView, network: LanguageModel, names: Mapping[int, str]
) -> StreamView:
    """Return a stream with tokens named by their roles, and positions where they are read."""
    integers = {
        name: values
        for name, values in stream.integers.items()
        if name != "position_ids" or network.first_position is not None
    }
    tokens = [
        names.get(id, token) for id, token in zip(stream.input_ids, stream.tokens, strict=True)
    ]
    return replace(stream, tokens=tokens, integers=integers)


def check_context(name: str, config: ModelConfig, draw: Draw) -> None:
    """Refuse a row that is longer than the context of the network."""
    longest = max(max(example.lengths) for row in draw.rows for example in row)
    if config.max_length is not None and longest > config.max_length:
        raise UserError(
            f"the text has {longest} tokens with those that {name} adds, and its context has "
            f"{config.max_length}: use a shorter text"
        )


def described(objective: type[Objective]) -> str:
    """Return the first sentence of the file that an objective lies in."""
    return (sys.modules[objective.__module__].__doc__ or "").strip().partition("\n")[0]


def stream_views(
    draw: Draw, tokenizer: Tokenizer, *, encoder_alone: bool = False
) -> list[StreamView]:
    """Return the streams that the parts of a network read.

    `encoder_alone`: of an encoder-decoder, whose encoder predicts masked tokens.
    """
    pairs = [
        pair
        for rows in zip(draw.rows, draw.marked, strict=True)
        for pair in zip(*rows, strict=True)
    ]
    if isinstance(draw.objective, BiLM):
        backward = [tuple(map(backward_example, pair)) for pair in pairs]
        both = ("forward", pairs), ("backward", backward)
        return [token_stream(draw, tokenizer, name, found) for name, found in both]
    if pairs[0][0].encoder_input_ids is None:
        name = "generator" if isinstance(draw.objective, RTD) else "input"
        return [token_stream(draw, tokenizer, "encoder" if encoder_alone else name, pairs)]
    return [encoder_stream(draw, tokenizer), token_stream(draw, tokenizer, "decoder", pairs)]


def token_stream(
    draw: Draw, tokenizer: Tokenizer, name: str, pairs: Sequence[tuple[Example, ...]]
) -> StreamView:
    """Return the stream that makes predictions, from examples and their marked copies."""
    ids = np.concatenate([real.input_ids for real, _ in pairs])
    labels = np.concatenate([real.labels for real, _ in pairs if real.labels is not None])
    sources = draw.source(np.concatenate([marked.input_ids for _, marked in pairs]))
    label_sources = draw.source(
        np.concatenate([marked.labels for _, marked in pairs if marked.labels is not None])
    )
    predicted = labels != IGNORE_INDEX
    shown = iter(readable_tokens(tokenizer, labels[predicted].tolist()))
    return StreamView(
        name=name,
        tokens=readable_tokens(tokenizer, ids.tolist()),
        input_ids=ids.tolist(),
        sources=sources,
        changes=changes_of(draw.objective, ids, sources, predicted, label_sources),
        labels=[next(shown) if one else None for one in predicted],
        label_ids=[int(i) if one else None for i, one in zip(labels, predicted, strict=True)],
        label_sources=label_sources,
        integers=integers_of(draw, name),
        starts=starts_of([len(real.input_ids) for real, _ in pairs]),
    )


def discriminator_stream(
    draw: Draw, tokenizer: Tokenizer, generator: StreamView, model: LanguageModel | None
) -> StreamView:
    """Return what the discriminator reads and predicts; without a generator, of words of the text.

    The words stand for samples; the same random numbers choose them.
    """
    (batch,) = draw.batches
    targets: RTDTargets = batch.targets
    if model is None:
        words = torch.from_numpy(draw.ids)
        sampled = words[(targets.uniforms * len(words)).long()]
    else:
        device = next(model.parameters()).device
        with torch.no_grad(), eval_mode(model):
            hidden = targets.tokens.to(device).gather(
                model.forward_lm(batch.inputs.to(device)).hidden
            )
            sampled = sample_tokens(model, hidden, targets.uniforms.to(device)).cpu()
    inputs, differs = replace_tokens(batch.inputs, targets.tokens, sampled)
    length = len(generator.tokens)
    ids: list[int] = inputs.input_ids[0, :length].tolist()
    replaced: list[bool] = differs[0, :length].tolist()
    return replace(
        generator,
        name="discriminator",
        tokens=readable_tokens(tokenizer, ids),
        input_ids=ids,
        sources=[
            None if new else label if source is None else source
            for new, source, label in zip(
                replaced, generator.sources, generator.label_sources, strict=True
            )
        ],
        changes=[
            "replaced" if new else "special" if change == "special" else ""
            for new, change in zip(replaced, generator.changes, strict=True)
        ],
        labels=["replaced" if new else "original" for new in replaced],
        label_ids=[int(new) for new in replaced],
        label_sources=[None] * length,
        originals=generator.label_sources,
    )


def missing_lm_head(model: LanguageModel) -> bool:
    """Return whether the modules that predict tokens were not in the model folder."""
    return any(name in model.lm_head_modules for name in model.random_modules)


def encoder_stream(draw: Draw, tokenizer: Tokenizer) -> StreamView:
    """Return the stream that an encoder reads."""
    rows = [example for row in draw.rows for example in row]
    arrays = [e.encoder_input_ids for e in rows if e.encoder_input_ids is not None]
    marked = [
        e.encoder_input_ids for row in draw.marked for e in row if e.encoder_input_ids is not None
    ]
    ids, sources = np.concatenate(arrays), draw.source(np.concatenate(marked))
    none = [None] * len(ids)
    inputs = draw.batches[0].inputs.encoder_inputs
    assert inputs is not None
    return StreamView(
        name="encoder",
        tokens=readable_tokens(tokenizer, ids.tolist()),
        input_ids=ids.tolist(),
        sources=sources,
        changes=changes_of(draw.objective, ids, sources, np.zeros(len(ids), np.bool_), none),
        labels=none,
        label_ids=none,
        label_sources=none,
        integers={"position_ids": inputs.position_ids[0, : len(ids)].tolist()},
        starts=starts_of([len(array) for array in arrays]),
    )


def changes_of(
    objective: Objective,
    ids: IntArray,
    sources: Sequence[int | None],
    predicted: MaskArray,
    label_sources: Sequence[int | None],
) -> list[str]:
    """Return what happened to each token."""
    special = objective.special_tokens
    # A decoder reads the sentinels that it has written; it is its encoder whose input was cut.
    writes = isinstance(objective, SpanCorruption) and bool(predicted.any())
    cuts = set() if writes else {special.mask, *special.sentinels}
    found = []
    for id, source, label, of in zip(ids.tolist(), sources, predicted, label_sources, strict=True):
        if id in cuts and source is None:
            found.append("masked" if label and id == special.mask else "cut")
        elif source is None and id in special.ids:
            found.append("special")
        elif label and source is None:
            found.append("replaced")
        elif label and source == of and not isinstance(objective, PermutationLM):
            found.append("kept")
        else:
            found.append("")
    return found


def integers_of(draw: Draw, name: str) -> dict[str, list[int]]:
    """Return the other integers of each token, as the batches have them."""
    found: dict[str, list[int]] = {}
    for row, batch in zip(draw.rows, draw.batches, strict=True):
        inputs = batch.targets.backward_inputs if name == "backward" else batch.inputs
        mask, length = inputs.attention_mask, sum(len(e.input_ids) for e in row)
        columns = {
            "position_ids": inputs.position_ids,
            "block_position_ids": inputs.block_position_ids,
            "token_type_ids": inputs.token_type_ids,
            "document": mask.document_ids,
            "order": mask.key_order,
        }
        for column, tensor in columns.items():
            if tensor is not None:
                found.setdefault(column, []).extend(tensor[0, :length].tolist())
    return found


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Return where each example after the first starts."""
    return np.cumsum(lengths)[:-1].tolist()


def facts_of(draw: Draw) -> list[tuple[str, str]]:
    """Return the labels of whole sequences."""
    if not isinstance(draw.objective, NSP):
        return []
    words = SOP_LABELS if isinstance(draw.objective, SOP) else NSP_LABELS
    labels = [e.sequence_label for row in draw.rows for e in row]
    none = "none, both texts are parts of a single sentence, whose order is not asked"
    return [
        (f"sequence_label of text {number}", none if label == IGNORE_INDEX else words[label])
        for number, label in enumerate(labels, start=1)
    ]
