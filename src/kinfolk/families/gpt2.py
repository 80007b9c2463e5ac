"""GPT-2 (Radford et al., 2019): GPT with norms before the sublayers and after the last layer."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from kinfolk.batch import Inputs, Output
from kinfolk.config import config
from kinfolk.families.base import (
    MAX_LR_TIMES_WIDTH,
    Family,
    FastRates,
    HFHead,
    HuggingFace,
    standard_sizes,
)
from kinfolk.families.gpt import (
    EMBEDDING_DROPOUT,
    GPTDecoder,
    gpt_layer_rules,
    warn_embedding_dropout,
)
from kinfolk.families.mapping import ParameterMap, ParameterRule, module
from kinfolk.nn.attention import Attention
from kinfolk.nn.init import init_weights_, scale_residual_init_
from kinfolk.nn.language_model import LayerStack, ModelConfig, model_field, network_of
from kinfolk.nn.layers import FeedForward, PreNorm, TransformerLayer
from kinfolk.objectives.clm import CLM
from kinfolk.objectives.prefix_lm import PrefixLM
from kinfolk.training.config import TrainConfig


@config("gpt2")
class GPT2Config(ModelConfig):
    """The published small model by default."""

    vocab_size: int = model_field("vocab_size", 50257)
    hidden_size: int = model_field("hidden_size", 768)
    num_layers: int = model_field("num_layers", 12)
    num_heads: int = model_field("num_heads", 12)
    intermediate_size: int | None = model_field("intermediate_size", None)
    max_length: int = model_field("max_length", 1024)
    activation: str = model_field("activation", "gelu_new")
    dropout: float = model_field("dropout", 0.1)
    attention_dropout: float = model_field("attention_dropout", 0.1)
    layer_norm_eps: float = model_field("layer_norm_eps", 1e-5)


def gpt2_layer(c: GPT2Config) -> TransformerLayer:
    """Return a layer: causal self-attention and feed-forward, each after a norm."""
    return TransformerLayer(
        Attention(c.hidden_size, c.num_heads, dropout=c.attention_dropout),
        FeedForward(c.hidden_size, c.intermediate_size or 4 * c.hidden_size, c.activation),
        residual=lambda part: PreNorm(
            part, nn.LayerNorm(c.hidden_size, c.layer_norm_eps), c.dropout
        ),
    )


@network_of(GPT2Config)
class GPT2(GPTDecoder):
    """Token and position embeddings, a stack of layers and a norm; the output layer is tied."""

    config: GPT2Config

    def __init__(self, c: GPT2Config) -> None:
        super().__init__(c)
        self.layers = LayerStack(gpt2_layer(c) for _ in range(c.num_layers))
        self.final_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        init_weights_(self, std=0.02)
        scale_residual_init_(self.layers, 2 * c.num_layers)

    def forward(self, inputs: Inputs) -> Output:
        return Output(self.final_norm(self.run_layers(inputs)), inputs.cache)

    def apply_final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm after the last layer."""
        return self.final_norm(hidden)


def parameters(c: GPT2Config) -> ParameterMap:
    """Map the parameters to those of transformers."""
    embeddings = "transformer.wte.weight"
    return ParameterMap(
        base_model_prefix="transformer.",
        rules=[
            ParameterRule("token_embeddings.weight", (embeddings,), vocab_rows=c.vocab_size),
            *module("position_embeddings", "transformer.wpe", bias=False),
            *gpt_layer_rules(c.num_layers),
            *module("final_norm", "transformer.ln_f"),
        ],
        aliases={"lm_head.weight": embeddings},
        # The causal mask was a buffer once.
        ignored_pattern=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
    )


def from_extra(data: Mapping[str, Any]) -> dict[str, Any]:
    """Warn about a second dropout rate, which this network does not have."""
    warn_embedding_dropout(data)
    return {}


def paper_training(lr: float) -> TrainConfig:
    """Return the settings of a published size.

    Radford et al. 2019 only give the batch size (512) and the context; learning rates and betas are
    those of Brown et al. 2020, table 2.1 and appendix B, for the model of the nearest size.
    """
    return TrainConfig(
        steps=300_000,
        batch_size=512,
        lr=lr,
        warmup=750,
        weight_decay=0.1,
        betas=(0.9, 0.95),
        min_lr_ratio=0.1,
    )


FAMILY = Family(
    name="gpt2",
    title="GPT-2",
    paper="Radford et al. 2019",
    year=2019,
    model=GPT2,
    # Deviation: the standard sizes train without dropout, as they see each text about once.
    sizes=standard_sizes(GPT2Config, dropout=0.0, attention_dropout=0.0)
    | {
        "gpt2": GPT2Config(),
        "gpt2-medium": GPT2Config(hidden_size=1024, num_layers=24, num_heads=16),
        "gpt2-large": GPT2Config(hidden_size=1280, num_layers=36, num_heads=20),
        "gpt2-xl": GPT2Config(hidden_size=1600, num_layers=48, num_heads=25),
    },
    objectives={"clm": CLM, "prefix": PrefixLM},
    training=TrainConfig(lr=1e-3, warmup=200),
    max_lr_times_width=MAX_LR_TIMES_WIDTH,
    fast_rates=FastRates(lr=8e-3, matrix_lr=0.02),
    paper_training={
        "gpt2": paper_training(6e-4),
        "gpt2-medium": paper_training(3e-4),
        "gpt2-large": paper_training(2.5e-4),
        "gpt2-xl": paper_training(2e-4),
    },
    hf=HuggingFace(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        config=GPT2Config,
        fields={
            "vocab_size": "vocab_size",
            "hidden_size": "n_embd",
            "num_layers": "n_layer",
            "num_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_length": "n_positions",
            "activation": "activation_function",
            "dropout": "resid_pdrop",
            "attention_dropout": "attn_pdrop",
            "layer_norm_eps": "layer_norm_epsilon",
        },
        parameters=parameters,
        token_ids={"bos": "bos", "eos": "eos", "pad": "pad"},
        required={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
            "tie_word_embeddings": True,
        },
        to_extra=lambda c, _: {"embd_pdrop": c.dropout, "tie_word_embeddings": True},
        extra_fields={"embd_pdrop": EMBEDDING_DROPOUT},
        from_extra=from_extra,
        heads={
            "text": HFHead("GPT2ForSequenceClassification", "score"),
            "tokens": HFHead("GPT2ForTokenClassification", "classifier"),
            "span": HFHead("GPT2ForQuestionAnswering", "qa_outputs"),
        },
    ),
)
