"""ULMFiT (Howard and Ruder, 2018): an LSTM language model, fine-tuned for classification.

The network is the AWD-LSTM (Merity et al. 2018): recurrent weights, whole words and, the same for
all tokens of a text, features are dropped; the output layer shares the embeddings. It is pretrained
on general text, then on the text of the task, then it gets a classifier over the last hidden state,
the maximum and the mean of all.
"""

from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.batch import Inputs, LazyLogits, Output, SegmentMemory
from kinfolk.config import config, field
from kinfolk.families.base import STANDARD_SIZES, Family
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.language_model import (
    MAX_SIZE,
    LanguageModel,
    LayerStack,
    ModelConfig,
    Pooling,
    model_field,
    network_of,
)
from kinfolk.nn.recurrent import Recurrence, empty_lstm_memory, run_eagerly
from kinfolk.objectives.bptt import BPTT
from kinfolk.objectives.clm import CLM
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.training.config import FineTuneConfig, TrainConfig


@config("ulmfit")
class ULMFiTConfig(ModelConfig):
    """The published model of WikiText-103 by default, with the dropout rates of its section 4."""

    vocab_size: int = model_field("vocab_size", 238_462)
    hidden_size: int = field(
        default=400, ge=1, le=MAX_SIZE, help="size of the embeddings and of the last layer"
    )
    lstm_size: int = field(default=1150, ge=1, le=MAX_SIZE, help="size of the layers before it")
    num_layers: int = model_field("num_layers", 3)
    embedding_dropout: float = field(
        default=0.05, ge=0, lt=1, help="rate at which words are dropped, with all their tokens"
    )
    input_dropout: float = field(default=0.4, ge=0, lt=1, help="dropout rate of the embeddings")
    dropout: float = field(default=0.3, ge=0, lt=1, help="dropout rate between the layers")
    weight_dropout: float = field(
        default=0.5, ge=0, lt=1, help="dropout rate of the recurrent weights"
    )
    output_dropout: float = field(default=0.4, ge=0, lt=1, help="dropout rate before the logits")
    tie_word_embeddings: bool = field(
        default=True, help="share the input embeddings with the output layer"
    )
    init_range: float = field(
        default=0.1, gt=0, le=100, help="largest initial value of the embeddings"
    )


