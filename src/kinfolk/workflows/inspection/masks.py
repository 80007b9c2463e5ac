"""The attention masks of the batches that an objective makes of a text, without padding."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, SegmentMemory
from kinfolk.families.ngram import NGramConfig
from kinfolk.families.transformer_xl import TransformerXLConfig
from kinfolk.nn.language_model import ModelConfig
from kinfolk.nn.meta import meta_network
from kinfolk.objectives.bilm import BiLM
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.objectives.rtd import RTD
from kinfolk.reports.inspect_view import MaskArray, MaskView
from kinfolk.workflows.inspection.draws import Draw

STATE_AXES = ("state", "token read")  # of recurrent layers
ATTENDS = ""  # the page says it once for all
READS = "a filled column is a token that the recurrent state of the row's token has read."


def mask_views(draw: Draw, config: ModelConfig) -> list[MaskView]:
    """Return the attention masks of the batches, without padding."""
    network = meta_network(config)
    recurrent = any(isinstance(part, nn.LSTM) for part in network.modules())
    hint = f"No attention: {READS}" if recurrent else ATTENDS
    axes = STATE_AXES if recurrent else ("query", "key")
    if isinstance(draw.objective, RecurrentCLM):
        return memory_masks(draw, config, hint, axes)
    inputs, row = draw.batches[0].inputs, draw.rows[0]
    own = text_part(inputs.attention_mask, sum(len(e.input_ids) for e in row))
    if inputs.encoder_inputs is not None:
        source = text_part(inputs.encoder_inputs.attention_mask, sum(e.lengths[0] for e in row))
        cross = dense(AttentionMask.bidirectional(own.document_ids),
                      AttentionMask.bidirectional(source.document_ids))  # fmt: skip
        if recurrent:
            hint = f"Encoder and decoder have no self-attention: {READS}"
        return [
            mask_view("encoder", hint, "encoder", "encoder", dense(source), axes),
            mask_view("decoder", hint, "decoder", "decoder", dense(own), axes),
            mask_view("cross-attention", ATTENDS, "decoder", "encoder", cross),
        ]
    if isinstance(config, NGramConfig):
        hint = (
            "No attention: a filled column is a token of the context, the "
            f"{config.order - 1} before the prediction, in a model of order {config.order}."
        )
        context = dense(own, window=config.order - 1) if config.order > 1 else dense(own) & False
        return [mask_view("context", hint, "input", "input", context, ("prediction", "context"))]
    if inputs.target_positions is not None:
        return two_streams(draw, own, hint)
    if draw.objective.encoder_alone and network.decoder_modules:
        return [mask_view("encoder", hint, "encoder", "encoder", dense(own))]
    if isinstance(draw.objective, RTD):
        return [
            mask_view("attention", hint, "generator", "generator", dense(own)),
            mask_view(
                "attention of the discriminator", hint, "discriminator", "discriminator", dense(own)
            ),
        ]
    name = "state" if recurrent else "attention"
    if isinstance(config, TransformerXLConfig):
        own_mask = dense(own, window=config.attention_window)
        return [mask_view(name, hint, "input", "input", own_mask)]
    found = [mask_view(name, hint, "input", "input", dense(own), axes)]
    for window in network.attention_windows:
        words = f"Banded: every second layer attends to the last {window} tokens alone."
        banded = dense(own, window=window)
        if np.array_equal(banded, found[0].mask):
            words += " No text here is longer, so that both grids are the same."
        found.append(mask_view("banded layers", words, "input", "input", banded))
    return found


def two_streams(draw: Draw, own: AttentionMask, hint: str) -> list[MaskView]:
    """Return the masks of XLNet's content stream and of its query stream."""
    labels = [e.labels for e in draw.rows[0] if e.labels is not None]
    targets = np.flatnonzero(np.concatenate(labels) != IGNORE_INDEX)
    queries = own.for_targets(torch.from_numpy(targets)[None])
    words = (
        "Query stream: a row is a token that is predicted; it attends to the tokens before it in "
        "the order, and not to itself."
    )
    query = mask_view("query stream", words, "input", "input", dense(queries, own))
    return [
        mask_view("content stream", hint, "input", "input", dense(own)),
        replace(query, query_positions=targets.tolist()),
    ]


def memory_masks(
    draw: Draw, config: ModelConfig, hint: str, axes: tuple[str, str]
) -> list[MaskView]:
    """Return the masks of rows that continue: each attends to itself and to the memory."""
    limit = window = None
    if isinstance(config, TransformerXLConfig):
        limit, window = config.mem_len, config.attention_window
    lengths = [sum(len(e.input_ids) for e in row) for row in draw.rows]
    names = ("forward", "backward") if isinstance(draw.objective, BiLM) else ("input",)
    if len(lengths) > 1:
        cut = f"The text is cut into {len(lengths)} rows; each continues from the memory."
        hint = f"{hint} {cut}".strip()
    found = []
    for name in names:
        whole = np.zeros((sum(lengths), sum(lengths)), np.bool_)
        memory, start = empty_memory(), 0
        for batch, length in zip(draw.batches, lengths, strict=True):
            inputs = batch.targets.backward_inputs if name == "backward" else batch.inputs
            own = text_part(inputs.attention_mask, length)
            keys = memory.key_mask(own)
            count = keys.document_ids.shape[1]
            stop = start + length
            whole[start:stop, stop - count : stop] = dense(own, keys, window)
            first = 0 if limit is None else max(0, count - limit)
            memory = SegmentMemory(
                torch.zeros(0), keys.document_ids[:, first:], keys.key_order[:, first:]
            )
            start = stop
        found.append(mask_view(f"{name} and memory", hint, name, name, whole, axes))
    return found


def empty_memory() -> SegmentMemory:
    """Return the masks of a memory before the first row."""
    nothing = torch.zeros(1, 0, dtype=torch.int32)
    return SegmentMemory(torch.zeros(0), nothing, nothing)


def text_part(mask: AttentionMask, length: int) -> AttentionMask:
    """Return the mask without padding."""
    return mask.select(slice(length))


def dense(
    mask: AttentionMask, keys: AttentionMask | None = None, window: int | None = None
) -> MaskArray:
    """Return the mask of a single row: (query, key)."""
    found: MaskArray = mask.dense(keys, window)[0].numpy()
    return found


def mask_view(
    name: str,
    hint: str,
    queries: str,
    keys: str,
    mask: MaskArray,
    axes: tuple[str, str] = ("query", "key"),
) -> MaskView:
    """Return the view of a mask whose rows are all tokens of a stream."""
    return MaskView(
        name=name,
        hint=hint,
        queries=queries,
        keys=keys,
        mask=mask,
        query_positions=range(len(mask)),
        axes=axes,
    )


def dense_views(names: Sequence[str], lengths: Sequence[int]) -> dict[str, MaskArray]:
    """Return what each view of cross-view training reads of packed documents: (query, key)."""
    documents = np.repeat(np.arange(len(lengths)), lengths)
    same = documents[:, None] == documents[None, :]
    positions = np.arange(len(documents))
    later = positions[None, :] - positions[:, None]  # how much later a key is than its query
    masks = {
        "full": same,
        "forward": later <= 0,
        "backward": later >= 0,
        "future": later < 0,
        "past": later > 0,
    }
    return {name: masks[name] & same for name in names}
