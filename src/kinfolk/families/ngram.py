"""N-gram (Chen and Goodman, 1998): a token from the n - 1 before it, by counts.

Interpolated modified Kneser-Ney smoothing, of orders 1 to 6. Nothing is learned by gradients:
`metrics.kneser_ney` estimates probabilities and back-off weights from counts, and they are stored
as in an ARPA file:

    log p(w | h) = log_probs[h w]                                    where the n-gram h w is stored
                   backoffs[h] + log p(w | h without its first token)      elsewhere
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import EMPTY_SLOT_ID
from kinfolk.batch import IGNORE_INDEX, Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import STANDARD_SIZES, Family
from kinfolk.nn.language_model import LanguageModel, ModelConfig, model_field, network_of
from kinfolk.objectives.clm import CLM
from kinfolk.training.config import TrainConfig

MAX_ORDER = 6
MISSING = -1  # the index of an n-gram that is not stored
CONTEXTS, DOCUMENTS = 0, 1  # keys of the cache: contexts of the last token, and its document
ROWS_AT_ONCE = 256  # of distributions over the vocabulary that are computed at once


@config("ngram")
class NGramConfig(ModelConfig):
    """A 3-gram model by default, as drawn under every loss curve."""

    vocab_size: int = model_field("vocab_size", 10_000)
    order: int = field(default=3, ge=1, le=MAX_ORDER, help="tokens in the longest n-grams")
    prune: tuple[int, ...] = field(
        default=(),
        ge=0,
        help="n-grams of each order that occur at most as often are left out; the last number "
        "serves the orders above",
    )
    sizes: tuple[int, ...] = field(
        default=(), ge=0, help="number of n-grams of each order; none before they are counted"
    )

    def __post_init__(self) -> None:
        given = f"model.prune={','.join(map(str, self.prune))}"
        if len(self.prune) > self.order:
            raise UserError(f"{given} has {len(self.prune)} thresholds for {self.order} orders")
        if list(self.prune) != sorted(self.prune):
            raise UserError(f"{given} must not decrease from one order to the next")
        if self.prune and self.prune[0]:
            raise UserError(f"{given} must start with 0: single tokens are never pruned")
        if self.sizes and (self.sizes[0] != self.vocab_size or len(self.sizes) > self.order):
            raise UserError(
                f"model.sizes={self.sizes} does not fit a vocabulary of {self.vocab_size} and "
                f"order {self.order}: it is set by counting"
            )

    @property
    def hidden_size(self) -> int:
        """The contexts of a token: one of each length."""
        return max(self.order - 1, 1)

    @property
    def counting_steps(self) -> int | None:
        """The steps of a run, each of which counts one order."""
        return self.order


class NGramTable(nn.Module):
    """The n-grams of one order: sorted keys, log probabilities, log back-off weights."""

    keys: Tensor

    def __init__(self, size: int, *, has_keys: bool, has_backoffs: bool) -> None:
        super().__init__()
        if has_keys:  # context * vocab_size + token; of single tokens the index is the id
            self.register_buffer("keys", torch.zeros(size, dtype=torch.int64))
        self.log_probs = nn.Parameter(torch.zeros(size), requires_grad=False)
        if has_backoffs:
            self.backoffs = nn.Parameter(torch.zeros(size), requires_grad=False)

    def find(self, contexts: Tensor, tokens: Tensor, vocab_size: int) -> Tensor:
        """Return the index of each context and token among the n-grams, or MISSING."""
        found = torch.full_like(contexts, MISSING)
        if len(self.keys):
            known = contexts.flatten().ge(0).nonzero()[:, 0]
            wanted = contexts.flatten()[known] * vocab_size + tokens.flatten()[known]
            found.view(-1)[known] = self._search(wanted)
        return found

    def _search(self, wanted: Tensor) -> Tensor:
        # Sorted keys are found next to each other in memory.
        wanted, order = wanted.sort()
        indices = torch.searchsorted(self.keys, wanted).clamp_(max=len(self.keys) - 1)
        indices[self.keys[indices] != wanted] = MISSING
        return torch.empty_like(indices).index_copy_(0, order, indices)


@dataclass(frozen=True)
class BackoffStep:
    """The n-gram that gives a probability, and the back-off weights of the longer contexts."""

    order: int
    probability: float  # of the n-gram that is stored
    weights: tuple[float, ...]


@network_of(NGramConfig)
class NGram(LanguageModel):
    """Predict a token from the contexts that end before it.

    The hidden state of a token is the index of each stored n-gram that ends with it, of one token
    to n - 1, within its document.
    """

    config: NGramConfig
    architecture = "decoder"
    decoding = "causal"
    can_fill = True
    gradient_free = "n-grams are counted, and no parameter has a gradient"

    def __init__(self, c: NGramConfig) -> None:
        super().__init__()
        self.config = c
        sizes = c.sizes or (c.vocab_size,)
        self.orders = nn.ModuleList(
            NGramTable(size, has_keys=n > 0, has_backoffs=n + 1 < len(sizes))
            for n, size in enumerate(sizes)
        )
        if not c.sizes:  # uniform before anything is counted
            self.tables[0].log_probs.data.fill_(-math.log(c.vocab_size))

    @property
    def tables(self) -> list[NGramTable]:
        """The n-grams of each order."""
        return [table for table in self.orders if isinstance(table, NGramTable)]

    def forward(self, inputs: Inputs) -> Output:
        ids, document = inputs.input_ids, inputs.attention_mask.document_ids
        before = self._history(inputs)
        same = document == torch.cat([before[DOCUMENTS], document[:, :-1]], dim=1)
        contexts = [ids] if len(self.tables) > 1 else []
        for size, table in enumerate(self.tables[1:-1], start=1):
            first = before[CONTEXTS][:, :, size - 1]
            shorter = torch.cat([first, contexts[-1][:, :-1]], dim=1).masked_fill(~same, MISSING)
            contexts.append(table.find(shorter, ids, self.config.vocab_size))
        # The contexts of one length lie together in memory, as they are looked up together.
        hidden = torch.stack(contexts).movedim(0, -1) if contexts else ids.new_empty(*ids.shape, 0)
        if inputs.cache is not None:
            inputs.cache.extra = {CONTEXTS: hidden[:, -1:], DOCUMENTS: document[:, -1:]}
        return Output(hidden, cache=inputs.cache)  # (batch, length, order - 1)

    def lm_logits(self, hidden: Tensor) -> "NGramPrediction":
        """Return the log-probabilities after each token, computed on demand."""
        return NGramPrediction(hidden, self.tables, self.config.vocab_size)

    def fill_logits(self, ids: Tensor, position: int) -> Tensor:
        """Return the log-probability of the text with every token at a position.

        Only the n - 1 tokens on either side make a difference.
        """
        reach, vocab_size = len(self.tables) - 1, self.config.vocab_size
        left, right = ids[max(position - reach, 0) : position], ids[position + 1 :][:reach]
        tokens = torch.arange(vocab_size)[:, None]
        rows = torch.cat([left.expand(vocab_size, -1), tokens, right.expand(vocab_size, -1)], 1)
        hidden = self(Inputs.from_ids(rows, causal=True)).hidden
        unseen = hidden.new_full((1, hidden.shape[2]), MISSING)
        before = hidden[:1, len(left) - 1] if len(left) else unseen
        after = hidden[:, len(left) : -1].flatten(0, 1)
        prediction = self.lm_logits(before)
        nll = prediction.token_nll(after, right.repeat(vocab_size))
        return prediction.logits()[0] - nll.view(vocab_size, -1).sum(1)

    def backoff_steps(
        self, ids: Sequence[int], labels: Sequence[int | None]
    ) -> list["BackoffStep"]:
        """Return how the probability of each label after a token comes about."""
        row = torch.tensor([list(ids)], device=self.tables[0].log_probs.device)
        contexts = self(Inputs.from_ids(row, causal=True)).hidden[0]
        found = []
        for context, label in zip(contexts, labels, strict=True):
            if label is None:
                continue
            token = row.new_tensor([label])
            step = BackoffStep(1, float(self.tables[0].log_probs[label].exp()), ())
            for size, table in enumerate(self.tables[1:]):
                before = context[size : size + 1]
                index = table.find(before, token, self.config.vocab_size)
                if int(index) >= 0:
                    step = BackoffStep(size + 2, float(table.log_probs[index].exp()), ())
                elif int(before) >= 0:
                    weight = float(self.tables[size].backoffs[before].exp())
                    step = replace(step, weights=(*step.weights, weight))
            found.append(step)
        return found

    def _history(self, inputs: Inputs) -> dict[int, Tensor]:
        """Return the contexts and the document of the token before these; none at the start."""
        if inputs.cache is not None and inputs.cache.extra:
            return inputs.cache.extra
        rows = len(inputs.input_ids)
        contexts = inputs.input_ids.new_full((rows, 1, len(self.tables) - 1), MISSING)
        return {CONTEXTS: contexts, DOCUMENTS: contexts.new_full((rows, 1), EMPTY_SLOT_ID)}


@dataclass(frozen=True, eq=False)
class NGramPrediction:
    """Log-probabilities over the vocabulary, in double precision."""

    contexts: Tensor  # (..., order - 1)
    tables: list[NGramTable]
    vocab_size: int

    def logits(self) -> Tensor:
        """Return the log-probability of every token: (..., vocabulary)."""
        contexts = self.contexts.flatten(0, -2)
        starts = range(0, max(len(contexts), 1), ROWS_AT_ONCE)
        rows = torch.cat([self._distributions(contexts[n : n + ROWS_AT_ONCE]) for n in starts])
        return rows.view(*self.contexts.shape[:-1], self.vocab_size)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        kept = labels != IGNORE_INDEX
        return self.token_nll(self.contexts[kept], labels[kept]).sum()

    def token_nll(self, contexts: Tensor, labels: Tensor, after: Tensor | None = None) -> Tensor:
        """Return the negative log-likelihood of each label: (predictions,).

        `after` are the contexts that end with the labels, which need not be looked up again.
        """
        log_probs = self.tables[0].log_probs[labels].double()
        for size, table in enumerate(self.tables[1:]):
            context = contexts[:, size]
            log_probs += _values(self.tables[size].backoffs, context)
            if after is not None and size + 1 < after.shape[1]:
                found = after[:, size + 1]
            else:
                found = table.find(context, labels, self.vocab_size)
            stored = _values(table.log_probs, found)
            log_probs = torch.where(found >= 0, stored, log_probs)
        return -log_probs

    def _distributions(self, contexts: Tensor) -> Tensor:
        """Return the log-probability of every token after each context: (rows, vocabulary)."""
        log_probs = self.tables[0].log_probs.double().repeat(len(contexts), 1)
        for size, table in enumerate(self.tables[1:]):
            context = contexts[:, size]
            log_probs += _values(self.tables[size].backoffs, context)[:, None]
            # The n-grams of a context follow each other.
            bounds = torch.stack([context, context + 1]) * self.vocab_size
            starts, stops = torch.searchsorted(table.keys, bounds)
            counts = torch.where(context >= 0, stops - starts, 0)
            rows = torch.arange(len(context), device=context.device).repeat_interleave(counts)
            within = torch.arange(len(rows), device=context.device)
            indices = within + (starts - counts.cumsum(0) + counts)[rows]
            tokens = table.keys[indices] - context[rows] * self.vocab_size
            log_probs[rows, tokens] = table.log_probs[indices].double()
        return log_probs


def _values(table: Tensor, indices: Tensor) -> Tensor:
    """Return the value at each index, and 0 where it is MISSING."""
    if not len(table):
        return torch.zeros_like(indices, dtype=torch.float64)
    return table[indices.clamp(min=0)].double().masked_fill(indices < 0, 0.0)


# Orders of the standard sizes, and whether n-grams of three or more tokens that occur once are
# left out, which halves the size.
SIZE_ORDERS = {
    "nano": (2, ()),
    "tiny": (3, ()),
    "mini": (4, ()),
    "small": (5, (0, 0, 1)),
    "medium": (5, ()),
    "base": (6, (0, 0, 1)),
    "large": (6, ()),
}
PUBLISHED = {str(order): NGramConfig(order=order) for order in range(1, MAX_ORDER + 1)}
TRAINING = TrainConfig(steps=MAX_ORDER, eval_every=1, save_every=MAX_ORDER, keep_checkpoints=1)

FAMILY = Family(
    name="ngram",
    title="N-gram",
    paper="Chen and Goodman 1998",
    year=1998,
    model=NGram,
    sizes={
        name: NGramConfig(order=SIZE_ORDERS[name][0], prune=SIZE_ORDERS[name][1])
        for name in STANDARD_SIZES
    }
    | PUBLISHED,
    objectives={"clm": CLM},
    training=TRAINING,
    paper_training=dict.fromkeys(PUBLISHED, TRAINING),
)
