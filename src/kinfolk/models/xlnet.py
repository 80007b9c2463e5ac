"""XLNet (Yang et al., 2019): reads both ways, yet predicts token after token, in any order.

Each layer runs two streams through the same weights. The content knows every token it passes; a
guess knows a place and what was born before it, never the token that stands there. Positions are
distances, as in Transformer-XL, so that texts may be of any length and begin with a memory.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.batch import Inputs, KVCache, Output
from kinfolk.config import config, field
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.attention import select_backend
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Pooling
from kinfolk.nn.layers import FeedForward, PostNorm
from kinfolk.nn.relative_attention import (
    RelativeContext,
    SegmentRelativeAttention,
    sinusoidal_distances,
)


@config("xlnet")
class XLNetConfig(ModelConfig):
    """The published large model, unless told otherwise."""

    vocab_size: int = field(default=32000, ge=1, help="number of token ids")
    hidden_size: int = field(default=1024, ge=1, help="size of the hidden states")
    num_layers: int = field(default=24, ge=1, help="number of layers")
    num_heads: int = field(default=16, ge=1, help="number of attention heads")
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    activation: str = field(default="gelu", help="activation function of the feed-forward layer")
    clamp_len: int | None = field(
        default=None, ge=1, help="largest relative distance; None is unlimited"
    )
    dropout: float = field(default=0.1, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    layer_norm_eps: float = field(default=1e-12, gt=0, help="epsilon of the layer norms")
    init_std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return XLNet

    def build(self) -> "XLNet":
        """Make the network, with fresh weights."""
        return XLNet(self)


class Layer(nn.Module):
    """Attention and feed-forward, each followed by a norm, for either stream."""

    def __init__(self, c: XLNetConfig) -> None:
        super().__init__()
        attention = SegmentRelativeAttention(c.hidden_size, c.num_heads, dropout=c.dropout)
        feed = FeedForward(
            c.hidden_size, c.intermediate_size or 4 * c.hidden_size, c.activation, dropout=c.dropout
        )
        self.self_attention = PostNorm(
            attention, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        )
        self.feed_forward = PostNorm(feed, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout)

    def read(self, content: Tensor, cache: KVCache | None, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values that both streams look at."""
        return self.self_attention.sublayer.project_kv(content, cache, layer_idx)  # type: ignore[operator]

    def forward(self, x: Tensor, known: tuple[Tensor, Tensor], view: RelativeContext) -> Tensor:
        return self.feed_forward(self.self_attention(x, known, view))


class XLNet(LanguageModel):
    """A token table that also predicts, one vector that every guess starts from, and blocks."""

    config: XLNetConfig
    token_embeddings: TokenEmbedding
    architecture = "encoder"
    decoding = "two-stream"
    can_fill = True
    static_cache = False
    pooling = Pooling(token="last", activation="tanh")
    pretraining_only = ("lm_bias",)

    def __init__(self, c: XLNetConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.mask_embedding = nn.Parameter(torch.zeros(1, 1, c.hidden_size))
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(Layer(c) for _ in range(c.num_layers))
        self.lm_bias = nn.Parameter(torch.zeros(c.vocab_size))
        init_weights_(self, std=c.init_std)
        with torch.no_grad():  # the published code draws these as it does matrices
            self.mask_embedding.normal_(0.0, c.init_std)
            for module in self.modules():
                if isinstance(module, SegmentRelativeAttention):
                    for weight in (*module.bias_parameters(), module.segment_embeddings):
                        weight.normal_(0.0, c.init_std)

    def forward(self, inputs: Inputs) -> Output:
        content = self.dropout(self.token_embeddings(inputs.input_ids))
        view, ahead = self.relative_contexts(inputs)
        guesses = None
        if inputs.target_positions is not None:
            guesses = self.dropout(self.mask_embedding.expand(*inputs.target_positions.shape, -1))
        for layer, block in enumerate(self.layers):
            known = block.read(content, inputs.cache, layer)  # type: ignore[operator]
            if guesses is not None:
                guesses = block(guesses, known, ahead)
            if guesses is None or layer + 1 < len(self.layers):
                content = block(content, known, view)
        return Output(self.dropout(content if guesses is None else guesses), inputs.cache)

    def relative_contexts(self, inputs: Inputs) -> tuple[RelativeContext, RelativeContext | None]:
        """Say how the content looks at itself, and the guesses at it."""
        seen, length = inputs.full_key_mask(), inputs.input_ids.shape[1]
        keys = seen.document_ids.shape[1]
        far = sinusoidal_distances(
            keys,
            1 - length,
            self.config.hidden_size,
            like=self.mask_embedding,
            clamp=self.config.clamp_len,
        )
        far = self.dropout(far)
        own = select_backend(inputs.attention_mask, seen, layer_bias=True)
        view = RelativeContext(
            own, far, keys, other_segment=other_segment(inputs.token_type_ids, keys)
        )
        if (asked := inputs.target_positions) is None:
            return view, None
        ahead = select_backend(inputs.attention_mask.for_targets(asked), seen, layer_bias=True)
        return view, RelativeContext(
            ahead, far, keys, asked, length, other_segment(inputs.token_type_ids, keys, asked)
        )

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the token with the table that read the others."""
        return self.token_embeddings.lm_logits(hidden, self.lm_bias)


def other_segment(segments: Tensor | None, keys: int, slots: Tensor | None = None) -> Tensor | None:
    """Say which keys are of another segment than a query; a memory is of the first."""
    if segments is None:
        return None
    there = F.pad(segments, (keys - segments.shape[1], 0))
    here = segments if slots is None else segments.gather(1, slots)
    return here[:, :, None] != there[:, None, :]


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its weights
# start larger: a small XLNet then finds its neighbours much sooner.
SIZES = {
    name: XLNetConfig(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        dropout=0.0,
        init_std=size.hidden_size**-0.5,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "xlnet-base-cased": XLNetConfig(hidden_size=768, num_layers=12, num_heads=12),
    "xlnet-large-cased": XLNetConfig(),
}
