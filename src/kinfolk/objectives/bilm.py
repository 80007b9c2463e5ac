"""Bidirectional language modelling (Peters et al., 2018): a forward and a backward language model.

text       the  cat  sat
input_ids  <s>  the  cat  sat       backward  </s> sat  cat  the
labels     the  cat  sat  </s>      backward  sat  cat  the  <s>
attention  each token attends to itself and to the tokens before it, in its row and the memory

The backward model reads a document from its end. A row has as many tokens of it as the forward
model reads from the beginning, so that both carry their states from row to row, and no state
crosses a document. The loss is the mean of both directions.

Deviation: the released code carries states from sentence to sentence, whatever their documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kinfolk.batch import Batch, Inputs, Loss, TensorTree, TokenTargets
from kinfolk.config import config
from kinfolk.data.chunks import Chunk, IntArray, Rng
from kinfolk.data.examples import Example
from kinfolk.objectives.recurrent_clm import RecurrentCLM


@dataclass(frozen=True, eq=False)
class BiLMTargets(TensorTree):
    """The labels of both directions, and the inputs of the backward one."""

    tokens: TokenTargets
    backward_inputs: Inputs
    backward_tokens: TokenTargets


@config("bilm")
class BiLM(RecurrentCLM):
    """Predict the next token and, from the other end, the one before."""

    loss_name = "bilm"
    backward_loss_name: ClassVar[str] = "bilm_backward"

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Shift by one; the backward example has the same place in the document from its end."""
        forward = super().example(chunk, rng)
        ids, labels = self.backward_ids(chunk, len(forward.input_ids))
        return forward.with_fields(backward=forward.with_fields(input_ids=ids, labels=labels))

    def backward_ids(self, chunk: Chunk, size: int) -> tuple[IntArray, IntArray]:
        """Return the inputs and labels of a range of the document that is read from its end."""
        first, end = chunk.documents.starts[chunk.document : chunk.document + 2].tolist()
        eos = self.special_tokens.require("eos")
        bos = eos if self.special_tokens.bos is None else self.special_tokens.bos
        stop = min(chunk.start + size, end - first)
        labels = chunk.documents.ids(end - stop, end - chunk.start)[::-1]
        if chunk.start + size > end - first:
            labels = np.concatenate([labels, [bos]])
        before = end - chunk.start
        start = eos if before == end else int(chunk.documents.ids(before, before + 1)[0])
        return np.concatenate([[start], labels[:-1]]), np.ascontiguousarray(labels)

    def collate(self, rows: Sequence[Sequence[Example]], /) -> Batch[BiLMTargets]:
        """Lay both directions out, in the same rows."""
        forward = super().collate(rows)
        backward = super().collate([[backward_example(e) for e in row] for row in rows])
        targets = BiLMTargets(forward.targets, backward.inputs, backward.targets)
        count = backward.counts[self.loss_name]
        counts = {**forward.counts, self.backward_loss_name: count}
        return Batch(forward.inputs, targets, counts)

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Return the summed -log p(token) of both directions, and the memory for the next batch."""
        targets: BiLMTargets = batch.targets
        if batch.inputs.memory is None:
            batch = batch.with_memory(model.init_memory(len(batch.inputs.input_ids)))
        forward, backward, memory = model.forward_bilm(batch.inputs, targets.backward_inputs)
        sums = {
            name: model.lm_logits(labels.gather(hidden)).nll(labels.labels)
            for name, labels, hidden in (
                (self.loss_name, targets.tokens, forward),
                (self.backward_loss_name, targets.backward_tokens, backward),
            )
        }
        return Loss(sums, dict.fromkeys(sums, 0.5), memory)


def backward_example(example: Example) -> Example:
    """Return the backward direction of an example, at its place in a stream of documents."""
    assert example.backward is not None
    return example.backward.with_fields(
        document_id=example.document_id,
        position_ids=example.position_ids,
        order=example.order,
    )
