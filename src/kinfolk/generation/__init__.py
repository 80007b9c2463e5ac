"""Text from models: going on with a text, and filling its holes."""

from kinfolk.generation.beams import BeamSearch
from kinfolk.generation.contrast import ContrastiveSearch
from kinfolk.generation.decoding import DecodingMethod, collect_sequences, generate, generate_steps
from kinfolk.generation.filling import fill_blanks, fill_masks, fill_sentinels
from kinfolk.generation.holes import FillResult, MaskFill, fill
from kinfolk.generation.rules import Constraints
from kinfolk.generation.sampling import GREEDY, Sampling
from kinfolk.generation.texts import (
    EncodedPrompt,
    build_request,
    encode_prompt,
    generate_text,
    stream_decode,
)
from kinfolk.generation.wishes import GenerationConfig
from kinfolk.generation.writer import GeneratedSequence, GenerationRequest, TokenStep

__all__ = [
    "GREEDY",
    "BeamSearch",
    "Constraints",
    "ContrastiveSearch",
    "DecodingMethod",
    "EncodedPrompt",
    "FillResult",
    "GeneratedSequence",
    "GenerationConfig",
    "GenerationRequest",
    "MaskFill",
    "Sampling",
    "TokenStep",
    "build_request",
    "collect_sequences",
    "encode_prompt",
    "fill",
    "fill_blanks",
    "fill_masks",
    "fill_sentinels",
    "generate",
    "generate_steps",
    "generate_text",
    "stream_decode",
]
