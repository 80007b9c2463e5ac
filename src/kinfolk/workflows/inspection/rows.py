"""A Transformer-XL that reads a text in rows, each with the memory of the rows before it."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import Inputs
from kinfolk.families.transformer_xl import TransformerXL
from kinfolk.nn.recording import Recording, record_layers_and_attention


@dataclass(frozen=True, eq=False)
class RowsWithMemory:
    """What the rows of a text computed, joined: keys before a row are in its memory."""

    recording: Recording
    output: Tensor  # (1, length, hidden_size)
    starts: list[int]  # the first token of each row after the first
    memory: int  # tokens before a row that it attends to at most


def run_rows(model: TransformerXL, inputs: Inputs) -> RowsWithMemory:
    """Read a row in two halves, the second with the memory of the first."""
    length, mem_len = inputs.input_ids.shape[1], model.config.mem_len
    size = -(-length // 2)
    memory, recordings, outputs = model.init_memory(1), list[Recording](), list[Tensor]()
    starts = [*range(0, length, size)]
    for start in starts:
        part = replace(inputs.select(slice(start, start + size)), memory=memory)
        with record_layers_and_attention(model) as recording:
            output = model(part)
        recordings.append(recording)
        outputs.append(output.hidden)
        memory = output.memory
    whole = Recording()
    for layers in zip(*(one.attention[""] for one in recordings), strict=True):
        ends = [*starts[1:], length]
        rows = [by_token(x, end, length) for x, end in zip(layers, ends, strict=True)]
        whole.add_attention("", torch.cat(rows, dim=2))
    whole.hidden[""] = [
        torch.cat(states, dim=1)
        for states in zip(*(one.hidden[""] for one in recordings), strict=True)
    ]
    return RowsWithMemory(whole, torch.cat(outputs, dim=1), starts[1:], mem_len)


def by_token(attention: Tensor, end: int, length: int) -> Tensor:
    """Return the attention of a row over all tokens; its keys are the last ones before `end`.

    Slots of the memory from before the text, which are empty, are cut off.
    """
    return F.pad(attention, (end - attention.shape[3], length - end))
