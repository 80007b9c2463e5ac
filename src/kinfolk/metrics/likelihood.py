"""How likely a model finds a text: loss, perplexity, bits per byte."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kinfolk.data.chunks import TokenizedDocuments
from kinfolk.data.lanes import evaluation_dataset


@dataclass(frozen=True)
class LikelihoodScores:
    """What a model gave the tokens of a text."""

    nats: float  # summed over the tokens
    tokens: int
    bytes: int  # of the text the tokens came from

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Among how many tokens, all as likely, the model would have to choose."""
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """What the text would take up, compressed: the same scale for every tokenizer."""
        return self.nats / math.log(2) / self.bytes


def score_documents(
    model: nn.Module,
    exam: Any,
    documents: TokenizedDocuments,
    size: int,
    *,
    rows: int = 32,
    bfloat16: bool = False,
) -> LikelihoodScores:
    """Score documents of `size` bytes; `exam` is an objective that predicts every token once."""
    device = next(model.parameters()).device
    feed = evaluation_dataset(exam, documents, rows=rows)
    was, total, tokens, memory = model.training, 0.0, 0, None
    model.eval()
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        for number in range(feed.num_batches):
            batch = feed[number].to(device)
            loss = exam.loss(model, batch.with_memory(memory))
            total, memory = total + float(loss.sums["tokens"]), loss.memory
            tokens += batch.counts["tokens"]
    model.train(was)
    return LikelihoodScores(total, tokens, size)
