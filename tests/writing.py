"""Short ways to ask for texts."""

from collections.abc import Collection, Sequence
from typing import Any

from kinfolk.generation import Generated, Method, Request, Rules, Sampling, generate


def write(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    method: Method = Sampling(),
    banned: Collection[int] = (),
    **wants: Any,
) -> list[Generated]:
    """Generate, with the request spelled out."""
    return generate(model, asked(prompts, banned=banned, **wants), method)


def asked(
    prompts: Sequence[Sequence[int]], *, banned: Collection[int] = (), **wants: Any
) -> Request:
    """Put a request together."""
    return Request(prompts=prompts, **{"rules": Rules(banned=banned), **wants})
