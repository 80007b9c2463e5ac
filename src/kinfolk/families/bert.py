"""BERT (Devlin et al., 2018): the Transformer's encoder, pretrained by masked language modelling.

Every token attends to every other; masked tokens are predicted from both sides, and the hidden
state of the first token represents the whole text.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config
from kinfolk.families.base import (
    ENCODER_MAX_LR_TIMES_WIDTH,
    Family,
    HuggingFace,
    hf_heads,
    mimetic_sizes,
)
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, per_layer
from kinfolk.nn.attention import Attention
from kinfolk.nn.embeddings import LinearLogits, MaskedLMHead, TokenEmbedding
from kinfolk.nn.init import init_weights_, mimetic_init_
from kinfolk.nn.language_model import (
    LanguageModel,
    LayerStack,
    ModelConfig,
    Pooling,
    model_field,
    network_of,
)
from kinfolk.nn.layers import FeedForward, PostNorm, TransformerLayer
from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.sop import SOP
from kinfolk.objectives.unilm import UniLM
from kinfolk.training.config import TrainConfig

EMBEDDING_STD = 0.02  # of initial embeddings, as in the released code


@config("bert")
class BertConfig(ModelConfig):
    """The published base model by default."""

    vocab_size: int = model_field("vocab_size", 30522)
    hidden_size: int = model_field("hidden_size", 768)
    num_layers: int = model_field("num_layers", 12)
    num_heads: int = model_field("num_heads", 12)
    intermediate_size: int | None = model_field("intermediate_size", None)
    max_length: int = model_field("max_length", 512)
    type_vocab_size: int = model_field("type_vocab_size", 2)
    activation: str = model_field("activation", "gelu")
    dropout: float = model_field("dropout", 0.1)
    attention_dropout: float = model_field("attention_dropout", 0.1)
    layer_norm_eps: float = model_field("layer_norm_eps", 1e-12)
    init_std: float = model_field("init_std", 0.02)
    mimetic_init: bool = model_field("mimetic_init", False)


def encoder_layer(c: BertConfig) -> TransformerLayer:
    """Return a layer: bidirectional self-attention and feed-forward, each followed by a norm."""
    return TransformerLayer(
        Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout),
        FeedForward(c.hidden_size, c.intermediate_size or 4 * c.hidden_size, c.activation),
        residual=lambda part: PostNorm(
            part, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        ),
    )


class BertEmbeddings(LanguageModel):
    """The input of BERT and its descendants: token, position and token type embeddings, a norm."""

    token_embeddings: TokenEmbedding
    architecture = "encoder"
    can_fill = True
    lm_head_modules: tuple[str, ...] = ("mlm_head",)
    mlm_head: MaskedLMHead
    first_position: int

    def __init__(self, c: Any, embedding_size: int, *, first_position: int = 0) -> None:
        super().__init__()
        self.config = c
        self.first_position = first_position  # row of the position embeddings of a first token
        self.token_embeddings = TokenEmbedding(c.vocab_size, embedding_size)
        self.position_embeddings = nn.Embedding(first_position + c.max_length, embedding_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, embedding_size)
        self.embedding_norm = nn.LayerNorm(embedding_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.dropout)

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the embeddings: (batch, length, embedding_size)."""
        token_type_ids = (
            torch.zeros_like(inputs.input_ids)
            if inputs.token_type_ids is None
            else inputs.token_type_ids
        )
        position_ids = inputs.position_ids + self.first_position
        x = self.token_embeddings(inputs.input_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.embedding_norm(x + self.token_type_embeddings(token_type_ids)))

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of masked tokens."""
        return self.token_embeddings.lm_logits(self.mlm_head(hidden), self.mlm_head.bias)

    def init_weights(self) -> None:
        """Draw the initial weights of all parts."""
        init_weights_(self, std=self.config.init_std, embedding_std=EMBEDDING_STD)
        if self.config.mimetic_init:
            mimetic_init_(self, self.position_embeddings, std=EMBEDDING_STD)


class BertEncoder(BertEmbeddings):
    """Embeddings, a stack of layers, and a head for masked tokens."""

    pipelined = True
    skips_unread = True

    def __init__(self, c: BertConfig, *, head_activation: str, first_position: int = 0) -> None:
        super().__init__(c, c.hidden_size, first_position=first_position)
        self.layers = LayerStack(encoder_layer(c) for _ in range(c.num_layers))
        self.mlm_head = MaskedLMHead(
            c.hidden_size, c.hidden_size, c.vocab_size, head_activation, c.layer_norm_eps
        )

    def forward(self, inputs: Inputs) -> Output:
        x = self.embed(inputs) if inputs.hidden is None else inputs.hidden
        attend = self.attention_fn(inputs)
        for layer, positions in self.layers.with_read_positions(inputs):
            x = layer(x, attend, read_positions=positions)
        return Output(x)


@network_of(BertConfig)
class Bert(BertEncoder):
    """BERT's encoder with a second head: next sentence."""

    config: BertConfig
    pooling = Pooling(token="first", pooler=True)
    pretraining_only = ("mlm_head", "seq_relationship")
    pooling_only = ("pooler",)

    def __init__(self, c: BertConfig) -> None:
        super().__init__(c, head_activation=c.activation)
        self.pooler = nn.Linear(c.hidden_size, c.hidden_size)
        self.seq_relationship = nn.Linear(c.hidden_size, 2)
        self.init_weights()

    def pool(self, hidden: Tensor) -> Tensor:
        """Return a vector of the text from the hidden state of its first token."""
        return torch.tanh(self.pooler(hidden))

    def seq_relationship_logits(self, hidden: Tensor) -> Tensor:
        """Return two logits per pair: the second text follows the first, or does not."""
        return self.seq_relationship(self.dropout(self.pool(hidden)))


