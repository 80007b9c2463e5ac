"""Text from models: going on with a text, and filling its holes."""

from kinfolk.generation.decoding import Generated, Step, collect, decode, generate
from kinfolk.generation.filling import fill_blanks, fill_masks, fill_spans
from kinfolk.generation.sampling import GREEDY, Sampling
from kinfolk.generation.texts import (
    Filled,
    Hole,
    Question,
    answers,
    continue_text,
    fill_text,
    question,
    spell,
)

__all__ = [
    "GREEDY",
    "Filled",
    "Generated",
    "Hole",
    "Question",
    "Sampling",
    "Step",
    "answers",
    "collect",
    "continue_text",
    "decode",
    "fill_blanks",
    "fill_masks",
    "fill_spans",
    "fill_text",
    "generate",
    "question",
    "spell",
]
