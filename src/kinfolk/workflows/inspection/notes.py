"""The sentences of a card: what the seed drew, what is masked and predicted, in numbers."""

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.rtd import RTD
from kinfolk.objectives.sop import SOP
from kinfolk.objectives.span_corruption import SpanCorruption
from kinfolk.objectives.unilm import ATTENTION_MODES, UniLM, attention_order
from kinfolk.reports.inspect_view import StreamView
from kinfolk.text.tokenizer import SpecialTokens, Tokenizer, glm_tokens
from kinfolk.workflows.inspection.draws import Draw

BLANK_MASKS = ("[MASK]", "[sMASK]", "[gMASK]")  # of GLM, in the order of `GLMTokens.masks`
BLANK_KINDS = {
    "spans": "short spans",
    "sentences": "whole sentences",
    "tail": "the end of the text",
}
ATTENTION_MODE_WORDS = {
    "both": "every token attends to every token",
    "right": "each token attends to itself and its past",
    "left": "each token attends to itself and its future",
    "across": "the first text attends to itself, the second to it and to its own past",
}


def blank_names(special_tokens: SpecialTokens) -> dict[int, str]:
    """Return GLM's names of the ids that are sentinels of a tokenizer, each of one role."""
    masks = glm_tokens(special_tokens).masks
    return {
        id: name
        for id, name in zip(masks, BLANK_MASKS, strict=True)
        if id in special_tokens.sentinels and masks.count(id) == 1
    }


def count_notes(
    objective: Objective, streams: Sequence[StreamView], *, sampled: bool = False
) -> list[str]:
    """Say in numbers what was masked and what is predicted."""
    discriminator = streams[-1] if isinstance(objective, RTD) else None
    streams = [stream for stream in streams if stream is not discriminator]
    predicted = sum(label is not None for stream in streams for label in stream.labels)
    total = sum(len(stream.tokens) for stream in streams)
    counts = {
        change: sum(stream.changes.count(change) for stream in streams)
        for change in ("masked", "replaced", "kept", "cut")
    }
    words = {
        "masked": ("became the mask token", "became the mask token"),
        "replaced": ("became another token", "became another token"),
        "kept": ("stayed as it is and is predicted", "stayed as they are and are predicted"),
        "cut": ("stands for a span that was cut out", "stand for spans that were cut out"),
    }
    parts = [f"{n} {words[name][n > 1]}" for name, n in counts.items() if n]
    sentence = f"{predicted} of {total} positions predict a token"
    notes = [f"{sentence}; {', '.join(parts)}." if parts else f"{sentence}."]
    if discriminator is not None:
        differ = discriminator.changes.count("replaced")
        notes.append(
            "The generator samples a token for each mask; the discriminator reads the result and "
            f"says of every token whether it was replaced. Here {differ} of "
            f"{predicted} samples differ from the text."
        )
        if not sampled:
            notes.append(
                "Without a trained generator, words of the text stand for its samples, drawn by "
                "the seed."
            )
    return notes


def drawn_notes(draw: Draw, tokenizer: Tokenizer, names: Mapping[int, str]) -> list[str]:
    """Say what the seed drew, of objectives that draw among several kinds."""
    objective = draw.objective
    if isinstance(objective, SpanCorruption):
        return span_notes(objective, draw)
    if isinstance(objective, BlankInfilling):
        return blank_notes(objective, draw, tokenizer, names)
    if isinstance(objective, UniLM):
        words = [f'"{mode}" ({ATTENTION_MODE_WORDS[mode]})' for mode in attention_modes(draw)]
        return [f"Of the four attention patterns, the seed drew {by_text(words)}."]
    if isinstance(objective, SOP):
        return [
            f"Tokens are masked in n-grams of 1 to {objective.max_ngram}, so that neighbours are "
            "often masked together."
        ]
    return []


def span_notes(objective: SpanCorruption, draw: Draw) -> list[str]:
    """Say why a short text has a single span, which is always at its end."""
    sentinels = list(objective.special_tokens.sentinels)
    rows = [example.encoder_input_ids for row in draw.rows for example in row]
    spans = [int(np.isin(ids, sentinels).sum()) for ids in rows if ids is not None]
    if 1 not in spans:
        return []
    needed = next(n for n in count(1) if objective.noise_counts(n)[1] > 1)
    return [
        f"A text of fewer than {needed} tokens has one span, and the last span ends the text, as "
        "in T5's code: other seeds cut the same span. A longer text has several; in training, also "
        "a lower objective.mean_span_length or a higher objective.mask_rate."
    ]


def blank_notes(
    objective: BlankInfilling, draw: Draw, tokenizer: Tokenizer, names: Mapping[int, str]
) -> list[str]:
    """Say which of GLM's three kinds of masks were drawn, and which tokens stand for them."""
    ids = dict(zip(BLANK_KINDS, objective.glm_tokens.masks, strict=True))
    shown = {kind: names.get(id, tokenizer.id_to_token(id)) for kind, id in ids.items()}
    words = [f"{BLANK_KINDS[kind]} ({shown[kind]})" for kind in draw.blank_kinds]
    notes = [
        "Short spans, whole sentences or the end of a text are masked: here the seed drew "
        f"{by_text(words)}."
    ]
    for kind in dict.fromkeys(draw.blank_kinds):
        token = tokenizer.id_to_token(ids[kind])
        if token != shown[kind]:
            notes.append(f"The tokenizer has no {shown[kind]}: its {token} stands for it.")
    return notes


def attention_modes(draw: Draw) -> list[str]:
    """Return the attention pattern of each text under UniLM's mixture."""
    return [
        next(
            mode
            for mode in ATTENTION_MODES
            if np.array_equal(example.order, attention_order(mode, example.token_type_ids))
        )
        for row in draw.rows
        for example in row
        if example.order is not None and example.token_type_ids is not None
    ]


def by_text(words: Sequence[str]) -> str:
    """Join what was drawn for each text; once where it is the same for all."""
    if len(set(words)) == 1:
        return words[0]
    return "; ".join(f"for text {number} {one}" for number, one in enumerate(words, start=1))


def position_notes(network: LanguageModel) -> list[str]:
    """Say where a table of positions is entered, if not at its start."""
    first = network.first_position
    if not first:
        return []
    return [
        f"position_ids count from 0; position 0 is embedded as {first}, as in the released code, "
        "which counts from the id of padding."
    ]
