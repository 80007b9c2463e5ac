"""Short ways to ask for texts."""

from collections.abc import Collection, Sequence
from typing import Any

from kinfolk.generation.decode import GeneratedSequence, GenerationRequest
from kinfolk.generation.logits_process import Constraints
from kinfolk.generation.methods import DecodingMethod, generate
from kinfolk.generation.sampling import Sampling


def write(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    method: DecodingMethod = Sampling(),
    banned: Collection[int] = (),
    **wants: Any,
) -> list[GeneratedSequence]:
    """Generate, with the request spelled out."""
    return generate(model, asked(prompts, banned=banned, **wants), method)


def asked(
    prompts: Sequence[Sequence[int]], *, banned: Collection[int] = (), **wants: Any
) -> GenerationRequest:
    """Put a request together."""
    return GenerationRequest(
        prompts=prompts, **{"constraints": Constraints(suppress_ids=banned), **wants}
    )
