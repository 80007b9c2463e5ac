"""GPT (Radford et al., 2018): the Transformer's decoder, pretrained as a causal language model.

Norms follow their residual connections, as in the Transformer of 2017; positions are learned.
"""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.families.base import (
    MAX_LR_TIMES_WIDTH,
    Family,
    HFHead,
    HuggingFace,
    json_field,
    standard_sizes,
)
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, per_layer
from kinfolk.nn.attention import Attention
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import (
    Decoding,
    LanguageModel,
    LayerStack,
    ModelConfig,
    Pooling,
    model_field,
    network_of,
)
from kinfolk.nn.layers import FeedForward, PostNorm, TransformerLayer
from kinfolk.objectives.clm import CLM
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import TrainConfig


@config("gpt")
class GPTConfig(ModelConfig):
    """The published model by default."""

    vocab_size: int = model_field("vocab_size", 40478)
    hidden_size: int = model_field("hidden_size", 768)
    num_layers: int = model_field("num_layers", 12)
    num_heads: int = model_field("num_heads", 12)
    max_length: int = model_field("max_length", 512)
    activation: str = model_field("activation", "gelu_new")
    dropout: float = model_field("dropout", 0.1)
    attention_dropout: float = model_field("attention_dropout", 0.1)
    layer_norm_eps: float = model_field("layer_norm_eps", 1e-5)
    # Radford et al. 2018, section 4.1.
    init_std: float = model_field("init_std", 0.02)


def gpt_layer(c: GPTConfig) -> TransformerLayer:
    """Return a layer: causal self-attention and feed-forward, each followed by a norm."""
    return TransformerLayer(
        Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout),
        FeedForward(c.hidden_size, 4 * c.hidden_size, c.activation),
        residual=lambda part: PostNorm(
            part, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        ),
    )


class GPTDecoder(LanguageModel):
    """The parts of GPT, GPT-2 and GLM: token and position embeddings, layers, a tied output layer.

    A subclass adds its layers.
    """

    token_embeddings: TokenEmbedding
    layers: LayerStack
    architecture = "decoder"
    decoding: Decoding | None = "causal"
    pooling = Pooling(token="last", bias=False)
    skips_unread = True
    pipelined = True
    takes_prefix = True
    first_position = 0

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.config = c
        self.token_embeddings = TokenEmbedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_length, c.hidden_size)
        self.dropout = nn.Dropout(c.dropout)

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the sum of the embeddings: (batch, length, hidden_size)."""
        return self.token_embeddings(inputs.input_ids) + self.position_embeddings(
            inputs.position_ids
        )

    def first_hidden(self, inputs: Inputs) -> Tensor:
        """Return the input of the first layer, of those of this stage in a pipeline."""
        return self.dropout(self.embed(inputs)) if inputs.hidden is None else inputs.hidden

    def run_layers(self, inputs: Inputs) -> Tensor:
        """Return the output of the last layer: (batch, length, hidden_size)."""
        x, attend = self.first_hidden(inputs), self.attention_fn(inputs)
        for i, (layer, positions) in enumerate(self.layers.with_read_positions(inputs)):
            x = layer(x, attend, inputs.cache, i, read_positions=positions)
        return x

    def lm_logits(self, hidden: Tensor) -> LinearLogits:
        """Return the logits of the next token."""
        return self.token_embeddings.lm_logits(hidden)


@network_of(GPTConfig)
class GPT(GPTDecoder):
    """Token and position embeddings and a stack of layers; the output layer is tied."""

    config: GPTConfig

    def __init__(self, c: GPTConfig) -> None:
        super().__init__(c)
        self.layers = LayerStack(gpt_layer(c) for _ in range(c.num_layers))
        init_weights_(self, std=c.init_std)

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.run_layers(inputs), inputs.cache)


def gpt_layer_rules(num_layers: int) -> list[ParameterRule]:
    """Map the layers of GPT and GPT-2; Conv1D of transformers is a transposed linear layer."""
    conv1d = partial(module, transposed=True)
    ours, theirs = "layers.{i}", "transformer.h.{i}"
    return per_layer(
        num_layers,
        [
            *conv1d(f"{ours}.self_attention.sublayer.qkv_proj", f"{theirs}.attn.c_attn"),
            *conv1d(f"{ours}.self_attention.sublayer.out_proj", f"{theirs}.attn.c_proj"),
            *module(f"{ours}.self_attention.norm", f"{theirs}.ln_1"),
            *conv1d(f"{ours}.feed_forward.sublayer.up_proj", f"{theirs}.mlp.c_fc"),
            *conv1d(f"{ours}.feed_forward.sublayer.down_proj", f"{theirs}.mlp.c_proj"),
            *module(f"{ours}.feed_forward.norm", f"{theirs}.ln_2"),
        ],
    )


def parameters(c: GPTConfig) -> ParameterMap:
    """Map the parameters to those of transformers."""
    embeddings = "transformer.tokens_embed.weight"
    return ParameterMap(
        base_model_prefix="transformer.",
        rules=[
            ParameterRule("token_embeddings.weight", (embeddings,), vocab_rows=c.vocab_size),
            *module("position_embeddings", "transformer.positions_embed", bias=False),
            *gpt_layer_rules(c.num_layers),
        ],
        aliases={"lm_head.weight": embeddings},
        # The causal mask and the positions were buffers once.
        ignored_pattern=r"(transformer\.)?(h\.\d+\.attn\.bias|position_ids)",
    )


# What this family's configs call "gelu" is the tanh approximation.
ACTIVATION_NAMES = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


def to_extra(c: GPTConfig, _: SpecialTokens | None) -> dict[str, Any]:
    """Return the fields of config.json that are not copies of ours."""
    names = {ours: theirs for theirs, ours in reversed(ACTIVATION_NAMES.items())}
    if c.activation not in names:
        raise UserError(
            f"model.activation={c.activation!r}: transformers' GPT supports {', '.join(names)}"
        )
    return {
        "afn": names[c.activation],
        "embd_pdrop": c.dropout,
        "tie_word_embeddings": True,
    }


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the config that are not copies of theirs."""
    name = data.get("afn", "gelu")
    if name not in ACTIVATION_NAMES:
        raise UserError(
            f"config.json: afn={name!r} is not supported (supported: {', '.join(ACTIVATION_NAMES)})"
        )
    warn_embedding_dropout(data)
    return {"activation": ACTIVATION_NAMES[name]}


