"""RoBERTa (Liu et al., 2019): BERT without sentence pairs, on more text, with dynamic masking.

The network is BERT's without the next sentence head. Positions are counted from the id of padding,
so the first rows of the position embeddings are never read.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.families.base import (
    ENCODER_MAX_LR_TIMES_WIDTH,
    Family,
    HuggingFace,
    hf_heads,
    json_field,
    mimetic_sizes,
)
from kinfolk.families.bert import (
    BERT_FIELDS,
    REQUIRED,
    BertConfig,
    BertEncoder,
    bert_layer_rules,
    embedding_rules,
)
from kinfolk.families.mapping import ParameterMap, ParameterRule, module
from kinfolk.nn.language_model import MAX_TOKENS, MAX_VOCAB, Pooling, model_field, network_of
from kinfolk.objectives.full_sentences import FullSentences
from kinfolk.objectives.mlm import MLM
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig


@config("roberta")
class RobertaConfig(BertConfig):
    """The published base model by default."""

    vocab_size: int = model_field("vocab_size", 50265)
    type_vocab_size: int = model_field("type_vocab_size", 1)
    layer_norm_eps: float = model_field("layer_norm_eps", 1e-5)
    padding_idx: int = field(
        default=1,
        ge=0,
        lt=MAX_VOCAB,
        help="id of padding; positions are counted from the one after it",
    )


@network_of(RobertaConfig)
class Roberta(BertEncoder):
    """BERT's encoder with positions that are counted from the id of padding."""

    config: RobertaConfig
    pooling = Pooling(token="first", activation="tanh")
    pretraining_only = ("mlm_head",)

    def __init__(self, c: RobertaConfig) -> None:
        # The activation of the head is GELU, whatever that of the layers is.
        super().__init__(c, head_activation="gelu", first_position=c.padding_idx + 1)
        self.init_weights()


def parameters(c: RobertaConfig) -> ParameterMap:
    """Map the parameters to those of transformers, with the pretraining head."""
    embeddings = "roberta.embeddings"
    return ParameterMap(
        base_model_prefix="roberta.",
        rules=[
            *embedding_rules(embeddings, c.vocab_size),
            *bert_layer_rules("layers", "roberta", c.num_layers),
            *module("mlm_head.dense", "lm_head.dense"),
            *module("mlm_head.norm", "lm_head.layer_norm"),
            ParameterRule("mlm_head.bias", ("lm_head.bias",)),
        ],
        optional_prefixes=("lm_head.",),
        aliases={
            "lm_head.decoder.weight": f"{embeddings}.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        # Some folders have a pooler, but pretraining never trained it.
        ignored_pattern=r"(roberta\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))",
    )


def to_extra(c: RobertaConfig, special_tokens: SpecialTokens | None) -> dict[str, Any]:
    """Return the fields of config.json that are not copies of ours."""
    if special_tokens is not None and special_tokens.pad != c.padding_idx:
        raise UserError(
            f"model.padding_idx={c.padding_idx}: it must be the padding id of the tokenizer; build "
            f"the network with model.padding_idx={special_tokens.pad}"
        )
    return {
        "max_position_embeddings": c.padding_idx + 1 + c.max_length,
        "tie_word_embeddings": True,
    }


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the config that are not copies of theirs."""
    return {"max_length": data["max_position_embeddings"] - data["pad_token_id"] - 1}


# Table 9.
PAPER_TRAINING = TrainConfig(
    steps=500_000,
    batch_size=8192,
    lr=6e-4,
    warmup=24_000,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    eps=1e-6,
    grad_clip=0.0,
)

FAMILY = Family(
    name="roberta",
    title="RoBERTa",
    paper="Liu et al. 2019",
    year=2019,
    model=Roberta,
    sizes=mimetic_sizes(RobertaConfig)
    | {
        "roberta-base": RobertaConfig(),
        "roberta-large": RobertaConfig(hidden_size=1024, num_layers=24, num_heads=16),
    },
    objectives={"full_sentences": FullSentences, "mlm": MLM},
    training=TrainConfig(lr=1e-3, warmup=200),
    max_lr_times_width=ENCODER_MAX_LR_TIMES_WIDTH,
    paper_training={
        "roberta-base": PAPER_TRAINING,
        "roberta-large": replace(PAPER_TRAINING, lr=4e-4, warmup=30_000),
    },
    template="roberta",
    hf=HuggingFace(
        model_type="roberta",
        architecture="RobertaForMaskedLM",
        config=RobertaConfig,
        fields={ours: theirs for ours, theirs in BERT_FIELDS.items() if ours != "max_length"}
        | {"padding_idx": "pad_token_id"},
        parameters=parameters,
        intermediate_size="intermediate_size",
        token_ids={"bos": "cls", "eos": "sep"},
        required=REQUIRED,
        # No published model has these values.
        defaults={
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "pad_token_id": 1,
            "intermediate_size": 3072,
        },
        to_extra=to_extra,
        extra_fields={"max_position_embeddings": json_field(int, ge=1, le=MAX_TOKENS)},
        from_extra=from_extra,
        heads=hf_heads(
            "Roberta",
            ("classifier.out_proj", "classifier.dense"),
            ("classifier", "roberta.pooler.dense"),
        ),
    ),
)
