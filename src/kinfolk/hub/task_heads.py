"""The format of networks with a task head, as in the classes of transformers."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kinfolk.errors import UserError
from kinfolk.families.base import HFHead, HuggingFace
from kinfolk.families.mapping import ParameterMap, module, require
from kinfolk.nn.language_model import Pooling
from kinfolk.nn.task_heads import FIXED_LABELS, ModelWithHeadConfig, pooling_of
from kinfolk.text.tokenizer import SpecialTokens

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
    architecture = (data.get("architectures") or [None])[0]
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
    number = data.get("num_labels", len(labels) or 2)
    if len(labels) != number:
        labels = {str(i): f"LABEL_{i}" for i in range(number)}
    numbers = [str(i) for i in range(len(labels))]
    if set(labels) != set(numbers):
        raise UserError(
            f"config.json: the keys of id2label are {', '.join(labels)}; they must be "
            f"0 to {len(labels) - 1} without gaps"
        )
    return tuple(str(labels[i]) for i in numbers)
