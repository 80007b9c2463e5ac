"""ELMo (Peters et al., 2018): a forward and a backward LSTM language model over characters.

A word is read by its characters, through a convolution. The two models share this reader and the
softmax. Tasks use the hidden states of all layers, mixed by weights that they learn
(nn/task_networks.py).
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from kinfolk.batch import Inputs, LazyLogits, Output, SegmentMemory
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import STANDARD_SIZES, Family
from kinfolk.nn.characters import CharacterCNN, CharacterEmbedding
from kinfolk.nn.embeddings import AdaptiveEmbedding, SampledLogits
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import (
    MAX_LAYERS,
    MAX_SIZE,
    MAX_VOCAB,
    LanguageModel,
    LayerStack,
    ModelConfig,
    model_field,
    network_of,
)
from kinfolk.nn.recurrent import (
    ClippedLSTM,
    Recurrence,
    empty_lstm_memory,
    mirrored_positions,
    open_forget_gates_,
    run_eagerly,
)
from kinfolk.objectives.bilm import BiLM
from kinfolk.training.config import TrainConfig


@config("elmo")
class ELMoConfig(ModelConfig):
    """The published model of the 1 Billion Word Benchmark by default."""

    vocab_size: int = model_field("vocab_size", 793_471)
    hidden_size: int = field(
        default=1024,
        ge=2,
        le=MAX_SIZE,
        help="size of the hidden states, half of it for each direction",
    )
    num_layers: int = model_field("num_layers", 2)
    lstm_size: int = field(
        default=4096, ge=2, le=MAX_SIZE, help="size of the LSTM cells, before their projection"
    )
    character_size: int = field(
        default=16, ge=1, le=MAX_SIZE, help="size of the character embeddings"
    )
    max_characters: int = field(
        default=50, ge=3, le=1024, help="longest word in bytes, with its two marks"
    )
    filters: tuple[int, ...] = field(
        default=(32, 32, 64, 128, 256, 512, 1024),
        ge=1,
        le=MAX_SIZE,
        help="number of character filters of each width, from 1 character up",
    )
    num_highway: int = field(
        default=2, ge=1, le=MAX_LAYERS, help="number of highway layers over the filters"
    )
    activation: Literal["relu", "tanh"] = field(
        default="relu", help="activation function of the filters"
    )
    cell_clip: float | None = field(
        default=3.0, gt=0, le=1e6, help="limit of the cell states; none: unlimited, and faster"
    )
    projection_clip: float | None = field(
        default=3.0, gt=0, le=1e6, help="limit of the projected states; None with cell_clip=None"
    )
    skip_connections: bool = field(
        default=True, help="add the input of each layer but the first to its output"
    )
    cutoffs: tuple[int, ...] = field(
        default=(),
        ge=1,
        lt=MAX_VOCAB,
        help="first id of each cluster of rarer tokens (adaptive softmax)",
    )
    num_samples: int | None = field(
        default=8192,
        ge=1,
        le=MAX_VOCAB,
        help="ids that a label is compared with in training (sampled softmax); None: with all",
    )
    dropout: float = model_field("dropout", 0.1)

    def __post_init__(self) -> None:
        if self.hidden_size % 2:
            raise UserError(
                f"model.hidden_size={self.hidden_size} must be even: each direction has half of it"
            )
        if self.lstm_size <= self.hidden_size // 2:
            raise UserError(
                f"model.lstm_size={self.lstm_size} must be more than half of "
                f"model.hidden_size={self.hidden_size}, to which it is projected"
            )
        if (self.cell_clip is None) != (self.projection_clip is None):
            raise UserError(
                f"model.cell_clip={self.cell_clip} and model.projection_clip="
                f"{self.projection_clip}: set both, or none of them"
            )
        if len(self.filters) > self.max_characters:
            raise UserError(
                f"model.filters has a filter of width {len(self.filters)}, wider than a word of "
                f"model.max_characters={self.max_characters}: use fewer"
            )
        if self.cutoffs and self.num_samples:
            raise UserError(
                f"model.cutoffs={self.cutoffs} and model.num_samples={self.num_samples}: use an "
                "adaptive or a sampled softmax, not both"
            )

    @property
    def projection_size(self) -> int:
        """The size of the hidden states of one direction."""
        return self.hidden_size // 2


class BiLMLayer(nn.Module):
    """An LSTM of each direction, with projected states."""

    def __init__(self, c: ELMoConfig) -> None:
        super().__init__()
        size = c.projection_size

        def lstm() -> nn.LSTM:
            if c.cell_clip is None or c.projection_clip is None:
                return nn.LSTM(size, c.lstm_size, proj_size=size)
            clips = {"cell_clip": c.cell_clip, "projection_clip": c.projection_clip}
            return ClippedLSTM(size, c.lstm_size, proj_size=size, **clips)

        self.forward_lstm, self.backward_lstm = lstm(), lstm()


@network_of(ELMoConfig)
class ELMo(LanguageModel):
    """Characters of words, two stacks of LSTM layers, and one softmax for both."""

    config: ELMoConfig
    token_embeddings: CharacterEmbedding
    architecture = "recurrent"
    static_shapes = False
    reads_texts = True
    lm_head_modules = ("softmax",)
    pretraining_only = ("softmax",)

    def __init__(self, c: ELMoConfig) -> None:
        super().__init__()
        self.config = c
        cnn = CharacterCNN(
            c.projection_size,
            embedding_size=c.character_size,
            filters=[*enumerate(c.filters, start=1)],
            num_highway=c.num_highway,
            activation=c.activation,
        )
        self.token_embeddings = CharacterEmbedding(c.vocab_size, c.max_characters, cnn)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(BiLMLayer(c) for _ in range(c.num_layers))
        self.softmax = AdaptiveEmbedding(c.vocab_size, c.projection_size, cutoffs=c.cutoffs)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the weights as the released code does; LSTMs start as torch's do."""
        self.token_embeddings.cnn.init_weights()
        open_forget_gates_(self)
        init_weights_(self.softmax, std=self.config.projection_size**-0.5)

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.layer_outputs(inputs)[-1])

    def layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the words' vectors and each layer's output: (batch, length, hidden_size).

        Both directions read the same texts. The words' vectors, which they share, stand twice.
        """
        mirrored = mirrored_positions(inputs.attention_mask.document_ids)[..., None]

        def mirror(x: Tensor) -> Tensor:
            return x.gather(1, mirrored.expand_as(x))

        x = self.token_embeddings(inputs.input_ids, inputs.character_ids)
        plain = replace(inputs, memory=None)
        forward, _ = self.run_direction(x, plain, self.forward_lstms)
        backward, _ = self.run_direction(mirror(x), plain, self.backward_lstms)
        pairs = zip(forward, map(mirror, backward), strict=True)
        return [torch.cat(pair, dim=-1) for pair in pairs]

    def forward_lm(self, inputs: Inputs) -> Output:
        """Run the forward language model."""
        x = self.token_embeddings(inputs.input_ids, inputs.character_ids)
        return Output(self.dropout(self.run_direction(x, inputs, self.forward_lstms)[0][-1]))

    def forward_bilm(
        self, inputs: Inputs, backward_inputs: Inputs
    ) -> tuple[Tensor, Tensor, SegmentMemory | None]:
        """Run both language models, each on its own text; the memory has the states of both."""
        found = []
        memories = split_memory(inputs.memory)
        directions = (inputs, self.forward_lstms), (backward_inputs, self.backward_lstms)
        for (given, layers), memory in zip(directions, memories, strict=True):
            x = self.token_embeddings(given.input_ids, given.character_ids)
            hidden, after = self.run_direction(x, replace(given, memory=memory), layers)
            found.append((self.dropout(hidden[-1]), after))
        (forward, first), (backward, second) = found
        return forward, backward, join_memories(first, second)

    def run_direction(
        self, x: Tensor, inputs: Inputs, layers: list[nn.LSTM]
    ) -> tuple[list[Tensor], SegmentMemory | None]:
        """Return the input and the output of each layer of one direction, and the memory."""
        found = [x]

        def run(inputs: Inputs) -> Output:
            recurrence = Recurrence(inputs, layers)
            x = recurrence.flatten(found[0])
            for number, layer in enumerate(layers):
                x = self.dropout(x)
                out = recurrence.run(layer, x)
                x = x + out if self.config.skip_connections and number > 0 else out
                found.append(recurrence.unflatten(x))
            return recurrence.output(found[-1])

        return found, run_eagerly(run, inputs).memory

    @property
    def forward_lstms(self) -> list[nn.LSTM]:
        """The layers of the forward model."""
        return [layer.forward_lstm for layer in self.layers if isinstance(layer, BiLMLayer)]

    @property
    def backward_lstms(self) -> list[nn.LSTM]:
        """The layers of the backward model."""
        return [layer.backward_lstm for layer in self.layers if isinstance(layer, BiLMLayer)]

    def init_memory(self, batch_size: int) -> SegmentMemory:
        """Return the memory before the first row: the states of both models."""
        return empty_lstm_memory([*self.forward_lstms, *self.backward_lstms], batch_size)

    @property
    def max_vocab_size(self) -> int:
        """The number of token ids that it may be given: any, without a trained softmax."""
        return MAX_VOCAB if "softmax" in self.random_modules else self.config.vocab_size

    def set_character_table(self, table: Tensor) -> None:
        """Set the characters of every token; without a trained softmax, of a larger vocabulary."""
        c = self.config
        if len(table) > c.vocab_size:
            self.config = c = replace(c, vocab_size=len(table))
            cnn = self.token_embeddings.cnn
            self.token_embeddings = CharacterEmbedding(c.vocab_size, c.max_characters, cnn)
            self.softmax = AdaptiveEmbedding(c.vocab_size, c.projection_size, cutoffs=c.cutoffs)
            init_weights_(self.softmax, std=0.0)  # it predicts nothing before it is trained
        self.token_embeddings.set_table(table)

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the logits of the next token, or of the one before: those of one direction."""
        samples, logits = self.config.num_samples, self.softmax.lm_logits(hidden)
        if not self.training or samples is None or samples >= self.config.vocab_size:
            return logits
        return SampledLogits(
            hidden, self.softmax.weight_of(0), self.softmax.bias, self.config.vocab_size, samples
        )


