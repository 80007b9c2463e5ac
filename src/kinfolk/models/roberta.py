"""RoBERTa (Liu et al., 2019): BERT without its pairs, on more text, with fresh masks every time.

The network is BERT's without what judged pairs. The places of a text are counted from the id of
padding, so the first rows of their table are never read.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config, field
from kinfolk.families.sizes import STANDARD_SIZES
from kinfolk.models.bert import EMBEDDING_STD, BertConfig, Layer, MaskedLMHead
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_, mimetic_init_
from kinfolk.nn.language_model import LanguageModel, LayerStack, Pooling


@config("roberta")
class RobertaConfig(BertConfig):
    """The published base model, unless told otherwise."""

    vocab_size: int = field(default=50265, ge=1, help="number of token ids")
    type_vocab_size: int = field(default=1, ge=1, help="number of token types")
    layer_norm_eps: float = field(default=1e-5, gt=0, help="epsilon of the layer norms")
    padding_idx: int = field(
        default=1, ge=0, help="id of padding; positions are counted from the one after it"
    )

    @classmethod
    def network(cls) -> type[LanguageModel]:
        """Return the class of the network."""
        return Roberta

    def build(self) -> "Roberta":  # type: ignore[override]
        """Make the network, with fresh weights."""
        return Roberta(self)


class Roberta(LanguageModel):
    """Three tables and a norm, a stack of blocks, and a head for tokens."""

    config: RobertaConfig
    token_embeddings: TokenEmbedding
    architecture = "encoder"
    can_fill = True
    pooling = Pooling(token="first", activation="tanh")
    pretraining_only = ("mlm_head",)

    def __init__(self, c: RobertaConfig) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.padding_idx + 1 + c.max_length, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.embedding_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = LayerStack(Layer(c) for _ in range(c.num_layers))
        self.mlm_head = MaskedLMHead(replace(c, activation="gelu"))  # whatever the blocks bend by
        init_weights_(self, std=c.init_std, embedding_std=EMBEDDING_STD)
        if c.mimetic_init:
            mimetic_init_(self.layers, self.position_embeddings, std=EMBEDDING_STD)

    def forward(self, inputs: Inputs) -> Output:
        segments = (
            torch.zeros_like(inputs.input_ids)
            if inputs.token_type_ids is None
            else inputs.token_type_ids
        )
        position_ids = self.position_embeddings(inputs.position_ids + self.config.padding_idx + 1)
        x = (
            self.token_embeddings(inputs.input_ids)
            + position_ids
            + self.token_type_embeddings(segments)
        )
        x = self.dropout(self.embedding_norm(x))
        attend = self.attention_fn(inputs)
        for block in self.layers:
            x = block(x, attend)
        return Output(x)

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Score the hidden token with the table that read the others."""
        return self.token_embeddings.lm_logits(self.mlm_head(hidden), self.mlm_head.bias)


# Deviation: the shared ladder trains without dropout and starts as BERT's does.
SIZES = {
    name: RobertaConfig(
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=size.hidden_size**-0.5,
        mimetic_init=True,
    )
    for name, size in STANDARD_SIZES.items()
} | {
    "roberta-base": RobertaConfig(),
    "roberta-large": RobertaConfig(hidden_size=1024, num_layers=24, num_heads=16),
}
