"""Two-way tables of names: ours against Hugging Face's, written once, read in both directions."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.nn.language_model import ModelConfig
from kinfolk.text.tokenizer import SpecialTokens


@dataclass(frozen=True)
class ParameterRule:
    """One of our tensors, and what Hugging Face calls it or the parts of it."""

    name: str
    hf_names: tuple[str, ...]  # several where ours stacks them on its first axis
    transposed: bool = False  # theirs is the transpose
    vocab_rows: int | None = None  # theirs ends with the vocabulary; ours goes on, with zeros

    def to_hf(self, tensor: Tensor) -> dict[str, Tensor]:
        """Turn ours into theirs, as views."""
        tensor = tensor[: self.vocab_rows]
        parts = (tensor.T if self.transposed else tensor).chunk(len(self.hf_names))
        return dict(zip(self.hf_names, parts, strict=True))

    def from_hf(self, theirs: Mapping[str, Tensor], rows: int) -> Tensor:
        """Turn theirs into ours, as a copy in float32 with so many rows."""
        tensor = torch.cat([theirs[name] for name in self.hf_names]).float()
        if self.transposed:
            tensor = tensor.T.contiguous()
        return tensor if len(tensor) == rows else F.pad(tensor, (0, 0, 0, rows - len(tensor)))


def module(
    ours: str, *theirs: str, transposed: bool = False, bias: bool = True
) -> list[ParameterRule]:
    """Name the weight of a module, and its bias where it has one."""
    weight = ParameterRule(
        f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transposed=transposed
    )
    return [weight, ParameterRule(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))][
        : 1 + bias
    ]


def per_layer(depth: int, rules: Iterable[ParameterRule]) -> list[ParameterRule]:
    """Write rules out for each layer: `{i}` is its number."""
    return [
        replace(
            rule,
            name=rule.name.format(i=i),
            hf_names=tuple(name.format(i=i) for name in rule.hf_names),
        )
        for rule in rules
        for i in range(depth)
    ]


@dataclass(frozen=True, kw_only=True)
class ParameterMap:
    """All names of one network."""

    rules: list[ParameterRule]
    base_model_prefix: str = (
        ""  # before each name but the heads'; a network saved without heads has none
    )
    optional_prefixes: tuple[str, ...] = ()  # how the names begin that a folder may lack altogether
    aliases: Mapping[str, str] = field(default_factory=dict)  # second names that some folders have
    duplicates: Mapping[str, str] = field(
        default_factory=dict
    )  # second names that every folder has
    fallbacks: Mapping[str, str] = field(
        default_factory=dict
    )  # what a tensor is where it is lacking
    legacy_suffixes: Mapping[str, str] = field(default_factory=dict)  # how names used to end
    ignored_pattern: str = "(?!)"  # a pattern of what old folders hold and nothing needs

    def to_hf(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn all of ours into theirs, as views."""
        assert {rule.name for rule in self.rules} == set(ours), "the table misses a parameter"
        given = {k: v for rule in self.rules for k, v in rule.to_hf(ours[rule.name]).items()}
        return given | {name: given[of] for name, of in self.duplicates.items()}

    def from_hf(
        self, theirs: Mapping[str, Tensor], like: Mapping[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """Turn theirs into ours, in the shapes of `like`; heads that are lacking are left out."""
        found = {self._modern_name(name): tensor for name, tensor in theirs.items()}
        if self.base_model_prefix and not any(
            name.startswith(self.base_model_prefix) for name in found
        ):
            return self._without_prefix().from_hf(found, like, where)
        self._merge_aliases(found, where)
        fresh = self._missing_heads(found, where)
        wanted = [rule for rule in self.rules if not fresh.issuperset(rule.hf_names)]
        assert all(rule.name in like for rule in self.rules), "the table names no parameter"
        shapes = {k: v.shape for rule in wanted for k, v in rule.to_hf(like[rule.name]).items()}
        _check({k: v.shape for k, v in found.items()}, shapes, where)
        return {rule.name: rule.from_hf(found, len(like[rule.name])) for rule in wanted}

    def _modern_name(self, name: str) -> str:
        for old, new in self.legacy_suffixes.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def _without_prefix(self) -> "ParameterMap":
        """Return the names without the prefix, as they are where only the body was saved."""

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
        """Leave one name for each tensor, and drop what nothing needs."""
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
        """Return the names of the heads that are lacking."""
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
    """Refuse names and shapes that are not those of the network."""
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


class Family(Protocol):
    """What a file in this package says of a family member."""

    @property
    def TYPE(self) -> str:  # noqa: N802  # a constant, where a module says it
        """Hugging Face's `model_type`."""
        ...

    @property
    def CONFIG(self) -> type[ModelConfig]:  # noqa: N802
        """What describes its network."""
        ...

    @property
    def FRAME(self) -> str | None:  # noqa: N802
        """What its tokenizer puts around a text."""
        ...

    def to_config(self, c: Any, special_tokens: SpecialTokens | None) -> dict[str, Any]:
        """Write config.json."""
        ...

    def from_config(self, data: Mapping[str, Any]) -> ModelConfig:
        """Read config.json."""
        ...

    def names(self, c: Any) -> ParameterMap:
        """Name every parameter."""
        ...


@runtime_checkable
class Parted(Protocol):
    """A member with networks that Hugging Face keeps apart: each has a sub-folder.

    Their weights are named with the sub-folder and a slash before, as in `generator/norm.bias`.
    """

    @property
    def PARTS(self) -> tuple[str, ...]:  # noqa: N802
        """The names of the sub-folders."""
        ...

    def parts(self, c: Any, special_tokens: SpecialTokens | None) -> dict[str, dict[str, Any]]:
        """Write config.json of each sub-folder; that of the folder is read with these in it."""
        ...


def to_hf_fields(config: Any, fields: Mapping[str, str]) -> dict[str, Any]:
    """Write the fields of a config under their foreign names."""
    return {theirs: getattr(config, ours) for ours, theirs in fields.items()}


def from_hf_fields(data: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Read fields by their foreign names; what is not said keeps its default."""
    return {ours: data[theirs] for ours, theirs in fields.items() if theirs in data}


def require(data: Mapping[str, Any], **supported: Any) -> None:
    """Refuse options that change the network in a way ours cannot follow."""
    for name, value in supported.items():
        if data.get(name, value) != value:
            raise UserError(
                f"config.json says {name}={data[name]!r}, which kinfolk does not build: "
                f"it knows {name}={value!r} alone"
            )
