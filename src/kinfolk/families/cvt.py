"""CVT (Clark et al., 2018): a bidirectional LSTM whose views also learn from unlabelled text.

The hidden state of a token is that of both layers, each in both directions. Prediction modules for
tasks and for the views of unlabelled text lie in `nn/views.py`, the losses in
`tasks/formulations/cross_view.py`. The paper has no pretraining: labelled and unlabelled batches
alternate in fine-tuning.

# Deviation: AdamW instead of SGD with momentum; no label smoothing and no average of the weights.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import STANDARD_SIZES, Family
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
from kinfolk.nn.recurrent import PackedTexts, open_forget_gates_
from kinfolk.nn.views import ViewedStates

NUM_LAYERS = 2  # views read the first, the primary module both


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
    def hidden_size(self) -> int:
        """The size of the states of both layers in both directions."""
        return 2 * NUM_LAYERS * self.projection_size

    @property
    def view_size(self) -> int:
        """The size of the states that a view reads: of the first layer in one direction."""
        return self.projection_size


@network_of(CVTConfig)
class CVT(ViewedStates):
    """Word embeddings and two bidirectional LSTMs with projected outputs."""

    config: CVTConfig
    token_embeddings: TokenEmbedding
    architecture = "recurrent"
    pooling = Pooling(token="mean")

    def __init__(self, c: CVTConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.embedding_size)
        sizes = (c.embedding_size, 2 * c.projection_size)  # of the inputs of the layers
        self.layers = LayerStack(
            nn.LSTM(size, c.lstm_size, proj_size=c.projection_size, bidirectional=True)
            for size in sizes
        )
        init_weights_(self, std=0.1)
        open_forget_gates_(self)

    def forward(self, inputs: Inputs) -> Output:
        return self.encode(inputs, dropout=self.config.dropout)

    def encode(self, inputs: Inputs, *, dropout: float) -> Output:
        """Return the hidden states at a dropout rate, which is 0 in evaluation."""
        rate = dropout if self.training else 0.0
        # As in the BiLSTM: the lengths of texts differ from batch to batch.
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.run)(inputs, rate)  # type: ignore[no-untyped-call]
        return self.run(inputs, rate)

    def run(self, inputs: Inputs, dropout: float) -> Output:
        """Run both layers over each text."""
        texts = PackedTexts.of(inputs.attention_mask.document_ids)
        flat = self.token_embeddings(inputs.input_ids).flatten(0, 1)[texts.positions]
        flat, states = F.dropout(flat, dropout), []
        for layer in self.layers:
            packed, _ = layer(PackedSequence(flat, texts.batch_sizes))
            flat = F.dropout(packed.data, dropout)
            states.append(flat)
        flat = torch.cat(states, -1)
        shape = (*inputs.input_ids.shape, flat.shape[1])
        hidden = flat.new_zeros(shape).flatten(0, 1).index_copy(0, texts.positions, flat)
        return Output(hidden.view(shape))

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
        )
        for name, size in STANDARD_SIZES.items()
    }
    # 400,000 words are those of GloVe 6B, which the paper starts from.
    | {"cvt": CVTConfig(vocab_size=400_000)},
    task_template="bert",
    formulation="cross_view",
)
