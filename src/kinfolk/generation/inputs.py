"""How texts of different lengths lie in one batch, and what is checked before they do.

Prompts have their padding to the left, so that the tokens of each text are neighbours and the last
slot is where all of them go on:

    ids        .   .  <s>  the        document  -1  -1   0   0        places  0  0  0  1
    ids       <s>  a   cat  sat       document   0   0   0   0        places  0  1  2  3

Where a prompt ends with the blanks of a text, they stand at the place of their mask:

    ids       it  [M]  .  <s>  was    places  0  1  2  1  1    within  0  0  0  1  2
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import Inputs, KVCache, tree_map
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel

TokenLists = Sequence[Sequence[int]]
Blanks = Sequence[tuple[int, int]]  # the place of each mask, and how many tokens it has by now


def prefill_inputs(
    prompts: TokenLists,
    source: Inputs | None,
    state: KVCache,
    blanks: Sequence[Blanks] | None = None,
    *,
    asks: bool = False,
) -> Inputs:
    """Lay prompts side by side for a decoder, with padding to the left.

    Who asks (XLNet) has one more slot at the end, for the token that is asked for.
    """
    longest = max(map(len, prompts)) + asks
    rows = [[*prompt, 0] if asks else list(prompt) for prompt in prompts]
    padding = torch.tensor([longest - len(row) for row in rows])[:, None]
    slots = torch.arange(longest)
    position_ids = (slots - padding).clamp(min=0)
    document = torch.where(slots < padding, PADDING_ID, 0)
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    if blanks is None:
        plain: Literal["causal"] | None = None if bool(padding.any()) else "causal"
        attention_mask = AttentionMask(document, position_ids, position_ids, plain)
        opened = Inputs(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            encoder_inputs=source,
            cache=state,
        )
        return _add_query(opened) if asks else opened
    lines = [
        _blank_positions(len(prompt), own) for prompt, own in zip(prompts, blanks, strict=True)
    ]
    filled = [[[0] * (longest - len(line)) + line for line in row] for row in lines]
    position_ids, within, time = torch.tensor(filled).unbind(1)
    attention_mask = AttentionMask(document, time, time)
    return Inputs(
        input_ids=ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        block_position_ids=within,
        encoder_inputs=source,
        cache=state,
    )


def _add_query(inputs: Inputs) -> Inputs:
    """Ask for the token in the last slot of every row."""
    last = torch.full_like(inputs.input_ids[:, :1], inputs.input_ids.shape[1] - 1)
    return replace(inputs, target_positions=last, token_type_ids=torch.zeros_like(inputs.input_ids))


def _blank_positions(length: int, blanks: Blanks) -> list[list[int]]:
    """Say of each token of a prompt where it stands, where in its blank, and when it is written."""
    sizes = [size for _, size in blanks]
    text = length - sum(sizes)
    return [
        [*range(text), *(place for place, size in blanks for _ in range(size))],
        [*[0] * text, *(step for size in sizes for step in range(1, size + 1))],
        [*[0] * text, *range(1, sum(sizes) + 1)],
    ]


def next_inputs(inputs: Inputs, ids: Tensor) -> Inputs:
    """Stand one place further in every text, on the token just chosen."""
    if inputs.target_positions is not None:
        return _next_query(inputs, ids)
    position_ids, time = inputs.position_ids[:, -1:], inputs.attention_mask.key_order[:, -1:] + 1
    within = None if inputs.block_position_ids is None else inputs.block_position_ids[:, -1:] + 1
    return Inputs(
        input_ids=ids[:, None],
        attention_mask=AttentionMask(
            torch.zeros_like(time), time, time, inputs.attention_mask.unpacked
        ),
        position_ids=position_ids + 1
        if within is None
        else position_ids,  # a blank goes on where its mask stands
        block_position_ids=within,
        encoder_inputs=inputs.encoder_inputs,
        cache=inputs.cache,
    )


def _next_query(inputs: Inputs, ids: Tensor) -> Inputs:
    """Put the token just chosen where it was asked for, and ask for the next."""
    assert inputs.cache is not None
    inputs.cache.drop_last(1)
    time = inputs.attention_mask.key_order[:, -1:]
    time = torch.cat([time, time + 1], dim=1)
    both = torch.stack([ids, torch.zeros_like(ids)], dim=1)
    attention_mask = AttentionMask(
        torch.zeros_like(time), time, time, inputs.attention_mask.unpacked
    )
    return _add_query(
        Inputs(input_ids=both, attention_mask=attention_mask, position_ids=time, cache=inputs.cache)
    )


def select_rows(inputs: Inputs, rows: Tensor) -> Inputs:
    """Keep these rows, here and in the state."""
    if inputs.cache is not None:
        inputs.cache.reorder(rows)
    return tree_map(inputs, lambda tensor: tensor[rows])


def source_inputs(texts: TokenLists) -> Inputs:
    """Lay texts side by side for an encoder, with padding to the right."""
    lengths = torch.tensor([len(text) for text in texts])[:, None]
    slots = torch.arange(int(lengths.max())).expand(len(texts), -1)
    filled = slots < lengths
    ids = torch.zeros_like(slots)
    ids[filled] = torch.tensor([id for text in texts for id in text])
    attention_mask = AttentionMask.bidirectional(
        torch.where(filled, 0, PADDING_ID), unpacked=bool(filled.all())
    )
    return Inputs(input_ids=ids, attention_mask=attention_mask, position_ids=slots)


def check_prompts(model: LanguageModel, texts: TokenLists, what: str) -> None:
    """Complain about a text that is empty, too long, or holds ids the model does not know."""
    context = model.config.max_length
    for text in texts:
        if not text:
            raise UserError(f"a {what} is empty: give it at least one token")
        if context is not None and len(text) > context:
            raise UserError(
                f"a {what} of {len(text)} tokens does not fit the model's context of {context}: "
                "shorten it"
            )
        check_ids(model, text, what)


def check_ids(model: LanguageModel, text: Sequence[int], what: str) -> None:
    """Complain about ids the model does not know."""
    vocab = model.config.vocab_size
    if strange := [id for id in text if not 0 <= id < vocab]:
        raise UserError(
            f"a {what} holds the id {strange[0]}, and the model knows 0 to {vocab - 1}: "
            "use the tokenizer it was trained with"
        )


def tokens_left(model: LanguageModel, length: int, tokens: int, context: int | None) -> int:
    """Say how many tokens may follow a prompt of some length."""
    if tokens < 1:
        raise UserError(f"{tokens} tokens are nothing to write: ask for 1 or more")
    limits = [c for c in (context, model.config.max_length) if c is not None]
    left = min([tokens, *(limit - length for limit in limits)])
    if left < 1:
        raise UserError(
            f"a prompt of {length} tokens leaves no room to write in a context of {min(limits)}: "
            f"shorten it to {min(limits) - 1} at most"
        )
    return left


def device_of(model: LanguageModel) -> torch.device:
    """Return where the model's weights are."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


@contextmanager
def eval_mode(model: LanguageModel) -> Iterator[None]:
    """Switch the habits of training off, and on again where they were on."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
