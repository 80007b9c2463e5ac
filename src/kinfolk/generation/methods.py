"""One decoder for every model that can write: a token for each text at a time, over one state."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from kinfolk.generation.beam_search import BeamSearch, beam_search
from kinfolk.generation.contrastive_search import ContrastiveSearch, contrastive_search
from kinfolk.generation.cuda_graph import can_use_graph, decode_with_graph
from kinfolk.generation.decode import (
    Decoder,
    GeneratedSequence,
    GenerationRequest,
    TokenStep,
    token_logprobs,
)
from kinfolk.generation.inputs import eval_mode
from kinfolk.generation.sampling import Sampling, sample_ids
from kinfolk.nn.language_model import LanguageModel
from kinfolk.rng import uniforms

DecodingMethod = Sampling | BeamSearch | ContrastiveSearch


@torch.inference_mode()
def generate_steps(
    model: LanguageModel, request: GenerationRequest, method: DecodingMethod = Sampling()
) -> Iterator[list[TokenStep]]:
    """Go on with every prompt, a token for each live text at a time; beams come whole."""
    if not request.prompts:
        return
    writer = Decoder(model, request)
    with eval_mode(model):
        if isinstance(method, BeamSearch):
            for number, text in enumerate(beam_search(writer, request, method)):
                yield steps_of(number, text, request)
        elif isinstance(method, ContrastiveSearch):
            yield from contrastive_search(writer, request, method)
        else:
            yield from sample(writer, request, method)


def generate(
    model: LanguageModel, request: GenerationRequest, method: DecodingMethod = Sampling()
) -> list[GeneratedSequence]:
    """Go on with every prompt to its end: `num` texts of the first prompt, then of the next."""
    if isinstance(method, BeamSearch) and request.prompts:
        with torch.inference_mode(), eval_mode(model):
            return beam_search(Decoder(model, request), request, method)
    return collect_sequences(
        generate_steps(model, request, method), len(request.prompts) * request.num_return_sequences
    )


def sample(
    writer: Decoder, request: GenerationRequest, sampling: Sampling
) -> Iterator[list[TokenStep]]:
    """Choose the best token, or draw one, in every row."""
    live = [
        (prompt, copy)
        for prompt in range(len(request.prompts))
        for copy in range(request.num_return_sequences)
    ]
    # A text's number is that of its prompt and, above, that of its copy: others change nothing.
    numbers = [request.number(prompt) + (copy << 32) for prompt, copy in live]
    drawn = uniforms(request.seed, numbers, max(writer.max_new_tokens))
    chances = torch.from_numpy(drawn).to(writer.device)
    for token in range(max(writer.max_new_tokens)):
        logits = writer.next_logits()
        if token == 0:
            logits = writer.repeat_rows(logits, request.num_return_sequences)
        ids = sample_ids(writer.logits_processor(logits, writer.said), sampling, chances[:, token])
        logprobs = token_logprobs(logits, ids[:, None], request.return_logprobs)[:, 0]
        writer.append(ids)
        steps = writer.to_steps(live, ids, logprobs, request)
        yield steps
        kept = writer.active_rows(live, steps, token + 1)
        if not kept:
            return
        if len(kept) < len(live):
            writer.select_rows(kept)
            chances, live = chances[kept], [live[row] for row in kept]
        if token == 0 and can_use_graph(writer, request):
            yield from decode_with_graph(writer, request, sampling, chances, live)
            return


def collect_sequences(steps: Iterable[list[TokenStep]], texts: int) -> list[GeneratedSequence]:
    """Put the steps of each text together."""
    written: list[list[TokenStep]] = [[] for _ in range(texts)]
    for turn in steps:
        for step in turn:
            written[step.sequence].append(step)
    return [
        GeneratedSequence(
            [step.id for step in text if not step.is_eos],
            [step.logprob for step in text if not step.is_eos],
            bool(text) and (text[-1].is_eos or text[-1].stopped),
        )
        for text in written
    ]


def steps_of(number: int, text: GeneratedSequence, request: GenerationRequest) -> list[TokenStep]:
    """Turn a text back into the steps that write it."""
    steps = [
        TokenStep(number, id, logprob, is_eos=False)
        for id, logprob in zip(text.ids, text.logprobs, strict=True)
    ]
    if steps and request.has_stop_rule and request.is_stopped(text.ids):
        steps[-1] = replace(steps[-1], stopped=True)
    elif text.finished:
        steps.append(TokenStep(number, next(iter(request.eos_ids)), 0.0, is_eos=True))
    return steps
