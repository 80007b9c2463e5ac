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
from kinfolk.generation.decode import Decoder, GeneratedSequence, GenerationRequest, check_finite
from kinfolk.generation.logits_process import NEG_INF, WAY_OUT


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """How wide the search is, and what it likes."""

    num_beams: int = 4
    length_penalty: float = 1.0  # above 0 favours long texts, below 0 short ones
    num_beam_groups: int = 1
    diversity_penalty: float = 0.5  # what a token costs for each earlier group that said it
    early_stopping: bool = (
        False  # stop once there are enough whole texts, though better ones may come
    )

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise UserError(f"{self.num_beams} beams are nothing to search with: use 1 or more")
        if self.num_beam_groups < 1 or self.num_beams % self.num_beam_groups:
            raise UserError(
                f"{self.num_beams} beams do not make {self.num_beam_groups} equal groups"
            )
        if not math.isfinite(self.length_penalty):
            raise UserError(
                f"a length penalty of {self.length_penalty} is no number: 1 divides the score of a "
                "text by its length, and 0 leaves it as it is"
            )
        if not (math.isfinite(self.diversity_penalty) and self.diversity_penalty >= 0):
            raise UserError(f"a diversity of {self.diversity_penalty} means nothing: use 0 or more")

    @property
    def beams_per_group(self) -> int:
        """How many beams a group has."""
        return self.num_beams // self.num_beam_groups


@dataclass(frozen=True)
class BeamCandidate:
    """A token that a beam may go on with."""

    score: float  # of the whole text up to it
    beam: int  # the beam it goes on from, counted in its group
    id: int


@dataclass
class BeamHypotheses:
    """One group of beams after one text: the whole texts it has, and whether it goes on."""

    beam: BeamSearch
    finished: list[GeneratedSequence] = field(default_factory=list)  # the best come first
    active: bool = True

    def add(self, text: GeneratedSequence) -> None:
        """Keep a whole text if it is among the best."""
        self.finished = sorted([*self.finished, text], key=lambda t: -t.score)[
            : self.beam.beams_per_group
        ]

    def update_active(self, best: float, length: int) -> None:
        """Stop where the best beam, as it is now, cannot beat the worst of the whole texts."""
        full = len(self.finished) == self.beam.beams_per_group
        hopeful = best / length**self.beam.length_penalty
        if full and (self.beam.early_stopping or not hopeful > self.finished[-1].score):
            self.active = False


def beam_search(
    writer: Decoder, request: GenerationRequest, beam: BeamSearch
) -> list[GeneratedSequence]:
    """Write the best `num` texts of each prompt; those of the first prompt come first."""
    check_beams(writer, request, beam)
    hunts = [[BeamHypotheses(beam) for _ in range(beam.num_beam_groups)] for _ in request.prompts]
    live = list(range(len(request.prompts)))
    logits = writer.repeat_rows(writer.next_logits(), beam.num_beams)
    scores = logits.new_full((len(live), beam.num_beams), NEG_INF)
    scores[:, :: beam.beams_per_group] = (
        0.0  # all beams of a group are the same prompt yet: one speaks
    )
    costs = logits.new_zeros(len(logits), 0)  # of the tokens written: (rows, tokens)
    for token in range(max(writer.max_new_tokens)):
        said = logits.log_softmax(-1)
        ways = [list[BeamCandidate]() for _ in live]
        ruled = writer.logits_processor.process(said, writer.said).view(
            len(live), beam.num_beams, -1
        )
        crowd = torch.zeros_like(ruled[:, 0])  # how often earlier groups said each token
        for group in range(beam.num_beam_groups):
            block = slice(group * beam.beams_per_group, (group + 1) * beam.beams_per_group)
            totals = (
                ruled[:, block] - beam.diversity_penalty * crowd[:, None] + scores[:, block, None]
            )
            found = top_candidates(
                totals, max(2, 1 + len(writer.logits_processor.ends)) * beam.beams_per_group
            )
            for row, (text, ranked) in enumerate(zip(live, found, strict=True)):
                first = row * beam.num_beams + block.start
                turn = BeamStep(writer, request, first, token, said, costs)
                for id in turn.chosen_ids(ranked)[: beam.beams_per_group]:
                    crowd[row, id] += 1
                chosen = turn.split_finished(
                    hunts[text][group], ranked, writer.max_new_tokens[text]
                )
                ways[row] += [BeamCandidate(w.score, w.beam + block.start, w.id) for w in chosen]
        kept = [
            row
            for row, text in enumerate(live)
            if token + 1 < writer.max_new_tokens[text] and any(hunt.active for hunt in hunts[text])
        ]
        if not kept:
            break
        origins = [row * beam.num_beams + way.beam for row in kept for way in ways[row]]
        ids = torch.tensor([way.id for row in kept for way in ways[row]], device=writer.device)
        scores = torch.tensor([[way.score for way in ways[row]] for row in kept]).to(scores)
        parents = torch.tensor(origins, device=writer.device)
        costs = torch.cat([costs[parents], said[parents, ids][:, None]], dim=1)
        live = [live[row] for row in kept]
        writer.select_rows(origins)
        writer.append(ids)
        logits = writer.next_logits()
    return [text for hunt in hunts for text in best_hypotheses(hunt, request.num_return_sequences)]