EMBEDDING_DROPOUT = json_field(float, ge=0, lt=1)


def warn_embedding_dropout(data: Mapping[str, Any]) -> None:
    """Warn if the dropout of embeddings differs; our networks have a single rate."""
    dropout = data.get("resid_pdrop", 0.1)
    if data.get("embd_pdrop", dropout) != dropout:
        warnings.warn(
            f"config.json: embd_pdrop={data['embd_pdrop']} differs from resid_pdrop={dropout}: "
            f"training uses {dropout} for both",
            stacklevel=4,
        )


FAMILY = Family(
    name="gpt",
    title="GPT",
    paper="Radford et al. 2018",
    year=2018,
    model=GPT,
    # Deviation: the standard sizes train without dropout, as they see each text about once.
    sizes=standard_sizes(GPTConfig, dropout=0.0, attention_dropout=0.0) | {"gpt": GPTConfig()},
    objectives={"clm": CLM},
    training=TrainConfig(lr=1e-3, warmup=200),
    max_lr_times_width=MAX_LR_TIMES_WIDTH,
    paper_training={
        # Section 4.1; the steps are those that Devlin et al. 2018 report of it in appendix A.4, the
        # betas those of the released code.
        "gpt": TrainConfig(
            steps=1_000_000,
            batch_size=64,
            lr=2.5e-4,
            warmup=2000,
            min_lr_ratio=0.0,
            weight_decay=0.01,
            betas=(0.9, 0.999),
        )
    },
    hf=HuggingFace(
        model_type="openai-gpt",
        architecture="OpenAIGPTLMHeadModel",
        config=GPTConfig,
        fields={
            "vocab_size": "vocab_size",
            "hidden_size": "n_embd",
            "num_layers": "n_layer",
            "num_heads": "n_head",
            "max_length": "n_positions",
            "dropout": "resid_pdrop",
            "attention_dropout": "attn_pdrop",
            "layer_norm_eps": "layer_norm_epsilon",
            "init_std": "initializer_range",
        },
        parameters=parameters,
        token_ids={"bos": "bos", "eos": "eos", "pad": "pad"},
        required={"tie_word_embeddings": True},
        to_extra=to_extra,
        extra_fields={"afn": json_field(str), "embd_pdrop": EMBEDDING_DROPOUT},
        from_extra=from_extra,
        heads={"text": HFHead("OpenAIGPTForSequenceClassification", "score")},
    ),
)