def split_memory(
    memory: SegmentMemory | None,
) -> tuple[SegmentMemory | None, SegmentMemory | None]:
    """Return the memory of each direction: the first half of the states and the second."""
    if memory is None:
        return None, None
    forward, backward = memory.hidden.chunk(2, dim=-1)
    return replace(memory, hidden=forward), replace(memory, hidden=backward)


def join_memories(
    forward: SegmentMemory | None, backward: SegmentMemory | None
) -> SegmentMemory | None:
    """Return the memory of both directions, whose rows end with the same documents."""
    if forward is None or backward is None:
        return None
    return replace(forward, hidden=torch.cat([forward.hidden, backward.hidden], dim=-1))


# The models of allennlp.org/elmo; the one of 5.5 billion tokens has the shape of the original.
ORIGINAL = ELMoConfig()
PUBLISHED = {
    "elmo-small": replace(ORIGINAL, hidden_size=256, lstm_size=1024, num_highway=1),
    "elmo-medium": replace(ORIGINAL, hidden_size=512, lstm_size=2048, num_highway=1),
    "elmo-original": ORIGINAL,
}
# The released code: 10 epochs of 768,648,884 tokens in rows of 20, 128 rows on each of 3 GPUs.
# Deviation: it uses Adagrad at 0.2, which there is no equivalent of here.
PAPER_TRAINING = TrainConfig(
    steps=1_000_845,
    batch_size=384,
    lr=1e-3,
    warmup=0,
    schedule="constant",
    weight_decay=0.0,
    grad_clip=10.0,
)
SMALL_FILTERS = (32, 32, 64, 128)


def standard_config(name: str) -> ELMoConfig:
    """Return the config of a standard size; cells of `medium` are as wide as in the paper.

    Deviation: cells are 4 times as wide as the states of a direction, not 8 times, and not
    limited, so that the kernels of torch serve them; one pass over a text needs no dropout.
    """
    hidden_size = STANDARD_SIZES[name].hidden_size
    return ELMoConfig(
        vocab_size=50_000,
        hidden_size=hidden_size,
        lstm_size=(4 if name == "medium" else 2) * hidden_size,
        filters=SMALL_FILTERS if hidden_size <= 256 else ORIGINAL.filters,
        num_highway=1 if hidden_size <= 256 else 2,
        cell_clip=None,
        projection_clip=None,
        num_samples=None,
        dropout=0.0,
    )


FAMILY = Family(
    name="elmo",
    title="ELMo",
    paper="Peters et al. 2018",
    year=2018,
    model=ELMo,
    # Two layers at every size, as in the paper.
    sizes={name: standard_config(name) for name in STANDARD_SIZES} | PUBLISHED,
    objectives={"bilm": BiLM},
    training=TrainConfig(lr=2e-3, warmup=100),
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
    formulation="features",
)
