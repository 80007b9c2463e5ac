"""One decoder for every model that can write: a token for each text at a time, over one state."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from kinfolk.generation.beams import Beam, search
from kinfolk.generation.contrast import Contrastive, contrast
from kinfolk.generation.graphs import pays, replay
from kinfolk.generation.layout import resting
from kinfolk.generation.sampling import Sampling, choose
from kinfolk.generation.writer import Generated, Request, Step, Writer, weigh
from kinfolk.nn.language_model import LanguageModel
from kinfolk.rng import uniforms

Method = Sampling | Beam | Contrastive


@torch.inference_mode()
def decode(
    model: LanguageModel, request: Request, method: Method = Sampling()
) -> Iterator[list[Step]]:
    """Go on with every prompt, a token for each live text at a time; beams come whole."""
    if not request.prompts:
        return
    writer = Writer(model, request)
    with resting(model):
        if isinstance(method, Beam):
            for number, text in enumerate(search(writer, request, method)):
                yield whole(number, text, request)
        elif isinstance(method, Contrastive):
            yield from contrast(writer, request, method)
        else:
            yield from sample(writer, request, method)


def generate(
    model: LanguageModel, request: Request, method: Method = Sampling()
) -> list[Generated]:
    """Go on with every prompt to its end: `num` texts of the first prompt, then of the next."""
    if isinstance(method, Beam) and request.prompts:
        with torch.inference_mode(), resting(model):
            return search(Writer(model, request), request, method)
    return collect(decode(model, request, method), len(request.prompts) * request.num)


def sample(writer: Writer, request: Request, sampling: Sampling) -> Iterator[list[Step]]:
    """Choose the best token, or draw one, in every row."""
    live = [(prompt, copy) for prompt in range(len(request.prompts)) for copy in range(request.num)]
    # A text's number is that of its prompt and, above, that of its copy: others change nothing.
    numbers = [request.number(prompt) + (copy << 32) for prompt, copy in live]
    drawn = uniforms(request.seed, numbers, max(writer.rooms))
    chances = torch.from_numpy(drawn).to(writer.device)
    for token in range(max(writer.rooms)):
        logits = writer.read()
        if token == 0:
            logits = writer.double(logits, request.num)
        ids = choose(writer.judge(logits, writer.said), sampling, chances[:, token])
        logprobs = weigh(logits, ids[:, None], request.weighed)[:, 0]
        writer.write(ids)
        steps = writer.steps(live, ids, logprobs, request)
        yield steps
        kept = writer.unfinished(live, steps, token + 1)
        if not kept:
            return
        if len(kept) < len(live):
            writer.keep(kept)
            chances, live = chances[kept], [live[row] for row in kept]
        if token == 0 and pays(writer, request):
            yield from replay(writer, request, sampling, chances, live)
            return


def collect(steps: Iterable[list[Step]], texts: int) -> list[Generated]:
    """Put the steps of each text together."""
    written: list[list[Step]] = [[] for _ in range(texts)]
    for turn in steps:
        for step in turn:
            written[step.text].append(step)
    return [
        Generated(
            [step.id for step in text if not step.ends],
            [step.logprob for step in text if not step.ends],
            bool(text) and (text[-1].ends or text[-1].enough),
        )
        for text in written
    ]


def whole(number: int, text: Generated, request: Request) -> list[Step]:
    """Turn a text back into the steps that write it."""
    steps = [
        Step(number, id, logprob, ends=False)
        for id, logprob in zip(text.ids, text.logprobs, strict=True)
    ]
    if steps and request.watched and request.enough(text.ids):
        steps[-1] = replace(steps[-1], enough=True)
    elif text.ended:
        steps.append(Step(number, next(iter(request.ends)), 0.0, ends=True))
    return steps
