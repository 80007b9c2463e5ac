"""Spans that mean one thing, each ranked against those before it (Lee et al., 2017).

words    ann met bob . she smiled
ids  [C] ann met bob . she smiled [S]
read      *   *   *  *  *    *
spans    [ann]  [bob]  [she]        "she" refers to none, to bob or to ann: 0 + two scores

As Joshi et al. (2019), a document is read in stretches of whole sentences; a word is read by its
first piece. Where no mentions are given, every short span of a sentence may be one, and the best
are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import Batch, Loss
from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Example, Page, Reading
from kinfolk.tasks.framing import around
from kinfolk.tasks.rows import Mentioned, Span
from kinfolk.tasks.task import Answer
from kinfolk.tasks.ways.way import Key, Reply, Way, by_group, owners
from kinfolk.tasks.ways.words import Words, spelled, stretches
from kinfolk.text.tokenizer import Tokenizer

NOBODY = ("", "-")  # who speaks, where a file says nothing


@dataclass(frozen=True)
class Candidates:
    """The spans of a document that may be mentions, from left to right."""

    spans: tuple[Span, ...]
    speakers: tuple[int, ...]  # who says each, -1 where nobody knows
    found: bool  # by us, and not given
    room: int  # how many are kept


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranked(Key):
    """Spans of all documents; right is the number of each one's cluster, 0 where it is in none."""

    first: Tensor  # (spans,): its first word, among all words that are read
    last: Tensor  # (spans,)
    document: Tensor  # (spans,): which example it belongs to
    speaker: Tensor  # (spans,)
    room: Tensor  # (examples,): how many spans are kept


