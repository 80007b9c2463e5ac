"""The head of extractive summarization: Transformer layers between the sentences of a document.

As in Liu and Lapata (2019, section 3): a vector for each sentence, sinusoids of its position, two
Transformer layers in which the sentences of a document attend to each other, and one score.
"""

from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.nn.attention import Attention, select_backend
from kinfolk.nn.init import init_weights_
from kinfolk.nn.layers import FeedForward, PreNorm, TransformerLayer
from kinfolk.nn.positions import sinusoidal_embedding

NUM_LAYERS, MAX_HEADS, EXPANSION = 2, 8, 4


class InterSentenceHead(nn.Module):
    """One score per sentence, which depends on all sentences of its document."""

    def __init__(self, hidden_size: int, dropout: float, init_std: float) -> None:
        super().__init__()
        heads = next(n for n in range(MAX_HEADS, 0, -1) if hidden_size % n == 0)

        def residual(sublayer: nn.Module) -> PreNorm:
            return PreNorm(sublayer, nn.LayerNorm(hidden_size), dropout)

        self.hidden_size = hidden_size
        self.layers = nn.ModuleList(
            TransformerLayer(
                Attention(hidden_size, heads),
                FeedForward(hidden_size, EXPANSION * hidden_size, "gelu", dropout=dropout),
                residual=residual,
            )
            for _ in range(NUM_LAYERS)
        )
        self.norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(hidden_size, 1)
        init_weights_(self, std=init_std)

    def forward(self, sentences: Tensor, document_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Score sentences, (sentences, size), whose documents follow each other: (sentences,)."""
        positions = sinusoidal_embedding(position_ids, self.hidden_size).to(sentences.dtype)
        # All documents are packed into one row.
        x = self.dropout(sentences + positions)[None]
        attend = select_backend(AttentionMask.bidirectional(document_ids[None]))
        for layer in self.layers:
            x = layer(x, attend)
        return self.out_proj(self.norm(x))[0, :, 0]
