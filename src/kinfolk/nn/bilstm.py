"""A bidirectional LSTM (Graves and Schmidhuber, 2005): the honest baseline of every task.

It is never pretrained and has no place in the family: what a member learned from plain text is
worth what it scores above this. A token's hidden state has read the text up to it from either
side. Onto that of a text's first token the maximum over the text is added, feature by feature
(Conneau et al. 2017), so that the first token sums the text up, as a member's does.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Pooling
from kinfolk.nn.sizes import STANDARD_SIZES


@config("bilstm")
class BiLSTMConfig(ModelConfig):
    """Two layers, unless told otherwise; texts may be of any length."""

    vocab_size: int = field(default=30522, ge=1, help="number of token ids")
    hidden_size: int = field(
        default=256, ge=2, help="size of the hidden states, half of it for each direction"
    )
    num_layers: int = field(default=2, ge=1, help="number of bidirectional LSTM layers")
    dropout: float = field(default=0.3, ge=0, lt=1, help="dropout rate before each layer")

    def __post_init__(self) -> None:
        if self.hidden_size % 2:
            raise UserError(
                f"model.hidden_size={self.hidden_size} is odd: two directions share it; use an even"
            )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return BiLSTM

    def build(self) -> "BiLSTM":
        """Make the network, with fresh weights."""
        return BiLSTM(self)


class BiLSTM(LanguageModel):
    """A table, and layers that read each text from both its ends, whatever the clocks say."""

    config: BiLSTMConfig
    token_embeddings: TokenEmbedding
    architecture = "recurrent"
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
        remember(self)

    def forward(self, inputs: Inputs) -> Output:
        # The lengths of texts are another shape with every batch: nothing here is compiled. As a
        # decorator it would import the compiler with this file, which takes seconds.
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.run)(inputs)  # type: ignore[no-untyped-call]
        return self.run(inputs)

    def run(self, inputs: Inputs) -> Output:
        """Run the layers over each text."""
        x, texts = (
            self.token_embeddings(inputs.input_ids),
            Texts.of(inputs.attention_mask.document_ids),
        )
        flat = x.flatten(0, 1)[texts.slots]
        for block in self.layers:
            packed, _ = block(PackedSequence(self.dropout(flat), texts.sizes))
            flat = packed.data
        flat = texts.summed(flat)
        hidden = flat.new_zeros(x.shape).flatten(0, 1).index_copy(0, texts.slots, flat)
        return Output(hidden.view_as(x))


@torch.no_grad()
def remember(model: nn.Module) -> None:
    """Open the forget gates (Jozefowicz et al. 2015): an LSTM starts by keeping what it read."""
    for module in model.modules():
        if not isinstance(module, nn.LSTM):
            continue
        for name, parameter in module.named_parameters():  # torch's own names
            if name.startswith(("bias_ih", "bias_hh")):  # gates: input, forget, cell, output
                parameter.zero_()
            if name.startswith("bias_ih"):
                parameter.chunk(4)[1].fill_(1.0)


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of packed rows as an LSTM reads them: all their first tokens, all second, ...

    Longer texts come first, so that those that have ended are the last of each such step.
    """

    slots: Tensor  # (tokens,): where each token stands in the flattened rows; no padding
    sizes: Tensor  # (longest text,), on the CPU: how many texts go on at each step
    text: Tensor  # (tokens,): the number of each token's text, the longest 0

    @classmethod
    def of(cls, document: Tensor) -> "Texts":
        """Find the texts by their numbers, (batch, length): each stands in one row, in one go."""
        before = F.pad(document, (1, 0), value=-1)[:, :-1]
        begins = document != before
        begins[:, 0] = True  # the same number in the next row is another text
        slots = torch.nonzero(document.flatten() >= 0)[:, 0]
        run = begins.flatten().cumsum(0)[slots]
        _, text, lengths = torch.unique_consecutive(run, return_inverse=True, return_counts=True)
        starts = lengths.cumsum(0) - lengths
        place = torch.arange(len(slots), device=slots.device) - starts[text]
        rank = torch.argsort(torch.argsort(lengths, descending=True, stable=True))
        order = torch.argsort(place * len(lengths) + rank[text])
        return cls(slots[order], torch.bincount(place).cpu(), rank[text][order])

    def summed(self, flat: Tensor) -> Tensor:
        """Add to the first token of each text the maximum over the text."""
        texts = int(self.sizes[0])
        most = flat.new_zeros(texts, flat.shape[1])
        into = self.text[:, None].expand_as(flat)
        most = most.scatter_reduce(0, into, flat, "amax", include_self=False)
        # The first step is the first token of every text, in the order of their numbers.
        return torch.cat([flat[:texts] + most, flat[texts:]])


SIZES = {
    name: BiLSTMConfig(hidden_size=STANDARD_SIZES[name].hidden_size)
    for name in ("nano", "tiny", "mini", "small", "base")
}
