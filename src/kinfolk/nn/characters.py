"""Words read by their characters: a character CNN and highway layers (Kim et al., 2016)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.nn.layers import get_activation

# The ids of text/characters.py: 0 for no token, 256 bytes, marks of texts and words, padding.
NUM_CHARACTERS = 262
WORD_BEGIN, WORD_END, WORD_PADDING = 259, 260, 261


class Highway(nn.Module):
    """A layer that is partly skipped: g * relu(W x) + (1 - g) * x (Srivastava et al., 2015)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


class CharacterCNN(nn.Module):
    """Embeddings of characters, filters of several widths, their maximum, and highway layers."""

    def __init__(
        self,
        output_size: int,
        *,
        embedding_size: int = 16,
        filters: Sequence[tuple[int, int]],  # width and number
        num_highway: int = 0,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_CHARACTERS, embedding_size)
        self.filters = nn.ModuleList(
            nn.Conv1d(embedding_size, count, width) for width, count in filters
        )
        total = sum(count for _, count in filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(num_highway))
        self.out_proj = nn.Linear(total, output_size)
        self.activation = get_activation(activation)

    def forward(self, character_ids: Tensor) -> Tensor:
        """Return a vector of each word: (words, characters) -> (words, output_size)."""
        x = self.embedding(character_ids).transpose(1, 2)
        x = torch.cat([self.activation(each(x).amax(-1)) for each in self.filters], dim=-1)
        for highway in self.highways:
            x = highway(x)
        return self.out_proj(x)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the weights as ELMo's release does; gates begin mostly closed."""
        self.embedding.weight.uniform_(-1.0, 1.0)
        for conv in self.filters:
            assert isinstance(conv, nn.Conv1d) and conv.bias is not None
            conv.weight.uniform_(-0.05, 0.05)
            conv.bias.zero_()
        for highway in self.highways:
            assert isinstance(highway, Highway)
            size = highway.gate.in_features
            for linear, bias in ((highway.gate, -2.0), (highway.transform, 0.0)):
                linear.weight.normal_(0.0, size**-0.5)
                linear.bias.fill_(bias)
        self.out_proj.weight.normal_(0.0, self.out_proj.in_features**-0.5)
        self.out_proj.bias.zero_()


class CharacterEmbedding(nn.Module):
    """Vectors of tokens by their characters, which a table has for every id of the vocabulary.

    The table is saved with the weights. A run fills it from its tokenizer; until then a token is
    spelled by the digits of its id.
    """

    table: Tensor

    def __init__(self, vocab_size: int, max_characters: int, cnn: CharacterCNN) -> None:
        super().__init__()
        self.cnn = cnn
        self.register_buffer("table", digits_of_ids(vocab_size, max_characters))

    def forward(self, input_ids: Tensor, character_ids: Tensor | None = None) -> Tensor:
        """Return the vectors of tokens, by their own characters where given: (..., size)."""
        # Each word is read once, however often it occurs.
        if character_ids is None:
            words, index = torch.unique(input_ids, return_inverse=True)
            vectors = self.cnn(self.table[words].long())
        else:
            words, index = torch.unique(character_ids.flatten(0, -2), dim=0, return_inverse=True)
            vectors = self.cnn(words.long())
        # Unlike vectors[index], its gradient adds up in a fixed order with several CPU threads.
        return F.embedding(index.view(input_ids.shape), vectors)

    @torch.no_grad()
    def set_table(self, table: Tensor) -> None:
        """Set the characters of the first ids."""
        self.table[: len(table)] = table.to(self.table)


def digits_of_ids(vocab_size: int, max_characters: int) -> Tensor:
    """Return a table in which a token is spelled by the digits of its id."""
    table = torch.full((vocab_size, max_characters), WORD_PADDING, dtype=torch.int16)
    if table.is_meta:
        return table
    ids, digits = torch.arange(vocab_size)[:, None], len(str(vocab_size))
    powers = 10 ** torch.arange(digits - 1, -1, -1)
    table[:, 0] = WORD_BEGIN
    shown = min(digits, max_characters - 2)
    table[:, 1 : 1 + shown] = (ids // powers % 10 + ord("0") + 1)[:, -shown:].to(torch.int16)
    table[:, 1 + shown] = WORD_END
    return table
