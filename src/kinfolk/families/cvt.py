"""CVT (Clark et al., 2018): a bidirectional LSTM whose views also learn from unlabelled text.

A word is the sum of its embedding and of what a CNN reads from its characters. The hidden state of
a token is that of both layers, each in both directions. Prediction modules for
tasks and for the views of unlabelled text lie in `nn/views.py`, the losses in
`tasks/formulations/cross_view.py`. The paper has no pretraining: labelled and unlabelled batches
alternate in fine-tuning.

# Deviation: AdamW instead of SGD with momentum; no label smoothing and no average of the weights.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import STANDARD_SIZES, Family
from kinfolk.nn.characters import CharacterCNN, CharacterEmbedding
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import (
    MAX_SIZE,
    LayerStack,
    ModelConfig,
    Pooling,
    model_field,
    network_of,
)
from kinfolk.nn.recurrent import open_forget_gates_, run_eagerly
from kinfolk.nn.views import ViewedStates
from kinfolk.packed_texts import PackedTexts

NUM_LAYERS = 2  # views read the first, the primary module both
FILTER_WIDTHS, CHARACTER_SIZE = (2, 3, 4), 50  # of the character CNN


@config("cvt")
class CVTConfig(ModelConfig):
    """Two layers; texts may be of any length."""

    vocab_size: int = model_field("vocab_size", 30522)
    embedding_size: int = model_field("embedding_size", 300)
    lstm_size: int = field(
        default=1024, ge=1, le=MAX_SIZE, help="number of cells of each LSTM, in each direction"
    )
    projection_size: int = field(
        default=512,
        ge=1,
        le=MAX_SIZE,
        help="size of the output of each LSTM, and of the layer in each prediction module",
    )
    max_characters: int = field(
        default=20, ge=6, le=1024, help="longest word in bytes, with its two marks"
    )
    num_filters: int = field(
        default=100, ge=1, le=MAX_SIZE, help="number of character filters of each width"
    )
    dropout: float = field(
        default=0.5, ge=0, lt=1, help="dropout rate of words and states on labelled batches"
    )
    unlabelled_dropout: float = field(
        default=0.2, ge=0, lt=1, help="dropout rate of words and states on unlabelled batches"
    )

    def __post_init__(self) -> None:
        if self.projection_size >= self.lstm_size:
            raise UserError(
                f"model.projection_size={self.projection_size} must be smaller than "
                f"model.lstm_size={self.lstm_size}"
            )

    @property
    def num_layers(self) -> int:
        """The number of LSTM layers, which is fixed: each view reads one of them."""
        return NUM_LAYERS

    @property
    def hidden_size(self) -> int:
        """The size of the states of both layers in both directions."""
        return 2 * NUM_LAYERS * self.projection_size

    @property
    def view_size(self) -> int:
        """The size of the states that a view reads: of the first layer in one direction."""
        return self.projection_size


@network_of(CVTConfig)
class CVT(ViewedStates):
    """Word embeddings, a character CNN, and two bidirectional LSTMs with projected outputs."""

    config: CVTConfig
    token_embeddings: TokenEmbedding
    architecture = "recurrent"
    static_shapes = False
    pooling = Pooling(token="mean")

    def __init__(self, c: CVTConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.embedding_size)
        # Deviation: the maxima of the filters are projected, so that their number can be chosen.
        filters = [(width, c.num_filters) for width in FILTER_WIDTHS]
        cnn = CharacterCNN(c.embedding_size, embedding_size=CHARACTER_SIZE, filters=filters)
        self.characters = CharacterEmbedding(c.vocab_size, c.max_characters, cnn)
        sizes = (c.embedding_size, 2 * c.projection_size)  # of the inputs of the layers
        self.layers = LayerStack(
            nn.LSTM(size, c.lstm_size, proj_size=c.projection_size, bidirectional=True)
            for size in sizes
        )
        init_weights_(self, std=0.5)  # embeddings are about as long as GloVe's vectors
        cnn.init_weights()
        for name, weight in self.layers.named_parameters():
            if "weight" in name:  # as in the authors' code, Glorot and Bengio (2010)
                nn.init.xavier_uniform_(weight)
        open_forget_gates_(self)

    def forward(self, inputs: Inputs) -> Output:
        return self.encode(inputs, dropout=self.config.dropout)

    def encode(self, inputs: Inputs, *, dropout: float) -> Output:
        """Return the hidden states at a dropout rate, which is 0 in evaluation."""
        rate = dropout if self.training else 0.0
        return run_eagerly(partial(self.run, dropout=rate), inputs)

    def run(self, inputs: Inputs, dropout: float) -> Output:
        """Run both layers over each text."""
        texts = PackedTexts.of(inputs.attention_mask.document_ids)
        words = self.token_embeddings(inputs.input_ids)
        spelled = self.characters(inputs.input_ids, inputs.character_ids)
        flat = texts.flatten(F.dropout(words, dropout) + F.dropout(spelled, dropout))
        states = []
        for layer in self.layers:
            packed, _ = layer(PackedSequence(flat, texts.batch_sizes))
            flat = F.dropout(packed.data, dropout)
            states.append(flat)
        return Output(texts.unflatten(torch.cat(states, -1)))

    def set_character_table(self, table: Tensor) -> None:
        """Set the characters of every token."""
        self.characters.set_table(table)

    def directions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the forward and the backward states of the first layer."""
        size = self.config.projection_size
        return hidden[..., :size], hidden[..., size : 2 * size]


FAMILY = Family(
    name="cvt",
    title="CVT",
    paper="Clark et al. 2018",
    year=2018,
    model=CVT,
    # There are always two layers, so small and medium are the same.
    sizes={
        name: CVTConfig(
            embedding_size=size.hidden_size,
            lstm_size=size.hidden_size,
            projection_size=size.hidden_size // 2,
            num_filters=min(100, size.hidden_size // 2),
        )
        for name, size in STANDARD_SIZES.items()
    }
    # 400,000 words are those of GloVe 6B, which the paper starts from.
    | {"cvt": CVTConfig(vocab_size=400_000)},
    task_template="bert",
    formulation="cross_view",
)
