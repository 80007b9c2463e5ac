"""ALBERT (Lan et al., 2019): BERT with layers that share their weights, and small embeddings.

Token embeddings are small and projected to the hidden size, and every layer has the same weights;
so a wide network has few parameters. Layers may also share in groups, or only one sublayer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, Output, gather_positions
from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import (
    ENCODER_MAX_LR_TIMES_WIDTH,
    Family,
    FastRates,
    HuggingFace,
    hf_heads,
    json_field,
    mimetic_sizes,
)
from kinfolk.families.bert import BERT_FIELDS, BertConfig, BertEmbeddings, embedding_rules
from kinfolk.families.bert import PAPER_TRAINING as BERT_TRAINING
from kinfolk.families.mapping import ParameterMap, ParameterRule, module
from kinfolk.nn.attention import Attention
from kinfolk.nn.embeddings import MaskedLMHead
from kinfolk.nn.language_model import MAX_LAYERS, Pooling, SharedLayers, model_field, network_of
from kinfolk.nn.layers import FeedForward, PostNorm
from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.sop import SOP
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig

Shared = Literal["all", "attention", "feed", "none"]


@config("albert")
class AlbertConfig(BertConfig):
    """The published base model of version 2 by default."""

    vocab_size: int = model_field("vocab_size", 30000)
    embedding_size: int = model_field("embedding_size", 128)
    num_layers: int = field(
        default=12, ge=1, le=MAX_LAYERS, help="number of times that a group of layers is applied"
    )
    sharing: Shared = field(
        default="all", help="which sublayers share weights over the layers of a group"
    )
    num_hidden_groups: int = field(
        default=1, ge=1, le=MAX_LAYERS, help="number of layer groups that share weights"
    )
    inner_group_num: int = field(
        default=1, ge=1, le=64, help="number of layers in a group, each with weights of its own"
    )
    activation: str = model_field("activation", "gelu_new")
    # Version 2 was trained without dropout.
    dropout: float = model_field("dropout", 0.0)
    attention_dropout: float = model_field("attention_dropout", 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_hidden_groups > self.num_layers:
            raise UserError(
                f"model.num_hidden_groups={self.num_hidden_groups} is more than "
                f"model.num_layers={self.num_layers}: lower model.num_hidden_groups"
            )

    def layer_modules(self) -> list[tuple[int, int]]:
        """Return the indices of the attention and the feed-forward module of each layer."""
        modules = []
        for step in range(self.num_layers):
            # As in the released code, with its rounding.
            group = int(step / (self.num_layers / self.num_hidden_groups))
            for layer in range(self.inner_group_num):
                own = step * self.inner_group_num + layer
                shared = group * self.inner_group_num + layer
                attention = shared if self.sharing in ("all", "attention") else own
                modules.append((attention, shared if self.sharing in ("all", "feed") else own))
        return modules


class AlbertLayers(SharedLayers):
    """The distinct attention and feed-forward modules, run in the order of the layers."""

    def __init__(self, c: AlbertConfig) -> None:
        super().__init__()
        self.layer_modules = c.layer_modules()
        attentions, feed_forwards = (1 + max(ids) for ids in zip(*self.layer_modules, strict=True))
        inner = c.intermediate_size or 4 * c.hidden_size

        def residual(part: nn.Module) -> PostNorm:
            return PostNorm(part, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout)

        self.attentions = nn.ModuleList(
            residual(Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout))
            for _ in range(attentions)
        )
        self.feed_forwards = nn.ModuleList(
            residual(FeedForward(c.hidden_size, inner, c.activation)) for _ in range(feed_forwards)
        )

    def sublayers(self) -> list[nn.Module]:
        """Return the distinct modules."""
        return [*self.attentions, *self.feed_forwards]

    def forward(
        self, x: Tensor, attend: AttentionBackend, read_positions: Tensor | None = None
    ) -> list[Tensor]:
        """Return the input of the first layer, and the output of each.

        The last feed-forward module may run at `read_positions` alone, as in `TransformerLayer`.
        """
        hidden = [x]
        for attention, feed_forward in self.layer_modules:
            x = self.attentions[attention](x, attend)
            if read_positions is not None and len(hidden) == len(self.layer_modules):
                x = gather_positions(x, read_positions)[None]
            x = self.feed_forwards[feed_forward](x)
            hidden.append(x)
        return hidden


@network_of(AlbertConfig)
class Albert(BertEmbeddings):
    """Small embeddings and their projection, shared layers, and two heads."""

    config: AlbertConfig
    pooling = Pooling(token="first", pooler=True)
    skips_unread = True
    pretraining_only = ("mlm_head", "seq_relationship")
    pooling_only = ("pooler",)

    def __init__(self, c: AlbertConfig) -> None:
        super().__init__(c, c.embedding_size)
        self.embedding_projection = nn.Linear(c.embedding_size, c.hidden_size)
        self.layers = AlbertLayers(c)
        self.mlm_head = MaskedLMHead(
            c.hidden_size, c.embedding_size, c.vocab_size, c.activation, c.layer_norm_eps
        )
        self.pooler = nn.Linear(c.hidden_size, c.hidden_size)
        self.seq_relationship = nn.Linear(c.hidden_size, 2)
        self.init_weights()

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.layer_outputs(inputs)[-1])

    @property
    def num_feature_layers(self) -> int:
        """The number of hidden states that `layer_outputs` returns."""
        return len(self.layers.layer_modules) + 1

    def layer_outputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the input of the first layer, and the output of each."""
        x = self.embedding_projection(self.embed(inputs))
        return self.layers(x, self.attention_fn(inputs), inputs.read_positions)

    def pool(self, hidden: Tensor) -> Tensor:
        """Return a vector of the text from the hidden state of its first token."""
        return torch.tanh(self.pooler(hidden))

    def seq_relationship_logits(self, hidden: Tensor) -> Tensor:
        """Return two logits per pair: the texts are in order, or swapped."""
        return self.seq_relationship(self.pool(hidden))


