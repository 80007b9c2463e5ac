"""XLNet (Yang et al., 2019): an encoder that predicts token after token, in any order.

Each layer runs two streams through the same weights. The content stream sees the tokens; the query
stream sees a target position and the tokens before it in the order, never the target itself.
Positions are relative, as in Transformer-XL, so that texts may have any length and a memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import (
    MAX_LR_TIMES_WIDTH,
    SEQUENCE_SUMMARY,
    Family,
    HFHead,
    HuggingFace,
    hf_heads,
    json_field,
    standard_sizes,
)
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, per_layer, require
from kinfolk.nn.attention import select_backend
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import (
    MAX_TOKENS,
    LanguageModel,
    LayerStack,
    ModelConfig,
    Pooling,
    model_field,
    network_of,
)
from kinfolk.nn.layers import FeedForward, PostNorm
from kinfolk.nn.relative_attention import (
    RelativeContext,
    RelativeLayer,
    SegmentRelativeAttention,
    sinusoidal_distances,
)
from kinfolk.objectives.permutation_lm import PermutationLM
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig


@config("xlnet")
class XLNetConfig(ModelConfig):
    """The published large model by default."""

    vocab_size: int = model_field("vocab_size", 32000)
    hidden_size: int = model_field("hidden_size", 1024)
    num_layers: int = model_field("num_layers", 24)
    num_heads: int = model_field("num_heads", 16)
    intermediate_size: int | None = model_field("intermediate_size", None)
    activation: str = model_field("activation", "gelu")
    causal: bool = field(
        default=False, help="attend only to tokens on the left, in any order (attn_type uni)"
    )
    clamp_len: int | None = model_field("clamp_len", None)
    dropout: float = model_field("dropout", 0.1)
    layer_norm_eps: float = model_field("layer_norm_eps", 1e-12)
    init_std: float = model_field("init_std", 0.02)


def two_stream_layer(c: XLNetConfig) -> RelativeLayer:
    """Return a layer of both streams: relative attention and feed-forward."""
    return RelativeLayer(
        SegmentRelativeAttention(c.hidden_size, c.num_heads, dropout=c.dropout),
        FeedForward(
            c.hidden_size, c.intermediate_size or 4 * c.hidden_size, c.activation, dropout=c.dropout
        ),
        residual=lambda part: PostNorm(
            part, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        ),
    )


@network_of(XLNetConfig)
class XLNet(LanguageModel):
    """Token embeddings, the initial vector of the query stream, and layers; the output is tied."""

    config: XLNetConfig
    token_embeddings: TokenEmbedding
    architecture = "encoder"
    undivided = "its attention to relative distances is not divided among processes"
    varlen_attention = False
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
        self.layers = LayerStack(two_stream_layer(c) for _ in range(c.num_layers))
        self.lm_bias = nn.Parameter(torch.zeros(c.vocab_size))
        init_weights_(self, std=c.init_std)
        with torch.no_grad():  # the published code draws these as it does matrices
            self.mask_embedding.normal_(0.0, c.init_std)
            for part in self.modules():
                if isinstance(part, SegmentRelativeAttention):
                    for weight in (*part.bias_parameters(), part.segment_embeddings):
                        weight.normal_(0.0, c.init_std)

    def forward(self, inputs: Inputs) -> Output:
        content = self.dropout(self.token_embeddings(inputs.input_ids))
        context, query_context = self.relative_contexts(inputs)
        query = None
        if inputs.target_positions is not None:
            query = self.dropout(self.mask_embedding.expand(*inputs.target_positions.shape, -1))
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, RelativeLayer)
            kv = layer.project_kv(content, inputs.cache, i)
            if query is not None:
                query = layer(query, kv, query_context)
            if query is None or i + 1 < len(self.layers):
                content = layer(content, kv, context)
        return Output(self.dropout(content if query is None else query), inputs.cache)

    def relative_contexts(self, inputs: Inputs) -> tuple[RelativeContext, RelativeContext | None]:
        """Return how the content stream attends to itself, and the query stream to it."""
        key_mask, length = inputs.full_key_mask(), inputs.input_ids.shape[1]
        keys = key_mask.document_ids.shape[1]
        distances = sinusoidal_distances(
            keys,
            1 - length,
            self.config.hidden_size,
            like=self.mask_embedding,
            clamp=self.config.clamp_len,
        )
        distances = self.dropout(distances)
        attend = select_backend(inputs.attention_mask, key_mask, layer_bias=True)
        positions = torch.arange(length, device=distances.device)[None]
        content = RelativeContext(
            attend,
            distances,
            keys,
            other_segment=other_segment(inputs.token_type_ids, keys),
            right=to_the_right(positions, length, keys) if self.config.causal else None,
        )
        if (targets := inputs.target_positions) is None:
            return content, None
        query_mask = inputs.attention_mask.for_targets(targets)
        return content, RelativeContext(
            select_backend(query_mask, key_mask, layer_bias=True),
            distances,
            keys,
            targets,
            length,
            other_segment(inputs.token_type_ids, keys, targets),
            to_the_right(targets, length, keys) if self.config.causal else None,
        )

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the predicted tokens."""
        return self.token_embeddings.lm_logits(hidden, self.lm_bias)


