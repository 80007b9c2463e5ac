"""BiLSTM (Graves and Schmidhuber, 2005): the baseline of every task, never pretrained.

The hidden state of a token is that of a forward and of a backward LSTM. The maximum over the text
is added to the hidden state of its first token, feature by feature (Conneau et al. 2017), so that a
task head can read the whole text from there, as it does with the pretrained families.
"""

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import STANDARD_SIZES, Family
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import (
    MAX_LAYERS,
    MAX_SIZE,
    LanguageModel,
    LayerStack,
    ModelConfig,
    Pooling,
    model_field,
    network_of,
)
from kinfolk.nn.recurrent import open_forget_gates_, run_eagerly
from kinfolk.packed_texts import PackedTexts


@config("bilstm")
class BiLSTMConfig(ModelConfig):
    """Two layers by default; texts may be of any length."""

    vocab_size: int = model_field("vocab_size", 30522)
    hidden_size: int = field(
        default=256,
        ge=2,
        le=MAX_SIZE,
        help="size of the hidden states, half of it for each direction",
    )
    num_layers: int = field(
        default=2, ge=1, le=MAX_LAYERS, help="number of bidirectional LSTM layers"
    )
    dropout: float = field(default=0.3, ge=0, lt=1, help="dropout rate before each layer")

    def __post_init__(self) -> None:
        if self.hidden_size % 2:
            raise UserError(
                f"model.hidden_size={self.hidden_size} must be even: each direction has half of it"
            )


@network_of(BiLSTMConfig)
class BiLSTM(LanguageModel):
    """Token embeddings and bidirectional LSTM layers; the orders of the mask have no effect."""

    config: BiLSTMConfig
    token_embeddings: TokenEmbedding
    architecture = "recurrent"
    static_shapes = False
    pooling = Pooling(token="first")

    def __init__(self, c: BiLSTMConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(
            nn.LSTM(c.hidden_size, c.hidden_size // 2, bidirectional=True)
            for _ in range(c.num_layers)
        )
        init_weights_(self, std=0.1)
        open_forget_gates_(self)

    def forward(self, inputs: Inputs) -> Output:
        return run_eagerly(self.run, inputs)

    def run(self, inputs: Inputs) -> Output:
        """Run the layers over each text."""
        x, texts = (
            self.token_embeddings(inputs.input_ids),
            PackedTexts.of(inputs.attention_mask.document_ids),
        )
        flat = texts.flatten(x)
        for block in self.layers:
            packed, _ = block(PackedSequence(self.dropout(flat), texts.batch_sizes))
            flat = packed.data
        flat = texts.add_max_pool(flat)
        return Output(texts.unflatten(flat))


FAMILY = Family(
    name="bilstm",
    title="BiLSTM",
    paper="Graves and Schmidhuber 2005",
    year=2005,
    model=BiLSTM,
    sizes={
        name: BiLSTMConfig(hidden_size=STANDARD_SIZES[name].hidden_size)
        for name in ("nano", "tiny", "mini", "small", "base")
    },
    task_template="bert",
)
