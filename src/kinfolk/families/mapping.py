"""Two-way maps between our names of parameters and config fields and those of transformers."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError


@dataclass(frozen=True)
class ParameterRule:
    """One of our tensors and its name in transformers, or the names of its parts there."""

    name: str
    hf_names: tuple[str, ...]  # several where ours concatenates them on the first axis
    transposed: bool = False  # theirs is the transpose
    vocab_rows: int | None = None  # theirs ends here; ours has rows of zeros behind it

    def to_hf(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return their tensors, as views of ours."""
        tensor = tensor[: self.vocab_rows]
        parts = (tensor.T if self.transposed else tensor).chunk(len(self.hf_names))
        return dict(zip(self.hf_names, parts, strict=True))

    def from_hf(self, theirs: Mapping[str, Tensor], rows: int) -> Tensor:
        """Return our tensor with so many rows, as a copy in float32."""
        tensor = torch.cat([theirs[name] for name in self.hf_names]).float()
        if self.transposed:
            tensor = tensor.T.contiguous()
        return tensor if len(tensor) == rows else F.pad(tensor, (0, 0, 0, rows - len(tensor)))


def module(
    ours: str, *theirs: str, transposed: bool = False, bias: bool = True
) -> list[ParameterRule]:
    """Return the rules of a module: its weight, and its bias where it has one."""
    weight = ParameterRule(
        f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transposed=transposed
    )
    return [weight, ParameterRule(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))][
        : 1 + bias
    ]


def per_layer(num_layers: int, rules: Iterable[ParameterRule]) -> list[ParameterRule]:
    """Repeat rules for each layer: `{i}` is its number."""
    return [
        replace(
            rule,
            name=rule.name.format(i=i),
            hf_names=tuple(name.format(i=i) for name in rule.hf_names),
        )
        for rule in rules
        for i in range(num_layers)
    ]


@dataclass(frozen=True, kw_only=True)
class ParameterMap:
    """All parameter names of one network."""

    rules: list[ParameterRule]
    # Before each name but those of heads; a network saved without heads has none.
    base_model_prefix: str = ""
    optional_prefixes: tuple[str, ...] = ()  # of names that a folder may lack altogether
    aliases: Mapping[str, str] = field(default_factory=dict)  # second names, in some folders
    duplicates: Mapping[str, str] = field(default_factory=dict)  # second names, in every folder
    fallbacks: Mapping[str, str] = field(default_factory=dict)  # copied from where it is missing
    legacy_suffixes: Mapping[str, str] = field(default_factory=dict)  # how names used to end
    ignored_pattern: str = "(?!)"  # of names in old folders that are not needed

    def to_hf(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all of their tensors, as views of ours."""
        assert {rule.name for rule in self.rules} == set(ours), "the map lacks a parameter"
        theirs = {k: v for rule in self.rules for k, v in rule.to_hf(ours[rule.name]).items()}
        return theirs | {name: theirs[of] for name, of in self.duplicates.items()}

    def from_hf(
        self, theirs: Mapping[str, Tensor], like: Mapping[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """Return our tensors in the shapes of `like`, without those of missing heads."""
        found = {self._modern_name(name): tensor for name, tensor in theirs.items()}
        if self.base_model_prefix and not any(
            name.startswith(self.base_model_prefix) for name in found
        ):
            return self._without_prefix().from_hf(found, like, where)
        self._merge_aliases(found, where)
        fresh = self._missing_heads(found, where)
        wanted = [rule for rule in self.rules if not fresh.issuperset(rule.hf_names)]
        assert all(rule.name in like for rule in self.rules), (
            "the map names a parameter that the network lacks"
        )
        shapes = {k: v.shape for rule in wanted for k, v in rule.to_hf(like[rule.name]).items()}
        _check({k: v.shape for k, v in found.items()}, shapes, where)
        return {rule.name: rule.from_hf(found, len(like[rule.name])) for rule in wanted}

    def _modern_name(self, name: str) -> str:
        for old, new in self.legacy_suffixes.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def _without_prefix(self) -> "ParameterMap":
        """Return the map without the prefix, for a backbone that was saved alone."""

        def bare(name: str) -> str:
            return name.removeprefix(self.base_model_prefix)

        return replace(
            self,
            rules=[replace(rule, hf_names=tuple(map(bare, rule.hf_names))) for rule in self.rules],
            base_model_prefix="",
            optional_prefixes=tuple(map(bare, self.optional_prefixes)),
            aliases={bare(name): bare(of) for name, of in self.aliases.items()},
            duplicates={bare(name): bare(of) for name, of in self.duplicates.items()},
            fallbacks={bare(name): bare(of) for name, of in self.fallbacks.items()},
        )

    def _merge_aliases(self, found: dict[str, Tensor], where: str) -> None:
        """Leave one name for each tensor, and drop ignored ones."""
        needed = {name for rule in self.rules for name in rule.hf_names}
        for name in [n for n in found if n not in needed and re.fullmatch(self.ignored_pattern, n)]:
            del found[name]
        for name, of in (*self.aliases.items(), *self.duplicates.items()):
            if name not in found:
                continue
            second = found.pop(name)
            if not torch.equal(found.setdefault(of, second), second):
                raise UserError(
                    f"{name} and {of} differ in {where}: kinfolk's network has one tensor for both"
                )
        for name, of in self.fallbacks.items():
            if name not in found and of in found:
                warnings.warn(f"{where} has no {name}: it starts as a copy of {of}", stacklevel=4)
                found[name] = found[of]

    def _missing_heads(self, found: Mapping[str, Tensor], where: str) -> set[str]:
        """Return the names of the heads that a folder lacks."""
        names = [name for rule in self.rules for name in rule.hf_names]
        lacking = [
            head for head in self.optional_prefixes if not any(n.startswith(head) for n in found)
        ]
        fresh = [name for name in names if name.startswith(tuple(lacking))]
        if fresh:
            warnings.warn(
                f"{where} was saved without {', '.join(fresh)}: they start fresh, so train them "
                "before you trust them",
                stacklevel=4,
            )
        return set(fresh)


def _check(found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size], where: str) -> None:
    """Refuse names and shapes that do not match the network."""
    if missing := [name for name in wanted if name not in found]:
        raise UserError(f"{where} lacks the weights {', '.join(missing)}")
    if left := [name for name in found if name not in wanted]:
        raise UserError(f"{where} holds weights that have no place: {', '.join(left)}")
    wrong = [
        f"{name} is {tuple(found[name])} and should be {tuple(shape)}"
        for name, shape in wanted.items()
        if found[name] != shape
    ]
    if wrong:
        raise UserError(f"the weights in {where} do not fit its config.json: {', '.join(wrong)}")


def to_hf_fields(config: Any, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a config under the names of transformers."""
    return {theirs: getattr(config, ours) for ours, theirs in fields.items()}


def from_hf_fields(data: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return our fields; those that config.json lacks keep their defaults."""
    return {ours: data[theirs] for ours, theirs in fields.items() if theirs in data}


def require(data: Mapping[str, Any], **supported: Any) -> None:
    """Refuse fields of config.json with another value than the one that is supported."""
    for name, value in supported.items():
        if data.get(name, value) != value:
            raise UserError(
                f"config.json says {name}={data[name]!r}: kinfolk's network supports "
                f"{name}={value!r} alone"
            )