def other_segment(
    token_type_ids: Tensor | None, keys: int, positions: Tensor | None = None
) -> Tensor | None:
    """Return which keys are of another segment than a query; a memory is of the first."""
    if token_type_ids is None:
        return None
    of_keys = F.pad(token_type_ids, (keys - token_type_ids.shape[1], 0))
    of_queries = token_type_ids if positions is None else token_type_ids.gather(1, positions)
    return of_queries[:, :, None] != of_keys[:, None, :]


def to_the_right(positions: Tensor, length: int, keys: int) -> Tensor:
    """Return which keys follow queries at these positions of the last `length` keys."""
    columns = torch.arange(keys, device=positions.device)
    return columns > positions[:, :, None] + keys - length


@dataclass(frozen=True)
class PerHeadRule(ParameterRule):
    """One of our tensors whose parts have axes for heads and head_dim in transformers."""

    shape: tuple[int, ...] = ()  # of each of theirs

    def to_hf(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return their tensors."""
        parts = (p.T if self.transposed else p for p in tensor.chunk(len(self.hf_names)))
        return {name: p.reshape(self.shape) for name, p in zip(self.hf_names, parts, strict=True)}

    def from_hf(self, theirs: Mapping[str, Tensor], rows: int) -> Tensor:
        """Return our tensor, as a copy in float32."""
        parts = [theirs[name].float() for name in self.hf_names]
        return torch.cat([p.flatten(1).T if self.transposed else p.flatten(1) for p in parts])


def parameters(c: XLNetConfig) -> ParameterMap:
    """Map the parameters to those of transformers."""
    ours, theirs = "layers.{i}", "transformer.layer.{i}"
    attention, rel_attn = f"{ours}.self_attention.sublayer", f"{theirs}.rel_attn"
    head_dim = c.hidden_size // c.num_heads
    per_head = partial(PerHeadRule, shape=(c.hidden_size, c.num_heads, head_dim))
    transposed = partial(per_head, transposed=True)
    return ParameterMap(
        base_model_prefix="transformer.",
        rules=[
            ParameterRule(
                "token_embeddings.weight",
                ("transformer.word_embedding.weight",),
                vocab_rows=c.vocab_size,
            ),
            ParameterRule("mask_embedding", ("transformer.mask_emb",)),
            *per_layer(
                c.num_layers,
                [
                    transposed(f"{attention}.q_proj.weight", (f"{rel_attn}.q",)),
                    transposed(f"{attention}.kv_proj.weight", (f"{rel_attn}.k", f"{rel_attn}.v")),
                    transposed(f"{attention}.r_proj.weight", (f"{rel_attn}.r",)),
                    per_head(f"{attention}.out_proj.weight", (f"{rel_attn}.o",)),
                    ParameterRule(f"{attention}.content_bias", (f"{rel_attn}.r_w_bias",)),
                    ParameterRule(f"{attention}.position_bias", (f"{rel_attn}.r_r_bias",)),
                    ParameterRule(f"{attention}.segment_bias", (f"{rel_attn}.r_s_bias",)),
                    ParameterRule(f"{attention}.segment_embeddings", (f"{rel_attn}.seg_embed",)),
                    *module(f"{ours}.self_attention.norm", f"{rel_attn}.layer_norm"),
                    *module(f"{ours}.feed_forward.sublayer.up_proj", f"{theirs}.ff.layer_1"),
                    *module(f"{ours}.feed_forward.sublayer.down_proj", f"{theirs}.ff.layer_2"),
                    *module(f"{ours}.feed_forward.norm", f"{theirs}.ff.layer_norm"),
                ],
            ),
            ParameterRule("lm_bias", ("lm_loss.bias",)),
        ],
        optional_prefixes=("lm_loss.",),
        aliases={"lm_loss.weight": "transformer.word_embedding.weight"},
    )


def to_extra(c: XLNetConfig, _: SpecialTokens | None) -> dict[str, Any]:
    """Return the fields of config.json that are not copies of ours."""
    return {
        "d_head": c.hidden_size // c.num_heads,
        "clamp_len": -1 if c.clamp_len is None else c.clamp_len,
        "attn_type": "uni" if c.causal else "bi",
        "untie_r": True,
        "mem_len": None,  # the caller chooses the length of the memory
        "tie_word_embeddings": True,
    }


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the config that are not copies of theirs."""
    require(data, d_head=data["d_model"] // data["n_head"])
    clamp_len, attn_type = data.get("clamp_len", -1), data.get("attn_type", "bi")
    if attn_type not in ("bi", "uni"):
        raise UserError(f"config.json: attn_type={attn_type!r} is not supported (use bi or uni)")
    return {"clamp_len": clamp_len if clamp_len > 0 else None, "causal": attn_type == "uni"}


PUBLISHED = {
    "xlnet-base-cased": XLNetConfig(hidden_size=768, num_layers=12, num_heads=12),
    "xlnet-large-cased": XLNetConfig(),
}
PAPER_TRAINING = TrainConfig(  # appendix A.4.1
    steps=500_000,
    batch_size=8192,
    lr=4e-4,
    warmup=40_000,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
)
POOLED = ("logits_proj", SEQUENCE_SUMMARY)

FAMILY = Family(
    name="xlnet",
    title="XLNet",
    paper="Yang et al. 2019",
    year=2019,
    model=XLNet,
    # Deviation: the standard sizes train without dropout, as one pass needs none. Their
    # weights start larger: a small XLNet then learns much sooner to attend to neighbours.
    sizes=standard_sizes(
        XLNetConfig, lambda size: {"init_std": size.hidden_size**-0.5}, dropout=0.0
    )
    | PUBLISHED,
    # Deviation: rows hold one text or several. The paper's rows are pairs of texts and continue
    # from row to row, with a memory of half a row.
    objectives={"permutation": PermutationLM},
    training=TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999)),
    max_lr_times_width=MAX_LR_TIMES_WIDTH,
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
    template="xlnet",
    hf=HuggingFace(
        model_type="xlnet",
        architecture="XLNetLMHeadModel",
        config=XLNetConfig,
        fields={
            "vocab_size": "vocab_size",
            "hidden_size": "d_model",
            "num_layers": "n_layer",
            "num_heads": "n_head",
            "activation": "ff_activation",
            "dropout": "dropout",
            "layer_norm_eps": "layer_norm_eps",
            "init_std": "initializer_range",
        },
        parameters=parameters,
        intermediate_size="d_inner",
        token_ids={"bos": "bos", "eos": "eos", "pad": "pad"},
        required={
            "bi_data": False,
            "untie_r": True,
            "tie_word_embeddings": True,
        },
        defaults={"d_model": 1024, "n_head": 16, "d_inner": 4096},
        to_extra=to_extra,
        extra_fields={"clamp_len": json_field(int, ge=-1, le=MAX_TOKENS)},
        from_extra=from_extra,
        heads=hf_heads("XLNet", POOLED, POOLED)
        | {"span": HFHead("XLNetForQuestionAnsweringSimple", "qa_outputs")},
        head_dropout="summary_last_dropout",
    ),
)