@network_of(ULMFiTConfig)
class ULMFiT(LanguageModel):
    """Token embeddings, by default also the output layer, and LSTM layers."""

    config: ULMFiTConfig
    token_embeddings: TokenEmbedding
    architecture = "recurrent"
    decoding = "causal"
    static_cache = False
    static_shapes = False
    reads_texts = True
    static_whole_rows = True
    pooling = Pooling(token="concat")
    lm_head_modules = ("bias",)
    pretraining_only = ("bias", "lm_head")
    top_modules = ("token_embeddings", "bias")

    def __init__(self, c: ULMFiTConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        sizes = [c.hidden_size, *[c.lstm_size] * (c.num_layers - 1), c.hidden_size]
        self.layers = LayerStack(nn.LSTM(*pair) for pair in pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(c.vocab_size))
        self.lm_head = (
            None if c.tie_word_embeddings else TokenEmbedding(c.vocab_size, c.hidden_size)
        )
        if not c.tie_word_embeddings:
            self.top_modules = ("lm_head", "bias")
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the embeddings as the released code does; layers start as torch's do."""
        for table in (self.token_embeddings, self.lm_head):
            if table is not None:
                table.weight.uniform_(-self.config.init_range, self.config.init_range)
                table.weight[self.config.vocab_size :] = 0.0

    @property
    def lstm_layers(self) -> list[nn.LSTM]:
        """The layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, nn.LSTM)]

    def forward(self, inputs: Inputs) -> Output:
        return run_eagerly(self.run, inputs)

    def run(self, inputs: Inputs) -> Output:
        """Run the layers over each text."""
        c, recurrence = self.config, Recurrence(inputs, self.lstm_layers)

        def locked_dropout(x: Tensor, rate: float) -> Tensor:
            return recurrence.locked_dropout(x, rate, training=self.training)

        x = locked_dropout(recurrence.flatten(self.embed(inputs.input_ids)), c.input_dropout)
        for number, layer in enumerate(self.lstm_layers, start=1):
            last = number == c.num_layers
            x = recurrence.run(layer, x, weight_dropout=c.weight_dropout, cast_back=last)
            if not last:
                x = locked_dropout(x, c.dropout)
        dropped = locked_dropout(x, c.output_dropout)
        output = recurrence.output(recurrence.unflatten(dropped))
        if not self.training:
            return output
        undropped = output.hidden if dropped is x else recurrence.unflatten(x)
        return replace(output, undropped=undropped)

    @property
    def num_feature_layers(self) -> int:
        """The number of hidden states that `layer_outputs` returns."""
        return 2

    def layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the embeddings and the last layer's output; those between have another size."""
        return [self.token_embeddings(inputs.input_ids), self(inputs).hidden]

    def all_layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the embeddings and the output of every layer, without dropout."""
        recurrence = Recurrence(inputs, self.lstm_layers)
        flat = [recurrence.flatten(self.token_embeddings(inputs.input_ids))]
        for layer in self.lstm_layers:
            flat.append(recurrence.run(layer, flat[-1]))
        return [recurrence.unflatten(x) for x in flat]

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings; a dropped word is dropped wherever it occurs in the batch."""
        x: Tensor = self.token_embeddings(input_ids)
        if not self.training or self.config.embedding_dropout == 0:
            return x
        kept = F.dropout(x.new_ones(self.config.vocab_size), self.config.embedding_dropout)
        return x * kept[input_ids][..., None]

    def init_memory(self, batch_size: int) -> SegmentMemory:
        """Return the memory before the first row."""
        return empty_lstm_memory(self.lstm_layers, batch_size)

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the logits of the next token."""
        output_layer = self.token_embeddings if self.lm_head is None else self.lm_head
        return output_layer.lm_logits(hidden, self.bias)


ULMFIT_LARGE = ULMFiTConfig()
# fastai's model of WikiText-103 (wt103-fwd) and the networks of Merity et al. 2018, section 5.
PUBLISHED = {
    "ulmfit-wt103": ULMFIT_LARGE,
    "ulmfit-wt103-fastai": replace(
        ULMFIT_LARGE,
        vocab_size=60_000,
        lstm_size=1152,
        embedding_dropout=0.02,
        input_dropout=0.25,
        dropout=0.15,
        weight_dropout=0.2,
        output_dropout=0.1,
    ),
    "awd-lstm-ptb": replace(ULMFIT_LARGE, vocab_size=10_000, embedding_dropout=0.1),
    "awd-lstm-wt2": replace(
        ULMFIT_LARGE, vocab_size=33_278, embedding_dropout=0.1, input_dropout=0.65
    ),
}
# Howard and Ruder 2018, section 4.1: batches of 64 rows of 70 tokens, Adam with a beta1 of 0.7.
# Deviation: Merity et al. train by NT-ASGD, which averages the weights after the held-out loss has
# stopped to fall.
PAPER_TRAINING = TrainConfig(
    steps=300_000,
    batch_size=64,
    lr=4e-3,
    warmup=1000,
    schedule="cosine",
    min_lr_ratio=0.0,
    weight_decay=1e-2,
    betas=(0.7, 0.99),
    grad_clip=0.25,
)

# Section 4.1; discriminative rates and gradual unfreezing are sections 3.2 and 3.3.
# Deviation: half the learning rate, as the standard sizes are pretrained on less text.
FINETUNE_TRAINING = TrainConfig(
    batch_size=32,
    lr=5e-3,
    schedule="slanted",
    betas=(0.7, 0.99),
    weight_decay=0.01,
    eval_batches=64,
)

FAMILY = Family(
    name="ulmfit",
    title="ULMFiT",
    paper="Howard and Ruder 2018",
    year=2018,
    model=ULMFiT,
    # Deviation: the standard sizes have three layers, the first two twice as wide as the hidden
    # size, in `medium` three times. They train without dropout, as one pass needs none.
    sizes={
        name: ULMFiTConfig(
            hidden_size=size.hidden_size,
            lstm_size=(3 if name == "medium" else 2) * size.hidden_size,
            embedding_dropout=0.0,
            input_dropout=0.0,
            dropout=0.0,
            weight_dropout=0.0,
            output_dropout=0.0,
            init_range=0.5,
        )
        for name, size in STANDARD_SIZES.items()
    }
    | PUBLISHED,
    objectives={"bptt": BPTT, "stream": RecurrentCLM, "clm": CLM},
    training=TrainConfig(lr=3e-3, warmup=200),
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
    formulation="concat",
    finetune_training=FINETUNE_TRAINING,
    finetuning=FineTuneConfig(layer_lr_decay=1 / 2.6, gradual_unfreezing=True),
)