def parameters(c: AlbertConfig) -> ParameterMap:
    """Map the parameters to those of transformers, with both pretraining heads."""
    embeddings = "albert.embeddings"
    rules, duplicates = _layer_rules(c)
    return ParameterMap(
        base_model_prefix="albert.",
        rules=[
            *embedding_rules(embeddings, c.vocab_size),
            *module("embedding_projection", "albert.encoder.embedding_hidden_mapping_in"),
            *rules,
            *module("mlm_head.dense", "predictions.dense"),
            *module("mlm_head.norm", "predictions.LayerNorm"),
            ParameterRule("mlm_head.bias", ("predictions.bias",)),
            *module("pooler", "albert.pooler"),
            *module("seq_relationship", "sop_classifier.classifier"),
        ],
        optional_prefixes=("predictions.", "albert.pooler.", "sop_classifier."),
        aliases={
            "predictions.decoder.weight": f"{embeddings}.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        duplicates=duplicates,
        ignored_pattern=r"(albert\.)?embeddings\.position_ids",
    )


def _layer_rules(c: AlbertConfig) -> tuple[list[ParameterRule], dict[str, str]]:
    """Map each sublayer once, and return its other names.

    transformers shares complete layers, in groups. If only one sublayer is shared, each application
    of a group is saved as a separate group, with a copy of the shared sublayer.
    """
    rules: dict[str, ParameterRule] = {}
    duplicates: dict[str, str] = {}
    for number, (attention, feed_forward) in enumerate(c.layer_modules()):
        # Layers that share all weights are numbered by group, others by application.
        group, layer = divmod(attention if c.sharing == "all" else number, c.inner_group_num)
        hf_name = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{layer}"
        names = f"layers.attentions.{attention}", f"layers.feed_forwards.{feed_forward}"
        for rule in _sublayer_rules(*names, hf_name):
            first = rules.setdefault(rule.name, rule)
            pairs = zip(rule.hf_names, first.hf_names, strict=True)
            duplicates |= {name: of for name, of in pairs if name != of}
    return list(rules.values()), duplicates


def _sublayer_rules(attention: str, feed_forward: str, theirs: str) -> list[ParameterRule]:
    qkv = (f"{theirs}.attention.{name}" for name in ("query", "key", "value"))
    return [
        *module(f"{attention}.sublayer.qkv_proj", *qkv),
        *module(f"{attention}.sublayer.out_proj", f"{theirs}.attention.dense"),
        *module(f"{attention}.norm", f"{theirs}.attention.LayerNorm"),
        *module(f"{feed_forward}.sublayer.up_proj", f"{theirs}.ffn"),
        *module(f"{feed_forward}.sublayer.down_proj", f"{theirs}.ffn_output"),
        *module(f"{feed_forward}.norm", f"{theirs}.full_layer_layer_norm"),
    ]


def to_extra(c: AlbertConfig, _: SpecialTokens | None) -> dict[str, Any]:
    """Return the fields of config.json that are not copies of ours."""
    groups = (
        {"num_hidden_groups": c.num_layers, "sharing_groups": c.num_hidden_groups}
        if c.sharing != "all"
        else {}
    )
    return {**groups, "tie_word_embeddings": True}


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the config that are not copies of theirs."""
    groups = data.get("sharing_groups")
    return {} if groups is None else {"num_hidden_groups": groups}


PUBLISHED = {
    "albert-base-v2": AlbertConfig(),
    "albert-large-v2": AlbertConfig(hidden_size=1024, num_layers=24, num_heads=16),
    "albert-xlarge-v2": AlbertConfig(hidden_size=2048, num_layers=24, num_heads=16),
    "albert-xxlarge-v2": AlbertConfig(hidden_size=4096, num_layers=12, num_heads=64),
}
# Section 4.1 (steps, batch, rate), and the released code (warmup, and the rest as BERT).
# Deviation: the paper uses LAMB, which is AdamW with the step of each tensor scaled by its norm. Of
# the optimizers here, `adamw_rms` scales in this way.
PAPER_TRAINING = replace(
    BERT_TRAINING,
    steps=125_000,
    batch_size=4096,
    optimizer="adamw_rms",
    lr=1.76e-3,
    warmup=3125,
)

FAMILY = Family(
    name="albert",
    title="ALBERT",
    paper="Lan et al. 2019",
    year=2019,
    model=Albert,
    # Deviation: the embeddings of small standard sizes have half the hidden size, where 128 would
    # be no smaller than it.
    sizes=mimetic_sizes(
        AlbertConfig, lambda size: {"embedding_size": min(128, size.hidden_size // 2)}
    )
    | PUBLISHED,
    objectives={"sop": SOP, "nsp": NSP, "mlm": MLM},
    training=TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999)),
    max_lr_times_width=ENCODER_MAX_LR_TIMES_WIDTH,
    fast_rates=FastRates(lr=5e-4, matrix_lr=0.01),
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
    template="bert",
    hf=HuggingFace(
        model_type="albert",
        architecture="AlbertForPreTraining",
        config=AlbertConfig,
        fields=BERT_FIELDS
        | {
            "embedding_size": "embedding_size",
            "num_hidden_groups": "num_hidden_groups",
            "inner_group_num": "inner_group_num",
            "sharing": "sharing",  # only ours: transformers keeps unknown fields
        },
        parameters=parameters,
        intermediate_size="intermediate_size",
        token_ids={"pad": "pad", "bos": "bos", "eos": "eos"},
        required={"position_embedding_type": "absolute", "tie_word_embeddings": True},
        defaults={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
        to_extra=to_extra,
        extra_fields={"sharing_groups": json_field(int | None, ge=1, le=MAX_LAYERS)},
        from_extra=from_extra,
        heads=hf_heads("Albert", ("classifier",), ("classifier",)),
        head_dropout="classifier_dropout_prob",
    ),
)
