"""ELECTRA (Clark et al., 2020): a BERT that detects the tokens that a generator replaced.

A small generator fills in masked tokens, trained by likelihood; the discriminator classifies every
token of the result as original or replaced. Both share their embeddings. The discriminator is the
model; the generator is needed for pretraining only.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs, Output
from kinfolk.config import config, describe, field
from kinfolk.errors import UserError
from kinfolk.families.base import (
    ENCODER_MAX_LR_TIMES_WIDTH,
    SEQUENCE_SUMMARY,
    Family,
    HuggingFace,
    hf_heads,
    json_field,
    mimetic_sizes,
)
from kinfolk.families.bert import (
    BERT_FIELDS,
    EMBEDDING_STD,
    REQUIRED,
    BertConfig,
    BertEmbeddings,
    bert_layer_rules,
    embedding_rules,
    encoder_layer,
)
from kinfolk.families.bert import PAPER_TRAINING as BERT_TRAINING
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, require
from kinfolk.nn.embeddings import MaskedLMHead
from kinfolk.nn.init import init_weights_, mimetic_init_
from kinfolk.nn.language_model import MAX_SIZE, LayerStack, Pooling, model_field, network_of
from kinfolk.nn.layers import get_activation
from kinfolk.objectives.rtd import RTD
from kinfolk.training.config import TrainConfig


@config("electra")
class ElectraConfig(BertConfig):
    """The published small model by default; the sizes are the discriminator's."""

    embedding_size: int = model_field("embedding_size", 128)
    hidden_size: int = field(
        default=256, ge=1, le=MAX_SIZE, help="size of the discriminator's hidden states"
    )
    num_heads: int = model_field("num_heads", 4)
    generator_size: float = field(
        default=0.25, gt=0, le=4, help="size of the generator as a fraction of the discriminator's"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        hidden_size = round(self.generator_size * self.hidden_size)
        num_heads = max(1, round(self.generator_size * self.num_heads))
        if hidden_size < 1 or hidden_size % num_heads:
            raise UserError(
                f"model.generator_size={self.generator_size} gives a generator of hidden size "
                f"{hidden_size} with {num_heads} heads, which do not divide it: use another "
                "fraction, such as 0.25 or 0.5"
            )

    def encoder_config(self, scale: float = 1.0) -> BertConfig:
        """Return the sizes of a stack of layers: the discriminator's, or a fraction of it."""
        return BertConfig(
            hidden_size=round(scale * self.hidden_size),
            num_layers=self.num_layers,
            num_heads=max(1, round(scale * self.num_heads)),
            intermediate_size=round(scale * (self.intermediate_size or 4 * self.hidden_size)),
            activation=self.activation,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            layer_norm_eps=self.layer_norm_eps,
        )


class Encoder(nn.Module):
    """BERT's layers, after a projection where the embeddings have another size."""

    def __init__(self, c: BertConfig, embedding_size: int) -> None:
        super().__init__()
        self.embedding_projection = (
            nn.Identity()
            if c.hidden_size == embedding_size
            else nn.Linear(embedding_size, c.hidden_size)
        )
        self.layers = LayerStack(encoder_layer(c) for _ in range(c.num_layers))

    def forward(self, x: Tensor, inputs: Inputs, attend: AttentionBackend) -> Tensor:
        x = self.embedding_projection(x)
        for layer, positions in self.layers.with_read_positions(inputs):
            x = layer(x, attend, read_positions=positions)
        return x


class DiscriminatorHead(nn.Module):
    """One logit per token, above zero for replaced tokens."""

    def __init__(self, c: ElectraConfig) -> None:
        super().__init__()
        self.activation = get_activation(c.activation)
        self.dense = nn.Linear(c.hidden_size, c.hidden_size)
        self.out = nn.Linear(c.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(self.activation(self.dense(hidden)))[..., 0]


@network_of(ElectraConfig)
class Electra(BertEmbeddings):
    """Embeddings that a generator and a discriminator share, each with its head."""

    config: ElectraConfig
    pooling = Pooling(token="first", activation="gelu")
    pretraining_only = ("generator", "mlm_head", "discriminator_head")
    lm_head_modules = ("generator", "mlm_head")
    skips_unread = True

    def __init__(self, c: ElectraConfig) -> None:
        super().__init__(c, c.embedding_size)
        small = c.encoder_config(c.generator_size)
        self.generator = Encoder(small, c.embedding_size)
        self.mlm_head = MaskedLMHead(
            small.hidden_size, c.embedding_size, c.vocab_size, "gelu", c.layer_norm_eps
        )
        self.discriminator = Encoder(c.encoder_config(), c.embedding_size)
        self.discriminator_head = DiscriminatorHead(c)
        self.init_weights()
        if c.mimetic_init:
            init_weights_(self.generator, std=small.hidden_size**-0.5)
            mimetic_init_(self.generator, self.position_embeddings, std=EMBEDDING_STD)

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.discriminator(self.embed(inputs), inputs, self.attention_fn(inputs)))

    def forward_lm(self, inputs: Inputs) -> Output:
        """Run the generator."""
        return Output(self.generator(self.embed(inputs), inputs, self.attention_fn(inputs)))

    def discriminator_logits(self, hidden: Tensor) -> Tensor:
        """Return one logit per token, above zero for replaced tokens: (batch, length)."""
        return self.discriminator_head(hidden)


def parameters(c: ElectraConfig) -> ParameterMap:
    """Map the parameters to those of transformers, which has a class for each network.

    The generator is in a subfolder. Both folders have the shared embeddings, so that each can be
    loaded alone.
    """
    embeddings = "electra.embeddings"
    shared = embedding_rules(embeddings, c.vocab_size)
    small = c.encoder_config(c.generator_size)
    return ParameterMap(
        base_model_prefix="electra.",
        rules=[
            *shared,
            *_encoder_rules("discriminator", "electra", c.encoder_config(), c.embedding_size),
            *module("discriminator_head.dense", "discriminator_predictions.dense"),
            *module("discriminator_head.out", "discriminator_predictions.dense_prediction"),
            *_encoder_rules("generator", "generator/electra", small, c.embedding_size),
            *module("mlm_head.dense", "generator/generator_predictions.dense"),
            *module("mlm_head.norm", "generator/generator_predictions.LayerNorm"),
            ParameterRule("mlm_head.bias", ("generator/generator_lm_head.bias",)),
        ],
        optional_prefixes=("discriminator_predictions.", "generator/"),
        aliases={"generator/generator_lm_head.weight": f"{embeddings}.word_embeddings.weight"},
        duplicates={f"generator/{name}": name for rule in shared for name in rule.hf_names},
        ignored_pattern=r"(generator/)?(electra\.)?embeddings\.position_ids",
    )


def _encoder_rules(
    ours: str, theirs: str, c: BertConfig, embedding_size: int
) -> list[ParameterRule]:
    projection = (
        module(f"{ours}.embedding_projection", f"{theirs}.embeddings_project")
        if c.hidden_size != embedding_size
        else []
    )
    return [*projection, *bert_layer_rules(f"{ours}.layers", theirs, c.num_layers)]


def generator_config(c: ElectraConfig, data: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of the generator's subfolder from that of the discriminator."""
    small = c.encoder_config(c.generator_size)
    sizes = {
        "hidden_size": small.hidden_size,
        "num_attention_heads": small.num_heads,
        "intermediate_size": small.intermediate_size,
    }
    shared = {name: value for name, value in data.items() if name != "generator_share"}
    return shared | {"architectures": ["ElectraForMaskedLM"]} | sizes


def is_generator(data: Mapping[str, Any]) -> bool:
    """Return whether config.json describes a generator that was saved alone."""
    return data.get("architectures") == ["ElectraForMaskedLM"]


def adapt(data: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Use the encoder of a generator that was saved alone for the discriminator too."""
    if not is_generator(data):
        return tensors
    heads = {k: v for k, v in tensors.items() if k.startswith("generator_")}
    encoder = {k: v for k, v in tensors.items() if k not in heads}
    return encoder | {f"generator/{name}": tensor for name, tensor in tensors.items()}


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of the generator from the config.json of its subfolder, if there is one."""
    if is_generator(data):
        return {"generator_size": 1.0}
    small = data.get("generator")
    if small is None or "generator_share" in data:
        return {}
    hidden_size = small.get("hidden_size", 256)
    describe(ElectraConfig)["hidden_size"].check(hidden_size, "generator/config.json: hidden_size")
    scale = hidden_size / data["hidden_size"]
    require(
        small,
        num_hidden_layers=data["num_hidden_layers"],
        num_attention_heads=max(1, round(scale * data["num_attention_heads"])),
        intermediate_size=round(scale * data["intermediate_size"]),
        hidden_act=data["hidden_act"],
    )
    return {"generator_size": scale}


PAPER_TRAINING = replace(BERT_TRAINING, batch_size=128, lr=5e-4)  # table 6

FAMILY = Family(
    name="electra",
    title="ELECTRA",
    paper="Clark et al. 2020",
    year=2020,
    model=Electra,
    # Deviation: the generators of the standard sizes have half the size of their discriminators,
    # the upper end of what works best (section 3.2).
    sizes=mimetic_sizes(
        ElectraConfig, lambda size: {"embedding_size": size.hidden_size}, generator_size=0.5
    )
    | {
        "electra-small": ElectraConfig(),
        "electra-base": ElectraConfig(
            embedding_size=768, hidden_size=768, num_heads=12, generator_size=1 / 3
        ),
        "electra-large": ElectraConfig(
            embedding_size=1024, hidden_size=1024, num_layers=24, num_heads=16
        ),
    },
    # Deviation: all chosen tokens become [MASK], as in the paper; the released code leaves 15 % of
    # them as they are, for the generator to predict as well.
    objectives={"rtd": RTD},
    training=TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999)),
    max_lr_times_width=ENCODER_MAX_LR_TIMES_WIDTH,
    paper_training={
        "electra-small": PAPER_TRAINING,
        "electra-base": replace(PAPER_TRAINING, steps=766_000, batch_size=256, lr=2e-4),
        # It also masks 25 % of the tokens: objective.mask_rate=0.25.
        "electra-large": replace(PAPER_TRAINING, steps=400_000, batch_size=2048, lr=2e-4),
    },
    template="bert",
    hf=HuggingFace(
        model_type="electra",
        architecture="ElectraForPreTraining",
        config=ElectraConfig,
        # The last one is only ours: transformers keeps unknown fields.
        fields=BERT_FIELDS
        | {"embedding_size": "embedding_size", "generator_size": "generator_share"},
        parameters=parameters,
        intermediate_size="intermediate_size",
        token_ids={"pad": "pad"},
        required=REQUIRED,
        defaults={
            "hidden_size": 256,
            "num_hidden_layers": 12,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "hidden_act": "gelu",
        },
        to_extra=lambda *_: {"tie_word_embeddings": True},
        extra_fields={"generator": json_field(dict)},
        from_extra=from_extra,
        adapt=adapt,
        heads=hf_heads(
            "Electra",
            ("classifier.out_proj", "classifier.dense"),
            ("classifier", SEQUENCE_SUMMARY),
        ),
        subfolders={"generator": generator_config},
    ),
)
