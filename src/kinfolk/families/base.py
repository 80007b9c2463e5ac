"""A family of language models as one value: network, sizes, objectives, settings, Hugging Face.

All families have the same standard sizes, so that a comparison at one size is fair.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from kinfolk.config import FieldInfo, describe, did_you_mean, type_name
from kinfolk.errors import UserError
from kinfolk.families.mapping import ParameterMap, require
from kinfolk.nn.language_model import MAX_VOCAB, LanguageModel, ModelConfig
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.config import FineTuneConfig, TrainConfig

Config = TypeVar("Config")
FAST_DECAY_RATIO = 0.5  # of the steps, in which the rate of the fast recipe falls to 0
FAST_FIELDS = (  # what it sets
    *("optimizer", "lr", "matrix_lr", "weight_decay"),
    *("schedule", "decay_ratio", "min_lr_ratio"),
)
# The learning rate of a standard size times its hidden size, at most: wide networks diverge, or
# never leave the loss of a unigram model, at the rate of narrow ones. Measured at hidden size 256
# (docs/results.md, "Learning rates of `mini`"): BERT is best at 5e-4, GPT better at 1e-3 than 3e-4.
ENCODER_MAX_LR_TIMES_WIDTH = 0.128  # BERT and the families made of its encoder
MAX_LR_TIMES_WIDTH = 0.256  # the other Transformers
SEQUENCE_SUMMARY = "sequence_summary.summary"  # transformers' pooling layer of ELECTRA and XLNet


class Size(NamedTuple):
    """Hidden size, layers and attention heads of a standard size."""

    hidden_size: int
    num_layers: int
    num_heads: int


# From tiny to base: the published small BERTs (Turc et al. 2019, table 1).
STANDARD_SIZES = {
    "nano": Size(64, 2, 2),
    "tiny": Size(128, 2, 2),
    "mini": Size(256, 4, 4),
    "small": Size(512, 4, 8),
    "medium": Size(512, 8, 8),
    "base": Size(768, 12, 12),
    "large": Size(1024, 24, 16),
}


def no_fields(*_: Any) -> dict[str, Any]:
    """Add nothing to a config."""
    return {}


def standard_sizes(
    config: Callable[..., Config],
    by_size: Callable[[Size], dict[str, Any]] = no_fields,
    /,
    **fields: Any,
) -> dict[str, Config]:
    """Return the config of every standard size, with fields that are the same for all or follow it.

    `standard_sizes(GPT2Config, dropout=0.0)`, or with a function of the size:
    `standard_sizes(GPT3Config, lambda size: {"attention_window": size.hidden_size // 4})`.
    """
    return {
        name: config(**size._asdict(), **fields, **by_size(size))
        for name, size in STANDARD_SIZES.items()
    }


def mimetic_sizes(
    config: Callable[..., Config],
    by_size: Callable[[Size], dict[str, Any]] = no_fields,
    /,
    **fields: Any,
) -> dict[str, Config]:
    """Return the standard sizes with mimetic initialisation and without dropout.

    Deviation: with larger initial matrices and initial attention to neighbouring tokens, small
    models with bidirectional attention learn much sooner. They see each text about once, so they
    need no dropout.
    """
    return standard_sizes(
        config,
        lambda size: {"init_std": size.hidden_size**-0.5, **by_size(size)},
        dropout=0.0,
        attention_dropout=0.0,
        mimetic_init=True,
        **fields,
    )


@dataclass(frozen=True)
class HFHead:
    """A class of transformers with a task head, and the names of the head's modules."""

    name: str
    out: str
    dense: str | None = None  # the layer before the last, where there is one

    @property
    def summarizes(self) -> bool:
        """Whether its pooling is described by the `summary_...` fields of config.json."""
        return self.dense == SEQUENCE_SUMMARY


def hf_heads(name: str, text: tuple[str, ...], choice: tuple[str, ...]) -> dict[str, HFHead]:
    """Return the four classes that most families have in transformers: `NameFor...`."""
    return {
        "text": HFHead(f"{name}ForSequenceClassification", *text),
        "tokens": HFHead(f"{name}ForTokenClassification", "classifier"),
        "span": HFHead(f"{name}ForQuestionAnswering", "qa_outputs"),
        "choice": HFHead(f"{name}ForMultipleChoice", *choice),
    }


@dataclass(frozen=True)
class FastRates:
    """Peak learning rates of a family's fast recipe.

    Muon has `matrix_lr` for the matrices of layers and AdamW `lr` for the rest; without a
    `matrix_lr` the family's own optimizer has `lr`.
    """

    lr: float
    matrix_lr: float | None = None


def always(_: Any) -> bool:
    """Return true."""
    return True


def same_model(model: Any) -> Any:
    """Return the network as it is."""
    return model


