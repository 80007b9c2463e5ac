"""Causal language modelling with a memory (Dai et al., 2019): rows continue from batch to batch.

text       the  cat  sat  down
input_ids  <s>  the | cat  sat | down
labels     the  cat | sat  down | </s>
attention  each token attends to itself and to the past of its document, in its row and the memory
"""

import numpy as np

from kinfolk.batch import Batch, Loss, Output, TokenTargets
from kinfolk.config import config
from kinfolk.data.chunks import IntArray, Rng
from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives.clm import CLM


@config("stream")
class RecurrentCLM(CLM):
    """Predict the next token, with the model's memory of the rows before."""

    loss_name = "stream"
    recurrent = True

    def segment_lengths(self, total: int, rng: Rng) -> IntArray:
        """Return the lengths of the rows of a stream, which cover `total` tokens."""
        return np.full(-(-total // self.max_length), self.max_length)

    def loss(self, model: LanguageModel, batch: Batch[TokenTargets], /) -> Loss:
        """Return the summed -log p(next token), and the memory for the next batch."""
        return self.likelihood(model, batch)[1]

    def likelihood(self, model: LanguageModel, batch: Batch[TokenTargets]) -> tuple[Output, Loss]:
        """Return the output of the network, and the summed -log p(next token)."""
        if batch.inputs.memory is None:
            batch = batch.with_memory(model.init_memory(len(batch.inputs.input_ids)))
        output = model(batch.inputs)
        hidden = batch.targets.gather(output.hidden)
        sums = {self.loss_name: model.lm_logits(hidden).nll(batch.targets.labels)}
        return output, Loss(sums, memory=output.memory)
