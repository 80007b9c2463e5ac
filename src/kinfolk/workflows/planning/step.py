"""The training step of a network that is only planned: its batches, its trace at any size.

A batch is made by the objective itself, from documents of random tokens that fill every row.
"""

import dataclasses
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch

from kinfolk.batch import Batch, with_texts
from kinfolk.data.chunks import BoolArray, InMemoryDocuments, IntArray, TokenizedDocuments
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.nn.embeddings import PAD_TO_MULTIPLE
from kinfolk.nn.language_model import (
    LanguageModel,
    ModelConfig,
    has_static_shapes,
    reads_texts,
)
from kinfolk.nn.losses import chunk_rows
from kinfolk.nn.meta import count_parameters, meta_network
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.rng import Stream, generator
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import Optimizer
from kinfolk.training.step import input_tokens
from kinfolk.training.trace import LayerTrace, StepTrace, trace_step

SENTENCE = 16  # tokens
BASE_ROWS = 2  # of the smaller micro-batch that larger ones are estimated from
LIMIT_TOKENS = 2**40  # predictions, more than any loss holds logits of
ORDINARY = 107  # the first id that is no special token
SPECIAL_TOKENS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=tuple(range(ORDINARY - 1, 6, -1))
)


class PlannedStep:
    """The step of a network and an objective, traced without weights where shapes are static."""

    def __init__(
        self,
        config: ModelConfig,
        objective: Any,
        *,
        cuda: bool,
        bfloat16: bool,
        optimizer: Optimizer = "adamw",
        documents: TokenizedDocuments | None = None,  # of the batches; None: random tokens
    ) -> None:
        self.documents = documents
        self.config, self.objective, self.optimizer = config, objective, optimizer
        self.cuda, self.bfloat16 = cuda, bfloat16
        self.model = meta_network(config)
        self._traces: dict[int, StepTrace] = {}

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, those of the padding of embeddings left out."""
        return count_parameters(self.model)

    @cached_property
    def static(self) -> bool:
        """Whether shapes do not depend on the texts, so that no weights are needed."""
        return has_static_shapes(self.model)

    @cached_property
    def tokens_per_row(self) -> float:
        """The input tokens of a row, those of the encoder too, where rows are full."""
        rows = 4
        return int(input_tokens(self.batch(rows).inputs)) / rows

    def estimate(self, rows: int) -> StepTrace:
        """Return what a micro-batch of so many rows takes, by the traces of two small ones.

        All but the logits grows with the rows in a straight line, up to the rounding of the number
        of predictions.
        """
        high = self.trace(2 * BASE_ROWS)
        found = extrapolate(self._saved_by_few, high, rows / BASE_ROWS)
        limit = self.logits_bytes(LIMIT_TOKENS)
        return dataclasses.replace(found, logits=min(found.logits, limit))

    @cached_property
    def _saved_by_few(self) -> StepTrace:
        """What the forward pass of the smaller of two small micro-batches saves."""
        return self._run(BASE_ROWS, backward=False)

    def trace(self, rows: int) -> StepTrace:
        """Return exactly what a micro-batch of so many rows takes."""
        if rows not in self._traces:
            self._traces[rows] = self._run(rows, backward=True)
        return self._traces[rows]

    def _run(self, rows: int, *, backward: bool) -> StepTrace:
        model = self.model if self.static else self.real_model
        batch = self.batch(rows)
        if self.objective.recurrent:
            init_memory: Any = model.init_memory
            batch = batch.with_memory(init_memory(rows))
        if reads_texts(model):
            batch = with_texts(batch)
        with nullcontext() if self.static else torch.random.fork_rng(devices=[]):
            return trace_step(
                *(model, self.objective, batch.to("meta" if self.static else "cpu")),
                cuda=self.cuda,
                bfloat16=self.bfloat16,
                optimizer=self.optimizer,
                logits=self.logits_bytes,
                backward=backward,
            )

    @cached_property
    def real_model(self) -> LanguageModel:
        """The network with weights, to trace what depends on the texts."""
        return self.build()

    def build(self) -> LanguageModel:
        """Return the network with weights on the CPU."""
        with torch.random.fork_rng(devices=[]):
            model: LanguageModel = self.config.build()
        size = self.config.max_characters
        if size is not None:  # words of other characters, each of which is read
            table = torch.zeros(self.config.vocab_size, size, dtype=torch.int64)
            for place in range(min(size, 4)):
                table[:, place] = torch.arange(len(table)) // 200**place % 200 + 1
            model.set_character_table(table)
        return model

    def logits_bytes(self, predictions: int) -> int:
        """Return the size of the logits that a loss over the vocabulary holds at a time.

        In bfloat16 they are a product in bfloat16 and its copy in float32.
        """
        padded = -(-self.config.vocab_size // PAD_TO_MULTIPLE) * PAD_TO_MULTIPLE
        rows = chunk_rows(predictions, padded, self.cuda) if predictions else 0
        return rows * padded * (6 if self.bfloat16 else 4)

    def batch(self, rows: int) -> Batch[Any]:
        """Return a batch of full rows: of random tokens, or of the first documents of a corpus."""
        dataset = ContiguousDataset if self.objective.recurrent else PackedDataset
        documents: TokenizedDocuments = random_documents(self.objective, rows)
        if self.documents is not None:
            tokens = 2 * rows * sum(self.objective.row_lengths)
            documents = FirstDocuments.of(self.documents, tokens)
        batches = dataset(self.objective, documents, batch_size=rows)
        # Rows that continue from batch to batch may have lengths that are drawn (ULMFiT).
        drawn = [batches[n] for n in range(min(len(batches), 4 if self.objective.recurrent else 1))]
        return max(drawn, key=lambda batch: batch.inputs.input_ids.numel())


@dataclasses.dataclass(frozen=True)
class FirstDocuments:
    """The first documents of a corpus."""

    documents: TokenizedDocuments
    starts: IntArray  # of each of them, and the end of the last

    @classmethod
    def of(cls, documents: TokenizedDocuments, tokens: int) -> "FirstDocuments":
        """Return as many documents as have so many tokens, two at least."""
        starts = documents.starts
        count = max(2, int(np.searchsorted(starts, tokens)))
        return cls(documents, starts[: count + 1])

    def ids(self, start: int, stop: int, /) -> IntArray:
        """Return the tokens of a range of the stream."""
        return self.documents.ids(start, stop)

    def sentences(self, start: int, stop: int, /) -> IntArray:
        """Return the lengths of the sentences in a range of the stream."""
        return self.documents.sentences(start, stop)

    def words(self, start: int, stop: int, /) -> BoolArray:
        """Return which tokens of a range begin a word."""
        return self.documents.words(start, stop)


def random_documents(objective: Any, rows: int) -> InMemoryDocuments:
    """Return documents of random tokens that fill so many rows; sentence pairs where it needs them.

    They are longer than a row, so that no row has an end of a document but by chance.
    """
    length, vocab_size = objective.max_length, objective.vocab_size
    rng = generator(0, Stream.EXAMPLE)
    pairs = isinstance(objective, Seq2Seq)
    size = max(2, length // 2 - 2) if pairs else 4 * length
    count = 4 * rows + 2 if pairs else rows + 2
    low = min(ORDINARY, vocab_size - 1)
    ids = rng.integers(low, vocab_size, (count, size))
    lengths = sentence_lengths(size, size // 2 if pairs else SENTENCE)
    ends = np.cumsum(np.tile(lengths, count))
    starts = np.arange(count + 1) * size
    return InMemoryDocuments(ids.reshape(-1), ends, starts, np.ones(ids.size, np.bool_))


def sentence_lengths(tokens: int, longest: int) -> list[int]:
    """Cut so many tokens into sentences."""
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + [rest] * bool(rest)


def extrapolate(low: StepTrace, high: StepTrace, factor: float) -> StepTrace:
    """Return the trace of `factor` times the rows of the first of two, the second of which has two.

    FLOPs are proportional to the rows; what is saved has a part that does not depend on them.
    """

    def line(a: int, b: int) -> int:
        return max(0, round(a + (b - a) * (factor - 1)))

    return dataclasses.replace(
        high,
        flops=round(high.flops * factor / 2),
        layers=tuple(
            LayerTrace(
                line(a.saved, b.saved),
                line(a.split, b.split),
                line(a.inputs, b.inputs),
                round(b.flops * factor / 2),
            )
            for a, b in zip(low.layers, high.layers, strict=True)
        ),
        outside=line(low.outside, high.outside),
        logits=line(low.logits, high.logits),
    )