def same_tensors(_: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as they are."""
    return tensors


def json_field(hint: Any, **bounds: float) -> FieldInfo:
    """Declare the type and the range of a field of config.json that our configs do not have."""
    return FieldInfo(name="", hint=hint, default=None, bounds=bounds)


INTERMEDIATE = json_field(int, ge=1, le=2**20)
TOKEN_ID = json_field(int | None, ge=0, lt=MAX_VOCAB)


@dataclass(frozen=True, kw_only=True)
class HuggingFace:
    """How transformers names a family: config.json, parameters, classes with a task head."""

    model_type: str
    architecture: str  # the class of the pretrained network
    config: type[ModelConfig]
    fields: Mapping[str, str]  # field of our config to field of config.json
    parameters: Callable[[Any], ParameterMap]
    # Field of config.json with the feed-forward size, never null; None if it is in `fields`.
    intermediate_size: str | None = None
    # Special token of config.json to our role: {"bos": "cls"} for bos_token_id.
    token_ids: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)  # fields with one supported value
    # Defaults of transformers that differ from ours.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Fields of config.json that `from_extra` reads.
    extra_fields: Mapping[str, FieldInfo] = field(default_factory=dict)
    # Fields that are not copies, in both directions.
    to_extra: Callable[[Any, SpecialTokens | None], dict[str, Any]] = no_fields
    from_extra: Callable[[Mapping[str, Any]], dict[str, Any]] = no_fields
    # Tensors of another class of the family (an ELECTRA generator) under the expected names.
    adapt: Callable[[Mapping[str, Any], dict[str, Tensor]], dict[str, Tensor]] = same_tensors
    # Whether transformers has the network of a config; if not, it is saved in our own format.
    supports: Callable[[Any], bool] = always
    # A network that it has with the same outputs; `kinfolk export` writes this one.
    equivalent: Callable[[Any], Any] = same_model
    heads: Mapping[str, HFHead] = field(default_factory=dict)  # by the name of our task head
    head_dropout: str = "classifier_dropout"  # field of the dropout before the last layer
    # Networks in subfolders (ELECTRA): the name of the subfolder to a function that makes its
    # config.json from a config and the config.json of the family. Parameters are `folder/name`.
    subfolders: Mapping[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = field(
        default_factory=dict
    )

    def to_config(self, c: Any, special_tokens: SpecialTokens | None) -> dict[str, Any]:
        """Return the contents of config.json."""
        inner = (
            {self.intermediate_size: c.intermediate_size or 4 * c.hidden_size}
            if self.intermediate_size
            else {}
        )
        return {
            "architectures": [self.architecture],
            **{theirs: getattr(c, ours) for ours, theirs in self.fields.items()},
            **inner,
            **self.to_extra(c, special_tokens),
            **{
                f"{theirs}_token_id": getattr(special_tokens, ours) if special_tokens else None
                for theirs, ours in self.token_ids.items()
            },
        }

    def from_config(self, data: Mapping[str, Any]) -> Any:
        """Return our config of the network that a config.json describes."""
        data = {**self.defaults, **data}
        self._check(data)
        copies = {ours: data[theirs] for ours, theirs in self.fields.items() if theirs in data}
        c: Any = self.config(**copies | self.from_extra(data))
        if self.intermediate_size in data and data[self.intermediate_size] != 4 * c.hidden_size:
            return c.with_fields(intermediate_size=data[self.intermediate_size])
        return c

    def _check(self, data: Mapping[str, Any]) -> None:
        """Check type and range of the fields of config.json, under the names that it has."""
        require(data, **self.required)
        declared = describe(self.config)
        rules = {theirs: declared[ours] for ours, theirs in self.fields.items()}
        if self.intermediate_size is not None:
            rules[self.intermediate_size] = INTERMEDIATE
        for name, rule in {**rules, **self.extra_fields}.items():
            if name in data:
                rule.check(data[name], f"config.json: {name}")


# The formulations of tasks by `decoding`, the default first; others have a task head only.
FORMULATIONS = {
    "causal": ("transformed", "head", "text", "prompt", "cloze", "features"),
    "encoder-decoder": ("text", "cloze", "prompt"),
    "infilling": ("cloze", "text", "head", "prompt", "features"),
}
# How a prompt and its answer are laid out, by `decoding`.
LAYOUTS = {"causal": "decoder", "encoder-decoder": "encoder-decoder", "infilling": "blanks"}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One published family of language models."""

    name: str  # also the registered name of its config
    title: str
    paper: str  # authors and year
    year: int
    model: type[LanguageModel]
    sizes: Mapping[str, ModelConfig]  # the standard sizes, then the published ones
    # Pretraining objectives, the default first; none for a baseline.
    objectives: Mapping[str, type[Any]] = field(default_factory=dict)
    training: TrainConfig = field(default_factory=TrainConfig)  # of the standard sizes
    # Of the standard sizes: ENCODER_MAX_LR_TIMES_WIDTH or MAX_LR_TIMES_WIDTH; None: no limit.
    max_lr_times_width: float | None = None
    paper_training: Mapping[str, TrainConfig] = field(default_factory=dict)  # by published size
    # Of the fast recipe, measured (docs/benchmarks.md, "Time to quality"); None: it has none.
    fast_rates: FastRates | None = None
    # Of fine-tuning from pretrained weights; None: by architecture, size and pretraining.
    finetune_training: TrainConfig | None = None
    finetuning: FineTuneConfig = FineTuneConfig()  # the same
    template: str | None = None  # special tokens that its tokenizer adds to a text
    task_template: str | None = None  # the same in fine-tuning, where the tokenizer adds none
    formulation: str | None = None  # of its tasks by default; None: that of its `decoding`
    hf: HuggingFace | None = None  # None: saved in our own format

    def __post_init__(self) -> None:
        names = {type_name(config) for config in self.sizes.values()}
        if names != {self.name}:
            raise ValueError(
                f"the family {self.name!r} has configs registered as {', '.join(sorted(names))}: "
                "both names must be the same"
            )

    @property
    def architecture(self) -> str:
        """encoder, decoder, encoder-decoder or recurrent."""
        return self.model.architecture

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The uses of its networks besides fine-tuning."""
        able = {
            "pretrain": bool(self.objectives),
            "fast": self.fast_rates is not None,
            "generate": self.model.decoding is not None,
            "prefixes": self.model.takes_prefix,
            "fill": self.model.can_fill,
            "export": self.hf is not None,
            "cross_view": self.formulation == "cross_view",
        }
        return tuple(name for name, can in able.items() if can)

    @property
    def formulations(self) -> tuple[str, ...]:
        """The names of its task formulations, the default first."""
        if self.model.gradient_free is not None:
            return ("prompt",)
        usual = FORMULATIONS.get(self.model.decoding or "", ("head", "features"))
        # A baseline has no features to give, and some networks take no task head.
        lacking = {"features": not self.objectives, "head": self.model.pooling is None}
        lacking["transformed"] = self.formulation == "concat"  # whose head reads more
        usual = tuple(name for name in usual if not lacking.get(name))
        preferred = self.formulation or usual[0]
        return preferred, *(name for name in usual if name != preferred)

    @property
    def layout(self) -> str | None:
        """The layout of a prompt and its answer; None if it cannot generate."""
        return LAYOUTS.get(self.model.decoding or "")

    @property
    def frame(self) -> str | None:
        """The special tokens around the texts of a task."""
        return self.template or self.task_template

    @property
    def required_tokens(self) -> tuple[str, ...]:
        """Roles of special tokens that the default objective needs."""
        return self.objective().required_tokens if self.objectives else ()

    def objective(self, name: str | None = None) -> type[Any]:
        """Return an objective by its name; by default the first."""
        if not self.objectives and self.formulation:
            raise UserError(
                f"{self.name} has no pretraining objective: train it on labelled rows with kinfolk "
                "finetune, and score it with kinfolk evaluate --test"
            )
        if not self.objectives:
            raise UserError(
                f"{self.name} is a baseline without a pretraining objective: choose a family that "
                "`kinfolk members` lists"
            )
        name = name or next(iter(self.objectives))
        if name not in self.objectives:
            raise UserError(
                f"{self.name} has no objective {name!r} (supported: {', '.join(self.objectives)})"
            )
        return self.objectives[name]

    def config(self, size: str) -> ModelConfig:
        """Return the config of a size."""
        if size not in self.sizes:
            raise UserError(
                f"{self.name} has no size {size!r}: {did_you_mean(size, [*self.sizes])}"
            )
        return self.sizes[size]

    def train(self, size: str) -> TrainConfig:
        """Return the training settings of a size: the paper's for a published one."""
        if size in self.paper_training or self.max_lr_times_width is None:
            return self.paper_training.get(size, self.training)
        highest = self.max_lr_times_width / self.config(size).hidden_size
        return replace(self.training, lr=min(self.training.lr, float(f"{highest:.1e}")))

    def fast_train(self, train: TrainConfig, *, scale: float = 1.0) -> TrainConfig:
        """Return settings with the fast recipe's optimizer, rates (times `scale`) and schedule.

        Batches, steps, betas and clipping stay. The rates are the same at every width: a step of
        Muon changes a matrix by as much at any of them. Above the standard size `mini` that was not
        measured (docs/benchmarks.md, "Time to quality").
        """
        assert self.fast_rates is not None
        lr, matrix_lr = self.fast_rates.lr, self.fast_rates.matrix_lr
        return replace(
            train,
            optimizer=self.training.optimizer if matrix_lr is None else "muon",
            lr=float(f"{lr * scale:.1e}"),
            matrix_lr=train.matrix_lr if matrix_lr is None else float(f"{matrix_lr * scale:.1e}"),
            weight_decay=0.0,
            schedule="trapezoid",
            decay_ratio=FAST_DECAY_RATIO,
            min_lr_ratio=0.0,
        )