@config("coreference_head")
class Clusters(Way):
    """Score every span with each of those before it, and with none."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    causal: bool = False  # a decoder sees the words before only
    longest: int = 10  # words of a span, where mentions are not given (Lee et al. 2017)
    ratio: float = 0.4  # spans that are kept for each word, where mentions are not given (the same)
    antecedents: int = 50  # the most that a mention is ranked against (Lee et al. 2018)
    telling: float = 1.0  # the weight of telling mentions, where not given, from other spans

    name: ClassVar[str] = "head"
    solves: ClassVar[tuple[str, ...]] = ("coref",)
    head: ClassVar[str | None] = "coref"

    def __post_init__(self) -> None:
        if self.longest < 1 or self.antecedents < 1 or not self.ratio > 0:
            raise UserError(
                f"longest={self.longest}, antecedents={self.antecedents} and ratio={self.ratio} "
                "must be above 0: without spans to rank there are no clusters"
            )

    def lessons(self, row: Mentioned, tokenizer: Tokenizer, /) -> list[Example]:
        """Read a document whole, in as many stretches as it takes; no spans are no example."""
        about = self.candidates(row)
        if not about.spans:
            return []
        pieces = spelled(tokenizer, row.words)
        room = self.length - (around(self.frame, 1) if self.frame else 1)
        readings = tuple(
            self.words.reading(pieces[start:stop], None, tokenizer, room)
            for start, stop in parted(row.sentences, pieces, room)
        )
        cut = sum(max(0, len(piece) - room) for piece in pieces)
        return [Example(readings=readings, target=homes(row, about), cut=cut, about=about)]

    @property
    def words(self) -> Words:
        """How words are read: as those that are tagged."""
        return Words(
            task=self.task,
            length=self.length,
            pad=self.pad,
            frame=self.frame,
            causal=self.causal,
        )

    def candidates(self, row: Mentioned) -> Candidates:
        """Return the mentions that are given, or all spans of a sentence that are not too long."""
        if row.mentions is not None:
            spans = sorted(set(row.mentions))
        else:
            spans = [
                (first, stop)
                for start, end in bounds(row.sentences)
                for first in range(start, end)
                for stop in range(first + 1, min(first + self.longest, end) + 1)
            ]
        found = row.mentions is None
        room = min(len(spans), ceil(self.ratio * len(row.words))) if found else len(spans)
        names = [name for sentence in row.speakers or () for name in sentence]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        numbers |= dict.fromkeys(NOBODY, -1)
        speakers = tuple(numbers[names[first]] if names else -1 for first, _ in spans)
        return Candidates(tuple(spans), speakers, found, room)

    def key(self, examples: Sequence[Example], readings: Sequence[Reading], page: Page) -> Ranked:
        """Read one state a word, and say where spans begin and end among those."""
        counts = torch.tensor([len(r.slots) for r in readings])
        group = owners(examples).repeat_interleave(counts)
        words = torch.bincount(group)
        spans = [torch.tensor(e.about.spans) for e in examples]
        sizes = torch.tensor([len(some) for some in spans])
        document = torch.arange(len(examples)).repeat_interleave(sizes)
        ends = torch.cat(spans) + (words.cumsum(0) - words)[document, None]
        return Ranked(
            slots=page.slots(readings),
            group=group,
            target=torch.tensor([home for e in examples for home in e.target]),
            weight=torch.tensor([float(e.about.found) for e in examples])[document],
            first=ends[:, 0],
            last=ends[:, 1] - 1,
            document=document,
            speaker=torch.tensor([who for e in examples for who in e.about.speakers]),
            room=torch.tensor([e.about.room for e in examples]),
        )

    def counts(self, examples: Sequence[Example], key: Any) -> dict[str, int]:
        """Count the spans that are kept, whichever these are, and those that were not given."""
        kept, told = int(key.room.sum()), int(key.weight.sum())
        return {"labels": kept, "mentions": told, "tokens": sum(e.tokens for e in examples)}

    def ranking(self, model: Any, batch: Batch[Any]) -> Any:
        """Score the mentions with those before them."""
        hidden = model(batch.inputs).hidden.flatten(0, 1).index_select(0, batch.targets.slots)
        return model.antecedent_scores(hidden, batch.targets, self.antecedents)

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Sum -log p(any right antecedent); where there is none, to have none is right.

        Ranking alone teaches nothing about a span that is not kept, and on little text some would
        never be: so mentions are told from other spans, too (Zhang et al. 2018).
        """
        found, key = self.ranking(model, batch), batch.targets
        home = key.target[found.mention_indices]
        same = (
            (home[found.antecedents] == home[:, None])
            & (found.antecedents >= 0)
            & (home > 0)[:, None]
        )
        wrong = torch.cat([same.any(1, keepdim=True), ~same], 1)
        right = found.scores.masked_fill(wrong, -torch.inf)
        nats = found.scores.logsumexp(1) - right.logsumexp(1)
        told = F.binary_cross_entropy_with_logits(
            found.mention_scores, (key.target > 0).float(), key.weight, reduction="sum"
        )
        return Loss({"labels": nats.sum(), "mentions": told}, {"mentions": self.telling})

    def reply(self, model: Any, batch: Batch[Any], /) -> list[Reply]:
        """Return for each span the number of its antecedent, -1 for none, and how likely it is."""
        found, key = self.ranking(model, batch), batch.targets
        share, choice = found.scores.softmax(1).max(1)
        places = torch.arange(len(choice), device=choice.device)
        starts = torch.searchsorted(key.document, key.document)  # the first span of its document
        chosen = found.mention_indices[places - choice]
        chosen = torch.where(choice > 0, chosen - starts[chosen], -1)
        said = torch.stack([-torch.ones(len(starts)), torch.ones(len(starts))], 1).to(share)
        said[found.mention_indices] = torch.stack([chosen.to(share), share], 1)
        return by_group(said, key.document)

    def answer(self, row: Any, examples: Sequence[Example], replies: Sequence[Reply], /) -> Answer:
        """Join what refers to each other; what stands alone is in no cluster."""
        if not replies:
            return Answer(())
        spans = examples[0].about.spans
        home: dict[int, list[Span]] = {}
        for place, before in enumerate(replies[0][:, 0].astype(int)):
            if before >= 0:
                own = home.setdefault(before, [spans[before]])
                own.append(spans[place])
                home[place] = own
        unlike = {id(group): tuple(group) for group in home.values()}
        return Answer(tuple(unlike.values()), sure=float(replies[0][:, 1].min()))


def bounds(sentences: Sequence[Sequence[str]]) -> list[Span]:
    """Say where sentences begin and end among the words of a document."""
    return list(pairwise(accumulate(map(len, sentences), initial=0)))


def parted(
    sentences: Sequence[Sequence[str]], pieces: Sequence[Sequence[int]], room: int
) -> list[Span]:
    """Part words into stretches that fit, of whole sentences unless one is longer than the room."""
    where = [span for span in bounds(sentences) if span[0] < span[1]]
    found = []
    for start, stop in stretches([sum(map(len, pieces[a:b])) for a, b in where], room):
        first, last = where[start][0], where[stop - 1][1]
        inside = stretches([len(piece) for piece in pieces[first:last]], room)
        found += [(first + a, first + b) for a, b in inside]
    return found


def homes(row: Mentioned, about: Candidates) -> list[int]:
    """Number the clusters of a document from 1, and return that of each span, 0 for none."""
    clusters = enumerate(row.clusters or (), 1)
    known = {span: number for number, cluster in clusters for span in cluster}
    return [known.get(span, 0) for span in about.spans]
