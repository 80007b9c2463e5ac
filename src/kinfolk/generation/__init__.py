"""Text from models: going on with a text, and filling its holes."""

from kinfolk.generation.beams import Beam
from kinfolk.generation.contrast import Contrastive
from kinfolk.generation.decoding import Method, collect, decode, generate
from kinfolk.generation.filling import fill_blanks, fill_masks, fill_spans
from kinfolk.generation.holes import Filled, Hole, fill_text
from kinfolk.generation.rules import Rules
from kinfolk.generation.sampling import GREEDY, Sampling
from kinfolk.generation.texts import Question, continue_text, question, request, spell
from kinfolk.generation.wishes import Wishes
from kinfolk.generation.writer import Generated, Request, Step

__all__ = [
    "GREEDY",
    "Beam",
    "Contrastive",
    "Filled",
    "Generated",
    "Hole",
    "Method",
    "Question",
    "Request",
    "Rules",
    "Sampling",
    "Step",
    "Wishes",
    "collect",
    "continue_text",
    "decode",
    "fill_blanks",
    "fill_masks",
    "fill_spans",
    "fill_text",
    "generate",
    "question",
    "request",
    "spell",
]
