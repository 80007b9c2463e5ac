"""A reader over the hidden states of a pretrained network: start and end of an answer.

question     when was it written ?          context      it was written in 1843 .
ids          when was it written ? </s>     ids          it was written in 1843 . </s>
read          *    *  *     *    *          read          *  *    *     *   *   *

Question and context are encoded by themselves. The task network scores no answer and each token of
the context. Windows of a long context and predictions are those of `SpanHead`.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch
from kinfolk.config import config
from kinfolk.data.examples import Collated, Example
from kinfolk.nn.task_heads import FIXED_LABELS
from kinfolk.tasks.formulations.base import Instance, TaskTargets, offset_targets
from kinfolk.tasks.formulations.features import Features
from kinfolk.tasks.formulations.span_head import SpanHead, char_to_token_span
from kinfolk.tasks.rows import QuestionRow
from kinfolk.text.tokenizer import Tokenizer


@config("feature_reader")
class FeatureReader(Features, SpanHead):
    """A task network that scores the tokens of a context."""

    name = "features"
    outputs = ("span",)
    needs_template = False
    distills = False
    task_networks = ("reader",)

    @property
    def labels(self) -> tuple[str, ...]:
        """Start and end."""
        return FIXED_LABELS["span"]

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Set whether no answer can be predicted, and the size of the word vectors."""
        return Features.fit(SpanHead.fit(self, rows, tokenizer, balanced=balanced), rows, tokenizer)

    def instances(
        self, row: QuestionRow, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode the windows; words that the vocabulary lacks are read by their characters."""
        opened = self.open(tokenizer)
        return self.add_characters(super().instances(row, opened, labelled=labelled), opened)

    def encode_window(
        self,
        question: Sequence[int],
        ids: Sequence[int],
        spans: tuple[tuple[int, int], ...],
        answer: tuple[int, int] | None,
        tokenizer: Tokenizer,
    ) -> Instance:
        """Return the instance of a question and a window of its context."""
        examples = self.text_example(question, tokenizer), self.text_example(ids, tokenizer)
        target = None if answer is None else char_to_token_span(spans, answer)
        return Instance(examples=examples, target=target, metadata=spans)

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TaskTargets:
        """Read all tokens; score no answer and the tokens of each context."""
        sizes = torch.tensor([1 + len(i.examples[1].read_positions) for i in instances])
        index = torch.repeat_interleave(torch.arange(len(instances)), sizes)
        unknown = (IGNORE_INDEX, IGNORE_INDEX)
        known = torch.tensor([unknown if i.target is None else i.target for i in instances])
        read = torch.tensor([len(example.read_positions) for example in examples])
        return TaskTargets(
            collated.read_positions(examples),
            index,
            offset_targets(known.T, index).T,
            torch.ones(len(instances)),
            example_ids=torch.repeat_interleave(torch.arange(len(examples)), read),
        )

    def scores(self, model: Any, batch: Batch[TaskTargets]) -> Tensor:
        """Return the scores of no answer and of each token of a context: (scored, 2)."""
        targets = batch.targets
        texts = model.texts(batch.inputs, targets.read_at, targets.example_ids)
        scores: Tensor = model.task_network(texts)
        return scores
