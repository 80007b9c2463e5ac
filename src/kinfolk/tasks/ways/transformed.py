"""GPT's transformed input (Radford et al., 2018, 3.3): any task as one line, read at its end.

class     <s> text <e>                 read at <e>
pair      <s> text <$> other <e>       both orders, and their states added, where no order is right
options   <s> context <$> option <e>   once for each option, and their scores compete

Besides, every token of the line is predicted as in pretraining, at half the weight.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.tasks.examples import Collated, Example, Instance
from kinfolk.tasks.framing import encode_plain
from kinfolk.tasks.rows import LabelledText, MultipleChoiceRow
from kinfolk.tasks.ways.way import RawScores, TaskTargets, split_by_instance
from kinfolk.tasks.ways.whole import SequenceHead
from kinfolk.text.tokenizer import SpecialTokens, Tokenizer


@config("transformed")
class CausalHead(SequenceHead):
    """Score the state of a line's last token, and go on predicting all of them."""

    lm_loss_weight: float = 0.5  # the weight of predicting the line itself
    both_orders: bool = False  # orders of a pair

    name: ClassVar[str] = "transformed"

    def training_instances(
        self, row: LabelledText | MultipleChoiceRow, tokenizer: Tokenizer, /
    ) -> list[Instance]:
        """Write the row as a line, or as one for each order or option."""
        if isinstance(row, MultipleChoiceRow) or not (self.both_orders and len(row.texts) == 2):
            return super().training_instances(row, tokenizer)
        texts = encode_plain(tokenizer, row.texts)
        asked = [self.encode_texts(order, tokenizer) for order in (texts, texts[::-1])]
        readings = tuple(reading for reading, _ in asked)
        return [Instance(examples=readings, target=self.target(row), truncated_tokens=asked[0][1])]

    def num_special_tokens(self, texts: int) -> int:
        """A start, a delimiter between two, and the token that is read."""
        return 1 + texts

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Put a start before, delimiters between, and behind all the token that is read."""
        start, delimiter, extract = causal_special_tokens(tokenizer.special_tokens)
        line = [start, *texts[0], *(i for text in texts[1:] for i in (delimiter, *text)), extract]
        ids = np.array(line, np.int64)
        # What is predicted is the text: not the token that is read, which always stands there.
        labels = np.append(ids[1:-1], [IGNORE_INDEX, IGNORE_INDEX]) if self.lm_loss_weight else None
        return Example(
            ids=ids, order=np.arange(len(ids)), labels=labels, read_at=np.array([len(ids) - 1])
        )

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Read one state a line, and predict its tokens."""
        key = super().targets(examples, readings, page)
        tokens = page.tokens(readings)[0] if self.lm_loss_weight else None
        return TaskTargets(
            key.read_at, key.instance_ids, key.target, key.weight, key.teacher_probs, tokens
        )

    def counts(self, examples: Sequence[Instance], key: TaskTargets) -> dict[str, int]:
        """Count the tokens that are predicted, too."""
        predicted = {} if key.tokens is None else {"language": len(key.tokens.labels)}
        return super().counts(examples, key) | predicted

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(class), and -log p(token) at a lower weight."""
        hidden = model(batch.inputs).hidden
        sums = {
            "labels": self.loss_sum(self.pooled_logits(model, hidden, batch.targets), batch.targets)
        }
        tokens = batch.targets.tokens
        if tokens is None:
            return Loss(sums)
        sums["language"] = model.lm_logits(tokens.gather(hidden)).nll(tokens.labels)
        return Loss(sums, {"language": self.lm_loss_weight})

    def pooled_logits(self, model: Any, hidden: Tensor, key: TaskTargets) -> Tensor:
        """Score the last token of each line; those of both orders are one."""
        states = hidden.flatten(0, 1).index_select(0, key.read_at)
        if self.both_orders and self.task.kind != "choose":
            added = states.new_zeros(len(key.target), states.shape[1])
            states = added.index_add(0, key.instance_ids, states)
        return model.logits(states).float()

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each example: (classes,) or (options,)."""
        scores = self.pooled_logits(model, model(batch.inputs).hidden, batch.targets)
        if self.task.kind == "choose":
            return [part[:, 0] for part in split_by_instance(scores, batch.targets.instance_ids)]
        return [*scores.double().cpu().numpy()]


@config("bare")
class BareCausalHead(CausalHead):
    """Read a text as it is, with nothing around it, as transformers' own classes do."""

    lm_loss_weight: float = 0.0

    name: ClassVar[str] = "bare"

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Put texts one behind the other."""
        ids = np.array([id for text in texts for id in text], np.int64)
        return Example(ids=ids, order=np.arange(len(ids)), read_at=np.array([len(ids) - 1]))


def causal_special_tokens(special_tokens: SpecialTokens) -> tuple[int, int, int]:
    """Return the start, the delimiter and the token that is read, of those a tokenizer has.

    One with <|endoftext|> alone, as GPT-2's, has it in all three places.
    """
    last = special_tokens.require("eos")
    start = last if special_tokens.bos is None else special_tokens.bos
    delimiter = last if special_tokens.sep is None else special_tokens.sep
    return start, delimiter, last if special_tokens.cls is None else special_tokens.cls
