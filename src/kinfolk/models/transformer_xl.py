"""Transformer-XL (Dai et al., 2019): a decoder that remembers the rows before, by their distance.

Each layer looks at what it read in the row before, too, so that a text has no end at the end of a
row. Places would be counted anew in every row: distances take their stead.
"""

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import EMPTY_SLOT_ID
from kinfolk.batch import Inputs, KVCache, LazyLogits, Output, SegmentMemory
from kinfolk.config import config, field
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.nn.embeddings import AdaptiveEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import LanguageModel, LayerStack, ModelConfig, Pooling, WithBiases
from kinfolk.nn.layers import FeedForward, PostNorm
from kinfolk.nn.relative_attention import RelativeAttention, RelativeContext, sinusoidal_distances


@config("transformer_xl")
class TransformerXLConfig(ModelConfig):
    """The published large model of WikiText-103, unless told otherwise."""

    vocab_size: int = field(default=267735, ge=1, help="number of token ids")
    hidden_size: int = field(default=1024, ge=1, help="size of the hidden states")
    num_layers: int = field(default=18, ge=1, help="number of layers")
    num_heads: int = field(default=16, ge=1, help="number of attention heads")
    head_dim: int | None = field(
        default=None, ge=1, help="size of an attention head; None is the hidden size over the heads"
    )
    intermediate_size: int | None = field(
        default=None,
        ge=1,
        help="size of the feed-forward layer; None is four times the hidden size",
    )
    mem_len: int = field(
        default=384, ge=1, help="number of cached hidden states from earlier segments"
    )
    clamp_len: int | None = field(
        default=None, ge=1, help="largest relative distance; None is unlimited"
    )
    attention_window: int | None = field(
        default=None,
        ge=1,
        help="number of tokens that attention sees; None is the segment and the memory",
    )
    cutoffs: tuple[int, ...] = field(
        default=(20_000, 40_000, 200_000),
        ge=1,
        help="first id of each cluster of rarer tokens (adaptive softmax)",
    )
    div_val: int = field(
        default=4, ge=1, help="factor by which the embeddings of each next cluster are smaller"
    )
    dropout: float = field(default=0.2, ge=0, lt=1, help="dropout rate of embeddings and sublayers")
    attention_dropout: float = field(
        default=0.2, ge=0, lt=1, help="dropout rate of attention probabilities"
    )
    layer_norm_eps: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")
    init_std: float = field(default=0.02, ge=0, help="standard deviation of initial weights")

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return TransformerXL

    def build(self) -> "TransformerXL":
        """Make the network, with fresh weights."""
        return TransformerXL(self)


