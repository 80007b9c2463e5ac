"""Beam search: several partial outputs of each prompt are kept, and the best complete ones win.

The score of an output is the sum of its tokens' log-probabilities, divided by its length to the
power of the length penalty. With groups (diverse beam search, Vijayakumar et al. 2016) the groups
take their step one after the other, and a token is penalized for each beam of an earlier group
that has just chosen it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.decode import Decoder, GeneratedSequence, check_finite
from kinfolk.generation.logits_process import NEG_INF, NO_TOKEN_LEFT


@dataclass(frozen=True)
class BeamCandidate:
    """A token that may follow a beam."""

    score: float  # of the whole output up to it
    beam: int  # the beam it follows, counted in its group
    id: int


@dataclass
class BeamHypotheses:
    """The complete outputs of one group of beams for one prompt."""

    config: GenerationConfig
    finished: list[GeneratedSequence] = field(default_factory=list)  # best first
    active: bool = True

    def add(self, output: GeneratedSequence) -> None:
        """Keep a complete output if it is among the best."""
        ranked = sorted([*self.finished, output], key=lambda output: -output.score)
        self.finished = ranked[: self.config.beams_per_group]

    def update_active(self, best: float, length: int) -> None:
        """Stop where the best beam, as it is now, cannot beat the worst complete output."""
        if len(self.finished) == self.config.beams_per_group:
            attainable = best / length**self.config.length_penalty
            if self.config.early_stopping or not attainable > self.finished[-1].score:
                self.active = False


def beam_search(decoder: Decoder) -> list[GeneratedSequence]:
    """Return the best outputs of each prompt; those of the first prompt come first."""
    config, request = decoder.config, decoder.request
    num_beams, per_group = config.num_beams, config.beams_per_group
    vocab_size = decoder.model.config.vocab_size
    if num_beams > vocab_size:
        raise UserError(f"num_beams={num_beams} exceeds the model's {vocab_size} tokens")
    hypotheses = [
        [BeamHypotheses(config) for _ in range(config.num_beam_groups)] for _ in request.prompts
    ]
    prompts = list(range(len(request.prompts)))  # those that are not complete
    logits = decoder.repeat_rows(decoder.next_logits(), num_beams)
    scores = logits.new_full((len(prompts), num_beams), NEG_INF)
    scores[:, ::per_group] = 0.0  # all beams of a group are equal so far: only its first counts
    chosen_logprobs = logits.new_zeros(len(logits), 0)  # (rows, tokens)
    for token in range(max(decoder.max_new_tokens)):
        logprobs = logits.log_softmax(-1)
        candidates = [list[BeamCandidate]() for _ in prompts]
        processed = decoder.logits_processor.process(logprobs, decoder.history).view(
            len(prompts), num_beams, -1
        )
        group_counts = torch.zeros_like(processed[:, 0])  # choices of earlier groups
        for group in range(config.num_beam_groups):
            block = slice(group * per_group, (group + 1) * per_group)
            penalty = config.diversity_penalty * group_counts[:, None]
            totals = processed[:, block] - penalty + scores[:, block, None]
            count = max(2, 1 + len(decoder.logits_processor.eos_ids)) * per_group
            ranking = top_candidates(totals, count)
            for row, (prompt, ranked) in enumerate(zip(prompts, ranking, strict=True)):
                first_row = row * num_beams + block.start
                step = BeamStep(decoder, first_row, token, logprobs, chosen_logprobs)
                for id in step.continuing_ids(ranked)[:per_group]:
                    group_counts[row, id] += 1
                kept = step.split_finished(
                    hypotheses[prompt][group], ranked, decoder.max_new_tokens[prompt]
                )
                candidates[row] += [
                    BeamCandidate(c.score, c.beam + block.start, c.id) for c in kept
                ]
        active = [
            row
            for row, prompt in enumerate(prompts)
            if token + 1 < decoder.max_new_tokens[prompt]
            and any(group.active for group in hypotheses[prompt])
        ]
        if not active:
            break
        beam_idx = [row * num_beams + c.beam for row in active for c in candidates[row]]
        ids = torch.tensor([c.id for row in active for c in candidates[row]], device=decoder.device)
        scores = torch.tensor([[c.score for c in candidates[row]] for row in active]).to(scores)
        parents = torch.tensor(beam_idx, device=decoder.device)
        newest = logprobs[parents, ids][:, None]
        chosen_logprobs = torch.cat([chosen_logprobs[parents], newest], dim=1)
        prompts = [prompts[row] for row in active]
        decoder.select_rows(beam_idx)
        decoder.append(ids)
        logits = decoder.next_logits()
    return [
        output
        for groups in hypotheses
        for output in best_hypotheses(groups, config.num_return_sequences)
    ]


def top_candidates(totals: Tensor, count: int) -> list[list[BeamCandidate]]:
    """Return the best candidates of each prompt among all beams of a group, best first."""
    beams, vocab_size = totals.shape[1:]
    scores, index = totals.flatten(1).topk(min(count, beams * vocab_size))
    check_finite(scores[:, 0].tolist())
    rows = zip(
        scores.tolist(), (index // vocab_size).tolist(), (index % vocab_size).tolist(), strict=True
    )
    return [[BeamCandidate(*values) for values in zip(*row, strict=True)] for row in rows]


@dataclass(frozen=True)
class BeamStep:
    """One step of one group of beams."""

    decoder: Decoder
    first_row: int  # of the group, in the batch
    token: int  # number of tokens generated before
    logprobs: Tensor  # of the next token in all rows: (rows, vocabulary)
    chosen_logprobs: Tensor  # of the generated tokens: (rows, tokens)

    def continuing_ids(self, ranked: Sequence[BeamCandidate]) -> list[int]:
        """Return the tokens that later groups are penalized for: end-of-text tokens are not."""
        eos_ids = self.decoder.request.eos_ids
        return [c.id for c in ranked if c.score > NEG_INF and c.id not in eos_ids]

    def split_finished(
        self, hypotheses: BeamHypotheses, ranked: Sequence[BeamCandidate], limit: int
    ) -> list[BeamCandidate]:
        """Record complete outputs; return the candidates that the group continues with."""
        per_group = hypotheses.config.beams_per_group
        continuing: list[BeamCandidate] = []
        for rank, candidate in enumerate(ranked):
            if candidate.score == NEG_INF:
                continue
            is_eos = candidate.id in self.decoder.request.eos_ids
            if not (is_eos or self.token + 1 == limit or self.is_stopped(candidate)):
                continuing.append(candidate)
            elif rank < per_group and hypotheses.active:
                hypotheses.add(self.output(candidate, is_eos=is_eos))
        continuing = continuing[:per_group]
        best = continuing[0].score if continuing else NEG_INF
        hypotheses.update_active(best, self.token + 1)
        if not continuing:
            hypotheses.active = False
        if not hypotheses.active:
            continuing = []
        return continuing + [BeamCandidate(NEG_INF, 0, 0)] * (per_group - len(continuing))

    def is_stopped(self, candidate: BeamCandidate) -> bool:
        """Return whether a token other than end-of-text completes the output."""
        request = self.decoder.request
        return request.has_stop_rule and request.is_stopped(
            [*self.generated_ids(candidate), candidate.id]
        )

    def generated_ids(self, candidate: BeamCandidate) -> list[int]:
        """Return the tokens before a candidate."""
        generated: list[int] = self.decoder.history.generated[
            self.first_row + candidate.beam
        ].tolist()
        return generated

    def output(self, candidate: BeamCandidate, *, is_eos: bool) -> GeneratedSequence:
        """Return the complete output that ends with a candidate."""
        row = self.first_row + candidate.beam
        ids, logprobs = self.generated_ids(candidate), self.chosen_logprobs[row].tolist()
        if not is_eos:
            ids.append(candidate.id)
            logprobs.append(float(self.logprobs[row, candidate.id]))
        finished = is_eos or self.is_stopped(candidate)
        length = (self.token + 1) ** self.decoder.config.length_penalty
        return GeneratedSequence(ids, logprobs, finished, candidate.score / length)


def best_hypotheses(groups: Sequence[BeamHypotheses], count: int) -> list[GeneratedSequence]:
    """Return the best complete outputs of all groups."""
    outputs = sorted(
        (output for group in groups for output in group.finished), key=lambda output: -output.score
    )
    if not outputs:
        raise UserError(NO_TOKEN_LEFT)
    if len(outputs) < count:
        raise UserError(
            f"num_return_sequences={count} exceeds the {len(outputs)} outputs that the constraints "
            "allow"
        )
    return outputs[:count]