def top_candidates(totals: Tensor, count: int) -> list[list[BeamCandidate]]:
    """Return the best ways to go on of each text, of all its beams together."""
    beams, vocab = totals.shape[1:]
    scores, at = totals.flatten(1).topk(min(count, beams * vocab))
    check_finite(scores[:, 0].tolist())
    found = zip(scores.tolist(), (at // vocab).tolist(), (at % vocab).tolist(), strict=True)
    return [[BeamCandidate(*way) for way in zip(*row, strict=True)] for row in found]


@dataclass(frozen=True)
class BeamStep:
    """What a group of beams knows when it chooses."""

    writer: Decoder
    request: GenerationRequest
    first: int  # its first row
    token: int  # how many tokens were written before
    said: Tensor  # the log-probabilities of all rows: (rows, vocabulary)
    token_logprobs: Tensor

    def chosen_ids(self, ranked: Sequence[BeamCandidate]) -> list[int]:
        """Return what a group may say next, and later ones had better not; anyone may end."""
        return [w.id for w in ranked if w.score > NEG_INF and w.id not in self.request.eos_ids]

    def split_finished(
        self, hunt: BeamHypotheses, ranked: Sequence[BeamCandidate], room: int
    ) -> list[BeamCandidate]:
        """Put whole texts aside and return as many ways to go on as the group has beams."""
        going: list[BeamCandidate] = []
        for rank, way in enumerate(ranked):
            if way.score == NEG_INF:
                continue
            ended = way.id in self.request.eos_ids
            if not (ended or self.token + 1 == room or self.enough(way)):
                going.append(way)
            elif rank < hunt.beam.beams_per_group and hunt.active:
                hunt.add(self.text(hunt.beam, way, ended=ended))
        going = going[: hunt.beam.beams_per_group]
        hunt.update_active(going[0].score if going else NEG_INF, self.token + 1)
        if not going:
            hunt.active = False
        if not hunt.active:
            going = []
        return going + [BeamCandidate(NEG_INF, 0, 0)] * (hunt.beam.beams_per_group - len(going))

    def enough(self, way: BeamCandidate) -> bool:
        """Say whether a text is whole with a token that ends nothing by itself."""
        return self.request.has_stop_rule and self.request.is_stopped(
            [*self.generated_ids(way), way.id]
        )

    def generated_ids(self, way: BeamCandidate) -> list[int]:
        """Return what was written before a token."""
        written: list[int] = self.writer.said.written[self.first + way.beam].tolist()
        return written

    def text(self, beam: BeamSearch, way: BeamCandidate, *, ended: bool) -> GeneratedSequence:
        """Put a whole text together."""
        row = self.first + way.beam
        ids, logprobs = [*self.generated_ids(way), way.id], self.token_logprobs[row].tolist()
        logprobs.append(float(self.said[row, way.id]))
        whole = ended or self.enough(way)
        if ended:
            ids, logprobs = ids[:-1], logprobs[:-1]
        return GeneratedSequence(
            ids, logprobs, whole, way.score / (self.token + 1) ** beam.length_penalty
        )


def best_hypotheses(hunts: Sequence[BeamHypotheses], num: int) -> list[GeneratedSequence]:
    """Return the best whole texts of all groups."""
    texts = sorted((text for hunt in hunts for text in hunt.finished), key=lambda t: -t.score)
    if not texts:
        raise UserError(f"the rules leave nothing to say: {WAY_OUT}")
    if len(texts) < num:
        raise UserError(f"there are only {len(texts)} texts to choose {num} from: ask for fewer")
    return texts[:num]


def check_beams(writer: Decoder, request: GenerationRequest, beam: BeamSearch) -> None:
    """Complain about a search that cannot be."""
    vocab = writer.model.config.vocab_size
    if beam.num_beams > vocab:
        raise UserError(
            f"{beam.num_beams} beams are more than the {vocab} tokens of the model: use fewer"
        )
    if request.num_return_sequences > beam.num_beams:
        raise UserError(
            f"{beam.num_beams} beams find {beam.num_beams} texts at most, "
            f"not {request.num_return_sequences}: widen the beam"
        )
