"""Transformer-XL (Dai et al., 2019): a decoder with segment-level recurrence.

Each layer also attends to its inputs of the segments before, so that the context does not end with
a segment. Absolute positions would start anew in every segment, so positions are relative.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import EMPTY_SLOT_ID
from kinfolk.batch import Inputs, LazyLogits, Output, SegmentMemory
from kinfolk.config import config, field
from kinfolk.families.base import MAX_LR_TIMES_WIDTH, Family, standard_sizes
from kinfolk.nn.embeddings import AdaptiveEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import (
    MAX_SIZE,
    MAX_TOKENS,
    MAX_VOCAB,
    LanguageModel,
    LayerStack,
    ModelConfig,
    Pooling,
    WithBiases,
    model_field,
    network_of,
)
from kinfolk.nn.layers import FeedForward, PostNorm
from kinfolk.nn.relative_attention import (
    RelativeAttention,
    RelativeContext,
    RelativeLayer,
    sinusoidal_distances,
)
from kinfolk.objectives.clm import CLM
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.training.config import TrainConfig

MAX_PREFILL_SCORES = 2**25  # attention scores that a layer holds at a time while it reads a prompt


@config("transformer_xl")
class TransformerXLConfig(ModelConfig):
    """The published large model of WikiText-103 by default."""

    vocab_size: int = model_field("vocab_size", 267735)
    hidden_size: int = model_field("hidden_size", 1024)
    num_layers: int = model_field("num_layers", 18)
    num_heads: int = model_field("num_heads", 16)
    head_dim: int | None = model_field("head_dim", None)
    intermediate_size: int | None = model_field("intermediate_size", None)
    mem_len: int = field(
        default=384,
        ge=0,
        le=MAX_TOKENS,
        help="number of cached hidden states from earlier segments; with 0, a segment attends to "
        "itself alone, and a generated text to all of itself",
    )
    clamp_len: int | None = model_field("clamp_len", None)
    attention_window: int | None = field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        help="number of tokens that attention reads; by default the segment and the memory",
    )
    cutoffs: tuple[int, ...] = field(
        default=(20_000, 40_000, 200_000),
        ge=1,
        lt=MAX_VOCAB,
        help="first id of each cluster of rarer tokens (adaptive softmax)",
    )
    div_val: int = field(
        default=4,
        ge=1,
        le=MAX_SIZE,
        help="factor by which the embeddings of each next cluster are smaller",
    )
    dropout: float = model_field("dropout", 0.2)
    attention_dropout: float = model_field("attention_dropout", 0.2)
    layer_norm_eps: float = model_field("layer_norm_eps", 1e-5)
    init_std: float = model_field("init_std", 0.02)


def transformer_xl_layer(c: TransformerXLConfig) -> RelativeLayer:
    """Return a layer: attention to the memory and the segment, and feed-forward."""
    attention_size = None if c.head_dim is None else c.num_heads * c.head_dim
    return RelativeLayer(
        RelativeAttention(
            c.hidden_size, c.num_heads, attention_size=attention_size, dropout=c.attention_dropout
        ),
        FeedForward(
            c.hidden_size, c.intermediate_size or 4 * c.hidden_size, "relu", dropout=c.dropout
        ),
        residual=lambda part: PostNorm(
            part, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        ),
    )


@network_of(TransformerXLConfig)
class TransformerXL(LanguageModel):
    """Adaptive embeddings, which are also the output layer, and a stack of layers."""

    config: TransformerXLConfig
    token_embeddings: AdaptiveEmbedding
    architecture = "decoder"
    undivided = "its attention to relative distances is not divided among processes"
    varlen_attention = False
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
        self.layers = LayerStack(transformer_xl_layer(c) for _ in range(c.num_layers))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the weights as the released code does."""
        init_weights_(self, std=self.config.init_std)
        # Deviation: the released code draws only the projections of clusters from 0.01.
        embeddings = self.token_embeddings
        smaller = {*embeddings.projections, embeddings.output_projection}
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
        if inputs.cache is None:
            x, contents = self.hidden_states(inputs)
            return Output(self.dropout(x), None, self.next_memory(inputs, contents))
        x = torch.cat([self.hidden_states(part)[0] for part in self.split_prompt(inputs)], dim=1)
        if 0 < self.config.mem_len < inputs.cache.length:
            inputs.cache.keep_last(self.config.mem_len)
        return Output(self.dropout(x), inputs.cache)

    def hidden_states(self, inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
        """Return the output of the last layer, and what each layer attends to."""
        x = self.dropout(self.token_embeddings(inputs.input_ids) * self.config.hidden_size**0.5)
        context, memory, contents = self.relative_context(inputs), inputs.memory, []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, RelativeLayer)
            content = x if memory is None else torch.cat([memory.hidden[i], x], dim=1)
            contents.append(content)
            x = layer(x, layer.project_kv(content, inputs.cache, i), context)
        return x, contents

    def split_prompt(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the tokens in parts, in order, each with few enough attention scores to hold."""
        assert inputs.key_mask is not None, "call append_to_cache() first"
        length, keys = inputs.input_ids.shape[1], inputs.key_mask.document_ids.shape[1]
        size = max(MAX_PREFILL_SCORES // (len(inputs.input_ids) * self.config.num_heads * keys), 1)
        if size >= length:
            yield inputs
            return
        for start in range(0, length, size):
            part = slice(start, start + size)
            stop = keys - length + min(start + size, length)
            yield replace(inputs.select(part), key_mask=inputs.key_mask.select(slice(stop)))

    def relative_context(self, inputs: Inputs) -> RelativeContext:
        """Return the attention backend and the distances to the memory and the segment."""
        attend = self.attention_fn(inputs, window=self.config.attention_window)
        memory_length = 0 if inputs.memory is None else inputs.memory.document_ids.shape[1]
        keys = memory_length + inputs.input_ids.shape[1]
        if inputs.key_mask is not None:
            keys = inputs.key_mask.document_ids.shape[1]
        distances = sinusoidal_distances(
            keys,
            0,
            self.config.hidden_size,
            like=self.token_embeddings.weight_of(0),
            clamp=self.config.clamp_len,
        )
        return RelativeContext(attend, self.dropout(distances), keys)

    def next_memory(self, inputs: Inputs, contents: list[Tensor]) -> SegmentMemory | None:
        """Return the last inputs of every layer, where a memory was given."""
        if inputs.memory is None:
            return None
        mask = inputs.memory.key_mask(inputs.attention_mask)
        first = max(0, mask.document_ids.shape[1] - self.config.mem_len)
        hidden = torch.stack([content[:, first:] for content in contents]).detach()
        # Contiguous as an empty one is: compiled code would be compiled again for other strides.
        document_ids, key_order = (
            x[:, first:].contiguous() for x in (mask.document_ids, mask.key_order)
        )
        return SegmentMemory(hidden, document_ids, key_order)

    def init_memory(self, batch_size: int) -> SegmentMemory:
        """Return an empty memory."""
        c, like = self.config, self.token_embeddings.bias
        hidden = like.new_zeros(c.num_layers, batch_size, c.mem_len, c.hidden_size)
        document_ids = torch.full(
            (batch_size, c.mem_len), EMPTY_SLOT_ID, dtype=torch.int32, device=like.device
        )
        return SegmentMemory(hidden, document_ids, torch.zeros_like(document_ids))

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the logits of the next token."""
        return self.token_embeddings.lm_logits(hidden)


# The scripts of the released code. Hugging Face calls the first transfo-xl-wt103.
WT103_LARGE = TransformerXLConfig()
PUBLISHED = {
    "transformer-xl-wt103": WT103_LARGE,
    "transformer-xl-wt103-base": replace(
        WT103_LARGE,
        hidden_size=410,
        num_layers=16,
        num_heads=10,
        intermediate_size=2100,
        mem_len=150,
        div_val=1,
        dropout=0.1,
        attention_dropout=0.0,
    ),
    "transformer-xl-enwik8": replace(
        WT103_LARGE,
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
    "transformer-xl-enwik8-base": replace(
        WT103_LARGE,
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
# The released code: its script for the large model of WikiText-103, in rows of 384 tokens, and its
# defaults (Adam's betas, a gradient norm of 0.25, no weight decay, a cosine down to 0).
PAPER_TRAINING = TrainConfig(
    steps=4_000_000,
    batch_size=128,
    lr=2.5e-4,
    warmup=16_000,
    schedule="cosine",
    min_lr_ratio=0.0,
    weight_decay=0.0,
    betas=(0.9, 0.999),
    grad_clip=0.25,
)

FAMILY = Family(
    name="transformer_xl",
    title="Transformer-XL",
    paper="Dai et al. 2019",
    year=2019,
    model=TransformerXL,
    # Deviation: the standard sizes train without dropout, as one pass needs none. Their rows
    # have 128 tokens up to a hidden size of 256 and 512 above, and so do their memories; their
    # vocabularies are small enough for one softmax.
    sizes=standard_sizes(
        TransformerXLConfig,
        lambda size: {
            "mem_len": 128 if size.hidden_size <= 256 else 512,
            "init_std": size.hidden_size**-0.5,
        },
        cutoffs=(),
        div_val=1,
        dropout=0.0,
        attention_dropout=0.0,
    )
    | PUBLISHED,
    objectives={"stream": RecurrentCLM, "clm": CLM},
    training=TrainConfig(lr=1e-3, warmup=200),
    max_lr_times_width=MAX_LR_TIMES_WIDTH,
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
)
