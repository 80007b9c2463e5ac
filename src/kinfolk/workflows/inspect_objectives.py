"""What each objective of a family makes of a text: inputs, labels, positions, attention masks.

Every token of the text is given an id of its own, above the vocabulary, before an objective makes
its examples. These ids show where each token went; the batch has the ids of the tokenizer.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, SegmentMemory
from kinfolk.data.chunks import InMemoryDocuments, IntArray
from kinfolk.data.datasets import ContiguousDataset
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.families.base import Family
from kinfolk.families.ngram import NGramConfig
from kinfolk.families.transformer_xl import TransformerXLConfig
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from kinfolk.objectives.bilm import BiLM, backward_example
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.permutation_lm import PermutationLM
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.objectives.rtd import RTD
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.sop import SOP
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.reports.inspect_view import MaskArray, MaskView, ObjectiveView, StreamView
from kinfolk.rng import Stream, generator
from kinfolk.text.inspect import readable_tokens
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.evaluate import encode_documents

OTHER_DOCUMENT = "The harbour was empty. No ship had come since spring."
NSP_LABELS = ("0: the second text follows the first", "1: the second text is from elsewhere")
SOP_LABELS = ("0: both texts are in order", "1: both texts were swapped")
ATTENDS = ""  # the page says it once for all
READS = (
    "No attention: a filled column is a token that the recurrent state of the row's token has read."
)


@dataclass(frozen=True)
class InspectedText:
    """A text and its tokenizer: documents, each of sentences, and targets of pairs if given."""

    documents: tuple[str, ...]
    tokenizer: Tokenizer
    target: str | None = None  # of the pair that an encoder-decoder learns from

    @cached_property
    def encoded(self) -> InMemoryDocuments:
        """The documents as ids, with the ends of sentences."""
        found, _ = encode_documents(self.tokenizer, self.documents)
        assert isinstance(found, InMemoryDocuments)
        return found

    @cached_property
    def ids(self) -> IntArray:
        """The ids of all documents, one after the other."""
        return self.encoded.token_ids

    def for_objective(self, objective: Objective) -> tuple[InMemoryDocuments, list[str]]:
        """Return the documents that an objective reads, and what was added to the text."""
        if isinstance(objective, Seq2Seq):
            return self.pair()
        if isinstance(objective, NSP) and not isinstance(objective, SOP):
            return self.with_other_document()
        return self.encoded, []

    def pair(self) -> tuple[InMemoryDocuments, list[str]]:
        """Return one pair: the text and its target, or both halves of the text."""
        ids = self.ids.tolist()
        if self.target is not None:
            target = self.tokenizer.target.encode(self.target, add_special_tokens=False)
            return InMemoryDocuments.from_lists([[ids, target]]), []
        if len(ids) < 2:
            raise UserError(
                "the text has 1 token, and a pair has two sides: use a longer text, or --target"
            )
        middle = self.middle
        note = "The text has no target: its second half stands for one."
        return InMemoryDocuments.from_lists([[ids[:middle], ids[middle:]]]), [note]

    @property
    def middle(self) -> int:
        """The sentence end nearest to the middle of the text, or the middle itself."""
        count = len(self.ids)
        ends = [int(end) for end in self.encoded.ends if 0 < end < count]
        return min(ends, key=lambda end: abs(end - count / 2), default=count // 2)

    def with_other_document(self) -> tuple[InMemoryDocuments, list[str]]:
        """Return the documents, and another one where there is only one to draw from."""
        if len(self.documents) > 1:
            return self.encoded, []
        found, _ = encode_documents(self.tokenizer, [*self.documents, OTHER_DOCUMENT])
        assert isinstance(found, InMemoryDocuments)
        note = (
            f'Second texts that do not follow are drawn from another document: "{OTHER_DOCUMENT}"'
        )
        return found, [note]


@dataclass(frozen=True, eq=False)
class Draw:
    """The examples of a text under an objective: one packed row, or rows that continue."""

    objective: Objective
    rows: tuple[tuple[Example, ...], ...]  # with the ids of the tokenizer
    marked: tuple[tuple[Example, ...], ...]  # with an id of its own for each token of the text
    ids: IntArray  # of the documents; those that a marked id stands for
    notes: tuple[str, ...] = ()

    @cached_property
    def batches(self) -> list[Batch[Any]]:
        """The batch of each row, in rows that hold the examples and little padding."""
        return [self.batch_of(row) for row in self.rows]

    def batch_of(self, row: Sequence[Example]) -> Batch[Any]:
        """Collate a row of examples in the shortest rows that hold it."""
        lengths = tuple(map(sum, zip(*(example.lengths for example in row), strict=True)))
        return row_objective(self.objective, lengths).collate([row])

    def source(self, ids: IntArray) -> list[int | None]:
        """Return the token of the documents that each marked id stands for."""
        first = self.objective.vocab_size
        return [int(i) - first if i >= first else None for i in ids]


def row_objective(objective: Objective, lengths: Sequence[int]) -> Objective:
    """Return the objective with the shortest rows that hold examples of these lengths."""
    fitted = replace(objective, max_length=lengths[0])
    while missing := max(n - has for n, has in zip(lengths, fitted.row_lengths, strict=True)):
        if missing < 0:
            break
        fitted = replace(fitted, max_length=fitted.max_length + missing)
    return fitted


def draw_examples(objective_type: type[Objective], text: InspectedText, seed: int = 0) -> Draw:
    """Make the examples of a text; another seed makes other random choices."""
    tokenizer = text.tokenizer.with_end_token(objective_type.required_tokens)
    objective = objective_type(
        special_tokens=tokenizer.special_tokens,
        vocab_size=tokenizer.vocab_size,
        max_length=whole_length(len(text.ids)),
    )
    documents, notes = text.for_objective(objective)
    ids = documents.token_ids
    special = objective.special_tokens.is_special(ids)
    own = np.where(special, ids, objective.vocab_size + np.arange(len(ids)))
    marked_documents = replace(documents, token_ids=own)
    if isinstance(objective, RecurrentCLM):
        rows = continued_rows(objective, marked_documents, seed)
    else:
        chunks = objective.chunks(marked_documents)
        # A document that was added is there to draw from, and not to be shown.
        own_chunks = np.flatnonzero(chunks.document < len(text.documents)).tolist()
        if not own_chunks:
            raise UserError("the text is too short for this objective: use a longer one")
        draws = (
            objective.example(chunks[i], generator(seed, Stream.EXAMPLE, 0, i)) for i in own_chunks
        )
        rows = (tuple(draws),)
    real = tuple(
        tuple(unmark(example, ids, objective.vocab_size) for example in row) for row in rows
    )
    return Draw(objective, real, rows, ids, tuple(notes))


def whole_length(tokens: int) -> int:
    """Return a row length that no document is cut for, with room for special tokens."""
    return 4 * tokens + 64


def continued_rows(
    objective: RecurrentCLM, documents: InMemoryDocuments, seed: int
) -> tuple[tuple[Example, ...], ...]:
    """Return rows of about half the text, each of which continues the one before."""
    total = len(documents.token_ids) + len(documents.starts) - 1
    halves = replace(objective, max_length=max(1, -(-total // 2)))
    dataset = ContiguousDataset(halves, documents, batch_size=1, seed=seed, shuffled=False)
    epoch = dataset.epoch(0)
    return tuple(tuple(dataset.row(epoch, 0, number)) for number in range(len(dataset)))


def unmark(example: Example, ids: IntArray, vocab_size: int) -> Example:
    """Return an example with the ids of the tokenizer."""

    def real(marked: IntArray) -> IntArray:
        inside = np.clip(marked - vocab_size, 0, len(ids) - 1)
        return np.where(marked >= vocab_size, ids[inside], marked)

    return replace(
        example,
        input_ids=real(example.input_ids),
        labels=None if example.labels is None else real(example.labels),
        encoder_input_ids=None
        if example.encoder_input_ids is None
        else real(example.encoder_input_ids),
        backward=None if example.backward is None else unmark(example.backward, ids, vocab_size),
    )


def inspect_objective(
    family: Family, name: str, config: ModelConfig, text: InspectedText, seed: int = 0
) -> tuple[ObjectiveView, Draw]:
    """Return what an objective of a family makes of a text, and the examples it is made of."""
    draw = draw_examples(family.objective(name), text, seed)
    check_context(family.name, config, draw)
    streams = stream_views(draw, text.tokenizer)
    view = ObjectiveView(
        family=family.name,
        title=family.title,
        objective=name,
        description=described(type(draw.objective)),
        streams=streams,
        masks=mask_views(draw, config),
        facts=facts_of(draw),
        notes=[*draw.notes, *notes_of(draw.objective, streams)],
    )
    return view, draw


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


def stream_views(draw: Draw, tokenizer: Tokenizer) -> list[StreamView]:
    """Return the streams that the parts of a network read."""
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
        return [token_stream(draw, tokenizer, "input", pairs)]
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


def mask_views(draw: Draw, config: ModelConfig) -> list[MaskView]:
    """Return the attention masks of the batches, without padding."""
    network = meta_network(config)
    recurrent = any(isinstance(part, nn.LSTM) for part in network.modules())
    hint = READS if recurrent else ATTENDS
    if isinstance(draw.objective, RecurrentCLM):
        return memory_masks(draw, config, hint)
    inputs, row = draw.batches[0].inputs, draw.rows[0]
    own = text_part(inputs.attention_mask, sum(len(e.input_ids) for e in row))
    if inputs.encoder_inputs is not None:
        source = text_part(inputs.encoder_inputs.attention_mask, sum(e.lengths[0] for e in row))
        cross = dense(AttentionMask.bidirectional(own.document_ids),
                      AttentionMask.bidirectional(source.document_ids))  # fmt: skip
        return [
            mask_view("encoder", hint, "encoder", "encoder", dense(source)),
            mask_view("decoder", hint, "decoder", "decoder", dense(own)),
            mask_view("cross-attention", ATTENDS, "decoder", "encoder", cross),
        ]
    if isinstance(config, NGramConfig):
        hint = (
            "No attention: a filled column is a token of the context, the "
            f"{config.order - 1} before the prediction, in a model of order {config.order}."
        )
        context = dense(own, window=config.order - 1) if config.order > 1 else dense(own) & False
        return [mask_view("context", hint, "input", "input", context)]
    if inputs.target_positions is not None:
        return two_streams(draw, own, hint)
    name = "state" if recurrent else "attention"
    if isinstance(config, TransformerXLConfig):
        own_mask = dense(own, window=config.attention_window)
        return [mask_view(name, hint, "input", "input", own_mask)]
    found = [mask_view(name, hint, "input", "input", dense(own))]
    for window in network.attention_windows:
        words = f"Banded: every second layer attends to the last {window} tokens alone."
        found.append(mask_view("banded layers", words, "input", "input", dense(own, window=window)))
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


def memory_masks(draw: Draw, config: ModelConfig, hint: str) -> list[MaskView]:
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
        found.append(mask_view(f"{name} and memory", hint, name, name, whole))
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


def mask_view(name: str, hint: str, queries: str, keys: str, mask: MaskArray) -> MaskView:
    """Return the view of a mask whose rows are all tokens of a stream."""
    return MaskView(
        name=name,
        hint=hint,
        queries=queries,
        keys=keys,
        mask=mask,
        query_positions=range(len(mask)),
    )


def dense_views(names: Sequence[str], length: int) -> dict[str, MaskArray]:
    """Return what each view of cross-view training reads of a text: (query, key)."""
    positions = np.arange(length)
    later = positions[None, :] - positions[:, None]  # how much later a key is than its query
    masks = {
        "full": np.ones((length, length), np.bool_),
        "forward": later <= 0,
        "backward": later >= 0,
        "future": later < 0,
        "past": later > 0,
    }
    return {name: masks[name] for name in names}


def meta_network(config: ModelConfig) -> LanguageModel:
    """Return the network of a config without memory for its weights."""
    with torch.device("meta"):
        return config.build()


def facts_of(draw: Draw) -> list[tuple[str, str]]:
    """Return the labels of whole sequences."""
    if not isinstance(draw.objective, NSP):
        return []
    words = SOP_LABELS if isinstance(draw.objective, SOP) else NSP_LABELS
    labels = [e.sequence_label for row in draw.rows for e in row]
    none = "none: a single sentence is no pair"
    return [
        (f"sequence_label of text {number}", none if label == IGNORE_INDEX else words[label])
        for number, label in enumerate(labels, start=1)
    ]


def notes_of(objective: Objective, streams: Sequence[StreamView]) -> list[str]:
    """Say in numbers what was masked and what is predicted."""
    predicted = sum(label is not None for stream in streams for label in stream.labels)
    total = sum(len(stream.tokens) for stream in streams)
    counts = {
        change: sum(stream.changes.count(change) for stream in streams)
        for change in ("masked", "replaced", "kept", "cut")
    }
    words = {
        "masked": "became the mask token",
        "replaced": "became another token",
        "kept": "stayed as they are and are predicted",
        "cut": "stand for a span that was cut out",
    }
    parts = [f"{count} {words[name]}" for name, count in counts.items() if count]
    sentence = f"{predicted} of {total} positions predict a token"
    notes = [f"{sentence}; {', '.join(parts)}." if parts else f"{sentence}."]
    if isinstance(objective, RTD):
        notes.append(
            "The generator samples a token for each mask; the discriminator reads the result and "
            "says of every token whether it was replaced."
        )
    return notes
