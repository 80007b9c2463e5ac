"""The formats of model folders: classes of transformers with a task head, and our own names.

Our own format serves the families and task heads that transformers lacks.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from torch import nn

from kinfolk.config import TYPE, describe, from_fields, from_json, to_json, type_name
from kinfolk.errors import UserError
from kinfolk.families.base import Family, HFHead, HuggingFace, json_field
from kinfolk.families.mapping import ParameterMap, ParameterRule, module, require
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.language_model import ModelConfig, Pooling
from kinfolk.nn.meta import meta_network
from kinfolk.nn.task_heads import (
    FIXED_LABELS,
    ModelWithHeadConfig,
    TaskModelConfig,
    pooling_of,
)
from kinfolk.text.tokenizer import SpecialTokens

MAX_LABELS = 2**20
DROPOUT = describe(ModelWithHeadConfig)["dropout"]
PROBLEM_TYPES = {False: "single_label_classification", True: "regression"}  # by `regression`


@dataclass(frozen=True)
class WithHead:
    """The format of a family with a task head, which is a class of transformers."""

    hf: HuggingFace
    hf_head: HFHead
    head: str
    subfolders: ClassVar[Mapping[str, Any]] = {}

    @property
    def model_type(self) -> str:
        """The `model_type` in config.json."""
        return self.hf.model_type

    def to_config(
        self, c: ModelWithHeadConfig, special_tokens: SpecialTokens | None
    ) -> dict[str, Any]:
        """Return the contents of config.json."""
        return {
            **self.hf.to_config(c.backbone, special_tokens),
            "architectures": [self.hf_head.name],
            "id2label": {str(i): label for i, label in enumerate(c.labels)},
            "label2id": {label: i for i, label in enumerate(c.labels)},
            **({"problem_type": PROBLEM_TYPES[c.regression]} if c.head == "text" else {}),
            **self._summary_fields(c.pooling),
            **dict.fromkeys(self._dropout_fields(), c.dropout),
        }

    def from_config(self, data: Mapping[str, Any]) -> ModelWithHeadConfig:
        """Return the config that a config.json describes."""
        backbone: Any = self.hf.from_config(data)
        pooling = pooling_of(backbone)
        require(data, **self._summary_fields(pooling))
        labels = FIXED_LABELS.get(self.head) or _labels(data)
        regression = self.head == "text" and len(labels) == 1
        if self.head == "text" and data.get("problem_type") is not None:
            require(data, problem_type=PROBLEM_TYPES[regression])
        rates = [data[name] for name in self._dropout_fields() if data.get(name) is not None]
        for rate in rates:
            DROPOUT.check(rate, f"config.json: {self._dropout_fields()[-1]}")
        return ModelWithHeadConfig(
            backbone=backbone,
            head=self.head,  # type: ignore[arg-type]  # a key of `HuggingFace.heads`
            labels=labels,
            pooling=pooling,
            regression=regression,
            dropout=rates[0] if rates else backbone.dropout,
        )

    def parameters(self, c: ModelWithHeadConfig) -> ParameterMap:
        """Map the parameters of the backbone, without the removed modules, and of the head."""
        backbone = self.hf.parameters(c.backbone)
        removed = tuple(f"{name}." for name in c.removed_modules)
        unused = [rule for rule in backbone.rules if f"{rule.name}.".startswith(removed)]
        kept = [replace(r, name=f"backbone.{r.name}") for r in backbone.rules if r not in unused]
        dense = [] if self.hf_head.dense is None else module("head.dense", self.hf_head.dense)
        bias = c.pooling.bias or not c.pools_text
        # Older versions saved modules of the backbone that the head does not use.
        old = [
            n for rule in unused for n in rule.hf_names if n.startswith(backbone.base_model_prefix)
        ]
        return ParameterMap(
            base_model_prefix=backbone.base_model_prefix,
            rules=[*kept, *dense, *module("head.out_proj", self.hf_head.out, bias=bias)],
            duplicates={
                n: of
                for n, of in backbone.duplicates.items()
                if n.startswith(backbone.base_model_prefix)
            },
            legacy_suffixes=backbone.legacy_suffixes,
            ignored_pattern="|".join([backbone.ignored_pattern, *map(re.escape, old)]),
        )

    def _summary_fields(self, pooling: Pooling) -> dict[str, Any]:
        """Return the fields that describe the pooling, where the class has them."""
        if not self.hf_head.summarizes:
            return {}
        return {
            "summary_type": pooling.token,
            "summary_use_proj": True,
            "summary_activation": pooling.activation,
        }

    def _dropout_fields(self) -> list[str]:
        """Return the fields of the dropout before the last layer; the first one set applies."""
        names = [self.hf.head_dropout]
        if self.hf_head.summarizes:
            names.insert(0, "summary_last_dropout")
        return names


def head_for_config(hf: HuggingFace, c: ModelWithHeadConfig) -> WithHead | None:
    """Return the format of a config with a head; None where transformers has no class for it."""
    hf_head = hf.heads.get(c.head)
    if hf_head is None or c.pooling != pooling_of(c.backbone):
        return None
    return WithHead(hf, hf_head, c.head)


def head_from_architectures(hf: HuggingFace, data: Mapping[str, Any]) -> HuggingFace | WithHead:
    """Return the format of the class in config.json, with or without a task head.

    A class that is not known is a backbone; its own heads are left out with a warning.
    """
    names = data.get("architectures")
    names = [] if names is None else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"config.json: architectures={names!r}: it must be a list of names")
    architecture = names[0] if names else None
    heads = (WithHead(hf, h, name) for name, h in hf.heads.items() if h.name == architecture)
    return next(heads, hf)


def refuse_unnamed_head(hf: HuggingFace, weights: Collection[str], where: str) -> None:
    """Raise if there is a task head in the weights whose class config.json does not name."""
    if heads := [hf_head for hf_head in hf.heads.values() if f"{hf_head.out}.weight" in weights]:
        names = " or ".join(f'["{hf_head.name}"]' for hf_head in heads)
        raise UserError(
            f"{where} has no `architectures`, and the weights contain {heads[0].out}.weight, "
            f"a task head: add architectures={names}"
        )


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels; transformers omits default names, and prefers `num_labels`."""
    labels = data.get("id2label") or {}
    json_field(dict).check(labels, "config.json: id2label")
    number = data.get("num_labels", len(labels) or 2)
    json_field(int, ge=1, le=MAX_LABELS).check(number, "config.json: num_labels")
    if len(labels) != number:
        labels = {str(i): f"LABEL_{i}" for i in range(number)}
    numbers = [str(i) for i in range(len(labels))]
    if set(labels) != set(numbers):
        raise UserError(
            f"config.json: the keys of id2label are {', '.join(labels)}; they must be "
            f"0 to {len(labels) - 1} without gaps"
        )
    return tuple(str(labels[i]) for i in numbers)


