"""The grids of recurrent families: what a state has read, against the network of each objective."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kinfolk.batch import Batch, Inputs
from kinfolk.families.base import Family
from kinfolk.objectives.bilm import BiLM
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.text import train_tokenizer
from kinfolk.text.characters import character_table
from kinfolk.workflows.inspection.draws import Draw, InspectedText
from kinfolk.workflows.inspection.objectives import inspect_objective
from support.contracts import PAIRS, shaken

DOCUMENTS = ("The fox jumps over the lazy dog. It was not amused.", "A second text follows here.")
TOKENIZER = train_tokenizer(DOCUMENTS, kind="word", vocab_size=1000, fewer=True)
TEXT = InspectedText(DOCUMENTS, TOKENIZER)
LSTM = [
    pytest.param(family, name, id=f"{family.name}-{name}")
    for family, name in PAIRS
    if any(isinstance(part, nn.LSTM) for part in family.config("nano").build().modules())
]
NOISE = 1e-9  # of double precision; the least influence of a token is 0.01
Changed = tuple[str, int, int]  # a stream, a row, and the place of a token that is another one


def network(family: Family) -> Any:
    """Build a network whose weights are random, in double precision."""
    sizes = {"vocab_size": TOKENIZER.vocab_size, "decoder_start_token_id": 0}
    config = family.config("nano").with_fields(**sizes)
    torch.manual_seed(0)
    model = shaken(config.build())
    if config.max_characters is not None:
        table = character_table(TOKENIZER, config.max_characters)
        model.set_character_table(torch.from_numpy(table))
    return model.double().eval()


def another_token(inputs: Inputs, place: int) -> Inputs:
    """Put another word of the text at a place."""
    ids = inputs.input_ids.clone()
    ids[0, place] = next(i for i in TEXT.ids.tolist() if i != ids[0, place])
    return replace(inputs, input_ids=ids)


def changed_batch(batch: Batch[Any], stream: str, place: int) -> Batch[Any]:
    """Change a token of one stream."""
    if stream == "backward":
        targets = batch.targets
        backward = another_token(targets.backward_inputs, place)
        return replace(batch, targets=replace(targets, backward_inputs=backward))
    inputs = batch.inputs
    if stream == "encoder":
        encoder = another_token(inputs.encoder_inputs, place)
        return replace(batch, inputs=replace(inputs, encoder_inputs=encoder))
    return replace(batch, inputs=another_token(inputs, place))


@torch.no_grad()
def states(model: Any, draw: Draw, changed: Changed | None = None) -> dict[str, Tensor]:
    """Return the output of the network at every place of each stream, as the loss runs it."""
    found: dict[str, list[Tensor]] = {}
    memory = model.init_memory(1) if isinstance(draw.objective, RecurrentCLM) else None
    for number, (batch, row) in enumerate(zip(draw.batches, draw.rows, strict=True)):
        if changed is not None and changed[1] == number:
            batch = changed_batch(batch, changed[0], changed[2])
        inputs = replace(batch.inputs, memory=memory)
        if isinstance(draw.objective, BiLM):
            forward, backward, memory = model.forward_bilm(inputs, batch.targets.backward_inputs)
            outputs = {"forward": forward, "backward": backward}
        elif inputs.encoder_inputs is not None:
            outputs = {"encoder": model.encode(inputs.encoder_inputs)}
            outputs["decoder"] = model(inputs).hidden
        else:
            output = model(inputs)
            outputs, memory = {"input": output.hidden}, output.memory
        for name, hidden in outputs.items():
            place = 0 if name == "encoder" else -1
            length = sum(example.lengths[place] for example in row)
            found.setdefault(name, []).append(hidden[0, :length])
    return {name: torch.cat(parts) for name, parts in found.items()}


def places(draw: Draw, stream: str) -> Iterator[tuple[int, int]]:
    """Yield the row of each token of a stream, and its place there."""
    for number, row in enumerate(draw.rows):
        lengths = (example.lengths[0 if stream == "encoder" else -1] for example in row)
        yield from ((number, place) for place in range(sum(lengths)))


@pytest.mark.parametrize(("family", "name"), LSTM)
def test_a_state_depends_on_exactly_the_tokens_that_the_grid_says(
    family: Family, name: str
) -> None:
    model = network(family)
    view, draw = inspect_objective(family, name, model.config, TEXT, 3)
    before = states(model, draw)
    assert set(before) == {stream.name for stream in view.streams}
    for mask in view.masks:
        read = np.zeros_like(mask.mask)
        for key, (row, place) in enumerate(places(draw, mask.keys)):
            after = states(model, draw, (mask.keys, row, place))[mask.queries]
            change = (after - before[mask.queries]).abs().amax(1)
            read[:, key] = (change > NOISE).numpy()
        assert np.array_equal(read, mask.mask), mask.name
