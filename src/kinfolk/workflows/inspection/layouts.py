"""How a trained model reads a text that is inspected: inputs, and the label at each place."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Inputs
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.families.elmo import ELMo
from kinfolk.nn.language_model import EncoderDecoder, LanguageModel
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.objectives.permutation_lm import CLS_TOKEN_TYPE
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.generate import generate
from kinfolk.workflows.inspection.draws import Draw, InspectedText, draw_examples

Labels = list[int | None]  # of each place; None: nothing is predicted there
Sources = list[int | None]  # the token of the text at each place; None: another one


@dataclass(frozen=True, eq=False)
class Layout:
    """One text as a model reads it: a single row, and what is predicted at each of its places."""

    inputs: Inputs
    labels: Labels
    backward_labels: Labels | None = None  # of a backward model (ELMo)
    sources: Sources = field(default_factory=list)  # empty: the row was not made from a text
    encoder_sources: Sources = field(default_factory=list)

    @property
    def input_ids(self) -> list[int]:
        """The ids of the row."""
        return list(self.inputs.input_ids[0].tolist())

    @property
    def encoder_ids(self) -> list[int]:
        """The ids that an encoder reads; none of other networks."""
        given = self.inputs.encoder_inputs
        return [] if given is None else list(given.input_ids[0].tolist())


def layout_of_ids(
    model: LanguageModel, ids: Sequence[int], target: Sequence[int] | None, device: torch.device
) -> Layout:
    """Lay out token ids as they are, as `kinfolk.logits` does; a decoder predicts the next one."""
    if isinstance(model, EncoderDecoder):
        return encoder_decoder_layout(model, ids, ids if target is None else target, None, device)
    if target is not None:
        raise UserError(
            f"a target applies to encoder-decoder models, not to {model.family_name}: remove it"
        )
    causal = model.decoding == "causal"
    inputs = Inputs.from_ids(torch.tensor([list(ids)], device=device), causal=causal)
    labels: Labels = [*ids[1:], None] if causal else list(ids)
    return Layout(inputs, labels)


def layout_of_text(
    model: LanguageModel,
    text: str,
    tokenizer: Tokenizer,
    target: str | None,
    seed: int,
    device: torch.device,
) -> Layout:
    """Lay out a text with the special tokens that the model was trained with."""
    if isinstance(model, EncoderDecoder):
        return text_pair_layout(model, text, tokenizer, target, seed, device)
    if target is not None:
        raise UserError(
            f"a target applies to encoder-decoder models, not to {model.family_name}: remove it"
        )
    layout = single_row_layout(model, text, tokenizer, device)
    return replace(layout, sources=sources_of(layout.input_ids, tokenizer.offsets(text)[0]))


def single_row_layout(
    model: LanguageModel, text: str, tokenizer: Tokenizer, device: torch.device
) -> Layout:
    """Lay out a text for a network that reads one row."""
    special = tokenizer.special_tokens
    if model.decoding == "infilling":
        ids = np.array(tokenizer.encode(text, add_special_tokens=False), np.int64)
        return blank_layout(ids, tokenizer, device)
    if isinstance(model, ELMo) or model.decoding == "causal":
        plain = tokenizer.encode(text, add_special_tokens=False)
        tokens = tokenizer.with_end_token(("eos",)).special_tokens
        start = tokens.eos if tokens.bos is None else tokens.bos
        return next_token_layout(plain, start, tokens.eos, isinstance(model, ELMo), device)
    ids = np.array(tokenizer.encode(text), np.int64)
    labels: Labels = [None if i in special.ids else i for i in ids.tolist()]
    inputs = Inputs.from_ids(torch.from_numpy(ids)[None].to(device), causal=False)
    if model.decoding == "two-stream":
        cls = -1 if special.cls is None else special.cls
        types = CLS_TOKEN_TYPE * inputs.input_ids.eq(cls).long()
        inputs = replace(inputs, token_type_ids=types)
    return Layout(inputs, labels)


def sources_of(row: Sequence[int], plain: Sequence[int]) -> Sources:
    """Return the token of a text at each place of a row that has all of the text in order."""
    sources: Sources = [None] * len(row)
    for first in range(len(row) - len(plain) + 1):
        if list(row[first : first + len(plain)]) == list(plain):
            sources[first : first + len(plain)] = range(len(plain))
            break
    return sources


def next_token_layout(
    ids: list[int], start: int | None, end: int | None, bidirectional: bool, device: torch.device
) -> Layout:
    """Lay out a text after its start token; each place predicts the next token.

    A backward model reads the end token first; each place then predicts the token before.
    """
    before = [] if start is None else [start]
    row = [*before, *ids, *([end] if bidirectional and end is not None else [])]
    labels: Labels = [*row[1:], None if bidirectional else end]
    inputs = Inputs.from_ids(torch.tensor([row], device=device), causal=True)
    return Layout(inputs, labels, [None, *row[:-1]] if bidirectional else None)


def blank_layout(ids: np.ndarray, tokenizer: Tokenizer, device: torch.device) -> Layout:
    """Lay out a text as one blank that GLM generates, after the mask token of a whole text."""
    objective = BlankInfilling(
        special_tokens=tokenizer.special_tokens,
        vocab_size=tokenizer.vocab_size,
        max_length=4 * len(ids) + 64,
    )
    example = objective.corrupt(ids, [(0, len(ids))], objective.glm_tokens.gmask)
    assert example.labels is not None and example.order is not None
    assert example.position_ids is not None and example.block_position_ids is not None

    def row(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array)[None].to(device)

    document, order = torch.zeros_like(row(example.order)), row(example.order)
    inputs = Inputs(
        input_ids=row(example.input_ids),
        attention_mask=AttentionMask(document, order, order),
        position_ids=row(example.position_ids),
        block_position_ids=row(example.block_position_ids),
    )
    return Layout(inputs, [None if i == IGNORE_INDEX else i for i in example.labels.tolist()])


def text_pair_layout(
    model: EncoderDecoder,
    text: str,
    tokenizer: Tokenizer,
    target: str | None,
    seed: int,
    device: torch.device,
) -> Layout:
    """Lay out a text for the encoder, and a target for the decoder.

    Without a target, a model that learned by span corruption is given the text with spans cut out;
    a model that learned from pairs generates the target.
    """
    special = tokenizer.special_tokens
    first = next(iter(family_of(model).objectives.values()))
    if target is None and issubclass(first, SpanCorruption) and special.sentinels:
        draw = draw_examples(first, InspectedText((text,), tokenizer), seed)
        layout = cut_layout(model, draw, device)
        # Some foreign tokenizers give a text other ids than its lines.
        return (
            layout if draw.ids.tolist() == tokenizer.offsets(text)[0] else without_sources(layout)
        )
    if target is None:
        assert issubclass(first, Seq2Seq | SpanCorruption)
        length = len(tokenizer.encode(text)) + 16
        target = generate(model, tokenizer, text, max_new_tokens=length, do_sample=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    end = [] if special.eos is None else [special.eos]
    written = tokenizer.target.encode(target, add_special_tokens=False)
    layout = encoder_decoder_layout(model, [*ids, *end], written, special.eos, device)
    sources = sources_of(layout.encoder_ids, tokenizer.offsets(text)[0])
    return replace(without_sources(layout), encoder_sources=sources)


def without_sources(layout: Layout) -> Layout:
    """Return a layout of which nothing is known to stand in the text."""
    nothing: Sources = [None] * len(layout.input_ids)
    return replace(layout, sources=nothing, encoder_sources=[None] * len(layout.encoder_ids))


def cut_layout(model: EncoderDecoder, draw: Draw, device: torch.device) -> Layout:
    """Lay out a text with spans cut out, which the decoder generates."""
    ((example,),), ((marked,),) = draw.rows, draw.marked
    assert example.encoder_input_ids is not None and example.labels is not None
    assert marked.encoder_input_ids is not None and marked.labels is not None
    encoder, labels = example.encoder_input_ids.tolist(), example.labels.tolist()
    layout = encoder_decoder_layout(model, encoder, labels, None, device)
    return replace(
        layout,
        sources=[None, *draw.source(marked.labels)[:-1]],  # each place reads the label before
        encoder_sources=draw.source(marked.encoder_input_ids),
    )


def encoder_decoder_layout(
    model: EncoderDecoder,
    source: Sequence[int],
    target: Sequence[int],
    end: int | None,
    device: torch.device,
) -> Layout:
    """Lay out ids for both sides: each place of the decoder predicts the token of the target."""
    labels: Labels = [*target, *([] if end is None else [end])]
    shifted = [model.config.decoder_start_token_id, *labels[:-1]]
    encoder = Inputs.from_ids(torch.tensor([list(source)], device=device), causal=False)
    row = torch.tensor([shifted], device=device)
    return Layout(Inputs.from_ids(row, causal=True, encoder_inputs=encoder), labels)
