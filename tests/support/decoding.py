"""Short forms of generation requests in token ids."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from kinfolk.generation import generate as generation
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.decode import GeneratedSequence, GenerationRequest, TokenStep
from kinfolk.generation.logits_process import Constraints

CONFIG = {f.name: f.default for f in fields(GenerationConfig)}
IDS = [f.name for f in fields(Constraints) if f.init]

Rules = dict[str, Any]  # constraints in ids and in settings


def constrain(**rules: Any) -> Rules:
    """Name some constraints."""
    assert rules.keys() <= {*IDS, *CONFIG}
    return rules


def asked(
    prompts: Sequence[Sequence[int]],
    *,
    banned: Collection[int] = (),
    constraints: Rules | None = None,
    max_new_tokens: int | Sequence[int] = 100,
    first: int = 0,
    **wants: Any,
) -> GenerationRequest:
    """Put a request together from settings, constraints and what else it has."""
    given: Rules = {"suppress_ids": banned} | (constraints or {}) | wants
    if isinstance(max_new_tokens, int):
        given["max_new_tokens"] = max_new_tokens
    ids = {name: given.pop(name) for name in [*given] if name in IDS}
    return GenerationRequest(
        prompts=prompts,
        config=GenerationConfig(**{name: given.pop(name) for name in [*given] if name in CONFIG}),
        constraints=Constraints(**ids),
        prompt_indices=range(first, first + len(prompts)),
        max_new_tokens=None if isinstance(max_new_tokens, int) else max_new_tokens,
        **given,
    )


def using(request: GenerationRequest, method: GenerationConfig) -> GenerationRequest:
    """Add the settings of a method to a request."""
    own = {name: value for name, value in vars(request.config).items() if value != CONFIG[name]}
    return replace(request, config=replace(method, **own))


def generate(
    model: Any, request: GenerationRequest, method: GenerationConfig = GenerationConfig()
) -> list[GeneratedSequence]:
    """Generate by a method."""
    return generation.generate_sequences(model, using(request, method))


def generate_steps(
    model: Any, request: GenerationRequest, method: GenerationConfig = GenerationConfig()
) -> Iterator[list[TokenStep]]:
    """Generate by a method, token by token."""
    return generation.generate_steps(model, using(request, method))


def write(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    method: GenerationConfig = GenerationConfig(),
    **wants: Any,
) -> list[GeneratedSequence]:
    """Generate by a method, with the request spelled out."""
    return generate(model, asked(prompts, **wants), method)
