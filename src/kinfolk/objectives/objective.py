"""Objective: how tokenised documents become examples, and which loss is computed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss, TokenTargets
from kinfolk.config import check_fields, field
from kinfolk.data.chunks import Chunk, ChunkIndex, Rng, TokenizedDocuments
from kinfolk.data.examples import Collated, Example, collate, pad_rows, select_targets
from kinfolk.text.tokenizer import SpecialTokens


def max_predictions_field() -> Any:
    """Declare the most tokens of an objective whose every prediction is an example of its own."""
    return field(
        default=None, ge=1, le=2**40, help="tokens predicted at most, evenly spread; null: all"
    )


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """How documents become examples, and which loss is computed; independent of the network.

    A subclass has `chunks` and `example`; the other methods have defaults that fit one stream of
    tokens and the likelihood of its labels.
    """

    special_tokens: SpecialTokens = field(help="ids of the special tokens")
    vocab_size: int = field(ge=1, le=2**26, help="number of token ids")
    max_length: int = field(default=512, ge=1, le=2**24, help="length of a row, in tokens")

    loss_name: ClassVar[str]  # of the likelihood of tokens, in losses and counts
    backward_loss_name: ClassVar[str | None] = None  # of the likelihood from right to left (ELMo)
    required_tokens: ClassVar[tuple[str, ...]] = ()  # roles that the tokenizer must have
    recurrent: ClassVar[bool] = False  # rows continue from batch to batch (Transformer-XL)
    encoder_alone: ClassVar[bool] = False  # of an encoder-decoder, the encoder alone is trained
    # Hidden states are gathered where something is predicted, their number rounded up to a
    # multiple of 1/label_buckets of all; None: every position predicts.
    label_buckets: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_fields(self)
        for role in self.required_tokens:
            self.special_tokens.require(role)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """Tokens in a packed row: (decoder,) or (encoder, decoder)."""
        return (self.max_length,)

    @property
    def row_length(self) -> int | None:
        """The length of the rows of every batch; None where batches differ."""
        return self.max_length

    @property
    def usual_lengths(self) -> range | None:
        """The lengths that the rows of most batches have where batches differ, else None."""
        return None

    @abstractmethod
    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks, with the size of the example of each; nothing is random."""

    @abstractmethod
    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Make the example of a chunk; all randomness comes from `rng`."""

    def example_epoch(self, epoch: int, /) -> int:
        """Return the epoch whose random numbers make the examples of an epoch."""
        return epoch

    def collate(self, rows: Sequence[Sequence[Example]], /) -> Batch[Any]:
        """Lay packed examples out as a batch."""
        collated = collate(rows, self.row_lengths, self.special_tokens.pad)
        labels = [[e.labels for e in row if e.labels is not None] for row in rows]
        padded = pad_rows(labels, self.row_lengths[-1], IGNORE_INDEX)
        return self.make_batch(collated, padded, [e for row in rows for e in row])

    def make_batch(
        self, collated: Collated, labels: Tensor, examples: Sequence[Example], /
    ) -> Batch[Any]:
        """Add targets and counts to the inputs of a batch; labels are (rows, length)."""
        if self.label_buckets is None:
            targets, count = TokenTargets(labels.flatten()), int((labels != IGNORE_INDEX).sum())
        else:
            targets, count = select_targets(labels, self.label_buckets)
        return Batch(collated.inputs, targets, {self.loss_name: count})

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Return the summed negative log-likelihood of the labels."""
        hidden = model.read_lm(batch.inputs, batch.targets.positions)
        return Loss({self.loss_name: model.lm_logits(hidden).nll(batch.targets.labels)})

    def for_evaluation(self) -> "Objective":
        """Return the objective that predicts every token exactly once."""
        return self

    @property
    def common_fields(self) -> dict[str, Any]:
        """The fields that every objective has."""
        return {
            "special_tokens": self.special_tokens,
            "vocab_size": self.vocab_size,
            "max_length": self.max_length,
        }
