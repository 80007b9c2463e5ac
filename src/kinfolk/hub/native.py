"""The format of families and task heads that transformers lacks: its layout, our names."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import nn

from kinfolk.families.base import Family
from kinfolk.families.mapping import ParameterMap, ParameterRule
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.language_model import ModelConfig, Pooling
from kinfolk.nn.task_heads import ModelWithHeadConfig
from kinfolk.text.tokenizer import SpecialTokens

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
        """Return the contents of config.json; a task head is under `head`."""
        roles = ("bos", "eos", "pad")
        ids = (
            {f"{role}_token_id": getattr(special_tokens, role) for role in roles}
            if special_tokens
            else {}
        )
        if not isinstance(c, ModelWithHeadConfig):
            return {**asdict(c), **ids}
        head = asdict(c)
        return {**head.pop("backbone"), **ids, "head": head}

    def from_config(self, data: Mapping[str, Any]) -> ModelConfig:
        """Return the config that a config.json describes."""
        config = type(next(iter(self.family.sizes.values())))
        backbone = config(**_known_fields(config, data))
        if "head" not in data:
            return backbone
        head = _known_fields(ModelWithHeadConfig, data["head"])
        return ModelWithHeadConfig(
            **head | {"backbone": backbone, "pooling": Pooling(**head["pooling"])}
        )

    def parameters(self, c: Any) -> ParameterMap:
        """Map every parameter to the same name."""
        with torch.device("meta"):
            model: nn.Module = c.build()
        vocab_rows = {
            f"{name}.weight": module.vocab_size
            for name, module in model.named_modules()
            if isinstance(module, TokenEmbedding)
        }
        return ParameterMap(
            rules=[ParameterRule(n, (n,), vocab_rows=vocab_rows.get(n)) for n in model.state_dict()]
        )


def _known_fields(config: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that JSON has, with lists as tuples."""
    values = {field.name: data[field.name] for field in fields(config) if field.name in data}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