MODEL_TYPE_PREFIX = "kinfolk_"  # before the name of the family, in `model_type`


@dataclass(frozen=True)
class Native:
    """The format of a family under our names, with or without a task head."""

    family: Family
    subfolders: ClassVar[Mapping[str, Any]] = {}

    @property
    def model_type(self) -> str:
        """The `model_type` in config.json."""
        return MODEL_TYPE_PREFIX + self.family.name

    def to_config(self, c: Any, special_tokens: SpecialTokens | None) -> dict[str, Any]:
        """Return the contents of config.json; a task head or network is under `head`."""
        roles = ("bos", "eos", "pad")
        ids = (
            {f"{role}_token_id": getattr(special_tokens, role) for role in roles}
            if special_tokens
            else {}
        )
        if not isinstance(c, TaskModelConfig):
            return {**asdict(c), **ids}
        head = asdict(c) if isinstance(c, ModelWithHeadConfig) else to_json(c)
        del head["backbone"]
        return {**asdict(c.backbone), **ids, "head": head}

    def from_config(self, data: Mapping[str, Any]) -> ModelConfig:
        """Return the config that a config.json describes."""
        config: Any = type(next(iter(self.family.sizes.values())))
        backbone = from_fields(config, data, "config.json: ")
        if "head" not in data:
            return backbone
        head = data["head"]
        json_field(dict).check(head, "config.json: head")
        if TYPE in head:
            return from_json({**head, "backbone": to_json(backbone)}, group="model")
        json_field(dict).check(head.get("pooling"), "config.json: head.pooling")
        pooling = {TYPE: type_name(Pooling), **head["pooling"]}
        values = {**head, "backbone": to_json(backbone), "pooling": pooling}
        return from_fields(ModelWithHeadConfig, values, "config.json: head.")

    def parameters(self, c: Any) -> ParameterMap:
        """Map every parameter to the same name."""
        model: nn.Module = meta_network(c)
        vocab_rows = {
            f"{name}.weight": module.vocab_size
            for name, module in model.named_modules()
            if isinstance(module, TokenEmbedding)
        }
        # Tables that nothing changes are read from the file where they are needed.
        mapped = c.network.gradient_free is not None
        return ParameterMap(
            rules=[
                ParameterRule(n, (n,), vocab_rows=vocab_rows.get(n), mapped=mapped)
                for n in model.state_dict()
            ],
            optional_prefixes=tuple(f"{name}." for name in c.network.lm_head_modules),
        )
