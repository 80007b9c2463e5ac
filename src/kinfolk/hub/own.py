"""Members that Hugging Face does not know: the same layout of folder, with our own names."""

import pkgutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any

import torch
from torch import nn

import kinfolk.models
from kinfolk.hub.names import Names, Rule
from kinfolk.nn.table import Table
from kinfolk.text.tokenizer import Specials
from kinfolk.types import Config

PREFIX = "kinfolk_"  # before the member's name, in `model_type`


@dataclass(frozen=True)
class Own:
    """What the other files of this package say of a member, said for any of them."""

    CONFIG: type[Config]

    @classmethod
    def all(cls) -> list["Own"]:
        """Find the members by the files in models/."""
        names = [found.name for found in pkgutil.iter_modules(kinfolk.models.__path__)]
        presets = [import_module(f"kinfolk.models.{name}").PRESETS for name in names]
        return [cls(type(next(iter(sizes.values())))) for sizes in presets]

    @property
    def TYPE(self) -> str:  # noqa: N802  # as the constant of the other files
        """The `model_type`."""
        return PREFIX + self.CONFIG.__module__.rpartition(".")[2]

    @property
    def FRAME(self) -> str | None:  # noqa: N802
        """What its tokenizer puts around a text."""
        return {"encoder": "bert", "encoder-decoder": "t5"}.get(self._kind)

    @property
    def GENERATES(self) -> bool:  # noqa: N802
        """Whether it writes text."""
        return self._kind != "encoder"

    @property
    def _kind(self) -> str:
        return str(import_module(self.CONFIG.__module__).KIND)

    def to_config(self, c: Any, specials: Specials | None) -> dict[str, Any]:
        """Write config.json."""
        roles = ("bos", "eos", "pad")
        ids = {f"{role}_token_id": getattr(specials, role) for role in roles} if specials else {}
        return {**asdict(c), **ids}

    def from_config(self, data: Mapping[str, Any]) -> Config:
        """Read config.json."""
        known = {field.name for field in fields(self.CONFIG)}  # type: ignore[arg-type]
        given = {name: value for name, value in data.items() if name in known}
        # JSON has no tuples, and a config holds no lists.
        return self.CONFIG(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})

    def names(self, c: Any) -> Names:
        """Call every parameter what it is called here."""
        with torch.device("meta"):
            model: nn.Module = c.build()
        tables = {f"{n}.weight": m.vocab for n, m in model.named_modules() if isinstance(m, Table)}
        return Names(rules=[Rule(n, (n,), rows=tables.get(n)) for n in model.state_dict()])
