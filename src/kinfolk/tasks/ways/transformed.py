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
from kinfolk.tasks.examples import Example, Page, Reading
from kinfolk.tasks.framing import encoded
from kinfolk.tasks.rows import Choice, Labelled
from kinfolk.tasks.ways.way import Key, Reply, by_group
from kinfolk.tasks.ways.whole import Whole
from kinfolk.text.tokenizer import Specials, Tokenizer


@config("transformed")
class Transformed(Whole):
    """Score the state of a line's last token, and go on predicting all of them."""

    auxiliary: float = 0.5  # the weight of predicting the line itself
    both: bool = False  # orders of a pair

    name: ClassVar[str] = "transformed"

    def lessons(self, row: Labelled | Choice, tokenizer: Tokenizer, /) -> list[Example]:
        """Write the row as a line, or as one for each order or option."""
        if isinstance(row, Choice) or not (self.both and len(row.texts) == 2):
            return super().lessons(row, tokenizer)
        texts = encoded(tokenizer, row.texts)
        asked = [self.whole(order, tokenizer) for order in (texts, texts[::-1])]
        readings = tuple(reading for reading, _ in asked)
        return [Example(readings=readings, target=self.target(row), cut=asked[0][1])]

    def margin(self, texts: int) -> int:
        """A start, a delimiter between two, and the token that is read."""
        return 1 + texts

    def reading(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Reading:
        """Put a start before, delimiters between, and behind all the token that is read."""
        start, delimiter, extract = line_marks(tokenizer.specials)
        line = [start, *texts[0], *(i for text in texts[1:] for i in (delimiter, *text)), extract]
        ids = np.array(line, np.int64)
        # What is predicted is the text: not the token that is read, which always stands there.
        labels = np.append(ids[1:-1], [IGNORE_INDEX, IGNORE_INDEX]) if self.auxiliary else None
        return Reading(
            ids=ids, time=np.arange(len(ids)), labels=labels, slots=np.array([len(ids) - 1])
        )

    def key(self, examples: Sequence[Example], readings: Sequence[Reading], page: Page) -> Key:
        """Read one state a line, and predict its tokens."""
        key = super().key(examples, readings, page)
        tokens = page.tokens(readings)[0] if self.auxiliary else None
        return Key(key.slots, key.group, key.target, key.weight, key.soft, tokens)

    def counts(self, examples: Sequence[Example], key: Key) -> dict[str, int]:
        """Count the tokens that are predicted, too."""
        predicted = {} if key.tokens is None else {"language": len(key.tokens.labels)}
        return super().counts(examples, key) | predicted

    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Sum -log p(class), and -log p(token) at a lower weight."""
        hidden = model(batch.inputs).hidden
        sums = {"labels": self.blame(self.read(model, hidden, batch.targets), batch.targets)}
        tokens = batch.targets.tokens
        if tokens is None:
            return Loss(sums)
        sums["language"] = model.lm_logits(tokens.gather(hidden)).nll(tokens.labels)
        return Loss(sums, {"language": self.auxiliary})

    def read(self, model: Any, hidden: Tensor, key: Key) -> Tensor:
        """Score the last token of each line; those of both orders are one."""
        states = hidden.flatten(0, 1).index_select(0, key.slots)
        if self.both and self.task.kind != "choose":
            added = states.new_zeros(len(key.target), states.shape[1])
            states = added.index_add(0, key.group, states)
        return model.logits(states).float()

    def reply(self, model: Any, batch: Batch[Key], /) -> list[Reply]:
        """Return the scores of each example: (classes,) or (options,)."""
        scores = self.read(model, model(batch.inputs).hidden, batch.targets)
        if self.task.kind == "choose":
            return [part[:, 0] for part in by_group(scores, batch.targets.group)]
        return [*scores.double().cpu().numpy()]


@config("bare")
class Bare(Transformed):
    """Read a text as it is, with nothing around it, as transformers' own classes do."""

    auxiliary: float = 0.0

    name: ClassVar[str] = "bare"

    def reading(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Reading:
        """Put texts one behind the other."""
        ids = np.array([id for text in texts for id in text], np.int64)
        return Reading(ids=ids, time=np.arange(len(ids)), slots=np.array([len(ids) - 1]))


def line_marks(specials: Specials) -> tuple[int, int, int]:
    """Return the start, the delimiter and the token that is read, of those a tokenizer has.

    One with <|endoftext|> alone, as GPT-2's, has it in all three places.
    """
    last = specials.need("eos")
    start = last if specials.bos is None else specials.bos
    delimiter = last if specials.sep is None else specials.sep
    return start, delimiter, last if specials.cls is None else specials.cls