def embedding_rules(theirs: str, vocab_size: int) -> list[ParameterRule]:
    """Map the embeddings of BERT and its descendants, and their norm."""
    return [
        ParameterRule(
            "token_embeddings.weight", (f"{theirs}.word_embeddings.weight",), vocab_rows=vocab_size
        ),
        *module("position_embeddings", f"{theirs}.position_embeddings", bias=False),
        *module("token_type_embeddings", f"{theirs}.token_type_embeddings", bias=False),
        *module("embedding_norm", f"{theirs}.LayerNorm"),
    ]


def bert_layer_rules(ours: str, theirs: str, num_layers: int) -> list[ParameterRule]:
    """Map the layers of BERT and its descendants."""
    ours, theirs = f"{ours}.{{i}}", f"{theirs}.encoder.layer.{{i}}"
    qkv = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
    return per_layer(
        num_layers,
        [
            *module(f"{ours}.self_attention.sublayer.qkv_proj", *qkv),
            *module(f"{ours}.self_attention.sublayer.out_proj", f"{theirs}.attention.output.dense"),
            *module(f"{ours}.self_attention.norm", f"{theirs}.attention.output.LayerNorm"),
            *module(f"{ours}.feed_forward.sublayer.up_proj", f"{theirs}.intermediate.dense"),
            *module(f"{ours}.feed_forward.sublayer.down_proj", f"{theirs}.output.dense"),
            *module(f"{ours}.feed_forward.norm", f"{theirs}.output.LayerNorm"),
        ],
    )


def parameters(c: BertConfig) -> ParameterMap:
    """Map the parameters to those of transformers, with both pretraining heads."""
    embeddings = "bert.embeddings"
    return ParameterMap(
        base_model_prefix="bert.",
        rules=[
            *embedding_rules(embeddings, c.vocab_size),
            *bert_layer_rules("layers", "bert", c.num_layers),
            *module("mlm_head.dense", "cls.predictions.transform.dense"),
            *module("mlm_head.norm", "cls.predictions.transform.LayerNorm"),
            ParameterRule("mlm_head.bias", ("cls.predictions.bias",)),
            *module("pooler", "bert.pooler.dense"),
            *module("seq_relationship", "cls.seq_relationship"),
        ],
        optional_prefixes=("cls.predictions.", "bert.pooler.", "cls.seq_relationship."),
        aliases={
            "cls.predictions.decoder.weight": f"{embeddings}.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        # TensorFlow's names, in the published folders.
        legacy_suffixes={".gamma": ".weight", ".beta": ".bias"},
        ignored_pattern=r"(bert\.)?embeddings\.position_ids",
    )


# Our config field: that of transformers, in BERT and its descendants.
BERT_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
    "mimetic_init": "near_start",  # only ours: transformers keeps unknown fields
}
REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
PUBLISHED = {
    "bert-base-uncased": BertConfig(),
    "bert-base-cased": BertConfig(vocab_size=28996),
    "bert-base-chinese": BertConfig(vocab_size=21128),
    "bert-large-uncased": BertConfig(hidden_size=1024, num_layers=24, num_heads=16),
    "bert-large-cased": BertConfig(vocab_size=28996, hidden_size=1024, num_layers=24, num_heads=16),
}
PAPER_TRAINING = TrainConfig(  # appendix A.2
    steps=1_000_000,
    batch_size=256,
    lr=1e-4,
    warmup=10_000,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-6,
)

FAMILY = Family(
    name="bert",
    title="BERT",
    paper="Devlin et al. 2018",
    year=2018,
    model=Bert,
    sizes=mimetic_sizes(BertConfig) | PUBLISHED,
    # Deviation: the released code also masks and predicts [UNK]; here no special token is masked.
    objectives={"nsp": NSP, "mlm": MLM, "sop": SOP, "unilm": UniLM},
    training=TrainConfig(lr=1e-3, warmup=200, betas=(0.9, 0.999)),
    max_lr_times_width=ENCODER_MAX_LR_TIMES_WIDTH,
    paper_training=dict.fromkeys(PUBLISHED, PAPER_TRAINING),
    template="bert",
    hf=HuggingFace(
        model_type="bert",
        architecture="BertForPreTraining",
        config=BertConfig,
        fields=BERT_FIELDS,
        parameters=parameters,
        intermediate_size="intermediate_size",
        token_ids={"pad": "pad"},
        required=REQUIRED | {"pruned_heads": {}},
        defaults={"intermediate_size": 3072},
        to_extra=lambda *_: {"tie_word_embeddings": True},
        heads=hf_heads("Bert", ("classifier",), ("classifier",)),
    ),
)
