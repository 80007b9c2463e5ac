"""Fill the holes of a text, in ids: a token for each mask, or a span for each sentinel.

encoders            [C]  it  was  [M]   .   [S]      the best tokens at [M]
encoder-decoders    it   was  <x>  .   </s>          <p>  <x>  very  good  <y>
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from kinfolk.errors import UserError
from kinfolk.generation.decoding import generate, inside
from kinfolk.generation.layout import check, device, read, resting
from kinfolk.generation.sampling import GREEDY, Sampling, ban
from kinfolk.types import PredictsTokens, ReadsSources, State


@torch.inference_mode()
def fill_masks(
    model: PredictsTokens,
    ids: Sequence[int],
    mask: int,
    *,
    top: int = 5,
    banned: Collection[int] = (),
) -> list[list[tuple[int, float]]]:
    """Return the best ids at each mask, with the probabilities the model gives them."""
    if mask not in ids:
        raise UserError(f"there is nothing to fill: the text holds no mask (id {mask})")
    if top < 1:
        raise UserError(f"top {top} leaves no token to choose: use 1 or more")
    check(model, [ids], "text")
    inputs = replace(read([ids]), state=State(len(ids))).to(device(model))
    with resting(model):
        output = model(inputs)
        # Whoever carries a state has learned to see only the past, and would fill without a future.
        if output.state is not None:
            raise UserError(
                "this model writes from left to right: it can go on with a text, not fill"
            )
        hidden = output.hidden[inputs.ids == mask]
        logits = model.predict(hidden).logits().float()
    unsaid = torch.tensor(inside(model, banned), dtype=torch.long, device=logits.device)
    shares = logits.softmax(-1)
    best = ban(logits, unsaid).topk(min(top, logits.shape[1] - len(unsaid))).indices
    found = zip(best.tolist(), shares.gather(1, best).tolist(), strict=True)
    return [list(zip(choices, share, strict=True)) for choices, share in found]


def fill_spans(
    model: ReadsSources,
    source: Sequence[int],
    *,
    sentinels: Sequence[int],  # all there are, in their order
    start: int,  # what the decoder starts with
    eos: int,
    tokens: int = 128,  # for all holes together
    sampling: Sampling = GREEDY,
    seed: int = 0,
    banned: Collection[int] = (),
) -> list[list[int]]:
    """Return what the model writes for each sentinel in the source; nothing where it skips one."""
    holes = [id for id in sentinels if id in source]
    if not holes:
        raise UserError("there is nothing to fill: the source holds no sentinel")
    # As T5's own targets do, a model may close with the sentinel after the last hole.
    after = sentinels[sentinels.index(holes[-1]) + 1 :][:1]
    (written,) = generate(
        model,
        [[start]],
        tokens=tokens,
        ends={eos, *after},
        sampling=sampling,
        seed=seed,
        sources=[source],
        banned=banned,
    )
    return part(written.ids, holes, sentinels)


def part(ids: Sequence[int], holes: Sequence[int], sentinels: Collection[int]) -> list[list[int]]:
    """Split what was written at the holes' sentinels; one that is out of order ends a hole."""
    parts: list[list[int]] = [[] for _ in holes]
    reached, hole = -1, None
    for id in ids:
        if id in sentinels:
            number = holes.index(id) if id in holes else -1
            hole = number if number > reached else None
            reached = max(reached, number)
        elif hole is not None:
            parts[hole].append(id)
    return parts
