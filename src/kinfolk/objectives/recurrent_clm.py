"""Causal language modelling with a memory (Dai et al., 2019): rows go on from batch to batch.

text      the  cat  sat  down
ids       <s>  the | cat  sat | down
labels    the  cat | sat  down | </s>
sight     each token sees itself and the past of its document, in its row and in the memory
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import Batch, Loss, RecurrentModel, TokenTargets
from kinfolk.config import config
from kinfolk.data.datasets import StreamSegment
from kinfolk.objectives.clm import CLM, Line

EMPTY_EXAMPLE = Line(np.zeros(0, np.int64), np.zeros(0, np.int64))  # in a lane that has ended


@config("stream")
class RecurrentCLM(CLM):
    """Predict the next token, with what the model remembers of the rows before.

    Texts that are collated are strangers, as in CLM; those that are joined go on.
    """

    def collate_stream(self, rows: Sequence[Sequence[StreamSegment]], /) -> Batch[TokenTargets]:
        """Lay stretches side by side; a document keeps its number from batch to batch."""
        batch = self.collate([[s.example for s in row] or [EMPTY_EXAMPLE] for row in rows])
        document = np.full((len(rows), self.max_length), PADDING_ID, np.int32)
        position_ids = np.zeros((len(rows), self.max_length), np.int64)
        for row, stretches in enumerate(rows):
            slot = 0
            for stretch in stretches:
                size = len(stretch.example.ids)
                document[row, slot : slot + size] = stretch.number
                position_ids[row, slot : slot + size] = np.arange(
                    stretch.start, stretch.start + size
                )
                slot += size
        time = torch.from_numpy(position_ids.astype(np.int32))
        attention_mask = AttentionMask(torch.from_numpy(document), time, time)
        inputs = replace(
            batch.inputs, attention_mask=attention_mask, position_ids=torch.from_numpy(position_ids)
        )
        return replace(batch, inputs=inputs)

    def loss(self, model: RecurrentModel, batch: Batch[TokenTargets], /) -> Loss:  # type: ignore[override]
        """Sum -log p(next token), and give back what is remembered for the next batch."""
        if batch.inputs.memory is None:
            batch = batch.with_memory(model.init_memory(len(batch.inputs.input_ids)))
        output = model(batch.inputs)
        hidden = batch.targets.gather(output.hidden)
        sums = {"tokens": model.lm_logits(hidden).nll(batch.targets.labels)}
        return Loss(sums, memory=output.memory)
