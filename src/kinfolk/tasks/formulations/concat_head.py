"""Concat pooling (Howard and Ruder 2018): a classifier over all hidden states of a text.

text        a fine film
ids     <s> a fine film
read     *  *  *    *     the last hidden state, the maximum and the mean of all, side by side

Long texts are read in segments of `bptt` tokens, each from the final state of the one before: all
segments have a gradient, and no gradient flows from one into another (section 3.3, BPT3C).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import Batch, Inputs, Output, gather_positions
from kinfolk.config import config
from kinfolk.data.examples import Example
from kinfolk.tasks.formulations.base import TaskTargets, segment_mean
from kinfolk.tasks.formulations.head import SequenceHead
from kinfolk.tasks.formulations.sequences import causal_special_tokens, last_token_example
from kinfolk.text.tokenizer import Tokenizer


@config("concat")
class ConcatHead(SequenceHead):
    """A head on the last hidden state, the maximum and the mean of all, of a recurrent network."""

    # Deviation: the paper varies the lengths of segments here too.
    bptt: int = 70  # tokens through which gradients flow; 0 is the whole text

    name = "concat"
    needs_template = False
    reads_all_tokens = True
    static_shapes = False

    def num_special_tokens(self, texts: int) -> int:
        """Return the number of special tokens: a start, and delimiters between texts."""
        return texts

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Return the start, and the texts with delimiters between them."""
        start, delimiter, _ = causal_special_tokens(tokenizer.special_tokens)
        rest = (i for text in texts[1:] for i in (delimiter, *text))
        ids = np.array([start, *texts[0], *rest], np.int64)
        return replace(last_token_example(ids), read_positions=np.arange(len(ids)))

    def scores(self, model: Any, batch: Batch[TaskTargets]) -> Tensor:
        """Return the scores of each text or option: (examples, classes)."""
        hidden = self.hidden_states(model, batch.inputs)
        states = gather_positions(hidden, batch.targets.read_at)
        return self.pooled_logits(model, states, batch.targets)

    def hidden_states(self, model: Any, inputs: Inputs) -> Tensor:
        """Return the hidden states before dropout, read in segments where a gradient is needed."""
        length = inputs.input_ids.shape[1]
        if not model.training or not 0 < self.bptt < length:
            return undropped(model(inputs))
        memory, parts = model.pretrained.init_memory(len(inputs.input_ids)), []
        for start in range(0, length, self.bptt):
            segment = inputs.select(slice(start, start + self.bptt))
            output = model(replace(segment, memory=memory))
            memory = output.memory
            parts.append(undropped(output))
        return torch.cat(parts, dim=1)

    def pooled_logits(self, model: Any, states: Tensor, targets: TaskTargets) -> Tensor:
        """Return the logits of each text or option: (examples, classes)."""
        owners = targets.example_ids
        assert owners is not None
        count = len(targets.instance_ids)
        ends = torch.bincount(owners, minlength=count).cumsum(0) - 1
        largest = states.new_full((count, states.shape[1]), -torch.inf).scatter_reduce(
            0, owners[:, None].expand_as(states), states, "amax"
        )
        mean = segment_mean(states, owners, count)
        return model.logits(torch.cat([states[ends], largest, mean], dim=1)).float()


def undropped(output: Output) -> Tensor:
    """Return the hidden states before dropout; the head has its own."""
    return output.hidden if output.undropped is None else output.undropped
