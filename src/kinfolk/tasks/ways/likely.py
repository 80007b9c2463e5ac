"""Options by their likelihood: what every way shares that answers by what it would rather say."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch
from kinfolk.tasks.examples import Example, Page, Reading
from kinfolk.tasks.rows import Choice, Completion
from kinfolk.tasks.speech import Speaks, after_text, around, reading
from kinfolk.tasks.task import Answer
from kinfolk.tasks.ways.way import Key, Reply, Way, by_group, owners, softmax
from kinfolk.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Likely(Way):
    """Say each option where the answer belongs, and add up how likely its tokens are."""

    speaks: Speaks = "decoder"
    hole: bool = False  # the answer stands inside the text, not behind it
    averaged: bool = False  # a token's likelihood, not an option's: long ones have a chance
    ended: bool = False  # an option says its end, too

    @abstractmethod
    def asked(self, row: Any) -> tuple[str, str]:
        """Return the text before the answer, and the text after it."""

    @abstractmethod
    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the answers there are to choose from, where they are known."""

    def target(self, row: Any) -> int | None:
        """Return the place of the right option."""
        options = self.options(row)
        assert options is not None
        match row:
            case Choice(label=label):
                return label
            case Completion(target=said):
                return None if said is None else options.index(said)
        return None if row.label is None else self.task.place(str(row.label))

    def weighed(self, row: Any, tokenizer: Tokenizer) -> Example:
        """Read a row once for each option."""
        options = self.options(row)
        assert options is not None
        said = [self.spoken(row, option, tokenizer) for option in options]
        readings, cut = zip(*said, strict=True)
        return Example(readings=readings, target=self.target(row), cut=max(cut))

    def spoken(
        self, row: Any, answer: str, tokenizer: Tokenizer, *, end: bool | None = None
    ) -> tuple[Reading, int]:
        """Read a row with an answer in it; say how many of its tokens are cut."""
        before, after = self.asked(row)
        opening = self.opened(tokenizer.offsets(before)[0], tokenizer)
        said = after_text(tokenizer, before, answer) or [self.pad]
        rest = tokenizer.offsets(after)[0] if after.strip() else []
        whole = len(opening) + len(said) + len(rest)
        room = self.length - around(self.speaks)
        said = said[: max(1, room - 1)]
        if self.speaks == "encoder-decoder":
            room += len(said)  # which stand in a row of their own
        rest = rest[: max(0, room - len(said) - 1)]
        kept = self.shortened(opening, max(1, room - len(said) - len(rest)))
        laid = reading(
            self.speaks,
            tokenizer.specials,
            kept,
            said,
            rest,
            end=self.ended if end is None else end,
            hole=self.hole,
        )
        return laid, whole - len(kept) - len(said) - len(rest)

    def opened(self, before: list[int], tokenizer: Tokenizer) -> list[int]:
        """Return what is read before the answer, with what divides the two."""
        return before

    def shortened(self, opening: list[int], room: int) -> list[int]:
        """Cut what is read before the answer to the room there is: its start goes."""
        return opening[-room:]

    def key(self, examples: Sequence[Example], readings: Sequence[Reading], page: Page) -> Key:
        """Predict the tokens of every option."""
        member = owners(examples)
        tokens, reading = page.tokens(readings)
        target = torch.tensor([IGNORE_INDEX if e.target is None else e.target for e in examples])
        first = torch.bincount(member).cumsum(0) - torch.bincount(member)
        target = torch.where(target == IGNORE_INDEX, target, first + target)
        nothing = torch.zeros(0, dtype=torch.int64)
        weight = torch.ones(len(examples))
        return Key(nothing, nothing, target, weight, None, tokens, reading, member)

    def logs(self, model: Any, batch: Batch[Key]) -> Tensor:
        """Return log p of every reading, by its predicted tokens."""
        key = batch.targets
        assert key.tokens is not None and key.reading is not None and key.member is not None
        hidden = key.tokens.gather(model(batch.inputs).hidden)
        scores: Tensor = model.lm_logits(hidden).logits().float()
        each: Tensor = scores.log_softmax(-1).gather(1, key.tokens.labels[:, None])[:, 0]
        total = each.new_zeros(len(key.member)).index_add(0, key.reading, each)
        if not self.averaged:
            return total
        return total / torch.bincount(key.reading, minlength=len(key.member)).clamp(min=1)

    def reply(self, model: Any, batch: Batch[Key], /) -> list[Reply]:
        """Return log p of each option."""
        assert batch.targets.member is not None
        return by_group(self.logs(model, batch), batch.targets.member)

    def answer(self, row: Any, examples: Sequence[Example], replies: Sequence[Reply], /) -> Answer:
        """Name the option that is likeliest."""
        (reply,) = replies
        shares = softmax(reply)
        best = int(np.argmax(shares))
        options = self.options(row)
        assert options is not None
        match row:
            case Choice():
                value: Any = best
            case Completion():
                value = options[best]
            case _:
                value = self.task.labels[best]
        return Answer(value, tuple(shares.tolist()), float(shares[best]))