class Layer(nn.Module):
    """Attention to the memory and the row, and feed-forward, each followed by a norm."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        inner = None if c.head_dim is None else c.num_heads * c.head_dim
        attention = RelativeAttention(
            c.hidden_size, c.num_heads, attention_size=inner, dropout=c.attention_dropout
        )
        feed = FeedForward(
            c.hidden_size, c.intermediate_size or 4 * c.hidden_size, "relu", dropout=c.dropout
        )
        self.self_attention = PostNorm(
            attention, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        )
        self.feed_forward = PostNorm(feed, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout)

    def forward(
        self,
        x: Tensor,
        content: Tensor,
        view: RelativeContext,
        cache: KVCache | None,
        layer_idx: int,
    ) -> Tensor:
        known = self.self_attention.sublayer.project_kv(content, cache, layer_idx)  # type: ignore[operator]
        return self.feed_forward(self.self_attention(x, known, view))


class TransformerXL(LanguageModel):
    """A table in clusters that also predicts, and blocks."""

    config: TransformerXLConfig
    token_embeddings: AdaptiveEmbedding
    architecture = "decoder"
    decoding = "causal"
    static_cache = False
    pooling = Pooling(token="last", bias=False)

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.config = c
        self.attention_windows = () if c.attention_window is None else (c.attention_window,)
        self.token_embeddings = AdaptiveEmbedding(
            c.vocab_size, c.hidden_size, cutoffs=c.cutoffs, div_val=c.div_val
        )
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(Layer(c) for _ in range(c.num_layers))
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the weights as the released code does."""
        init_weights_(self, std=self.config.init_std)
        # Deviation: the released code draws only the projections of clusters from 0.01.
        smaller = {*self.token_embeddings.all_projections()}
        smaller |= {part.up_proj for part in self.modules() if isinstance(part, FeedForward)}
        for module in self.modules():
            if module in smaller:
                for weight in module.parameters():
                    weight.normal_(0.0, 0.01)
            noisy: tuple[nn.Parameter, ...] = ()
            if isinstance(module, WithBiases):
                noisy = module.bias_parameters()
            if isinstance(module, nn.LayerNorm):
                noisy = (module.weight,)
            for weight in noisy:
                weight.add_(torch.randn_like(weight), alpha=self.config.init_std)

    def forward(self, inputs: Inputs) -> Output:
        x = self.dropout(self.token_embeddings(inputs.input_ids) * self.config.hidden_size**0.5)
        view, memory, read = self.relative_context(inputs), inputs.memory, []
        for layer, block in enumerate(self.layers):
            content = x if memory is None else torch.cat([memory.hidden[layer], x], dim=1)
            read.append(content)
            x = block(x, content, view, inputs.cache, layer)
        if inputs.cache is not None and inputs.cache.length > self.config.mem_len:
            inputs.cache.keep_last(self.config.mem_len)
        return Output(self.dropout(x), inputs.cache, self.next_memory(inputs, read))

    def relative_context(self, inputs: Inputs) -> RelativeContext:
        """Say how each token looks at the memory and at the tokens before it."""
        attend = self.attention_fn(inputs, window=self.config.attention_window)
        past = 0 if inputs.memory is None else inputs.memory.document_ids.shape[1]
        keys = past + inputs.input_ids.shape[1]
        if inputs.key_mask is not None:
            keys = inputs.key_mask.document_ids.shape[1]
        table = self.token_embeddings.weight_of(0)
        far = sinusoidal_distances(
            keys, 0, self.config.hidden_size, like=table, clamp=self.config.clamp_len
        )
        return RelativeContext(attend, self.dropout(far), keys)

    def next_memory(self, inputs: Inputs, read: list[Tensor]) -> SegmentMemory | None:
        """Return the last of what every layer read, where a memory was given."""
        if inputs.memory is None:
            return None
        size, seen = self.config.mem_len, inputs.memory.key_mask(inputs.attention_mask)
        hidden = torch.stack([content[:, -size:] for content in read]).detach()
        # Laid out as a blank one is: a compiled learner would be compiled again for another layout.
        document, key_order = (
            x[:, -size:].contiguous() for x in (seen.document_ids, seen.key_order)
        )
        return SegmentMemory(hidden, document, key_order)

    def init_memory(self, batch_size: int) -> SegmentMemory:
        """Return the memory of rows that nothing stands before."""
        c, like = self.config, self.token_embeddings.bias
        hidden = like.new_zeros(c.num_layers, batch_size, c.mem_len, c.hidden_size)
        document = torch.full(
            (batch_size, c.mem_len), EMPTY_SLOT_ID, dtype=torch.int32, device=like.device
        )
        return SegmentMemory(hidden, document, torch.zeros_like(document))

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Score the next token with the tables that read the last."""
        return self.token_embeddings.lm_logits(hidden)


# Deviation: the shared ladder trains without dropout, as fits one pass over a text. Its rows are of
# 128 tokens up to a width of 256 and of 512 above, and so are its memories; its vocabularies are
# small enough for one softmax.
SIZES = {
    name: TransformerXLConfig(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        mem_len=128 if size.hidden_size <= 256 else 512,
        cutoffs=(),
        div_val=1,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=size.hidden_size**-0.5,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    # The scripts of the released code. Hugging Face calls the first transfo-xl-wt103.
    "transformer-xl-wt103": TransformerXLConfig(),
    "transformer-xl-wt103-base": TransformerXLConfig(
        hidden_size=410,
        num_layers=16,
        num_heads=10,
        intermediate_size=2100,
        mem_len=150,
        div_val=1,
        dropout=0.1,
        attention_dropout=0.0,
    ),
    "transformer-xl-enwik8": TransformerXLConfig(
        vocab_size=204,
        num_layers=24,
        num_heads=8,
        intermediate_size=3072,
        mem_len=784,
        cutoffs=(),
        div_val=1,
        dropout=0.15,
        attention_dropout=0.15,
    ),
    "transformer-xl-enwik8-base": TransformerXLConfig(
        vocab_size=204,
        hidden_size=512,
        num_layers=12,
        num_heads=8,
        mem_len=512,
        cutoffs=(),
        div_val=1,
        dropout=0.1,
        attention_dropout=0.0,
    ),
}
