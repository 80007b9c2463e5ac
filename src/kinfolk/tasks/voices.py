"""Answers that are written: rows go through the decoder, and texts come back."""

from collections.abc import Sequence
from typing import Any

from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.generate import generate_sequences
from kinfolk.generation.prompts import build_prompt, decode_after
from kinfolk.tasks.formulations.sequences import num_layout_tokens
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import Tokenizer

GENERATION_BATCH = 32  # written at a time


def generate_predictions(
    way: Any, model: Any, rows: Sequence[Any], tokenizer: Tokenizer
) -> list[Prediction]:
    """Let a model write the answer to every row, those of like length together."""
    asked = [encode_prompt(way, model, row, tokenizer) for row in rows]
    config = GenerationConfig(
        max_new_tokens=way.max_new_tokens,
        do_sample=False,
        num_beams=getattr(way, "num_beams", 1),
    )
    found: list[Prediction | None] = [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: -len(asked[i].source or asked[i].prompt))
    for start in range(0, len(order), GENERATION_BATCH):
        some = order[start : start + GENERATION_BATCH]
        request = GenerationRequest.from_prompts(
            [asked[i] for i in some], config, tokenizer, return_logprobs=False
        )
        for place, text in zip(some, generate_sequences(model, request), strict=True):
            said = decode_after(tokenizer, asked[place].prompt, text.ids)
            found[place] = way.parse_output(rows[place], said)
    return [answer for answer in found if answer is not None]


def encode_prompt(way: Any, model: Any, row: Any, tokenizer: Tokenizer) -> Any:
    """Frame what is read before an answer, cut as in training, and to leave room to write."""
    ids = way.append_separator(tokenizer.offsets(way.prompt(row)[0])[0], tokenizer)
    room = way.max_length - num_layout_tokens(way.layout)
    if model.config.max_length is not None and model.decoding != "encoder-decoder":
        room = min(
            room, model.config.max_length - way.max_new_tokens - num_layout_tokens(way.layout)
        )
    return build_prompt(model, tokenizer, way.truncate_prompt(ids, max(1, room)))
