"""Members and heads that Hugging Face does not know: the same layout, with our own names."""

import pkgutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any

import torch
from torch import nn

import kinfolk.models
from kinfolk.hub.mapping import ParameterMap, ParameterRule
from kinfolk.nn.bilstm import BiLSTMConfig
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.language_model import ModelConfig, Pooling
from kinfolk.nn.task_heads import ModelWithHeadConfig
from kinfolk.text.tokenizer import SpecialTokens

MODEL_TYPE_PREFIX = "kinfolk_"  # before the member's name, in `model_type`


@dataclass(frozen=True)
class Native:
    """What the other files of this package say of a member, said for any of them."""

    CONFIG: type[ModelConfig]

    @classmethod
    def all(cls) -> list["Native"]:
        """Find the members by the files in models/; the baseline of tasks is in none."""
        names = [found.name for found in pkgutil.iter_modules(kinfolk.models.__path__)]
        presets = [import_module(f"kinfolk.models.{name}").SIZES for name in names]
        return [*(cls(type(next(iter(sizes.values())))) for sizes in presets), cls(BiLSTMConfig)]

    @property
    def TYPE(self) -> str:  # noqa: N802  # as the constant of the other files
        """The `model_type`."""
        return MODEL_TYPE_PREFIX + self.CONFIG.__module__.rpartition(".")[2]

    @property
    def FRAME(self) -> str | None:  # noqa: N802
        """What its tokenizer puts around a text."""
        return {"encoder": "bert", "encoder-decoder": "t5"}.get(self.CONFIG.network().architecture)

    def to_config(self, c: Any, special_tokens: SpecialTokens | None) -> dict[str, Any]:
        """Write config.json; under `head` what stands on the member, where something does."""
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
        """Read config.json."""
        body = self.CONFIG(**_known(self.CONFIG, data))
        if "head" not in data:
            return body
        head = _known(ModelWithHeadConfig, data["head"])
        return ModelWithHeadConfig(
            **head | {"backbone": body, "pooling": Pooling(**head["pooling"])}
        )

    def names(self, c: Any) -> ParameterMap:
        """Call every parameter what it is called here."""
        with torch.device("meta"):
            model: nn.Module = c.build()
        tables = {
            f"{n}.weight": m.vocab_size
            for n, m in model.named_modules()
            if isinstance(m, TokenEmbedding)
        }
        return ParameterMap(
            rules=[ParameterRule(n, (n,), vocab_rows=tables.get(n)) for n in model.state_dict()]
        )


def _known(config: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the fields of a config. JSON has no tuples, and a config holds no lists."""
    given = {field.name: data[field.name] for field in fields(config) if field.name in data}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
