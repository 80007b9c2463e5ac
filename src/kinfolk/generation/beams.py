"""Beam search: several beginnings of each text are kept, and the best whole text wins.

A text's score is the sum of its tokens' log-probabilities, divided by its length to the power of
the length penalty. With groups (Vijayakumar et al. 2016) the beams of a text hunt in parties, and a
token costs the more the more earlier parties have just said it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.rules import NEVER, WAY_OUT
from kinfolk.generation.writer import Generated, Request, Writer, sane


@dataclass(frozen=True, kw_only=True)
class Beam:
    """How wide the search is, and what it likes."""

    size: int = 4
    length_penalty: float = 1.0  # above 0 favours long texts, below 0 short ones
    groups: int = 1
    diversity: float = 0.5  # what a token costs for each earlier group that said it
    early: bool = False  # stop once there are enough whole texts, though better ones may come

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"{self.size} beams are nothing to search with: use 1 or more")
        if self.groups < 1 or self.size % self.groups:
            raise UserError(f"{self.size} beams do not make {self.groups} equal groups")
        if not math.isfinite(self.length_penalty):
            raise UserError(
                f"a length penalty of {self.length_penalty} is no number: 1 divides the score of a "
                "text by its length, and 0 leaves it as it is"
            )
        if not (math.isfinite(self.diversity) and self.diversity >= 0):
            raise UserError(f"a diversity of {self.diversity} means nothing: use 0 or more")

    @property
    def each(self) -> int:
        """How many beams a group has."""
        return self.size // self.groups


@dataclass(frozen=True)
class Way:
    """A token that a beam may go on with."""

    score: float  # of the whole text up to it
    beam: int  # the beam it goes on from, counted in its group
    id: int


@dataclass
class Hunt:
    """One group of beams after one text: the whole texts it has, and whether it goes on."""

    beam: Beam
    found: list[Generated] = field(default_factory=list)  # the best come first
    open: bool = True

    def add(self, text: Generated) -> None:
        """Keep a whole text if it is among the best."""
        self.found = sorted([*self.found, text], key=lambda t: -t.score)[: self.beam.each]

    def weigh(self, best: float, length: int) -> None:
        """Stop where the best beam, as it is now, cannot beat the worst of the whole texts."""
        full = len(self.found) == self.beam.each
        hopeful = best / length**self.beam.length_penalty
        if full and (self.beam.early or not hopeful > self.found[-1].score):
            self.open = False


def search(writer: Writer, request: Request, beam: Beam) -> list[Generated]:
    """Write the best `num` texts of each prompt; those of the first prompt come first."""
    check(writer, request, beam)
    hunts = [[Hunt(beam) for _ in range(beam.groups)] for _ in request.prompts]
    live = list(range(len(request.prompts)))
    logits = writer.double(writer.read(), beam.size)
    scores = logits.new_full((len(live), beam.size), NEVER)
    scores[:, :: beam.each] = 0.0  # all beams of a group are the same prompt yet: one speaks
    costs = logits.new_zeros(len(logits), 0)  # of the tokens written: (rows, tokens)
    for token in range(max(writer.rooms)):
        said = logits.log_softmax(-1)
        ways = [list[Way]() for _ in live]
        ruled = writer.judge.weigh(said, writer.said).view(len(live), beam.size, -1)
        crowd = torch.zeros_like(ruled[:, 0])  # how often earlier groups said each token
        for group in range(beam.groups):
            block = slice(group * beam.each, (group + 1) * beam.each)
            totals = ruled[:, block] - beam.diversity * crowd[:, None] + scores[:, block, None]
            found = best(totals, max(2, 1 + len(writer.judge.ends)) * beam.each)
            for row, (text, ranked) in enumerate(zip(live, found, strict=True)):
                first = row * beam.size + block.start
                turn = Turn(writer, request, first, token, said, costs)
                for id in turn.spoken(ranked)[: beam.each]:
                    crowd[row, id] += 1
                chosen = turn.part(hunts[text][group], ranked, writer.rooms[text])
                ways[row] += [Way(w.score, w.beam + block.start, w.id) for w in chosen]
        kept = [
            row
            for row, text in enumerate(live)
            if token + 1 < writer.rooms[text] and any(hunt.open for hunt in hunts[text])
        ]
        if not kept:
            break
        origins = [row * beam.size + way.beam for row in kept for way in ways[row]]
        ids = torch.tensor([way.id for row in kept for way in ways[row]], device=writer.device)
        scores = torch.tensor([[way.score for way in ways[row]] for row in kept]).to(scores)
        parents = torch.tensor(origins, device=writer.device)
        costs = torch.cat([costs[parents], said[parents, ids][:, None]], dim=1)
        live = [live[row] for row in kept]
        writer.keep(origins)
        writer.write(ids)
        logits = writer.read()
    return [text for hunt in hunts for text in winners(hunt, request.num)]


def best(totals: Tensor, count: int) -> list[list[Way]]:
    """Return the best ways to go on of each text, of all its beams together."""
    beams, vocab = totals.shape[1:]
    scores, at = totals.flatten(1).topk(min(count, beams * vocab))
    sane(scores[:, 0].tolist())
    found = zip(scores.tolist(), (at // vocab).tolist(), (at % vocab).tolist(), strict=True)
    return [[Way(*way) for way in zip(*row, strict=True)] for row in found]


@dataclass(frozen=True)
class Turn:
    """What a group of beams knows when it chooses."""

    writer: Writer
    request: Request
    first: int  # its first row
    token: int  # how many tokens were written before
    said: Tensor  # the log-probabilities of all rows: (rows, vocabulary)
    costs: Tensor

    def spoken(self, ranked: Sequence[Way]) -> list[int]:
        """Return what a group may say next, and later ones had better not; anyone may end."""
        return [w.id for w in ranked if w.score > NEVER and w.id not in self.request.ends]

    def part(self, hunt: Hunt, ranked: Sequence[Way], room: int) -> list[Way]:
        """Put whole texts aside and return as many ways to go on as the group has beams."""
        going: list[Way] = []
        for rank, way in enumerate(ranked):
            if way.score == NEVER:
                continue
            ended = way.id in self.request.ends
            if not (ended or self.token + 1 == room or self.enough(way)):
                going.append(way)
            elif rank < hunt.beam.each and hunt.open:
                hunt.add(self.text(hunt.beam, way, ended=ended))
        going = going[: hunt.beam.each]
        hunt.weigh(going[0].score if going else NEVER, self.token + 1)
        if not going:
            hunt.open = False
        if not hunt.open:
            going = []
        return going + [Way(NEVER, 0, 0)] * (hunt.beam.each - len(going))

    def enough(self, way: Way) -> bool:
        """Say whether a text is whole with a token that ends nothing by itself."""
        return self.request.watched and self.request.enough([*self.before(way), way.id])

    def before(self, way: Way) -> list[int]:
        """Return what was written before a token."""
        written: list[int] = self.writer.said.written[self.first + way.beam].tolist()
        return written

    def text(self, beam: Beam, way: Way, *, ended: bool) -> Generated:
        """Put a whole text together."""
        row = self.first + way.beam
        ids, logprobs = [*self.before(way), way.id], self.costs[row].tolist()
        logprobs.append(float(self.said[row, way.id]))
        whole = ended or self.enough(way)
        if ended:
            ids, logprobs = ids[:-1], logprobs[:-1]
        return Generated(ids, logprobs, whole, way.score / (self.token + 1) ** beam.length_penalty)


def winners(hunts: Sequence[Hunt], num: int) -> list[Generated]:
    """Return the best whole texts of all groups."""
    texts = sorted((text for hunt in hunts for text in hunt.found), key=lambda t: -t.score)
    if not texts:
        raise UserError(f"the rules leave nothing to say: {WAY_OUT}")
    if len(texts) < num:
        raise UserError(f"there are only {len(texts)} texts to choose {num} from: ask for fewer")
    return texts[:num]


def check(writer: Writer, request: Request, beam: Beam) -> None:
    """Complain about a search that cannot be."""
    vocab = writer.model.config.vocab_size
    if beam.size > vocab:
        raise UserError(
            f"{beam.size} beams are more than the {vocab} tokens of the model: use fewer"
        )
    if request.num > beam.size:
        raise UserError(
            f"{beam.size} beams find {beam.size} texts at most, not {request.num}: widen the beam"
        )
